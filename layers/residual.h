/* Residual addition: y = x + dropout(part + bias). Without dropout nothing is copied: on one tensor
 * rank the product that makes the part adds x and bias itself, and the gradient of the part is that
 * of y. Otherwise the addition is one operator with the norm of y, where the layer has that norm
 * too. Private to layers/. */
#pragma once

#include "layers/linear.h"
#include "layers/norm.h"

typedef struct tr_residual {
    tr_built_layer *layer;
    const tr_linear *from; /* the row-parallel layer that makes the part */
    tr_norm *norm;         /* the norm of y, which F computes too; NULL: in another layer */
    float dropout;         /* 0 while decoding */
    uint64_t site;
    tr_buffer dpart; /* with dropout: I..W (rows, width): gradient of the part */
    tr_layer_op forward, grad_input;
} tr_residual;

/* Decides whether `from`, which is not described yet, adds x and its bias itself; if not, `norm`,
 * which is not described either and may be NULL, becomes part of the addition. `site` is the global
 * name of the dropout, which keys its mask. */
void tr_residual_create(tr_residual *residual, tr_linear *from, tr_norm *norm, double dropout,
                        const char *site);
void tr_residual_describe(tr_residual *residual);
/* Computes y from the part, which y holds, unless the product has added x, and fills the buffers of
 * the norm, if there is one. */
tr_status tr_residual_forward(const tr_residual *residual, const tr_layer_io *io, tr_tensor x,
                              tr_tensor y);
/* Computes the gradient of the part; tr_residual_dpart() returns it afterwards. The gradient of x
 * is dy itself. */
tr_status tr_residual_grad_input(const tr_residual *residual, const tr_layer_io *io, tr_tensor dy);
/* Returns the gradient of the part, in I and W. Without dropout it is dy, which W then needs,
 * too. */
tr_tensor tr_residual_dpart(const tr_residual *residual, const tr_layer_io *io, tr_tensor dy);
