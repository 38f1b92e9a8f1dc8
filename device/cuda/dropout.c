/* DROPOUT_ADD and DROPOUT_DGRAD. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_dropout_add(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_dropout_add(
        tr_cuda_stream_of(stream), &op->desc.dropout, args->state, args->sample,
        args->t[TR_DROPOUT_X].data, args->t[TR_DROPOUT_BIAS].data,
        args->t[TR_DROPOUT_RESIDUAL].data, args->t[TR_DROPOUT_Y].data));
    return TR_OK;
}

static tr_status run_dropout_dgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_dropout_dgrad(tr_cuda_stream_of(stream), &op->desc.dropout, args->state,
                                         args->sample, args->t[TR_DROPOUT_DGRAD_DY].data,
                                         args->t[TR_DROPOUT_DGRAD_DX].data));
    return TR_OK;
}

tr_status tr_cuda_prepare_dropout_add(const tr_op_context *context, const tr_op_desc *desc,
                                      tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_dropout_add, out);
}
tr_status tr_cuda_prepare_dropout_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                        tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_dropout_dgrad, out);
}
