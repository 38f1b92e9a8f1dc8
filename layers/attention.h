/* Causal self-attention between its two projections. Tensor ranks hold whole heads. Private to
 * layers/.
 *
 * R = batch * seq rows, D = head_size, h = this rank's heads. */
#pragma once

#include "layers/linear.h"

typedef struct tr_attention_part_desc {
    const char *qkv; /* name of the projection to queries, keys and values, one fused tensor */
    const char *out; /* name of the projection back */
    int64_t width, heads, head_size;
    bool qkv_bias, out_bias, conv1d;
    float std, out_std;
} tr_attention_part_desc;

typedef struct tr_attention_part {
    tr_built_layer *layer;
    tr_attention_part_desc desc;
    int64_t heads; /* of this rank */
    tr_linear qkv, out;
    tr_layer_op attend, attend_back;
    tr_buffer packed;  /* F..I (R, 3, h, D): queries, keys and values */
    tr_buffer lse;     /* F..I f32 (batch, h, seq) */
    tr_buffer y;       /* F..W (R, h D) */
    tr_buffer dy;      /* scratch (R, h D): gradient of y */
    tr_buffer dpacked; /* I..W (R, 3, h, D): their gradient */
} tr_attention_part;

tr_status tr_attention_create(tr_attention_part *attention, tr_built_layer *layer,
                              const tr_attention_part_desc *desc);
void tr_attention_describe(tr_attention_part *attention);
/* y[R, width] from x[R, width], without the bias of the projection back. Decoding reads and fills
 * the layer's cache. */
tr_status tr_attention_forward(const tr_attention_part *attention, const tr_layer_io *io,
                               tr_tensor x, tr_tensor y);
tr_status tr_attention_grad_input(const tr_attention_part *attention, const tr_layer_io *io,
                                  tr_tensor dy, tr_tensor dx);
tr_status tr_attention_grad_weight(const tr_attention_part *attention, const tr_layer_io *io,
                                   tr_tensor x, tr_tensor dy);
