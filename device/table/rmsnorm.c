#include "device/op_table.h"

/* Returns what is wrong with rows that begin as ld says, or NULL. */
static const char *ld_fault(const tr_rmsnorm_desc *d, int64_t ld) {
    if (ld == 0) return NULL;
    if (d->group < 1 || d->rows % d->group) return "rows must be whole groups";
    if (ld / d->group < d->width) return "ldx or ldy is shorter than a group";
    if (!tr_op_sizes_fit(1, d->rows / d->group, ld, 1)) return "ldx or ldy is out of range";
    return NULL;
}

static const char *fault(const tr_op_desc *desc) {
    const tr_rmsnorm_desc *d = &desc->rmsnorm;
    if (!tr_op_sizes_fit(1, d->rows, d->width, 1)) return "rows and width must be positive";
    if (!(d->eps >= 0)) return "eps must not be negative";
    const char *wrong = ld_fault(d, d->ldx);
    return wrong ? wrong : ld_fault(d, d->ldy);
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_rmsnorm_desc *a = &x->rmsnorm, *b = &y->rmsnorm;
    return a->rows == b->rows && a->width == b->width && a->group == b->group && a->ldx == b->ldx &&
           a->ldy == b->ldy && a->eps == b->eps && a->dtype == b->dtype;
}

static tr_tensor rows_of(const tr_rmsnorm_desc *d, int64_t ld) {
    if (ld == 0) return tr_tensor_matrix(NULL, d->dtype, d->rows, d->width);
    const int64_t shape[] = {d->rows / d->group, d->group, d->width};
    tr_tensor t = tr_tensor_dense(NULL, d->dtype, 3, shape);
    t.stride[0] = ld;
    return t;
}

static void operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_rmsnorm_desc *d = &desc->rmsnorm;
    t[TR_RMS_X] = rows_of(d, d->ldx);
    t[TR_RMS_Y] = rows_of(d, d->ldy);
    t[TR_RMS_KEPT] = rows_of(d, 0);
    t[TR_RMS_GAMMA] = tr_tensor_vector(NULL, d->dtype, d->width);
    t[TR_RMS_RSTD] = tr_tensor_vector(NULL, tr_dtype_acc(d->dtype), d->rows);
}

const tr_op_row tr_op_row_rmsnorm = {
    .name = "rmsnorm",
    .slot = {[TR_RMS_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_RMS_GAMMA] = {"gamma", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_RMS_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_RMS_RSTD] = {"rstd", TR_SLOT_OUT, TR_TYPES_ACC},
             [TR_RMS_KEPT] = {"kept", TR_SLOT_OUT | TR_SLOT_OPTIONAL, TR_TYPES_STORAGE}},
    .fault = fault,
    .same = same,
    .operands = operands,
};

static void dgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_rmsnorm_desc *d = &desc->rmsnorm;
    t[TR_RMS_DGRAD_X] = rows_of(d, d->ldx);
    t[TR_RMS_DGRAD_DY] = t[TR_RMS_DGRAD_RESIDUAL] = t[TR_RMS_DGRAD_DX] = rows_of(d, d->ldy);
    t[TR_RMS_DGRAD_KEPT] = rows_of(d, 0);
    t[TR_RMS_DGRAD_GAMMA] = tr_tensor_vector(NULL, d->dtype, d->width);
    t[TR_RMS_DGRAD_RSTD] = tr_tensor_vector(NULL, tr_dtype_acc(d->dtype), d->rows);
}

const tr_op_row tr_op_row_rmsnorm_dgrad = {
    .name = "rmsnorm_dgrad",
    .slot = {[TR_RMS_DGRAD_DY] = {"dy", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_RMS_DGRAD_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_RMS_DGRAD_GAMMA] = {"gamma", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_RMS_DGRAD_RSTD] = {"rstd", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_RMS_DGRAD_RESIDUAL] = {"residual", TR_SLOT_IN | TR_SLOT_OPTIONAL,
                                        TR_TYPES_STORAGE},
             [TR_RMS_DGRAD_DX] = {"dx", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_RMS_DGRAD_KEPT] = {"kept", TR_SLOT_OUT | TR_SLOT_OPTIONAL, TR_TYPES_STORAGE}},
    .fault = fault,
    .same = same,
    .operands = dgrad_operands,
};

static void wgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_rmsnorm_desc *d = &desc->rmsnorm;
    t[TR_RMS_WGRAD_DY] = rows_of(d, d->ldy);
    t[TR_RMS_WGRAD_X] = rows_of(d, d->ldx);
    t[TR_RMS_WGRAD_RSTD] = tr_tensor_vector(NULL, tr_dtype_acc(d->dtype), d->rows);
    t[TR_RMS_WGRAD_DGAMMA] = tr_tensor_vector(NULL, tr_dtype_acc(d->dtype), d->width);
}

const tr_op_row tr_op_row_rmsnorm_wgrad = {
    .name = "rmsnorm_wgrad",
    .slot = {[TR_RMS_WGRAD_DY] = {"dy", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_RMS_WGRAD_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_RMS_WGRAD_RSTD] = {"rstd", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_RMS_WGRAD_DGAMMA] = {"dgamma", TR_SLOT_GRADIENT, TR_TYPES_ACC}},
    .fault = fault,
    .same = same,
    .operands = wgrad_operands,
};
