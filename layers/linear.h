/* Linear layers: Y[rows, out] = X[rows, in] W (+ bias), whole or split over tensor ranks (Shoeybi
 * et al. 2019, section 3). Private to layers/. */
#pragma once

#include "layers/lora.h"

typedef enum tr_split {
    TR_SPLIT_COLUMNS, /* by outputs: the caller sums the input gradient over the tensor ranks */
    TR_SPLIT_ROWS     /* by inputs: the output is summed, and then its bias is added */
} tr_split;

enum { TR_LINEAR_TENSORS = 3 };

/* A global weight, with its bias; a linear layer holds some of its outputs. */
typedef struct tr_linear_tensor {
    const char *name; /* after the layer's name; ".weight" and ".bias" are appended */
    int64_t out;      /* outputs of the whole tensor */
    tr_range part[TR_LINEAR_TENSORS]; /* outputs of this rank, in this order */
    int parts;
    int copies; /* number of neighbouring tensor ranks with the same outputs; 0: not split */
} tr_linear_tensor;

typedef struct tr_linear_desc {
    tr_linear_tensor tensor[TR_LINEAR_TENSORS]; /* their outputs are concatenated */
    int tensors;
    int64_t in;      /* inputs of the whole tensor */
    tr_range inputs; /* of this rank */
    tr_split split;
    bool bias;
    bool conv1d;  /* the weight is [in, out], as in Hugging Face's Conv1D; else [out, in] */
    tr_init init; /* of the weights */
    float std;
} tr_linear_desc;

typedef struct tr_linear {
    tr_built_layer *layer;
    /* The first of the layer's adjacent parameters, which are one local matrix or vector; bias:
     * NULL if there is none. */
    tr_param *weight, *bias;
    int weights, biases; /* how many */
    bool has_dw, has_db; /* set when the layer is described: W computes the gradient */
    int64_t in, out;     /* local */
    tr_split split;
    bool conv1d;
    tr_lora lora;
    /* Set before the layer is described, for TR_SPLIT_ROWS with sequence parallelism: (rows, out),
     * this rank's part of the sum. */
    tr_buffer all;
    /* Set before the layer is described, to fuse with the product. activates: the output goes to
     * aux, and its activation to y. activated: the input is the activation of aux, so dx is the
     * gradient of aux. */
    bool activates, activated;
    tr_activation activation;
    /* Likewise, for TR_SPLIT_ROWS on one tensor rank: y = residual + x W + bias is one product. */
    bool adds_residual;
    tr_layer_op forward, grad_input;
    tr_layer_op grad_weight; /* a product, or if only the bias is trained, its gradient's sum */
    /* With an update, which comes between them and the product. */
    tr_layer_op activate, activate_grad;
} tr_linear;

tr_status tr_linear_create(tr_linear *linear, tr_built_layer *layer, const tr_linear_desc *desc);
void tr_linear_describe(tr_linear *linear);
/* Computes y. A row-parallel layer's y is a slice of the rows, summed over the tensor ranks, and
 * does not contain bias and `residual` (which must not be y) unless the layer adds_residual. Other
 * layers do not read `residual`. aux, here and below: absent without an activation. */
tr_status tr_linear_forward(const tr_linear *linear, const tr_layer_io *io, tr_tensor x,
                            tr_tensor aux, tr_tensor residual, tr_tensor y);
/* Computes dx[rows, in] from dy[rows, out]: if the outputs are split, a rank's part of a sum over
 * the tensor ranks, which the caller makes. */
tr_status tr_linear_grad_input(const tr_linear *linear, const tr_layer_io *io, tr_tensor dy,
                               tr_tensor aux, tr_tensor dx);
/* Writes the gradients of weight and bias, or adds to them (io->adds), as far as they are
 * trained. */
tr_status tr_linear_grad_weight(const tr_linear *linear, const tr_layer_io *io, tr_tensor x,
                                tr_tensor dy);
/* Returns true when W has work, after tr_linear_describe. */
bool tr_linear_has_grads(const tr_linear *linear);
