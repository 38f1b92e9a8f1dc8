#include "layers/norm.h"

tr_status tr_norm_create(tr_norm *n, tr_built_layer *layer, const tr_norm_desc *desc) {
    *n = (tr_norm){.layer = layer, .desc = *desc};
    TR_TRY(tr_built_param(layer, &n->gamma));
    TR_TRY(tr_param_describe(n->gamma, 1, &desc->width, TR_INIT_ONE, 0, "%s.weight", desc->name));
    tr_built_sums_slices(layer, n->gamma);
    n->desc.name = NULL; /* it may point to the caller's buffer */
    if (desc->rms) return TR_OK;
    TR_TRY(tr_built_param(layer, &n->beta));
    TR_TRY(tr_param_describe(n->beta, 1, &desc->width, TR_INIT_ZERO, 0, "%s.bias", desc->name));
    tr_built_sums_slices(layer, n->beta);
    return TR_OK;
}

static void describe_ops(tr_norm *n) {
    tr_built_layer *layer = n->layer;
    const tr_model_shape *shape = &layer->shape;
    tr_op_desc op = {.kind = TR_OP_LAYERNORM,
                     .layernorm = {.rows = shape->slice.extent,
                                   .width = n->desc.width,
                                   .eps = n->desc.eps,
                                   .dtype = shape->dtype}};
    if (n->desc.rms)
        op = (tr_op_desc){.kind = TR_OP_RMSNORM,
                          .rmsnorm = {.rows = shape->slice.extent,
                                      .width = n->desc.width,
                                      .eps = n->desc.eps,
                                      .dtype = shape->dtype}};
    if (!n->with_addition) tr_built_op(layer, &n->forward, TR_PHASE_F, op);
    if (shape->decode) return;
    if (layer->recompute == TR_RECOMPUTE_SELECTIVE) tr_built_op(layer, &n->again, TR_PHASE_W, op);
    op.kind = n->desc.rms ? TR_OP_RMSNORM_DGRAD : TR_OP_LAYERNORM_DGRAD;
    tr_built_op(layer, &n->grad_input, n->desc.in_forward ? TR_PHASE_F : TR_PHASE_I, op);
    op.kind = n->desc.rms ? TR_OP_RMSNORM_WGRAD : TR_OP_LAYERNORM_WGRAD;
    n->has_grad = tr_params_grad_together(n->gamma, n->beta ? 2 : 1);
    if (n->has_grad)
        tr_built_op(layer, &n->grad_weight, n->desc.in_forward ? TR_PHASE_F : TR_PHASE_W, op);
}

void tr_norm_describe(tr_norm *n) {
    tr_built_layer *layer = n->layer;
    const tr_dtype dtype = layer->shape.dtype;
    describe_ops(n);
    const tr_lifetime kept = n->desc.in_forward ? TR_LIFE_SCRATCH : TR_LIFE_FW;
    const tr_lifetime gradient = n->desc.in_forward ? TR_LIFE_SCRATCH : TR_LIFE_IW;
    const tr_lifetime again = layer->recompute == TR_RECOMPUTE_FULL ? TR_LIFE_IW : TR_LIFE_SCRATCH;
    const tr_dtype acc = tr_dtype_acc(dtype);
    n->y = tr_built_save_slice(layer, kept, TR_RECOMPUTE_SELECTIVE, again, n->desc.width, dtype);
    if (!n->desc.rms)
        n->mean = tr_built_save_slice(layer, kept, TR_RECOMPUTE_FULL, TR_LIFE_IW, 1, acc);
    n->rstd = tr_built_save_slice(layer, kept, TR_RECOMPUTE_FULL, TR_LIFE_IW, 1, acc);
    if (!layer->shape.decode) n->dy = tr_built_place_slice(layer, gradient, n->desc.width, dtype);
}

