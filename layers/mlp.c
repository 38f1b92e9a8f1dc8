#include "layers/mlp.h"

tr_status tr_mlp_create(tr_mlp *mlp, tr_built_layer *layer, const tr_mlp_desc *d) {
    const tr_range own = tr_built_part(layer, d->mlp_width);
    const tr_linear_desc up = {
        .tensor = {{.name = d->up, .out = d->mlp_width, .part = {own}, .parts = 1, .copies = 1}},
        .tensors = 1,
        .in = d->width,
        .inputs = {.extent = d->width},
        .split = TR_SPLIT_COLUMNS,
        .bias = d->bias,
        .conv1d = d->conv1d,
        .std = d->std};
    const tr_linear_desc down = {
        .tensor = {{.name = d->down, .out = d->width, .part = {{.extent = d->width}}, .parts = 1}},
        .tensors = 1,
        .in = d->mlp_width,
        .inputs = own,
        .split = TR_SPLIT_ROWS,
        .bias = d->bias,
        .conv1d = d->conv1d,
        .std = d->out_std};
    *mlp = (tr_mlp){.layer = layer, .desc = *d, .local = own.extent};
    TR_TRY(tr_linear_create(&mlp->up, layer, &up));
    TR_TRY(tr_linear_create(&mlp->down, layer, &down));
    mlp->up.before_gelu = mlp->down.after_gelu = true;
    return TR_OK;
}

void tr_mlp_describe(tr_mlp *mlp) {
    tr_built_layer *layer = mlp->layer;
    const tr_dtype dtype = layer->usage.dtype;
    tr_linear_describe(&mlp->up);
    tr_linear_describe(&mlp->down);
    mlp->in = tr_built_place(layer, TR_LIFE_FI, mlp->local, dtype);
    mlp->out = tr_built_place(layer, TR_LIFE_FW, mlp->local, dtype);
    if (!layer->usage.decode) mlp->din = tr_built_place(layer, TR_LIFE_IW, mlp->local, dtype);
}

tr_status tr_mlp_forward(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor x, tr_tensor y) {
    const tr_tensor none = {0}, in = tr_buffer_at(io, mlp->in), out = tr_buffer_at(io, mlp->out);
    TR_TRY(tr_linear_forward(&mlp->up, io, x, in, out));
    return tr_linear_forward(&mlp->down, io, out, none, y);
}

tr_status tr_mlp_grad_input(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor dy, tr_tensor dx) {
    const tr_tensor none = {0}, in = tr_buffer_at(io, mlp->in), din = tr_buffer_at(io, mlp->din);
    TR_TRY(tr_linear_grad_input(&mlp->down, io, dy, in, din));
    return tr_linear_grad_input(&mlp->up, io, din, none, dx);
}

tr_status tr_mlp_grad_weight(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor x, tr_tensor dy) {
    TR_TRY(tr_linear_grad_weight(&mlp->down, io, tr_buffer_at(io, mlp->out), dy));
    return tr_linear_grad_weight(&mlp->up, io, x, tr_buffer_at(io, mlp->din));
}
