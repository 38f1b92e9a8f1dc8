/* The MLP of a transformer block: an activation between two linear layers, or a gated one (Shazeer
 * 2020) with gate and up projection in one local matrix. Private to layers/.
 *
 * R = batch * seq rows, m = this rank's part of the MLP's width. */
#pragma once

#include "layers/linear.h"

typedef struct tr_mlp_desc {
    const char *gate; /* NULL: not gated */
    const char *up, *down;
    int64_t width, mlp_width;
    tr_activation activation;
    bool bias, conv1d;
    tr_init init;
    float std, out_std;
} tr_mlp_desc;

typedef struct tr_mlp {
    tr_built_layer *layer;
    tr_mlp_desc desc;
    int64_t local; /* m */
    tr_linear up, down;
    tr_layer_op glu, glu_back; /* gated; else the activation is fused into both products */
    tr_layer_op again;         /* selective recompute: makes out in I */
    double rebuilt_flops;      /* of F without the product down: those of tr_mlp_rebuild after full
                                  recompute */
    tr_buffer in;              /* F..I (R, m), gated F..W (R, 2 m): the activation's input */
    tr_buffer out;             /* F..W (R, m) */
    tr_buffer dout;            /* scratch (R, m): gradient of out, gated */
    tr_buffer din;             /* I..W (R, m), gated `in`: gradient of in */
} tr_mlp;

tr_status tr_mlp_create(tr_mlp *mlp, tr_built_layer *layer, const tr_mlp_desc *desc);
void tr_mlp_describe(tr_mlp *mlp);
/* Computes y[R, width] from x[R, width]; residual as in the last linear layer
 * (tr_linear_forward). */
tr_status tr_mlp_forward(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor x, tr_tensor residual,
                         tr_tensor y);
/* I with recompute: fills the buffers that F did not keep from x, which is absent with selective
 * recompute. */
tr_status tr_mlp_rebuild(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor x);
/* Computes this rank's part of dx, which the caller sums over the tensor ranks. */
tr_status tr_mlp_grad_input(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor dy, tr_tensor dx);
tr_status tr_mlp_grad_weight(const tr_mlp *mlp, const tr_layer_io *io, tr_tensor x, tr_tensor dy);