static tr_status run_forward(const tr_norm *n, const tr_layer_op *op, const tr_layer_io *io,
                             tr_tensor x) {
    tr_op_args args;
    if (n->desc.rms)
        args = (tr_op_args){.t = {[TR_RMS_X] = x,
                                  [TR_RMS_GAMMA] = tr_param_value(n->gamma),
                                  [TR_RMS_Y] = tr_buffer_at(io, n->y),
                                  [TR_RMS_RSTD] = tr_buffer_at(io, n->rstd)}};
    else
        args = (tr_op_args){.t = {[TR_LN_X] = x,
                                  [TR_LN_GAMMA] = tr_param_value(n->gamma),
                                  [TR_LN_BETA] = tr_param_value(n->beta),
                                  [TR_LN_Y] = tr_buffer_at(io, n->y),
                                  [TR_LN_MEAN] = tr_buffer_at(io, n->mean),
                                  [TR_LN_RSTD] = tr_buffer_at(io, n->rstd)}};
    return tr_layer_op_run(op, io, args);
}

tr_status tr_norm_forward(const tr_norm *n, const tr_layer_io *io, tr_tensor x) {
    return run_forward(n, &n->forward, io, x);
}

tr_status tr_norm_rebuild(const tr_norm *n, const tr_layer_io *io, tr_tensor x) {
    return run_forward(n, &n->again, io, x);
}

tr_status tr_norm_grad_input(const tr_norm *n, const tr_layer_io *io, tr_tensor x,
                             tr_tensor residual, tr_tensor dx) {
    tr_op_args args;
    if (n->desc.rms)
        args = (tr_op_args){.t = {[TR_RMS_DGRAD_DY] = tr_buffer_at(io, n->dy),
                                  [TR_RMS_DGRAD_X] = x,
                                  [TR_RMS_DGRAD_GAMMA] = tr_param_value(n->gamma),
                                  [TR_RMS_DGRAD_RSTD] = tr_buffer_at(io, n->rstd),
                                  [TR_RMS_DGRAD_RESIDUAL] = residual,
                                  [TR_RMS_DGRAD_DX] = dx}};
    else
        args = (tr_op_args){.t = {[TR_LN_DGRAD_DY] = tr_buffer_at(io, n->dy),
                                  [TR_LN_DGRAD_X] = x,
                                  [TR_LN_DGRAD_GAMMA] = tr_param_value(n->gamma),
                                  [TR_LN_DGRAD_MEAN] = tr_buffer_at(io, n->mean),
                                  [TR_LN_DGRAD_RSTD] = tr_buffer_at(io, n->rstd),
                                  [TR_LN_DGRAD_RESIDUAL] = residual,
                                  [TR_LN_DGRAD_DX] = dx}};
    return tr_layer_op_run(&n->grad_input, io, args);
}

tr_status tr_norm_grad_weight(const tr_norm *n, const tr_layer_io *io, tr_tensor x) {
    tr_op_args args;
    if (!n->has_grad) return TR_OK;
    if (n->desc.rms)
        args = (tr_op_args){.t = {[TR_RMS_WGRAD_DY] = tr_buffer_at(io, n->dy),
                                  [TR_RMS_WGRAD_X] = x,
                                  [TR_RMS_WGRAD_RSTD] = tr_buffer_at(io, n->rstd),
                                  [TR_RMS_WGRAD_DGAMMA] = tr_param_grad(n->gamma)}};
    else
        args = (tr_op_args){.t = {[TR_LN_WGRAD_DY] = tr_buffer_at(io, n->dy),
                                  [TR_LN_WGRAD_X] = x,
                                  [TR_LN_WGRAD_MEAN] = tr_buffer_at(io, n->mean),
                                  [TR_LN_WGRAD_RSTD] = tr_buffer_at(io, n->rstd),
                                  [TR_LN_WGRAD_DGAMMA] = tr_param_grad(n->gamma),
                                  [TR_LN_WGRAD_DBETA] = tr_param_grad(n->beta)}};
    return tr_layer_op_run(&n->grad_weight, io, args);
}
