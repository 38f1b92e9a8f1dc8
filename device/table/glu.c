#include "device/op_table.h"

static const char *fault(const tr_op_desc *desc) {
    const tr_glu_desc *d = &desc->glu;
    if (!tr_op_sizes_fit(1, d->rows, d->width, 2)) return "rows and width must be positive";
    if ((unsigned)d->activation >= TR_ACTIVATION_COUNT) return "there is no such activation";
    return NULL;
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_glu_desc *a = &x->glu, *b = &y->glu;
    return a->rows == b->rows && a->width == b->width && a->activation == b->activation &&
           a->dtype == b->dtype;
}

static void operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_glu_desc *d = &desc->glu;
    t[TR_GLU_X] = tr_tensor_matrix(NULL, d->dtype, d->rows, 2 * d->width);
    t[TR_GLU_Y] = tr_tensor_matrix(NULL, d->dtype, d->rows, d->width);
}

const tr_op_row tr_op_row_glu = {
    .name = "glu",
    .slot = {[TR_GLU_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_GLU_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = fault,
    .same = same,
    .operands = operands,
};

static void dgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_glu_desc *d = &desc->glu;
    t[TR_GLU_DGRAD_DY] = tr_tensor_matrix(NULL, d->dtype, d->rows, d->width);
    t[TR_GLU_DGRAD_X] = t[TR_GLU_DGRAD_DX] =
        tr_tensor_matrix(NULL, d->dtype, d->rows, 2 * d->width);
}

const tr_op_row tr_op_row_glu_dgrad = {
    .name = "glu_dgrad",
    .slot = {[TR_GLU_DGRAD_DY] = {"dy", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_GLU_DGRAD_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_GLU_DGRAD_DX] = {"dx", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = fault,
    .same = same,
    .operands = dgrad_operands,
};
