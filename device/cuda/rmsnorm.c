/* RMSNORM, RMSNORM_DGRAD and RMSNORM_WGRAD. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_rmsnorm(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    TR_CUDA(tr_cuda_launch_rmsnorm(tr_cuda_stream_of(stream), &op->desc.rmsnorm, t[TR_RMS_X].data,
                                   t[TR_RMS_GAMMA].data, t[TR_RMS_Y].data, t[TR_RMS_RSTD].data,
                                   t[TR_RMS_KEPT].data));
    return TR_OK;
}

static tr_status run_rmsnorm_dgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    TR_CUDA(tr_cuda_launch_rmsnorm_dgrad(
        tr_cuda_stream_of(stream), &op->desc.rmsnorm, t[TR_RMS_DGRAD_DY].data,
        t[TR_RMS_DGRAD_X].data, t[TR_RMS_DGRAD_GAMMA].data, t[TR_RMS_DGRAD_RSTD].data,
        t[TR_RMS_DGRAD_RESIDUAL].data, t[TR_RMS_DGRAD_DX].data, t[TR_RMS_DGRAD_KEPT].data));
    return TR_OK;
}

static tr_status run_rmsnorm_wgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    TR_CUDA(tr_cuda_launch_rmsnorm_wgrad(tr_cuda_stream_of(stream), &op->desc.rmsnorm,
                                         t[TR_RMS_WGRAD_DY].data, t[TR_RMS_WGRAD_X].data,
                                         t[TR_RMS_WGRAD_RSTD].data, t[TR_RMS_WGRAD_DGAMMA].data,
                                         args->scratch, args->adds));
    return TR_OK;
}

tr_status tr_cuda_prepare_rmsnorm(const tr_op_context *context, const tr_op_desc *desc,
                                  tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_rmsnorm, out);
}
tr_status tr_cuda_prepare_rmsnorm_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                        tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_rmsnorm_dgrad, out);
}
tr_status tr_cuda_prepare_rmsnorm_wgrad(const tr_op_context *context, const tr_op_desc *desc,
                                        tr_op **out) {
    size_t scratch = tr_cuda_columns_scratch(desc->rmsnorm.rows, desc->rmsnorm.width, 1);
    return tr_cuda_op_create(context, desc, sizeof(tr_op), scratch, run_rmsnorm_wgrad, out);
}
