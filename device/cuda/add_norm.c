/* ADD_NORM. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_add_norm(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    TR_CUDA(tr_cuda_launch_add_norm(tr_cuda_stream_of(stream), &op->desc.add_norm, args->state,
                                    args->sample, t[TR_ADD_NORM_SUM].data, t[TR_ADD_NORM_BIAS].data,
                                    t[TR_ADD_NORM_RESIDUAL].data, t[TR_ADD_NORM_GAMMA].data,
                                    t[TR_ADD_NORM_BETA].data, t[TR_ADD_NORM_Y].data,
                                    t[TR_ADD_NORM_MEAN].data, t[TR_ADD_NORM_RSTD].data));
    return TR_OK;
}

tr_status tr_cuda_prepare_add_norm(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_add_norm, out);
}
