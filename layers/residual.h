/* y = x + dropout(part + bias): the way of a part's output into the residual stream. Private to
 * layers/. */
#pragma once

#include "layers/part.h"

typedef struct tr_residual {
    tr_built_layer *layer;
    const tr_param *bias; /* of the row-parallel layer before it; NULL: none */
    int64_t width;
    float dropout;
    uint64_t site;
    tr_buffer dpart; /* I..W (rows, width): gradient of the part's output */
    tr_layer_op forward, grad_input;
} tr_residual;

/* `site` is the global name of the dropout, which keys its mask. */
void tr_residual_create(tr_residual *residual, tr_built_layer *layer, int64_t width, double dropout,
                        const tr_param *bias, const char *site);
void tr_residual_describe(tr_residual *residual);
/* part and y may be one tensor. */
tr_status tr_residual_forward(const tr_residual *residual, const tr_layer_io *io, tr_tensor x,
                              tr_tensor part, tr_tensor y);
/* Fills dpart from dy; the gradient of x is dy itself. */
tr_status tr_residual_grad_input(const tr_residual *residual, const tr_layer_io *io, tr_tensor dy);
