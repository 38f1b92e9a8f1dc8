#include "device/op_table.h"

static const char *fault(const tr_op_desc *desc) {
    const tr_attention_desc *d = &desc->attention;
    if (!tr_op_sizes_fit(1, d->heads, d->head_dim, 3) ||
        !tr_op_sizes_fit(1, d->batch, d->seq, 3 * d->heads * d->head_dim) ||
        !tr_op_sizes_fit(1, d->seq, d->seq, 1))
        return "batch, seq, heads and head_dim must be positive";
    return NULL;
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_attention_desc *a = &x->attention, *b = &y->attention;
    return a->batch == b->batch && a->seq == b->seq && a->heads == b->heads &&
           a->head_dim == b->head_dim && a->dtype == b->dtype;
}

/* [batch, seq, 3, heads, head_dim] of `parts` = 3, [batch, seq, heads, head_dim] of 1. */
static tr_tensor heads_of(const tr_attention_desc *d, int64_t seq, int64_t parts) {
    const int64_t shape[] = {d->batch, seq, parts, d->heads, d->head_dim};
    return tr_tensor_dense(NULL, d->dtype, 5, shape);
}

static tr_tensor lse_of(const tr_attention_desc *d) {
    const int64_t shape[] = {d->batch, d->heads, d->seq};
    return tr_tensor_dense(NULL, TR_F32, 3, shape);
}

/* One of attention's products over the full square: 2 * batch * heads * seq^2 * head_dim. */
static double square(const tr_attention_desc *d) {
    return 2.0 * (double)d->seq * (double)d->seq * (double)d->head_dim * (double)d->heads *
           (double)d->batch;
}

static void operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_attention_desc *d = &desc->attention;
    t[TR_ATTENTION_QKV] = heads_of(d, d->seq, 3);
    t[TR_ATTENTION_Y] = heads_of(d, d->seq, 1);
    t[TR_ATTENTION_LSE] = lse_of(d);
}

/* QK', PV: two products, half of each square. */
static double flops(const tr_op_desc *desc) {
    return square(&desc->attention);
}

const tr_op_row tr_op_row_attention = {
    .name = "attention",
    .slot = {[TR_ATTENTION_QKV] = {"qkv", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ATTENTION_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_ATTENTION_LSE] = {"lse", TR_SLOT_OUT, TR_TYPES_F32}},
    .fault = fault,
    .same = same,
    .operands = operands,
    .flops = flops,
};

static void dgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_attention_desc *d = &desc->attention;
    t[TR_ATTENTION_DGRAD_QKV] = t[TR_ATTENTION_DGRAD_DQKV] = heads_of(d, d->seq, 3);
    t[TR_ATTENTION_DGRAD_Y] = t[TR_ATTENTION_DGRAD_DY] = heads_of(d, d->seq, 1);
    t[TR_ATTENTION_DGRAD_LSE] = lse_of(d);
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
             [TR_ATTENTION_DGRAD_LSE] = {"lse", TR_SLOT_IN, TR_TYPES_F32},
             [TR_ATTENTION_DGRAD_DQKV] = {"dqkv", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = fault,
    .same = same,
    .operands = dgrad_operands,
    .flops = dgrad_flops,
};

static void decode_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_attention_desc *d = &desc->attention;
    t[TR_DECODE_QKV] = heads_of(d, 1, 3);
    t[TR_DECODE_KCACHE] = t[TR_DECODE_VCACHE] = heads_of(d, d->seq, 1);
    t[TR_DECODE_Y] = heads_of(d, 1, 1);
}

/* One full row. */
static double decode_flops(const tr_op_desc *desc) {
    return 2.0 * square(&desc->attention) / (double)desc->attention.seq;
}

const tr_op_row tr_op_row_attention_decode = {
    .name = "attention_decode",
    .slot = {[TR_DECODE_QKV] = {"qkv", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_DECODE_KCACHE] = {"kcache", TR_SLOT_BOTH, TR_TYPES_STORAGE},
             [TR_DECODE_VCACHE] = {"vcache", TR_SLOT_BOTH, TR_TYPES_STORAGE},
             [TR_DECODE_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = fault,
    .same = same,
    .operands = decode_operands,
    .flops = decode_flops,
};
