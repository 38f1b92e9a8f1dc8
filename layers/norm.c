#include "layers/piece.h"

/* GPT-2's layer_norm_epsilon. */
static const float NORM_EPS = 1e-5f;

void tr_norm_describe(tr_norm *norm, tr_layer *layer, const tr_usage *usage, int64_t width) {
    tr_layernorm_desc desc = {
        .rows = usage->rows, .width = width, .eps = NORM_EPS, .dtype = usage->dtype};
    norm->forward.desc = (tr_op_desc){.kind = TR_OP_LAYERNORM, .layernorm = desc};
    norm->grad_input.desc = (tr_op_desc){.kind = TR_OP_LAYERNORM_DGRAD, .layernorm = desc};
    norm->grad_weight.desc = (tr_op_desc){.kind = TR_OP_LAYERNORM_WGRAD, .layernorm = desc};
    norm->y = tr_buffer_place(layer, usage, TR_LIFE_FW, width, usage->dtype);
    norm->mean = tr_buffer_place(layer, usage, TR_LIFE_FW, 1, TR_F32);
    norm->rstd = tr_buffer_place(layer, usage, TR_LIFE_FW, 1, TR_F32);
    if (!usage->decode) norm->dy = tr_buffer_place(layer, usage, TR_LIFE_IW, width, usage->dtype);
}

tr_status tr_norm_prepare(tr_norm *norm, tr_device *device, bool decode, size_t *scratch) {
    TR_TRY(tr_plan_prepare(&norm->forward, device, scratch));
    if (decode) return TR_OK;
    TR_TRY(tr_plan_prepare(&norm->grad_input, device, scratch));
    TR_TRY(tr_plan_prepare(&norm->grad_weight, device, scratch));
    return TR_OK;
}

void tr_norm_release(tr_norm *norm) {
    tr_plan_release(&norm->forward);
    tr_plan_release(&norm->grad_input);
    tr_plan_release(&norm->grad_weight);
}

tr_status tr_norm_forward(const tr_norm *norm, const tr_layer_io *io, void *scratch, tr_tensor x) {
    tr_op_args args = {.t = {[TR_LN_X] = x,
                             [TR_LN_GAMMA] = tr_param_value(norm->gamma),
                             [TR_LN_BETA] = tr_param_value(norm->beta),
                             [TR_LN_Y] = tr_buffer_at(io, norm->y),
                             [TR_LN_MEAN] = tr_buffer_at(io, norm->mean),
                             [TR_LN_RSTD] = tr_buffer_at(io, norm->rstd)}};
    TR_TRY(tr_plan_run(&norm->forward, io, scratch, args));
    return TR_OK;
}

tr_status tr_norm_grad_input(const tr_norm *norm, const tr_layer_io *io, void *scratch, tr_tensor x,
                             tr_tensor residual, tr_tensor dx) {
    tr_op_args args = {.t = {[TR_LN_DGRAD_DY] = tr_buffer_at(io, norm->dy),
                             [TR_LN_DGRAD_X] = x,
                             [TR_LN_DGRAD_GAMMA] = tr_param_value(norm->gamma),
                             [TR_LN_DGRAD_MEAN] = tr_buffer_at(io, norm->mean),
                             [TR_LN_DGRAD_RSTD] = tr_buffer_at(io, norm->rstd),
                             [TR_LN_DGRAD_RESIDUAL] = residual,
                             [TR_LN_DGRAD_DX] = dx}};
    TR_TRY(tr_plan_run(&norm->grad_input, io, scratch, args));
    return TR_OK;
}

tr_status tr_norm_grad_weight(const tr_norm *norm, const tr_layer_io *io, void *scratch,
                              tr_tensor x) {
    tr_op_args args = {.t = {[TR_LN_WGRAD_DY] = tr_buffer_at(io, norm->dy),
                             [TR_LN_WGRAD_X] = x,
                             [TR_LN_WGRAD_MEAN] = tr_buffer_at(io, norm->mean),
                             [TR_LN_WGRAD_RSTD] = tr_buffer_at(io, norm->rstd),
                             [TR_LN_WGRAD_DGAMMA] = tr_param_grad(norm->gamma),
                             [TR_LN_WGRAD_DBETA] = tr_param_grad(norm->beta)}};
    TR_TRY(tr_plan_run(&norm->grad_weight, io, scratch, args));
    return TR_OK;
}
