/* Element-wise operators of rows x width, and sums over the rows. */
#include "device/op_table.h"

static const char *fault(const tr_op_desc *desc) {
    const tr_rows_desc *d = &desc->rows;
    return tr_op_sizes_fit(1, d->rows, d->width, 1) ? NULL : "rows and width must be positive";
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_rows_desc *a = &x->rows, *b = &y->rows;
    return a->rows == b->rows && a->width == b->width && a->dtype == b->dtype && a->to == b->to &&
           a->activation == b->activation;
}

static const char *activation_fault(const tr_op_desc *desc) {
    if ((unsigned)desc->rows.activation >= TR_ACTIVATION_COUNT)
        return "there is no such activation";
    return fault(desc);
}

static tr_tensor matrix(const tr_op_desc *desc, tr_dtype dtype) {
    return tr_tensor_matrix(NULL, dtype, desc->rows.rows, desc->rows.width);
}

static void bias_grad_operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_BIAS_GRAD_DY] = matrix(desc, desc->rows.dtype);
    t[TR_BIAS_GRAD_DBIAS] =
        tr_tensor_vector(NULL, tr_dtype_acc(desc->rows.dtype), desc->rows.width);
}

const tr_op_row tr_op_row_bias_grad = {
    .name = "bias_grad",
    .slot = {[TR_BIAS_GRAD_DY] = {"dy", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_BIAS_GRAD_DBIAS] = {"dbias", TR_SLOT_GRADIENT, TR_TYPES_ACC}},
    .fault = fault,
    .same = same,
    .operands = bias_grad_operands,
};

static void activation_operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_ACTIVATION_X] = t[TR_ACTIVATION_Y] = matrix(desc, desc->rows.dtype);
}

const tr_op_row tr_op_row_activation = {
    .name = "activation",
    .slot = {[TR_ACTIVATION_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ACTIVATION_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = activation_fault,
    .same = same,
    .operands = activation_operands,
};

static void activation_dgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_ACTIVATION_DGRAD_DY] = t[TR_ACTIVATION_DGRAD_X] = t[TR_ACTIVATION_DGRAD_DX] =
        matrix(desc, desc->rows.dtype);
}

const tr_op_row tr_op_row_activation_dgrad = {
    .name = "activation_dgrad",
    .slot = {[TR_ACTIVATION_DGRAD_DY] = {"dy", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ACTIVATION_DGRAD_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ACTIVATION_DGRAD_DX] = {"dx", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = activation_fault,
    .same = same,
    .operands = activation_dgrad_operands,
};

static void add_operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_ADD_A] = t[TR_ADD_B] = t[TR_ADD_Y] = matrix(desc, desc->rows.dtype);
}

const tr_op_row tr_op_row_add = {
    .name = "add",
    .slot = {[TR_ADD_A] = {"a", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ADD_B] = {"b", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ADD_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = fault,
    .same = same,
    .operands = add_operands,
};

static void cast_operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_CAST_X] = matrix(desc, desc->rows.dtype);
    t[TR_CAST_Y] = matrix(desc, desc->rows.to);
}

const tr_op_row tr_op_row_cast = {
    .name = "cast",
    .slot = {[TR_CAST_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_CAST_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = fault,
    .same = same,
    .operands = cast_operands,
};

static void add_rows_operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_ADD_ROWS_X] = matrix(desc, desc->rows.dtype);
    t[TR_ADD_ROWS_Y] = tr_tensor_vector(NULL, desc->rows.dtype, desc->rows.width);
}

const tr_op_row tr_op_row_add_rows = {
    .name = "add_rows",
    .slot = {[TR_ADD_ROWS_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ADD_ROWS_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fp64 = true,
    .fault = fault,
    .same = same,
    .operands = add_rows_operands,
};
