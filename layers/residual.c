#include "layers/residual.h"

#include "base/philox.h"

void tr_residual_create(tr_residual *r, tr_linear *from, tr_norm *norm, double dropout,
                        const char *site) {
    const tr_built_layer *layer = from->layer;
    *r = (tr_residual){.layer = from->layer,
                       .from = from,
                       .norm = norm,
                       .dropout = layer->shape.decode ? 0 : (float)dropout,
                       .site = tr_hash_name(site)};
    from->adds_residual = r->dropout == 0 && layer->shape.tp_size == 1;
    if (norm) norm->with_addition = !from->adds_residual;
}

static bool fuses_norm(const tr_residual *r) {
    return r->norm && r->norm->with_addition;
}

void tr_residual_describe(tr_residual *r) {
    tr_built_layer *layer = r->layer;
    const tr_model_shape *shape = &layer->shape;
    tr_dropout_desc desc = {.rows = shape->slice.extent,
                            .first = shape->slice.begin,
                            .width = r->from->out,
                            .seq = shape->decode ? shape->decode : shape->seq,
                            .p = r->dropout,
                            .site = r->site,
                            .dtype = shape->dtype};
    tr_op_desc forward = {.kind = TR_OP_DROPOUT_ADD, .dropout = desc};
    if (fuses_norm(r))
        forward = (tr_op_desc){
            .kind = TR_OP_ADD_NORM,
            .add_norm = {.add = desc, .eps = r->norm->desc.eps, .rms = r->norm->desc.rms}};
    if (!r->from->adds_residual) tr_built_op(layer, &r->forward, TR_PHASE_F, forward);
    if (r->dropout == 0) return;
    tr_built_op(layer, &r->grad_input, TR_PHASE_I,
                (tr_op_desc){.kind = TR_OP_DROPOUT_DGRAD, .dropout = desc});
    r->dpart = tr_built_place_slice(layer, TR_LIFE_IW, r->from->out, shape->dtype);
}

static tr_tensor bias_of(const tr_residual *r) {
    return r->from->bias ? tr_param_value(r->from->bias) : (tr_tensor){0};
}

static tr_status add(const tr_residual *r, const tr_layer_io *io, tr_tensor x, tr_tensor y) {
    tr_op_args args = {.t = {[TR_DROPOUT_X] = y,
                             [TR_DROPOUT_BIAS] = bias_of(r),
                             [TR_DROPOUT_RESIDUAL] = x,
                             [TR_DROPOUT_Y] = y}};
    return tr_layer_op_run(&r->forward, io, args);
}

static tr_status add_and_norm(const tr_residual *r, const tr_layer_io *io, tr_tensor x,
                              tr_tensor y) {
    const tr_norm *n = r->norm;
    tr_op_args args = {.t = {[TR_ADD_NORM_SUM] = y,
                             [TR_ADD_NORM_BIAS] = bias_of(r),
                             [TR_ADD_NORM_RESIDUAL] = x,
                             [TR_ADD_NORM_GAMMA] = tr_param_value(n->gamma),
                             [TR_ADD_NORM_Y] = tr_buffer_at(io, n->y),
                             [TR_ADD_NORM_RSTD] = tr_buffer_at(io, n->rstd)}};
    if (!n->desc.rms) {
        args.t[TR_ADD_NORM_BETA] = tr_param_value(n->beta);
        args.t[TR_ADD_NORM_MEAN] = tr_buffer_at(io, n->mean);
    }
    return tr_layer_op_run(&r->forward, io, args);
}

tr_status tr_residual_forward(const tr_residual *r, const tr_layer_io *io, tr_tensor x,
                              tr_tensor y) {
    if (fuses_norm(r)) return add_and_norm(r, io, x, y);
    if (!r->from->adds_residual) TR_TRY(add(r, io, x, y));
    return r->norm ? tr_norm_forward(r->norm, io, y) : TR_OK;
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
