/* Norms of rows: LayerNorm, with a bias, or RMSNorm (Zhang and Sennrich 2019). Private to
 * layers/. */
#pragma once

#include "layers/part.h"

typedef struct tr_norm_desc {
    const char *name; /* full name of the module; ".weight" and ".bias" are appended */
    int64_t width;
    double eps;
    bool rms;
    bool in_forward; /* the layer's F contains its I and W */
} tr_norm_desc;

/* The output, and the buffers that the gradients read, are in the layer's F..W block, and the
 * gradient of the output is in I..W. With in_forward all are in scratch. Selective recompute keeps
 * mean and rstd, and only W, which alone reads y, makes it again. */
typedef struct tr_norm {
    tr_built_layer *layer;
    tr_norm_desc desc;
    tr_param *gamma, *beta; /* beta: NULL for RMSNorm */
    tr_buffer y, dy;        /* (rows, width) */
    tr_buffer mean, rstd;   /* f32 (rows); mean: LayerNorm */
    bool has_grad;          /* set when the layer is described: W runs */
    bool with_addition;     /* set before the layer is described: a residual addition fills y, mean
                               and rstd */
    tr_layer_op forward, grad_input, grad_weight;
    tr_layer_op again; /* selective recompute: makes y in W */
} tr_norm;

tr_status tr_norm_create(tr_norm *norm, tr_built_layer *layer, const tr_norm_desc *desc);
void tr_norm_describe(tr_norm *norm);
/* Fills y, mean and rstd from x[rows, width]; not with_addition. */
tr_status tr_norm_forward(const tr_norm *norm, const tr_layer_io *io, tr_tensor x);
/* W with selective recompute: fills y from x again, with the bits of F. */
tr_status tr_norm_rebuild(const tr_norm *norm, const tr_layer_io *io, tr_tensor x);
/* Computes dx, the input gradient for the norm's buffer dy, plus residual, which may be absent, or
 * dx itself. */
tr_status tr_norm_grad_input(const tr_norm *norm, const tr_layer_io *io, tr_tensor x,
                             tr_tensor residual, tr_tensor dx);
tr_status tr_norm_grad_weight(const tr_norm *norm, const tr_layer_io *io, tr_tensor x);
