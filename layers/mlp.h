/* The MLP of a transformer block: GELU between two linear layers. Private to layers/.
 *
 * R = batch * seq rows, m = this rank's part of the MLP's width. */
#pragma once

#include "layers/linear.h"

typedef struct tr_mlp_desc {
    const char *up, *down;
    int64_t width, mlp_width;
    bool bias, conv1d;
    float std, out_std;
} tr_mlp_desc;

typedef struct tr_mlp {
    tr_built_layer *layer;
    tr_mlp_desc desc;
    int64_t local; /* m */
    tr_linear up, down;
    tr_buffer in;  /* F..I (R, m): what GELU reads */
    tr_buffer out; /* F..W (R, m) */
    tr_buffer din; /* I..W (R, m): gradient of in */
} tr_mlp;

tr_status tr_mlp_create(tr_mlp *mlp, tr_built_layer *layer, const tr_mlp_desc *desc);
void tr_mlp_describe(tr_mlp *mlp);
/* y[R, width] from x[R, width], without the bias of the last layer. */
tr_status tr_mlp_forward(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor x, tr_tensor y);
tr_status tr_mlp_grad_input(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor dy, tr_tensor dx);
tr_status tr_mlp_grad_weight(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor x, tr_tensor dy);
