/* GLU and GLU_DGRAD. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_glu(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_glu(tr_cuda_stream_of(stream), &op->desc.glu, args->t[TR_GLU_X].data,
                               args->t[TR_GLU_Y].data));
    return TR_OK;
}

static tr_status run_glu_dgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_glu_dgrad(tr_cuda_stream_of(stream), &op->desc.glu,
                                     args->t[TR_GLU_DGRAD_DY].data, args->t[TR_GLU_DGRAD_X].data,
                                     args->t[TR_GLU_DGRAD_DX].data));
    return TR_OK;
}

tr_status tr_cuda_prepare_glu(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_glu, out);
}
tr_status tr_cuda_prepare_glu_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_glu_dgrad, out);
}
