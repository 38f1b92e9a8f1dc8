/* BIAS_GRAD, ACTIVATION, ACTIVATION_DGRAD, ADD, CAST and ADD_ROWS. */
#include "device/ref/ref_impl.h"

tr_status tr_ref_bias_grad(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    for (int64_t c = 0; c < d->width; c++) {
        double sum = 0;
        for (int64_t r = 0; r < d->rows; r++)
            sum += tr_ref_load(d->dtype, args->t[TR_BIAS_GRAD_DY].data, r * d->width + c);
        tr_ref_accumulate(args, TR_BIAS_GRAD_DBIAS, c, sum);
    }
    return TR_OK;
}

tr_status tr_ref_activation(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    for (int64_t i = 0; i < d->rows * d->width; i++)
        tr_ref_store(d->dtype, args->t[TR_ACTIVATION_Y].data, i,
                     tr_ref_activate(d->activation,
                                     tr_ref_load(d->dtype, args->t[TR_ACTIVATION_X].data, i)));
    return TR_OK;
}

tr_status tr_ref_activation_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    for (int64_t i = 0; i < d->rows * d->width; i++)
        tr_ref_store(
            d->dtype, args->t[TR_ACTIVATION_DGRAD_DX].data, i,
            tr_ref_load(d->dtype, args->t[TR_ACTIVATION_DGRAD_DY].data, i) *
                tr_ref_slope(d->activation,
                             tr_ref_load(d->dtype, args->t[TR_ACTIVATION_DGRAD_X].data, i)));
    return TR_OK;
}

tr_status tr_ref_add(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    for (int64_t i = 0; i < d->rows * d->width; i++)
        tr_ref_store(d->dtype, args->t[TR_ADD_Y].data, i,
                     tr_ref_load(d->dtype, args->t[TR_ADD_A].data, i) +
                         tr_ref_load(d->dtype, args->t[TR_ADD_B].data, i));
    return TR_OK;
}

tr_status tr_ref_cast(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    for (int64_t i = 0; i < d->rows * d->width; i++)
        tr_ref_store(d->to, args->t[TR_CAST_Y].data, i,
                     tr_ref_load(d->dtype, args->t[TR_CAST_X].data, i));
    return TR_OK;
}

/* In FP32, unlike the other operators, because its bits are defined. */
tr_status tr_ref_add_rows(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    for (int64_t c = 0; c < d->width; c++) {
        double sum = tr_ref_load(d->dtype, args->t[TR_ADD_ROWS_X].data, c);
        for (int64_t r = 1; r < d->rows; r++)
            sum = tr_ref_scalar(d->dtype, sum + tr_ref_load(d->dtype, args->t[TR_ADD_ROWS_X].data,
                                                            r * d->width + c));
        tr_ref_store(d->dtype, args->t[TR_ADD_ROWS_Y].data, c, sum);
    }
    return TR_OK;
}
