#include "layers/residual.h"

#include "base/philox.h"

void tr_residual_create(tr_residual *r, tr_built_layer *layer, int64_t width, double dropout,
                        const tr_param *bias, const char *site) {
    *r = (tr_residual){.layer = layer,
                       .bias = bias,
                       .width = width,
                       .dropout = (float)dropout,
                       .site = tr_hash_name(site)};
}

void tr_residual_describe(tr_residual *r) {
    tr_built_layer *layer = r->layer;
    const tr_model_shape *usage = &layer->usage;
    tr_dropout_desc desc = {.rows = usage->rows,
                            .width = r->width,
                            .seq = usage->decode ? 1 : usage->seq,
                            .p = usage->decode ? 0 : r->dropout,
                            .site = r->site,
                            .dtype = usage->dtype};
    tr_built_op(layer, &r->forward, TR_PHASE_F,
                (tr_op_desc){.kind = TR_OP_DROPOUT_ADD, .dropout = desc});
    tr_built_op(layer, &r->grad_input, TR_PHASE_I,
                (tr_op_desc){.kind = TR_OP_DROPOUT_DGRAD, .dropout = desc});
    if (!usage->decode) r->dpart = tr_built_place(layer, TR_LIFE_IW, r->width, usage->dtype);
}

tr_status tr_residual_forward(const tr_residual *r, const tr_layer_io *io, tr_tensor x,
                              tr_tensor part, tr_tensor y) {
    tr_op_args args = {.t = {[TR_DROPOUT_X] = part,
                             [TR_DROPOUT_BIAS] = r->bias ? tr_param_value(r->bias) : (tr_tensor){0},
                             [TR_DROPOUT_RESIDUAL] = x,
                             [TR_DROPOUT_Y] = y}};
    return tr_layer_op_run(&r->forward, io, args);
}

tr_status tr_residual_grad_input(const tr_residual *r, const tr_layer_io *io, tr_tensor dy) {
    tr_op_args args = {
        .t = {[TR_DROPOUT_DGRAD_DY] = dy, [TR_DROPOUT_DGRAD_DX] = tr_buffer_at(io, r->dpart)}};
    return tr_layer_op_run(&r->grad_input, io, args);
}
