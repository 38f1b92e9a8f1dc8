#include "layers/mlp.h"

tr_status tr_mlp_create(tr_mlp *mlp, tr_built_layer *layer, const tr_mlp_desc *d) {
    const tr_range own = tr_built_part(layer, d->mlp_width);
    const tr_linear_tensor gate = {
        .name = d->gate, .out = d->mlp_width, .part = {own}, .parts = 1, .copies = 1};
    tr_linear_tensor up = gate;
    up.name = d->up;
    *mlp = (tr_mlp){.layer = layer, .desc = *d, .local = own.extent};
    tr_linear_desc in = {.tensor = {up},
                         .tensors = 1,
                         .in = d->width,
                         .inputs = {.extent = d->width},
                         .split = TR_SPLIT_COLUMNS,
                         .bias = d->bias,
                         .conv1d = d->conv1d,
                         .init = d->init,
                         .std = d->std};
    if (d->gate) in.tensor[0] = gate, in.tensor[in.tensors++] = up;
    const tr_linear_desc down = {
        .tensor = {{.name = d->down, .out = d->width, .part = {{.extent = d->width}}, .parts = 1}},
        .tensors = 1,
        .in = d->mlp_width,
        .inputs = own,
        .split = TR_SPLIT_ROWS,
        .bias = d->bias,
        .conv1d = d->conv1d,
        .init = d->init,
        .std = d->out_std};
    TR_TRY(tr_linear_create(&mlp->up, layer, &in));
    TR_TRY(tr_linear_create(&mlp->down, layer, &down));
    mlp->up.activates = mlp->down.activated = !d->gate;
    mlp->up.activation = mlp->down.activation = d->activation;
    return TR_OK;
}

static void describe_glu(tr_mlp *mlp) {
    const tr_model_shape *shape = &mlp->layer->shape;
    tr_op_desc op = {.kind = TR_OP_GLU,
                     .glu = {.rows = shape->rows,
                             .width = mlp->local,
                             .activation = mlp->desc.activation,
                             .dtype = shape->dtype}};
    tr_built_op(mlp->layer, &mlp->glu, TR_PHASE_F, op);
    op.kind = TR_OP_GLU_DGRAD;
    tr_built_op(mlp->layer, &mlp->glu_back, TR_PHASE_I, op);
}

/* The activation alone, which makes `out` again. */
static void describe_again(tr_mlp *mlp) {
    const tr_model_shape *shape = &mlp->layer->shape;
    tr_op_desc op = mlp->glu.desc;
    if (!mlp->desc.gate)
        op = (tr_op_desc){.kind = TR_OP_ACTIVATION,
                          .rows = {.rows = shape->rows,
                                   .width = mlp->local,
                                   .activation = mlp->desc.activation,
                                   .dtype = shape->dtype}};
    tr_built_op(mlp->layer, &mlp->again, TR_PHASE_I, op);
}

void tr_mlp_describe(tr_mlp *mlp) {
    tr_built_layer *layer = mlp->layer;
    const tr_dtype dtype = layer->shape.dtype;
    const bool gated = mlp->desc.gate;
    tr_linear_describe(&mlp->up);
    if (gated) describe_glu(mlp);
    if (layer->recompute == TR_RECOMPUTE_SELECTIVE) describe_again(mlp);
    mlp->rebuilt_flops = layer->layer.flops_f;
    tr_linear_describe(&mlp->down);
    mlp->rebuilt_flops += tr_lora_rebuild_flops(&mlp->down.lora);
    mlp->in = tr_built_save(layer, gated ? TR_LIFE_FW : TR_LIFE_FI, TR_RECOMPUTE_FULL,
                            gated ? TR_LIFE_IW : TR_LIFE_SCRATCH, mlp->up.out, dtype);
    mlp->out =
        tr_built_save(layer, TR_LIFE_FW, TR_RECOMPUTE_SELECTIVE, TR_LIFE_IW, mlp->local, dtype);
    if (layer->shape.decode) return;
    mlp->din = mlp->in; /* gated: the largest tensor becomes its own gradient */
    if (!mlp->desc.gate) mlp->din = tr_built_place(layer, TR_LIFE_IW, mlp->up.out, dtype);
    if (mlp->desc.gate) mlp->dout = tr_built_place(layer, TR_LIFE_SCRATCH, mlp->local, dtype);
}

/* Fills `in` and `out`. */
static tr_status make_out(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor x) {
    const tr_tensor none = {0}, in = tr_buffer_at(io, mlp->in), out = tr_buffer_at(io, mlp->out);
    if (!mlp->desc.gate) return tr_linear_forward(&mlp->up, io, x, in, none, out);
    tr_op_args glu = {.t = {[TR_GLU_X] = in, [TR_GLU_Y] = out}};
    TR_TRY(tr_linear_forward(&mlp->up, io, x, none, none, in));
    return tr_layer_op_run(&mlp->glu, io, glu);
}

tr_status tr_mlp_forward(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor x, tr_tensor residual,
                         tr_tensor y) {
    const tr_tensor none = {0};
    TR_TRY(make_out(mlp, io, x));
    return tr_linear_forward(&mlp->down, io, tr_buffer_at(io, mlp->out), none, residual, y);
}

tr_status tr_mlp_rebuild(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor x) {
    const tr_tensor in = tr_buffer_at(io, mlp->in), out = tr_buffer_at(io, mlp->out);
    tr_op_args again = {.t = {[TR_ACTIVATION_X] = in, [TR_ACTIVATION_Y] = out}};
    if (mlp->desc.gate) again = (tr_op_args){.t = {[TR_GLU_X] = in, [TR_GLU_Y] = out}};
    if (mlp->layer->recompute == TR_RECOMPUTE_SELECTIVE)
        return tr_layer_op_run(&mlp->again, io, again);
    TR_TRY(make_out(mlp, io, x));
    return tr_lora_rebuild(&mlp->down.lora, io, out);
}

tr_status tr_mlp_grad_input(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor dy, tr_tensor dx) {
    const tr_tensor none = {0}, in = tr_buffer_at(io, mlp->in), din = tr_buffer_at(io, mlp->din);
    if (mlp->desc.gate) {
        const tr_tensor dout = tr_buffer_at(io, mlp->dout);
        tr_op_args glu = {
            .t = {[TR_GLU_DGRAD_DY] = dout, [TR_GLU_DGRAD_X] = in, [TR_GLU_DGRAD_DX] = din}};
        TR_TRY(tr_linear_grad_input(&mlp->down, io, dy, none, dout));
        TR_TRY(tr_layer_op_run(&mlp->glu_back, io, glu));
    } else {
        TR_TRY(tr_linear_grad_input(&mlp->down, io, dy, in, din));
    }
    return tr_linear_grad_input(&mlp->up, io, din, none, dx);
}

tr_status tr_mlp_grad_weight(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor x, tr_tensor dy) {
    TR_TRY(tr_linear_grad_weight(&mlp->down, io, tr_buffer_at(io, mlp->out), dy));
    return tr_linear_grad_weight(&mlp->up, io, x, tr_buffer_at(io, mlp->din));
}
