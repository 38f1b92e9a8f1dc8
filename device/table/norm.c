#include "device/op_table.h"

static const char *fault(const tr_op_desc *desc) {
    const tr_layernorm_desc *d = &desc->layernorm;
    if (!tr_op_sizes_fit(1, d->rows, d->width, 1)) return "rows and width must be positive";
    return d->eps >= 0 ? NULL : "eps must not be negative";
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_layernorm_desc *a = &x->layernorm, *b = &y->layernorm;
    return a->rows == b->rows && a->width == b->width && a->eps == b->eps && a->dtype == b->dtype;
}

static tr_tensor matrix(const tr_op_desc *desc) {
    const tr_layernorm_desc *d = &desc->layernorm;
    return tr_tensor_matrix(NULL, d->dtype, d->rows, d->width);
}
/* One number a column, and one a row. */
static tr_tensor of_columns(const tr_op_desc *desc, tr_dtype dtype) {
    return tr_tensor_vector(NULL, dtype, desc->layernorm.width);
}
static tr_tensor of_rows(const tr_op_desc *desc) {
    return tr_tensor_vector(NULL, tr_dtype_acc(desc->layernorm.dtype), desc->layernorm.rows);
}

static void operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_LN_X] = t[TR_LN_Y] = matrix(desc);
    t[TR_LN_GAMMA] = t[TR_LN_BETA] = of_columns(desc, desc->layernorm.dtype);
    t[TR_LN_MEAN] = t[TR_LN_RSTD] = of_rows(desc);
}

const tr_op_row tr_op_row_layernorm = {
    .name = "layernorm",
    .slot = {[TR_LN_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_LN_GAMMA] = {"gamma", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_LN_BETA] = {"beta", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_LN_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_LN_MEAN] = {"mean", TR_SLOT_OUT, TR_TYPES_ACC},
             [TR_LN_RSTD] = {"rstd", TR_SLOT_OUT, TR_TYPES_ACC}},
    .fault = fault,
    .same = same,
    .operands = operands,
};

static void dgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_LN_DGRAD_DY] = t[TR_LN_DGRAD_X] = matrix(desc);
    t[TR_LN_DGRAD_RESIDUAL] = t[TR_LN_DGRAD_DX] = matrix(desc);
    t[TR_LN_DGRAD_GAMMA] = of_columns(desc, desc->layernorm.dtype);
    t[TR_LN_DGRAD_MEAN] = t[TR_LN_DGRAD_RSTD] = of_rows(desc);
}

const tr_op_row tr_op_row_layernorm_dgrad = {
    .name = "layernorm_dgrad",
    .slot = {[TR_LN_DGRAD_DY] = {"dy", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_LN_DGRAD_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_LN_DGRAD_GAMMA] = {"gamma", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_LN_DGRAD_MEAN] = {"mean", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_LN_DGRAD_RSTD] = {"rstd", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_LN_DGRAD_RESIDUAL] = {"residual", TR_SLOT_IN | TR_SLOT_OPTIONAL, TR_TYPES_STORAGE},
             [TR_LN_DGRAD_DX] = {"dx", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = fault,
    .same = same,
    .operands = dgrad_operands,
};

static void wgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_LN_WGRAD_DY] = t[TR_LN_WGRAD_X] = matrix(desc);
    t[TR_LN_WGRAD_MEAN] = t[TR_LN_WGRAD_RSTD] = of_rows(desc);
    t[TR_LN_WGRAD_DGAMMA] = t[TR_LN_WGRAD_DBETA] =
        of_columns(desc, tr_dtype_acc(desc->layernorm.dtype));
}

const tr_op_row tr_op_row_layernorm_wgrad = {
    .name = "layernorm_wgrad",
    .slot = {[TR_LN_WGRAD_DY] = {"dy", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_LN_WGRAD_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_LN_WGRAD_MEAN] = {"mean", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_LN_WGRAD_RSTD] = {"rstd", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_LN_WGRAD_DGAMMA] = {"dgamma", TR_SLOT_GRADIENT, TR_TYPES_ACC},
             [TR_LN_WGRAD_DBETA] = {"dbeta", TR_SLOT_GRADIENT, TR_TYPES_ACC}},
    .fault = fault,
    .same = same,
    .operands = wgrad_operands,
};
