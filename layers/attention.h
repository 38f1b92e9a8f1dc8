/* Causal self-attention as a part: the projection to queries, keys and values, norms of single
 * heads, rotary positions, grouped queries (Ainslie et al. 2023), a sliding window, and the
 * projection back. Private to layers/.
 *
 * Tensor ranks hold whole query heads, and the key and value heads that these read. With fewer key
 * heads than ranks, neighbouring ranks hold the same one.
 *
 * R = batch * seq rows, D = head_size, h and k = this rank's query and key heads. */
#pragma once

#include "layers/linear.h"

typedef struct tr_attention_part_desc {
    const char *q, *k, *v; /* names of the projections; k and v NULL: one fused tensor */
    /* Both or neither: NULL where queries and keys are not normalised; they need rotary
     * positions. */
    const char *q_norm, *k_norm;
    const char *out; /* name of the projection back */
    int64_t width, heads, kv_heads, head_size;
    int64_t window; /* positions that a query sees, including its own; 0: all */
    bool rotary;
    double theta; /* of rotary positions */
    tr_rope_scaling scaling;
    double eps;
    bool qkv_bias, out_bias, conv1d;
    tr_init init;
    float std, out_std;
} tr_attention_part_desc;

/* RMSNorm of the query heads, or of the key heads, and their rotary positions, in place in packed
 * qkv. */
typedef struct tr_head_norm {
    tr_param *gamma;
    int64_t at, heads; /* the first head in a row of qkv, and how many */
    /* F..W, recompute selective and full I..W. kept (R, heads * D): the heads before the norm; not
     * when decoding. rstd: f32 (R, heads). */
    tr_buffer kept, rstd;
    tr_buffer dnormed; /* I..W (R, heads * D): gradient of the norm's output */
    tr_layer_op forward, again, grad_input, grad_weight; /* again: selective recompute, in I */
} tr_head_norm;

typedef struct tr_attention_part {
    tr_built_layer *layer;
    tr_attention_part_desc desc;
    int64_t heads, kv_heads; /* of this rank */
    tr_linear qkv, out;
    tr_head_norm q_norm, k_norm;
    tr_layer_op rope, rope_back; /* without norms */
    tr_layer_op attend, attend_back;
    /* Queries, keys and values (R, h + 2 k, D), F..I. packed: as attention reads them; raw: with
     * norms and selective recompute, as the projection makes them, and packed is scratch. */
    tr_buffer packed, raw;
    tr_buffer lse;     /* F..I f32 (batch, h, seq) */
    tr_buffer y;       /* F..W (R, h D) */
    tr_buffer dy;      /* scratch (R, h D): gradient of y */
    tr_buffer dpacked; /* I..W (R, h + 2 k, D): gradient of the projection's output */
} tr_attention_part;

tr_status tr_attention_create(tr_attention_part *attention, tr_built_layer *layer,
                              const tr_attention_part_desc *desc);
void tr_attention_describe(tr_attention_part *attention);
/* Computes y[R, width] from x[R, width]; residual as in the projection back (tr_linear_forward).
 * Decoding reads and extends the layer's cache. */
tr_status tr_attention_forward(const tr_attention_part *attention, const tr_layer_io *io,
                               tr_tensor x, tr_tensor residual, tr_tensor y);
/* Computes this rank's part of dx, which the caller sums over the tensor ranks. */
tr_status tr_attention_grad_input(const tr_attention_part *attention, const tr_layer_io *io,
                                  tr_tensor dy, tr_tensor dx);
tr_status tr_attention_grad_weight(const tr_attention_part *attention, const tr_layer_io *io,
                                   tr_tensor x, tr_tensor dy);
