#include "layers/attention.h"

/* --- parameters ------------------------------------------------------------------------------- */

/* Queries, keys and values of this rank's heads. */
static tr_status create_qkv(tr_attention_part *a) {
    const tr_attention_part_desc *d = &a->desc;
    const int64_t C = d->heads * d->head_size;
    const tr_range q = tr_built_part(a->layer, C);
    const tr_linear_desc desc = {
        .tensor = {{.name = d->qkv,
                    .out = 3 * C,
                    .part = {q, {C + q.begin, q.extent}, {2 * C + q.begin, q.extent}},
                    .parts = 3,
                    .copies = 1}},
        .tensors = 1,
        .in = d->width,
        .inputs = {.extent = d->width},
        .split = TR_SPLIT_COLUMNS,
        .bias = d->qkv_bias,
        .conv1d = d->conv1d,
        .std = d->std};
    return tr_linear_create(&a->qkv, a->layer, &desc);
}

tr_status tr_attention_create(tr_attention_part *a, tr_built_layer *layer,
                              const tr_attention_part_desc *d) {
    *a = (tr_attention_part){.layer = layer, .desc = *d};
    a->heads = d->heads / layer->tp_size;
    TR_TRY(create_qkv(a));
    const tr_linear_desc out = {
        .tensor = {{.name = d->out, .out = d->width, .part = {{.extent = d->width}}, .parts = 1}},
        .tensors = 1,
        .in = d->heads * d->head_size,
        .inputs = tr_built_part(layer, d->heads * d->head_size),
        .split = TR_SPLIT_ROWS,
        .bias = d->out_bias,
        .conv1d = d->conv1d,
        .std = d->out_std};
    return tr_linear_create(&a->out, layer, &out);
}

/* --- description ------------------------------------------------------------------------------ */

static void describe_ops(tr_attention_part *a) {
    tr_built_layer *layer = a->layer;
    const tr_model_shape *usage = &layer->usage;
    const tr_attention_desc desc = {.batch = usage->batch,
                                    .seq = usage->seq,
                                    .heads = a->heads,
                                    .kv_heads = a->heads,
                                    .head_size = a->desc.head_size,
                                    .dtype = usage->dtype};
    tr_op_desc op = {.kind = usage->decode ? TR_OP_ATTENTION_DECODE : TR_OP_ATTENTION,
                     .attention = desc};
    tr_built_op(layer, &a->attend, TR_PHASE_F, op);
    op.kind = TR_OP_ATTENTION_DGRAD;
    tr_built_op(layer, &a->attend_back, TR_PHASE_I, op);
}

/* Bytes of the keys, and of the values, of a decoding cache. */
static size_t cache_part(const tr_attention_part *a) {
    const tr_model_shape *usage = &a->layer->usage;
    return tr_align_up((size_t)(usage->batch * usage->seq * a->heads * a->desc.head_size) *
                       tr_dtype_size(usage->dtype));
}

void tr_attention_describe(tr_attention_part *a) {
    tr_built_layer *layer = a->layer;
    const tr_dtype dtype = layer->usage.dtype;
    const int64_t D = a->desc.head_size;
    tr_linear_describe(&a->qkv);
    describe_ops(a);
    tr_linear_describe(&a->out);
    a->packed = tr_built_place(layer, TR_LIFE_FI, 3 * a->heads * D, dtype);
    a->y = tr_built_place(layer, TR_LIFE_FW, a->heads * D, dtype);
    if (layer->usage.decode) {
        layer->layer.cache_bytes = 2 * cache_part(a);
        return;
    }
    a->lse = tr_built_place(layer, TR_LIFE_FI, a->heads, tr_dtype_acc(dtype));
    a->dpacked = tr_built_place(layer, TR_LIFE_IW, 3 * a->heads * D, dtype);
    a->dy = tr_built_place(layer, TR_LIFE_SCRATCH, a->heads * D, dtype);
}

/* --- F ---------------------------------------------------------------------------------------- */

/* The keys, or the values, of the decoding cache. */
static tr_tensor cache_at(const tr_attention_part *a, const char *data) {
    const tr_model_shape *usage = &a->layer->usage;
    return tr_tensor_matrix(data, usage->dtype, usage->batch * usage->seq,
                            a->heads * a->desc.head_size);
}

static tr_status attend_cache(const tr_attention_part *a, const tr_layer_io *io, tr_tensor qkv) {
    const char *keys = io->cache;
    tr_op_args args = {.t = {[TR_DECODE_QKV] = qkv,
                             [TR_DECODE_KCACHE] = cache_at(a, keys),
                             [TR_DECODE_VCACHE] = cache_at(a, keys + cache_part(a)),
                             [TR_DECODE_Y] = tr_buffer_at(io, a->y)}};
    return tr_layer_op_run(&a->attend, io, args);
}

static tr_tensor lse_at(const tr_attention_part *a, const tr_layer_io *io) {
    const tr_model_shape *usage = &a->layer->usage;
    const int64_t shape[] = {usage->batch, a->heads, usage->seq};
    return tr_tensor_reshape(tr_buffer_at(io, a->lse), 3, shape);
}

static tr_status attend(const tr_attention_part *a, const tr_layer_io *io, tr_tensor qkv) {
    if (a->layer->usage.decode) return attend_cache(a, io, qkv);
    tr_op_args args = {.t = {[TR_ATTENTION_QKV] = qkv,
                             [TR_ATTENTION_Y] = tr_buffer_at(io, a->y),
                             [TR_ATTENTION_LSE] = lse_at(a, io)}};
    return tr_layer_op_run(&a->attend, io, args);
}

tr_status tr_attention_forward(const tr_attention_part *a, const tr_layer_io *io, tr_tensor x,
                               tr_tensor y) {
    const tr_tensor none = {0}, qkv = tr_buffer_at(io, a->packed);
    TR_TRY(tr_linear_forward(&a->qkv, io, x, none, qkv));
    TR_TRY(attend(a, io, qkv));
    return tr_linear_forward(&a->out, io, tr_buffer_at(io, a->y), none, y);
}

/* --- I ---------------------------------------------------------------------------------------- */

tr_status tr_attention_grad_input(const tr_attention_part *a, const tr_layer_io *io, tr_tensor dy,
                                  tr_tensor dx) {
    const tr_tensor none = {0}, dqkv = tr_buffer_at(io, a->dpacked);
    const tr_tensor dheads = tr_buffer_at(io, a->dy);
    TR_TRY(tr_linear_grad_input(&a->out, io, dy, none, dheads));
    tr_op_args back = {.t = {[TR_ATTENTION_DGRAD_DY] = dheads,
                             [TR_ATTENTION_DGRAD_QKV] = tr_buffer_at(io, a->packed),
                             [TR_ATTENTION_DGRAD_Y] = tr_buffer_at(io, a->y),
                             [TR_ATTENTION_DGRAD_LSE] = lse_at(a, io),
                             [TR_ATTENTION_DGRAD_DQKV] = dqkv}};
    TR_TRY(tr_layer_op_run(&a->attend_back, io, back));
    return tr_linear_grad_input(&a->qkv, io, dqkv, none, dx);
}

/* --- W ---------------------------------------------------------------------------------------- */

tr_status tr_attention_grad_weight(const tr_attention_part *a, const tr_layer_io *io, tr_tensor x,
                                   tr_tensor dy) {
    TR_TRY(tr_linear_grad_weight(&a->out, io, tr_buffer_at(io, a->y), dy));
    return tr_linear_grad_weight(&a->qkv, io, x, tr_buffer_at(io, a->dpacked));
}
