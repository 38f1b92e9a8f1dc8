#include "layers/residual.h"

#include "base/philox.h"

void tr_residual_create(tr_residual *r, tr_linear *from, double dropout, const char *site) {
    const tr_built_layer *layer = from->layer;
    *r = (tr_residual){.layer = from->layer,
                       .from = from,
                       .dropout = layer->shape.decode ? 0 : (float)dropout,
                       .site = tr_hash_name(site)};
    from->adds_residual = r->dropout == 0 && layer->shape.tp_size == 1;
}

void tr_residual_describe(tr_residual *r) {
    tr_built_layer *layer = r->layer;
    const tr_model_shape *shape = &layer->shape;
    tr_dropout_desc desc = {.rows = shape->rows,
                            .width = r->from->out,
                            .seq = shape->decode ? 1 : shape->seq,
                            .p = r->dropout,
                            .site = r->site,
                            .dtype = shape->dtype};
    if (!r->from->adds_residual)
        tr_built_op(layer, &r->forward, TR_PHASE_F,
                    (tr_op_desc){.kind = TR_OP_DROPOUT_ADD, .dropout = desc});
    if (r->dropout == 0) return;
    tr_built_op(layer, &r->grad_input, TR_PHASE_I,
                (tr_op_desc){.kind = TR_OP_DROPOUT_DGRAD, .dropout = desc});
    r->dpart = tr_built_place(layer, TR_LIFE_IW, r->from->out, shape->dtype);
}

tr_status tr_residual_forward(const tr_residual *r, const tr_layer_io *io, tr_tensor x,
                              tr_tensor y) {
    const tr_param *bias = r->from->bias;
    tr_op_args args = {.t = {[TR_DROPOUT_X] = y,
                             [TR_DROPOUT_BIAS] = bias ? tr_param_value(bias) : (tr_tensor){0},
                             [TR_DROPOUT_RESIDUAL] = x,
                             [TR_DROPOUT_Y] = y}};
    return r->from->adds_residual ? TR_OK : tr_layer_op_run(&r->forward, io, args);
}

tr_status tr_residual_grad_input(const tr_residual *r, const tr_layer_io *io, tr_tensor dy) {
    if (r->dropout == 0) return TR_OK;
    tr_op_args args = {
        .t = {[TR_DROPOUT_DGRAD_DY] = dy, [TR_DROPOUT_DGRAD_DX] = tr_buffer_at(io, r->dpart)}};
    return tr_layer_op_run(&r->grad_input, io, args);
}

tr_tensor tr_residual_dpart(const tr_residual *r, const tr_layer_io *io, tr_tensor dy) {
    return r->dropout == 0 ? dy : tr_buffer_at(io, r->dpart);
}
