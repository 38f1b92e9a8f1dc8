/* SUMSQ, STEP_FINISH, UPDATE, DIRECTION and DESCEND. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_sumsq(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const bool whole = op->desc.sumsq.part == TR_SUMSQ_WHOLE;
    TR_CUDA(tr_cuda_launch_sumsq(tr_cuda_stream_of(stream), &op->desc.sumsq,
                                 args->t[TR_SUMSQ_X].data, args->t[TR_SUMSQ_OUT].data,
                                 whole ? args->scratch : args->t[TR_SUMSQ_SUMS].data));
    return TR_OK;
}

static tr_status run_step_finish(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_step_finish(
        tr_cuda_stream_of(stream), &op->desc.step_finish, args->t[TR_STEP_FINISH_LOSSES].data,
        args->t[TR_STEP_FINISH_NORMS].data, args->t[TR_STEP_FINISH_STATE].data));
    return TR_OK;
}

static tr_cuda_update operands_of(const tr_op_args *args) {
    void *master = args->t[TR_UPDATE_MASTER].data, *value = args->t[TR_UPDATE_VALUE].data;
    return (tr_cuda_update){.grad = args->t[TR_UPDATE_GRAD].data,
                            .master = master,
                            .m = args->t[TR_UPDATE_M].data,
                            .v = args->t[TR_UPDATE_V].data,
                            .value = value == master ? NULL : value,
                            .u = args->t[TR_UPDATE_U].data,
                            .m_scales = args->t[TR_UPDATE_M_SCALES].data,
                            .v_scales = args->t[TR_UPDATE_V_SCALES].data,
                            .sample = args->sample,
                            .element = args->element};
}

static tr_status run_update(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_cuda_update operands = operands_of(args);
    TR_CUDA(
        tr_cuda_launch_update(tr_cuda_stream_of(stream), &op->desc.update, args->state, &operands));
    return TR_OK;
}

static tr_status run_direction(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_cuda_update operands = operands_of(args);
    TR_CUDA(tr_cuda_launch_direction(tr_cuda_stream_of(stream), &op->desc.update, args->state,
                                     &operands));
    return TR_OK;
}

static tr_status run_descend(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    void *master = args->t[TR_DESCEND_MASTER].data, *value = args->t[TR_DESCEND_VALUE].data;
    const tr_cuda_update operands = {.master = master,
                                     .value = value == master ? NULL : value,
                                     .u = args->t[TR_DESCEND_U].data,
                                     .sample = args->sample,
                                     .element = args->element};
    TR_CUDA(tr_cuda_launch_descend(tr_cuda_stream_of(stream), &op->desc.descend, args->state,
                                   args->t[TR_DESCEND_NORMS].data, &operands));
    return TR_OK;
}

static tr_status run_rescale(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_rescale(tr_cuda_stream_of(stream), &op->desc.rescale,
                                   args->t[TR_RESCALE_X].data, args->t[TR_RESCALE_NORMS].data));
    return TR_OK;
}

tr_status tr_cuda_prepare_sumsq(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    const tr_sumsq_desc *d = &desc->sumsq;
    const int64_t blocks = d->part == TR_SUMSQ_WHOLE ? tr_sumsq_blocks(d->count) : 0;
    return tr_cuda_op_create(context, desc, sizeof(tr_op), (size_t)blocks * sizeof(double),
                             run_sumsq, out);
}
tr_status tr_cuda_prepare_step_finish(const tr_op_context *context, const tr_op_desc *desc,
                                      tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_step_finish, out);
}
tr_status tr_cuda_prepare_update(const tr_op_context *context, const tr_op_desc *desc,
                                 tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_update, out);
}
tr_status tr_cuda_prepare_direction(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_direction, out);
}
tr_status tr_cuda_prepare_descend(const tr_op_context *context, const tr_op_desc *desc,
                                  tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_descend, out);
}
tr_status tr_cuda_prepare_rescale(const tr_op_context *context, const tr_op_desc *desc,
                                  tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_rescale, out);
}
