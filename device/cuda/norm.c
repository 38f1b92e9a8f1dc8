/* LAYERNORM, LAYERNORM_DGRAD and LAYERNORM_WGRAD. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_layernorm(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    TR_CUDA(tr_cuda_launch_layernorm(tr_cuda_stream_of(stream), &op->desc.layernorm,
                                     t[TR_LN_X].data, t[TR_LN_GAMMA].data, t[TR_LN_BETA].data,
                                     t[TR_LN_Y].data, t[TR_LN_MEAN].data, t[TR_LN_RSTD].data));
    return TR_OK;
}

static tr_status run_layernorm_dgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    TR_CUDA(tr_cuda_launch_layernorm_dgrad(
        tr_cuda_stream_of(stream), &op->desc.layernorm, t[TR_LN_DGRAD_DY].data,
        t[TR_LN_DGRAD_X].data, t[TR_LN_DGRAD_GAMMA].data, t[TR_LN_DGRAD_MEAN].data,
        t[TR_LN_DGRAD_RSTD].data, t[TR_LN_DGRAD_RESIDUAL].data, t[TR_LN_DGRAD_DX].data));
    return TR_OK;
}

static tr_status run_layernorm_wgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    TR_CUDA(tr_cuda_launch_layernorm_wgrad(
        tr_cuda_stream_of(stream), &op->desc.layernorm, t[TR_LN_WGRAD_DY].data,
        t[TR_LN_WGRAD_X].data, t[TR_LN_WGRAD_MEAN].data, t[TR_LN_WGRAD_RSTD].data,
        t[TR_LN_WGRAD_DGAMMA].data, t[TR_LN_WGRAD_DBETA].data, args->scratch, args->adds));
    return TR_OK;
}

tr_status tr_cuda_prepare_layernorm(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_layernorm, out);
}
tr_status tr_cuda_prepare_layernorm_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                          tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_layernorm_dgrad, out);
}
tr_status tr_cuda_prepare_layernorm_wgrad(const tr_op_context *context, const tr_op_desc *desc,
                                          tr_op **out) {
    size_t scratch = tr_cuda_columns_scratch(desc->layernorm.rows, desc->layernorm.width, 2);
    return tr_cuda_op_create(context, desc, sizeof(tr_op), scratch, run_layernorm_wgrad, out);
}
