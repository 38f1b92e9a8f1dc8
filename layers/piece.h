/* What layers are made of: planned operators, buffers by lifetime, and the linear layers and norms
 * split over tensor ranks. Private to layers/.
 *
 * A layer describes its operators and places its buffers when it is created, so that bytes and
 * FLOPs are known without a device; prepare only plans what was described. */
#pragma once

#include "base/memory.h"
#include "layers/model.h"

/* --- operators ----------------------------------------------------------------------------------
 */

typedef struct tr_plan {
    tr_op_desc desc;
    tr_op *op;
} tr_plan;

/* Plans the operator again; *scratch grows to what it needs. */
tr_status tr_plan_prepare(tr_plan *plan, tr_device *device, size_t *scratch);
void tr_plan_release(tr_plan *plan);
/* Runs a plan with the call's stream, step state and sample; `scratch` is the operators' scratch.
 */
tr_status tr_plan_run(const tr_plan *plan, const tr_layer_io *io, void *scratch, tr_op_args args);

/* --- buffers ------------------------------------------------------------------------------------
 */

/* A dense (rows, width) matrix in one of the layer's blocks. */
typedef struct tr_buffer {
    tr_lifetime life;
    int piece;     /* of the layer; not of scratch */
    size_t offset; /* in the layer's block, where that is one place: in scratch, and I..W in B */
    int64_t rows, width;
    tr_dtype dtype;
} tr_buffer;

/* How the pieces are used. Decoding feeds rows = batch rows of one token, and keeps nothing: all
 * buffers are scratch. */
typedef struct tr_usage {
    int64_t batch, seq, rows;
    tr_dtype dtype;
    bool decode;
} tr_usage;

tr_usage tr_usage_train(const tr_model_shape *shape);
tr_usage tr_usage_env(const tr_layer_env *env);
/* An output (batch, seq, width) in the storage type; a step input i32(batch, seq). Decoding: of one
 * token a row. */
tr_flow tr_usage_flow(const tr_usage *usage, const char *name, int64_t width);
tr_flow tr_usage_tokens(const tr_usage *usage, const char *name);
/* Forgets bytes, pieces and FLOPs of a layer that is described again. */
void tr_layer_reset(tr_layer *layer);
/* Frees the layer, whose first member `layer` is, and its list of pieces. */
void tr_layer_free(tr_layer *layer);
/* Checks the environment against what the layer was created for: TR_ERR_INTERNAL when a training
 * shape differs, TR_ERR_CONFIG for decoding with tp > 1. */
tr_status tr_layer_check(const tr_layer *layer, const tr_usage *created, const tr_layer_env *env);

/* Counts (rows, width) elements as the layer's next piece, or at the end of scratch. The caller has
 * checked that the product fits. Without memory for the list, layer->described becomes an error. */
tr_buffer tr_buffer_place(tr_layer *layer, const tr_usage *usage, tr_lifetime life, int64_t width,
                          tr_dtype dtype);
/* The buffer in the memory of one micro-batch. */
tr_tensor tr_buffer_at(const tr_layer_io *io, tr_buffer buffer);
/* (rows, width) in the storage type: what a layer is given, or gives to another. */
tr_tensor tr_usage_tensor(const tr_usage *usage, const void *data, int64_t width);

/* --- linear layers ------------------------------------------------------------------------------
 */

/* Y[rows, out] = X[rows, in] W[in, out] (+ bias), sizes local, W as Hugging Face's Conv1D stores
 * it. Column-parallel (out is split): fused_bias, and the input gradient is partial. Row-parallel
 * (in is split): the output is partial, its reduction and its bias come after. The caller reduces.
 */
typedef struct tr_linear {
    tr_param *weight, *bias;
    bool fused_bias;
    bool before_gelu; /* y is gelu of the output, which goes to aux */
    bool after_gelu;  /* x is gelu of aux: dx is the gradient of aux */
    tr_plan forward, grad_input, grad_weight;
} tr_linear;

/* Describes the operators, with the fields above `forward` set; `in` and `out` are local. Adds F, I
 * and W to the layer's FLOPs. */
void tr_linear_describe(tr_linear *linear, tr_layer *layer, const tr_usage *usage, int64_t in,
                        int64_t out);
tr_status tr_linear_prepare(tr_linear *linear, tr_device *device, bool decode, size_t *scratch);
void tr_linear_release(tr_linear *linear);
tr_status tr_linear_forward(const tr_linear *linear, const tr_layer_io *io, void *scratch,
                            tr_tensor x, tr_tensor aux, tr_tensor y);
/* dx[rows, in] from dy[rows, out]. aux, here and above: absent without GELU. */
tr_status tr_linear_grad_input(const tr_linear *linear, const tr_layer_io *io, void *scratch,
                               tr_tensor dy, tr_tensor aux, tr_tensor dx);
/* Adds to the gradients of weight and bias. */
tr_status tr_linear_grad_weight(const tr_linear *linear, const tr_layer_io *io, void *scratch,
                                tr_tensor x, tr_tensor dy);

/* --- layer norm ---------------------------------------------------------------------------------
 */

/* LayerNorm of the layer's rows of `width`, its saved tensors placed in the layer's F..W block, the
 * gradient of its output in I..W. */
typedef struct tr_norm {
    tr_param *gamma, *beta;
    tr_buffer y;          /* (rows, width) */
    tr_buffer mean, rstd; /* f32 (rows) */
    tr_buffer dy;         /* (rows, width) */
    tr_plan forward, grad_input, grad_weight;
} tr_norm;

/* Describes the operators and places the buffers, with gamma and beta set. */
void tr_norm_describe(tr_norm *norm, tr_layer *layer, const tr_usage *usage, int64_t width);
tr_status tr_norm_prepare(tr_norm *norm, tr_device *device, bool decode, size_t *scratch);
void tr_norm_release(tr_norm *norm);
/* Fills the norm's buffers from x[rows, width]. */
tr_status tr_norm_forward(const tr_norm *norm, const tr_layer_io *io, void *scratch, tr_tensor x);
/* dx = gradient through the norm of its buffer dy, plus residual, which may be absent, or dx. */
tr_status tr_norm_grad_input(const tr_norm *norm, const tr_layer_io *io, void *scratch, tr_tensor x,
                             tr_tensor residual, tr_tensor dx);
tr_status tr_norm_grad_weight(const tr_norm *norm, const tr_layer_io *io, void *scratch,
                              tr_tensor x);
