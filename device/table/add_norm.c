/* A residual addition and the norm of its sum in one operator. */
#include "device/op_table.h"

/* The addition and the norm as operators of their own. */
static tr_op_desc add_of(const tr_op_desc *desc) {
    return (tr_op_desc){.kind = TR_OP_DROPOUT_ADD, .dropout = desc->add_norm.add};
}

static tr_op_desc norm_of(const tr_op_desc *desc) {
    const tr_add_norm_desc *d = &desc->add_norm;
    if (d->rms)
        return (tr_op_desc){
            .kind = TR_OP_RMSNORM,
            .rmsnorm = {
                .rows = d->add.rows, .width = d->add.width, .eps = d->eps, .dtype = d->add.dtype}};
    return (tr_op_desc){
        .kind = TR_OP_LAYERNORM,
        .layernorm = {
            .rows = d->add.rows, .width = d->add.width, .eps = d->eps, .dtype = d->add.dtype}};
}

static const char *fault(const tr_op_desc *desc) {
    const tr_op_desc add = add_of(desc), norm = norm_of(desc);
    const char *wrong = tr_op_row_dropout_add.fault(&add);
    return wrong ? wrong : tr_op_row_of(norm.kind)->fault(&norm);
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_op_desc a = add_of(x), b = add_of(y);
    return tr_op_row_dropout_add.same(&a, &b) && x->add_norm.eps == y->add_norm.eps &&
           x->add_norm.rms == y->add_norm.rms;
}

static uint64_t key(const tr_op_desc *desc) {
    return desc->add_norm.add.site;
}

static void operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_dropout_desc *d = &desc->add_norm.add;
    t[TR_ADD_NORM_SUM] = t[TR_ADD_NORM_RESIDUAL] = t[TR_ADD_NORM_Y] =
        tr_tensor_matrix(NULL, d->dtype, d->rows, d->width);
    t[TR_ADD_NORM_BIAS] = t[TR_ADD_NORM_GAMMA] = tr_tensor_vector(NULL, d->dtype, d->width);
    t[TR_ADD_NORM_RSTD] = tr_tensor_vector(NULL, tr_dtype_acc(d->dtype), d->rows);
    if (desc->add_norm.rms) return;
    t[TR_ADD_NORM_BETA] = t[TR_ADD_NORM_GAMMA];
    t[TR_ADD_NORM_MEAN] = t[TR_ADD_NORM_RSTD];
}

static int decompose(const tr_op_desc *desc, tr_op_part *part) {
    part[0] = tr_op_part_of(add_of(desc));
    part[0].from[TR_DROPOUT_X] = part[0].from[TR_DROPOUT_Y] = TR_ADD_NORM_SUM;
    part[0].from[TR_DROPOUT_BIAS] = TR_ADD_NORM_BIAS;
    part[0].from[TR_DROPOUT_RESIDUAL] = TR_ADD_NORM_RESIDUAL;
    part[1] = tr_op_part_of(norm_of(desc));
    if (desc->add_norm.rms) {
        part[1].from[TR_RMS_X] = TR_ADD_NORM_SUM;
        part[1].from[TR_RMS_GAMMA] = TR_ADD_NORM_GAMMA;
        part[1].from[TR_RMS_Y] = TR_ADD_NORM_Y;
        part[1].from[TR_RMS_RSTD] = TR_ADD_NORM_RSTD;
        return 2;
    }
    part[1].from[TR_LN_X] = TR_ADD_NORM_SUM;
    part[1].from[TR_LN_GAMMA] = TR_ADD_NORM_GAMMA;
    part[1].from[TR_LN_BETA] = TR_ADD_NORM_BETA;
    part[1].from[TR_LN_Y] = TR_ADD_NORM_Y;
    part[1].from[TR_LN_MEAN] = TR_ADD_NORM_MEAN;
    part[1].from[TR_LN_RSTD] = TR_ADD_NORM_RSTD;
    return 2;
}

const tr_op_row tr_op_row_add_norm = {
    .name = "add_norm",
    .slot = {[TR_ADD_NORM_SUM] = {"sum", TR_SLOT_BOTH, TR_TYPES_STORAGE},
             [TR_ADD_NORM_BIAS] = {"bias", TR_SLOT_IN | TR_SLOT_OPTIONAL, TR_TYPES_STORAGE},
             [TR_ADD_NORM_RESIDUAL] = {"residual", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ADD_NORM_GAMMA] = {"gamma", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ADD_NORM_BETA] = {"beta", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_ADD_NORM_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_ADD_NORM_MEAN] = {"mean", TR_SLOT_OUT, TR_TYPES_ACC},
             [TR_ADD_NORM_RSTD] = {"rstd", TR_SLOT_OUT, TR_TYPES_ACC}},
    .fault = fault,
    .same = same,
    .key = key,
    .operands = operands,
    .decompose = decompose,
};
