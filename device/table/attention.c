#include "base/text.h"
#include "device/op_table.h"

static const char *fault(const tr_op_desc *desc) {
    const tr_attention_desc *d = &desc->attention;
    if (!tr_op_sizes_fit(1, d->heads, d->head_size, 3) ||
        !tr_op_sizes_fit(1, d->kv_heads, d->head_size, 3) ||
        !tr_op_sizes_fit(1, d->batch, d->seq, (d->heads + 2 * d->kv_heads) * d->head_size) ||
        !tr_op_sizes_fit(1, d->seq, d->seq, 1))
        return "batch, seq, heads, kv_heads and head_size must be positive";
    if (d->heads % d->kv_heads) return "heads must be a multiple of kv_heads";
    if (d->window < 0) return "the window must not be negative";
    return d->scale >= 0 ? NULL : "the scale must not be negative";
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_attention_desc *a = &x->attention, *b = &y->attention;
    return a->batch == b->batch && a->seq == b->seq && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_size == b->head_size && a->window == b->window &&
           a->scale == b->scale && a->decode == b->decode && a->documents == b->documents &&
           a->dtype == b->dtype;
}

static void text(const tr_op_desc *desc, char *to, size_t size) {
    const tr_attention_desc *d = &desc->attention;
    tr_text_add(to, size,
                " batch %lld seq %lld heads %lld kv_heads %lld head_size %lld window %lld",
                (long long)d->batch, (long long)d->seq, (long long)d->heads, (long long)d->kv_heads,
                (long long)d->head_size, (long long)d->window);
    tr_text_add(to, size, " scale %.9g%s dtype %s", (double)d->scale,
                d->documents ? " documents" : "", tr_dtype_name(d->dtype));
}

/* [batch, seq, heads, head_size] */
static tr_tensor heads_of(const tr_attention_desc *d, int64_t seq, int64_t heads) {
    const int64_t shape[] = {d->batch, seq, heads, d->head_size};
    return tr_tensor_dense(NULL, d->dtype, 4, shape);
}
static tr_tensor packed(const tr_attention_desc *d, int64_t seq) {
    return heads_of(d, seq, d->heads + 2 * d->kv_heads);
}

static tr_tensor lse_of(const tr_attention_desc *d) {
    const int64_t shape[] = {d->batch, d->heads, d->seq};
    return tr_tensor_dense(NULL, tr_dtype_acc(d->dtype), 3, shape);
}

/* Returns the FLOPs of one of attention's products over the full square, or over twice the part of
 * its lower half within a window: 2 * batch * heads * seq * (seq or less) * head_size. */
static double square(const tr_attention_desc *d) {
    const double seq = (double)d->seq, window = (double)d->window;
    const double side = d->window > 0 && window < seq ? window * (2 - window / seq) : seq;
    return 2.0 * seq * side * (double)d->head_size * (double)d->heads * (double)d->batch;
}

static void operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_attention_desc *d = &desc->attention;
    t[TR_ATTENTION_QKV] = packed(d, d->seq);
    t[TR_ATTENTION_Y] = heads_of(d, d->seq, d->heads);
    t[TR_ATTENTION_LSE] = lse_of(d);
    if (d->documents) t[TR_ATTENTION_STARTS] = tr_tensor_matrix(NULL, TR_I32, d->batch, d->seq);
}

/* QK', PV: two products, half of each square. */
static double flops(const tr_op_desc *desc) {
    return square(&desc->attention);
}

const tr_op_row tr_op_row_attention = {
    .name = "attention",
    .slot = {[TR_ATTENTION_QKV] = {"qkv", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ATTENTION_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_ATTENTION_LSE] = {"lse", TR_SLOT_OUT, TR_TYPES_ACC},
             [TR_ATTENTION_STARTS] = {"starts", TR_SLOT_IN, TR_TYPES_I32}},
    .fault = fault,
    .same = same,
    .text = text,
    .operands = operands,
    .flops = flops,
};

static void dgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_attention_desc *d = &desc->attention;
    t[TR_ATTENTION_DGRAD_QKV] = t[TR_ATTENTION_DGRAD_DQKV] = packed(d, d->seq);
    t[TR_ATTENTION_DGRAD_Y] = t[TR_ATTENTION_DGRAD_DY] = heads_of(d, d->seq, d->heads);
    t[TR_ATTENTION_DGRAD_LSE] = lse_of(d);
    if (d->documents)
        t[TR_ATTENTION_DGRAD_STARTS] = tr_tensor_matrix(NULL, TR_I32, d->batch, d->seq);
}

/* QK', dO V', P'dO, dS K, dS'Q */
static double dgrad_flops(const tr_op_desc *desc) {
    return 2.5 * square(&desc->attention);
}

const tr_op_row tr_op_row_attention_dgrad = {
    .name = "attention_dgrad",
    .slot = {[TR_ATTENTION_DGRAD_DY] = {"dy", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ATTENTION_DGRAD_QKV] = {"qkv", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ATTENTION_DGRAD_Y] = {"y", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ATTENTION_DGRAD_LSE] = {"lse", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_ATTENTION_DGRAD_DQKV] = {"dqkv", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_ATTENTION_DGRAD_STARTS] = {"starts", TR_SLOT_IN, TR_TYPES_I32}},
    .fault = fault,
    .same = same,
    .text = text,
    .operands = dgrad_operands,
    .flops = dgrad_flops,
};

static const char *decode_fault(const tr_op_desc *desc) {
    if (desc->attention.documents) return "decoding has no documents";
    if (desc->attention.decode < 1 || desc->attention.decode > desc->attention.seq)
        return "a sequence must feed at least one token, and at most the cache's length";
    if (desc->attention.batch > TR_STEP_TEXTS) return "more texts than the state has positions";
    return fault(desc);
}

static void decode_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_attention_desc *d = &desc->attention;
    t[TR_DECODE_QKV] = packed(d, d->decode);
    t[TR_DECODE_KCACHE] = t[TR_DECODE_VCACHE] = heads_of(d, d->seq, d->kv_heads);
    t[TR_DECODE_Y] = heads_of(d, d->decode, d->heads);
}

/* Full rows, or a window of each. */
static double decode_flops(const tr_op_desc *desc) {
    const tr_attention_desc *d = &desc->attention;
    const int64_t seen = d->window > 0 && d->window < d->seq ? d->window : d->seq;
    return 4.0 * (double)seen * (double)d->head_size * (double)d->heads *
           (double)(d->batch * d->decode);
}

const tr_op_row tr_op_row_attention_decode = {
    .name = "attention_decode",
    .slot = {[TR_DECODE_QKV] = {"qkv", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_DECODE_KCACHE] = {"kcache", TR_SLOT_BOTH, TR_TYPES_STORAGE},
             [TR_DECODE_VCACHE] = {"vcache", TR_SLOT_BOTH, TR_TYPES_STORAGE},
             [TR_DECODE_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = decode_fault,
    .same = same,
    .operands = decode_operands,
    .flops = decode_flops,
};
