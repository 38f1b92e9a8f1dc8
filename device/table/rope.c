#include "device/op_table.h"

static const char *scaling_fault(const tr_rope_scaling *s) {
    if ((unsigned)s->kind >= TR_ROPE_KINDS) return "there is no such scaling";
    if (s->kind != TR_ROPE_PLAIN && !(s->factor > 0)) return "the scaling factor must be positive";
    if (s->kind >= TR_ROPE_LLAMA3 && s->original < 1) return "the original context is missing";
    if (s->kind == TR_ROPE_LLAMA3 && !(s->low_factor > 0 && s->high_factor > s->low_factor))
        return "high_factor must be above low_factor, and that above 0";
    return NULL;
}

static const char *fault(const tr_op_desc *desc) {
    const tr_rope_desc *d = &desc->rope;
    if (!tr_op_sizes_fit(1, d->rows, d->ld, 1) ||
        !tr_op_sizes_fit(1, d->seq, d->heads, d->head_size))
        return "rows, seq, heads, head_size and ld must be positive";
    if (d->head_size % 2) return "head_size must be even";
    if (d->ld < d->heads * d->head_size) return "ld is shorter than a row of heads";
    if (!(d->theta > 1)) return "theta must be above 1";
    if (d->decode && d->rows > d->decode * TR_STEP_TEXTS)
        return "more texts than the state has positions";
    if (!d->decode && d->rows % d->seq) return "its rows must be whole sequences";
    return scaling_fault(&d->scaling);
}

static bool same_scaling(const tr_rope_scaling *a, const tr_rope_scaling *b) {
    return a->kind == b->kind && a->original == b->original && a->factor == b->factor &&
           a->low_factor == b->low_factor && a->high_factor == b->high_factor &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->attention_factor == b->attention_factor;
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_rope_desc *a = &x->rope, *b = &y->rope;
    return a->rows == b->rows && a->seq == b->seq && a->heads == b->heads &&
           a->head_size == b->head_size && a->ld == b->ld && a->theta == b->theta &&
           same_scaling(&a->scaling, &b->scaling) && a->inverse == b->inverse &&
           a->decode == b->decode && a->documents == b->documents && a->dtype == b->dtype;
}

static void operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_rope_desc *d = &desc->rope;
    t[TR_ROPE_X] =
        tr_tensor_narrow(tr_tensor_matrix(NULL, d->dtype, d->rows, d->ld), d->heads * d->head_size);
    if (d->documents) t[TR_ROPE_STARTS] = tr_tensor_vector(NULL, TR_I32, d->rows);
}

const tr_op_row tr_op_row_rope = {
    .name = "rope",
    .slot = {[TR_ROPE_X] = {"x", TR_SLOT_BOTH, TR_TYPES_STORAGE},
             [TR_ROPE_STARTS] = {"starts", TR_SLOT_IN, TR_TYPES_I32}},
    .fault = fault,
    .same = same,
    .operands = operands,
};
