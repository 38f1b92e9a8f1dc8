#include "device/op_table.h"

static const char *fault(const tr_op_desc *desc) {
    const tr_dropout_desc *d = &desc->dropout;
    if (!tr_op_sizes_fit(1, d->rows, d->width, 1) || !tr_op_sizes_fit(1, d->seq, d->width, 1))
        return "rows, width and seq must be positive";
    if (d->first < 0 || !tr_op_sizes_fit(1, d->first + d->rows, d->width, 1))
        return "first must not be negative";
    return d->p >= 0 && d->p < 1 ? NULL : "p must lie in [0, 1)";
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_dropout_desc *a = &x->dropout, *b = &y->dropout;
    return a->rows == b->rows && a->width == b->width && a->seq == b->seq && a->first == b->first &&
           a->p == b->p && a->site == b->site && a->dtype == b->dtype;
}

static uint64_t key(const tr_op_desc *desc) {
    return desc->dropout.site;
}

static tr_tensor matrix(const tr_dropout_desc *d) {
    return tr_tensor_matrix(NULL, d->dtype, d->rows, d->width);
}

static void add_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_dropout_desc *d = &desc->dropout;
    t[TR_DROPOUT_X] = t[TR_DROPOUT_RESIDUAL] = t[TR_DROPOUT_Y] = matrix(d);
    t[TR_DROPOUT_BIAS] = tr_tensor_vector(NULL, d->dtype, d->width);
}

const tr_op_row tr_op_row_dropout_add = {
    .name = "dropout_add",
    .slot = {[TR_DROPOUT_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_DROPOUT_BIAS] = {"bias", TR_SLOT_IN | TR_SLOT_OPTIONAL, TR_TYPES_STORAGE},
             [TR_DROPOUT_RESIDUAL] = {"residual", TR_SLOT_IN | TR_SLOT_OPTIONAL, TR_TYPES_STORAGE},
             [TR_DROPOUT_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = fault,
    .same = same,
    .key = key,
    .operands = add_operands,
};

static void dgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_DROPOUT_DGRAD_DY] = t[TR_DROPOUT_DGRAD_DX] = matrix(&desc->dropout);
}

const tr_op_row tr_op_row_dropout_dgrad = {
    .name = "dropout_dgrad",
    .slot = {[TR_DROPOUT_DGRAD_DY] = {"dy", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_DROPOUT_DGRAD_DX] = {"dx", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = fault,
    .same = same,
    .key = key,
    .operands = dgrad_operands,
};
