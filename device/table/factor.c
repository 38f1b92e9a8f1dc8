/* FACTOR_SUMS and FACTOR: Adafactor's second moments of a matrix. */
#include "device/op_table.h"

static const char *factor_fault(const tr_op_desc *desc) {
    const tr_factor_desc *d = &desc->factor;
    if (!tr_op_sizes_fit(1, d->rows, d->cols, 1) ||
        !tr_op_sizes_fit(1, d->all_rows, d->all_cols, 1))
        return "rows and columns are out of range";
    if (d->rows > d->all_rows || d->cols > d->all_cols ||
        (d->rows < d->all_rows && d->cols < d->all_cols))
        return "the part must have all rows or all columns";
    return NULL;
}

static bool same_factor(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_factor_desc *a = &x->factor, *b = &y->factor;
    return a->rows == b->rows && a->cols == b->cols && a->all_rows == b->all_rows &&
           a->all_cols == b->all_cols && a->scales == b->scales && a->bf16_grad == b->bf16_grad &&
           a->dtype == b->dtype;
}

static void factor_sums_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_factor_desc *d = &desc->factor;
    t[TR_FACTOR_X] =
        tr_tensor_matrix(NULL, d->bf16_grad ? TR_BF16 : tr_dtype_acc(d->dtype), d->rows, d->cols);
    t[TR_FACTOR_ROWS] = tr_tensor_vector(NULL, TR_F64, d->rows);
    t[TR_FACTOR_COLS] = tr_tensor_vector(NULL, TR_F64, d->cols);
}

static void factor_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_factor_desc *d = &desc->factor;
    factor_sums_operands(desc, t);
    t[TR_FACTOR_R] = tr_tensor_vector(NULL, tr_dtype_acc(d->dtype), d->rows);
    t[TR_FACTOR_C] = tr_tensor_vector(NULL, tr_dtype_acc(d->dtype), d->cols);
    t[TR_FACTOR_NORM] = tr_tensor_vector(NULL, TR_F64, 1);
    t[TR_FACTOR_U] = tr_tensor_matrix(NULL, tr_dtype_acc(d->dtype), d->rows, d->cols);
}

const tr_op_row tr_op_row_factor_sums = {
    .name = "factor_sums",
    .slot = {[TR_FACTOR_X] = {"x", TR_SLOT_IN, TR_TYPES_ACC | TR_TYPES_BF16},
             [TR_FACTOR_ROWS] = {"rows", TR_SLOT_OUT, TR_TYPES_F64},
             [TR_FACTOR_COLS] = {"cols", TR_SLOT_OUT, TR_TYPES_F64}},
    .fault = factor_fault,
    .same = same_factor,
    .operands = factor_sums_operands,
};

const tr_op_row tr_op_row_factor = {
    .name = "factor",
    .slot = {[TR_FACTOR_X] = {"x", TR_SLOT_IN, TR_TYPES_ACC | TR_TYPES_BF16},
             [TR_FACTOR_ROWS] = {"rows", TR_SLOT_IN, TR_TYPES_F64},
             [TR_FACTOR_COLS] = {"cols", TR_SLOT_IN, TR_TYPES_F64},
             [TR_FACTOR_R] = {"r", TR_SLOT_BOTH, TR_TYPES_ACC},
             [TR_FACTOR_C] = {"c", TR_SLOT_BOTH, TR_TYPES_ACC},
             [TR_FACTOR_NORM] = {"norm", TR_SLOT_OUT | TR_SLOT_OPTIONAL, TR_TYPES_F64},
             [TR_FACTOR_U] = {"u", TR_SLOT_OUT, TR_TYPES_ACC}},
    .fault = factor_fault,
    .same = same_factor,
    .operands = factor_operands,
};
