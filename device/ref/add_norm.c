/* ADD_NORM, as DROPOUT_ADD and the norm one after the other. */
#include "device/ref/ref_impl.h"

static tr_op_args norm_args(const tr_add_norm_desc *d, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    if (d->rms)
        return (tr_op_args){.t = {[TR_RMS_X] = t[TR_ADD_NORM_SUM],
                                  [TR_RMS_GAMMA] = t[TR_ADD_NORM_GAMMA],
                                  [TR_RMS_Y] = t[TR_ADD_NORM_Y],
                                  [TR_RMS_RSTD] = t[TR_ADD_NORM_RSTD]}};
    return (tr_op_args){.t = {[TR_LN_X] = t[TR_ADD_NORM_SUM],
                              [TR_LN_GAMMA] = t[TR_ADD_NORM_GAMMA],
                              [TR_LN_BETA] = t[TR_ADD_NORM_BETA],
                              [TR_LN_Y] = t[TR_ADD_NORM_Y],
                              [TR_LN_MEAN] = t[TR_ADD_NORM_MEAN],
                              [TR_LN_RSTD] = t[TR_ADD_NORM_RSTD]}};
}

tr_status tr_ref_add_norm(tr_op *op, const tr_op_args *args) {
    const tr_add_norm_desc *d = &op->desc.add_norm;
    const int64_t rows = d->add.rows, width = d->add.width;
    tr_op add = {.desc = {.kind = TR_OP_DROPOUT_ADD, .dropout = d->add}};
    tr_op norm = {
        .desc = {.kind = TR_OP_LAYERNORM, .layernorm = {rows, width, d->eps, d->add.dtype}}};
    if (d->rms)
        norm.desc = (tr_op_desc){
            .kind = TR_OP_RMSNORM,
            .rmsnorm = {.rows = rows, .width = width, .eps = d->eps, .dtype = d->add.dtype}};
    tr_op_args own = *args;
    own.t[TR_DROPOUT_X] = own.t[TR_DROPOUT_Y] = args->t[TR_ADD_NORM_SUM];
    own.t[TR_DROPOUT_BIAS] = args->t[TR_ADD_NORM_BIAS];
    own.t[TR_DROPOUT_RESIDUAL] = args->t[TR_ADD_NORM_RESIDUAL];
    TR_TRY(tr_ref_dropout_add(&add, &own));
    own = norm_args(d, args);
    return d->rms ? tr_ref_rmsnorm(&norm, &own) : tr_ref_layernorm(&norm, &own);
}
