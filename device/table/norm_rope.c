/* The norm of query or key heads and their rotary positions in one operator. */
#include "device/op_table.h"

/* The norm as an operator of its own, in place. */
static tr_op_desc norm_of(const tr_op_desc *desc) {
    const tr_rope_desc *d = &desc->norm_rope.rope;
    return (tr_op_desc){.kind = TR_OP_RMSNORM,
                        .rmsnorm = {.rows = d->rows * d->heads,
                                    .width = d->head_size,
                                    .group = d->heads,
                                    .ldx = d->ld,
                                    .ldy = d->ld,
                                    .eps = desc->norm_rope.eps,
                                    .dtype = d->dtype}};
}

static tr_op_desc rope_of(const tr_op_desc *desc) {
    return (tr_op_desc){.kind = TR_OP_ROPE, .rope = desc->norm_rope.rope};
}

static const char *fault(const tr_op_desc *desc) {
    const tr_op_desc rope = rope_of(desc);
    const char *wrong = tr_op_row_rope.fault(&rope);
    if (wrong) return wrong;
    if (rope.rope.inverse) return "the inverse is its gradient's";
    const tr_op_desc norm = norm_of(desc);
    return tr_op_row_rmsnorm.fault(&norm);
}

static const char *dgrad_fault(const tr_op_desc *desc) {
    return desc->norm_rope.rope.decode ? "decoding has no gradient" : fault(desc);
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_op_desc a = rope_of(x), b = rope_of(y);
    return tr_op_row_rope.same(&a, &b) && x->norm_rope.eps == y->norm_rope.eps;
}

static tr_tensor heads_of(const tr_rope_desc *d) {
    return tr_tensor_narrow(tr_tensor_matrix(NULL, d->dtype, d->rows, d->ld),
                            d->heads * d->head_size);
}
static tr_tensor dense(const tr_rope_desc *d) {
    return tr_tensor_matrix(NULL, d->dtype, d->rows * d->heads, d->head_size);
}
static tr_tensor rstd_of(const tr_rope_desc *d) {
    return tr_tensor_vector(NULL, tr_dtype_acc(d->dtype), d->rows * d->heads);
}

static void operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_rope_desc *d = &desc->norm_rope.rope;
    t[TR_NORM_ROPE_X] = heads_of(d);
    t[TR_NORM_ROPE_GAMMA] = tr_tensor_vector(NULL, d->dtype, d->head_size);
    t[TR_NORM_ROPE_RSTD] = rstd_of(d);
    if (!d->decode) t[TR_NORM_ROPE_KEPT] = dense(d);
    if (d->documents) t[TR_NORM_ROPE_STARTS] = tr_tensor_vector(NULL, TR_I32, d->rows);
}

static int decompose(const tr_op_desc *desc, tr_op_part *part) {
    part[0] = tr_op_part_of(norm_of(desc));
    part[0].from[TR_RMS_X] = part[0].from[TR_RMS_Y] = TR_NORM_ROPE_X;
    part[0].from[TR_RMS_GAMMA] = TR_NORM_ROPE_GAMMA;
    part[0].from[TR_RMS_RSTD] = TR_NORM_ROPE_RSTD;
    part[0].from[TR_RMS_KEPT] = TR_NORM_ROPE_KEPT;
    part[1] = tr_op_part_of(rope_of(desc));
    part[1].from[TR_ROPE_X] = TR_NORM_ROPE_X;
    part[1].from[TR_ROPE_STARTS] = TR_NORM_ROPE_STARTS;
    return 2;
}

const tr_op_row tr_op_row_norm_rope = {
    .name = "norm_rope",
    .slot = {[TR_NORM_ROPE_X] = {"x", TR_SLOT_BOTH, TR_TYPES_STORAGE},
             [TR_NORM_ROPE_GAMMA] = {"gamma", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_NORM_ROPE_RSTD] = {"rstd", TR_SLOT_OUT, TR_TYPES_ACC},
             [TR_NORM_ROPE_KEPT] = {"kept", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_NORM_ROPE_STARTS] = {"starts", TR_SLOT_IN, TR_TYPES_I32}},
    .fault = fault,
    .same = same,
    .operands = operands,
    .decompose = decompose,
};

static void dgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_rope_desc *d = &desc->norm_rope.rope;
    t[TR_NORM_ROPE_DGRAD_DX] = heads_of(d);
    t[TR_NORM_ROPE_DGRAD_X] = t[TR_NORM_ROPE_DGRAD_DNORMED] = dense(d);
    t[TR_NORM_ROPE_DGRAD_GAMMA] = tr_tensor_vector(NULL, d->dtype, d->head_size);
    t[TR_NORM_ROPE_DGRAD_RSTD] = rstd_of(d);
    if (d->documents) t[TR_NORM_ROPE_DGRAD_STARTS] = tr_tensor_vector(NULL, TR_I32, d->rows);
}

static int dgrad_decompose(const tr_op_desc *desc, tr_op_part *part) {
    tr_op_desc back = rope_of(desc), norm = norm_of(desc);
    back.rope.inverse = true;
    norm.kind = TR_OP_RMSNORM_DGRAD;
    norm.rmsnorm.ldx = 0;
    part[0] = tr_op_part_of(back);
    part[0].from[TR_ROPE_X] = TR_NORM_ROPE_DGRAD_DX;
    part[0].from[TR_ROPE_STARTS] = TR_NORM_ROPE_DGRAD_STARTS;
    part[1] = tr_op_part_of(norm);
    part[1].from[TR_RMS_DGRAD_DY] = part[1].from[TR_RMS_DGRAD_DX] = TR_NORM_ROPE_DGRAD_DX;
    part[1].from[TR_RMS_DGRAD_X] = TR_NORM_ROPE_DGRAD_X;
    part[1].from[TR_RMS_DGRAD_GAMMA] = TR_NORM_ROPE_DGRAD_GAMMA;
    part[1].from[TR_RMS_DGRAD_RSTD] = TR_NORM_ROPE_DGRAD_RSTD;
    part[1].from[TR_RMS_DGRAD_KEPT] = TR_NORM_ROPE_DGRAD_DNORMED;
    return 2;
}

const tr_op_row tr_op_row_norm_rope_dgrad = {
    .name = "norm_rope_dgrad",
    .slot = {[TR_NORM_ROPE_DGRAD_DX] = {"dx", TR_SLOT_BOTH, TR_TYPES_STORAGE},
             [TR_NORM_ROPE_DGRAD_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_NORM_ROPE_DGRAD_GAMMA] = {"gamma", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_NORM_ROPE_DGRAD_RSTD] = {"rstd", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_NORM_ROPE_DGRAD_DNORMED] = {"dnormed", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_NORM_ROPE_DGRAD_STARTS] = {"starts", TR_SLOT_IN, TR_TYPES_I32}},
    .fault = dgrad_fault,
    .same = same,
    .operands = dgrad_operands,
    .decompose = dgrad_decompose,
};
