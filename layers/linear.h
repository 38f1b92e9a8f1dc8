/* Linear layers: Y[rows, out] = X[rows, in] W (+ bias), whole or split over tensor ranks (Shoeybi
 * et al. 2019, section 3). Private to layers/. */
#pragma once

#include "layers/part.h"

typedef enum tr_split {
    TR_SPLIT_NONE,
    TR_SPLIT_COLUMNS, /* outputs: the input gradient is summed over the tensor ranks */
    TR_SPLIT_ROWS     /* inputs: the output is summed, and its bias comes after the sum */
} tr_split;

enum { TR_LINEAR_TENSORS = 3 };

/* A global weight, and its bias, of which a linear layer holds outputs. */
typedef struct tr_linear_tensor {
    const char *name;                 /* below the layer's name; ".weight" and ".bias" follow */
    int64_t out;                      /* outputs of the whole tensor */
    tr_range part[TR_LINEAR_TENSORS]; /* outputs of this rank, one behind the other */
    int parts;
    int copies; /* neighbouring tensor ranks that have the same outputs; 0: is not split */
} tr_linear_tensor;

typedef struct tr_linear_desc {
    tr_linear_tensor tensor[TR_LINEAR_TENSORS]; /* whose outputs stand one behind the other */
    int tensors;
    int64_t in;      /* inputs of the whole tensor */
    tr_range inputs; /* of this rank */
    tr_split split;
    bool bias;
    bool conv1d; /* the weight is [in, out], as Hugging Face's Conv1D has it; else [out, in] */
    float std;
} tr_linear_desc;

typedef struct tr_linear {
    tr_built_layer *layer;
    tr_param *weight, *bias; /* bias: NULL without */
    int64_t in, out;         /* local */
    tr_split split;
    bool conv1d;
    /* Fused with the product, when they are set before the layer is described: the output goes to
     * aux and the activation of it to y; the input is the activation of aux, so that dx is the
     * gradient of aux. */
    bool activates, activated;
    tr_activation activation;
    bool adds_residual; /* set before too, with rows split over one rank: y = residual + x W + bias
                           is one product */
    tr_layer_op forward, grad_input, grad_weight, grad_bias;
} tr_linear;

tr_status tr_linear_create(tr_linear *linear, tr_built_layer *layer, const tr_linear_desc *desc);
void tr_linear_describe(tr_linear *linear);
/* y of a row-parallel layer is summed over the tensor ranks, and misses its bias and `residual`
 * unless it adds_residual, which is not y. Others do not read `residual`. aux, here and below:
 * absent without an activation. */
tr_status tr_linear_forward(const tr_linear *linear, const tr_layer_io *io, tr_tensor x,
                            tr_tensor aux, tr_tensor residual, tr_tensor y);
/* dx[rows, in] from dy[rows, out], summed over the tensor ranks where the outputs are split. */
tr_status tr_linear_grad_input(const tr_linear *linear, const tr_layer_io *io, tr_tensor dy,
                               tr_tensor aux, tr_tensor dx);
/* Writes the gradients of weight and bias, or adds to them (io->adds). */
tr_status tr_linear_grad_weight(const tr_linear *linear, const tr_layer_io *io, tr_tensor x,
                                tr_tensor dy);
