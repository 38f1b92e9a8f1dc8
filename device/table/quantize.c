/* QUANTIZE, and the checks of the boxes of all operators that round. */
#include "base/philox.h"
#include "device/op_table.h"

static bool is_box(const tr_quantize_box *b) {
    return b->begin >= 0 && b->first >= 0 && b->step >= 0 && b->ld >= b->cols &&
           tr_op_sizes_fit(1, b->rows, b->cols, 1) && tr_op_sizes_fit(0, b->rows, b->ld, 1);
}

const char *tr_quantize_boxes_fault(const tr_quantize_desc *d) {
    if (d->boxes < 1 || d->boxes > TR_QUANTIZE_BOXES) return "boxes is out of range";
    for (int k = 0; k < d->boxes; k++)
        if (!is_box(&d->box[k])) return "a box is out of range";
    return NULL;
}

static const char *quantize_fault(const tr_op_desc *desc) {
    const tr_quantize_desc *d = &desc->quantize;
    if (!tr_op_sizes_fit(0, d->count, 1, 1)) return "count is out of range";
    return tr_quantize_boxes_fault(d);
}

bool tr_quantize_same(const tr_quantize_desc *a, const tr_quantize_desc *b) {
    bool same = a->count == b->count && a->use == b->use && a->boxes == b->boxes;
    for (int k = 0; k < a->boxes && same; k++) {
        const tr_quantize_box *p = &a->box[k], *q = &b->box[k];
        same = p->name == q->name && p->begin == q->begin && p->rows == q->rows &&
               p->cols == q->cols && p->ld == q->ld && p->first == q->first && p->step == q->step;
    }
    return same;
}

uint64_t tr_quantize_key(const tr_quantize_desc *d) {
    uint64_t key = (uint64_t)d->use;
    for (int k = 0; k < d->boxes; k++)
        key = tr_mix64(key ^ d->box[k].name) ^ (uint64_t)d->box[k].begin;
    return key;
}

static bool same_quantize(const tr_op_desc *a, const tr_op_desc *b) {
    return tr_quantize_same(&a->quantize, &b->quantize);
}

static uint64_t quantize_key(const tr_op_desc *desc) {
    return tr_quantize_key(&desc->quantize);
}

static void quantize_operands(const tr_op_desc *desc, tr_tensor *t) {
    t[TR_QUANTIZE_X] = tr_tensor_vector(NULL, TR_F32, desc->quantize.count);
    t[TR_QUANTIZE_Y] = tr_tensor_vector(NULL, TR_BF16, desc->quantize.count);
}

const tr_op_row tr_op_row_quantize = {
    .name = "quantize",
    .slot = {[TR_QUANTIZE_X] = {"x", TR_SLOT_IN, TR_TYPES_F32},
             [TR_QUANTIZE_Y] = {"y", TR_SLOT_GRADIENT, TR_TYPES_BF16}},
    .fault = quantize_fault,
    .same = same_quantize,
    .key = quantize_key,
    .operands = quantize_operands,
};
