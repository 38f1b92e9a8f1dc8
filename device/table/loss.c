/* Cross entropy in four operators, and three of them in one. */
#include "device/op_table.h"

static const char *fault(const tr_op_desc *desc) {
    const tr_xent_desc *d = &desc->xent;
    if (!tr_op_sizes_fit(1, d->rows, d->vocab, 1)) return "rows and vocab must be positive";
    if (d->ld && d->ld < d->vocab) return "ld is shorter than a row of logits";
    if (!tr_op_sizes_fit(0, d->rows, d->ld, 1)) return "ld is out of range";
    if (d->vocab_begin < 0 || d->vocab_begin > INT32_MAX || d->vocab > INT32_MAX)
        return "the vocabulary's range must fit 31 bits";
    return NULL;
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_xent_desc *a = &x->xent, *b = &y->xent;
    return a->rows == b->rows && a->vocab == b->vocab && a->vocab_begin == b->vocab_begin &&
           a->ld == b->ld && a->dtype == b->dtype;
}

static void max_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_xent_desc *d = &desc->xent;
    const int64_t ld = d->ld ? d->ld : d->vocab;
    t[TR_XENT_LOGITS] = tr_tensor_narrow(tr_tensor_matrix(NULL, d->dtype, d->rows, ld), d->vocab);
    t[TR_XENT_MAX] = tr_tensor_vector(NULL, tr_dtype_acc(d->dtype), d->rows);
}

static void sum_operands(const tr_op_desc *desc, tr_tensor *t) {
    max_operands(desc, t);
    t[TR_XENT_LABELS] = tr_tensor_vector(NULL, TR_I32, desc->xent.rows);
    t[TR_XENT_SUMS] = tr_tensor_matrix(NULL, tr_dtype_acc(desc->xent.dtype), desc->xent.rows, 2);
}

static void loss_operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_XENT_LABELS] = tr_tensor_vector(NULL, TR_I32, desc->xent.rows);
    t[TR_XENT_SUMS] = tr_tensor_matrix(NULL, tr_dtype_acc(desc->xent.dtype), desc->xent.rows, 2);
    t[TR_XENT_LOSS] = tr_tensor_vector(NULL, TR_F64, 2);
}

const tr_op_row tr_op_row_xent_max = {
    .name = "xent_max",
    .slot = {[TR_XENT_LOGITS] = {"logits", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_XENT_MAX] = {"max", TR_SLOT_OUT, TR_TYPES_ACC}},
    .fault = fault,
    .same = same,
    .operands = max_operands,
};

const tr_op_row tr_op_row_xent_sum = {
    .name = "xent_sum",
    .slot = {[TR_XENT_LOGITS] = {"logits", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_XENT_LABELS] = {"labels", TR_SLOT_IN, TR_TYPES_I32},
             [TR_XENT_MAX] = {"max", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_XENT_SUMS] = {"sums", TR_SLOT_OUT, TR_TYPES_ACC}},
    .fault = fault,
    .same = same,
    .operands = sum_operands,
};

const tr_op_row tr_op_row_xent_loss = {
    .name = "xent_loss",
    .slot = {[TR_XENT_LABELS] = {"labels", TR_SLOT_IN, TR_TYPES_I32},
             [TR_XENT_SUMS] = {"sums", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_XENT_LOSS] = {"loss", TR_SLOT_OUT, TR_TYPES_F64}},
    .fault = fault,
    .same = same,
    .operands = loss_operands,
};

const tr_op_row tr_op_row_xent_dgrad = {
    .name = "xent_dgrad",
    .slot = {[TR_XENT_LOGITS] = {"logits", TR_SLOT_BOTH, TR_TYPES_STORAGE},
             [TR_XENT_LABELS] = {"labels", TR_SLOT_IN, TR_TYPES_I32},
             [TR_XENT_MAX] = {"max", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_XENT_SUMS] = {"sums", TR_SLOT_IN, TR_TYPES_ACC}},
    .fault = fault,
    .same = same,
    .operands = sum_operands,
};

static int decompose(const tr_op_desc *desc, tr_op_part *part) {
    static const tr_op_kind kinds[] = {TR_OP_XENT_MAX, TR_OP_XENT_SUM, TR_OP_XENT_DGRAD};
    enum { PARTS = sizeof kinds / sizeof *kinds };
    for (int k = 0; k < PARTS; k++) {
        part[k] = tr_op_part_of((tr_op_desc){.kind = kinds[k], .xent = desc->xent});
        part[k].from[TR_XENT_LOGITS] = TR_XENT_LOGITS;
        part[k].from[TR_XENT_MAX] = TR_XENT_MAX;
        if (k == 0) continue;
        part[k].from[TR_XENT_LABELS] = TR_XENT_LABELS;
        part[k].from[TR_XENT_SUMS] = TR_XENT_SUMS;
    }
    return PARTS;
}

const tr_op_row tr_op_row_xent = {
    .name = "xent",
    .slot = {[TR_XENT_LOGITS] = {"logits", TR_SLOT_BOTH, TR_TYPES_STORAGE},
             [TR_XENT_LABELS] = {"labels", TR_SLOT_IN, TR_TYPES_I32},
             [TR_XENT_MAX] = {"max", TR_SLOT_OUT, TR_TYPES_ACC},
             [TR_XENT_SUMS] = {"sums", TR_SLOT_OUT, TR_TYPES_ACC}},
    .fault = fault,
    .same = same,
    .operands = sum_operands,
    .decompose = decompose,
};
