/* DROPOUT_ADD and DROPOUT_DGRAD. */
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"

/* Returns the mask's factor of element (row, column): 0 or 1/(1-p); 1 without dropout. */
static double mask(const tr_op *op, const tr_op_args *args, int64_t row, int64_t column) {
    const tr_dropout_desc *d = &op->desc.dropout;
    if (d->p == 0 || !args->state->train) return 1;
    const int64_t of_sequences = d->first + row;
    int64_t sample = args->state->first_sample + args->sample + of_sequences / d->seq;
    int64_t element = of_sequences % d->seq * d->width + column;
    return tr_dropout_keeps(d, args->state, sample, element) ? 1 / (1 - (double)d->p) : 0;
}

tr_status tr_ref_dropout_add(tr_op *op, const tr_op_args *args) {
    const tr_dropout_desc *d = &op->desc.dropout;
    const void *bias = args->t[TR_DROPOUT_BIAS].data, *residual = args->t[TR_DROPOUT_RESIDUAL].data;
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t c = 0; c < d->width; c++) {
            int64_t i = r * d->width + c;
            double x = tr_ref_load(d->dtype, args->t[TR_DROPOUT_X].data, i);
            if (bias) x += tr_ref_load(d->dtype, bias, c);
            double factor = mask(op, args, r, c), y = factor != 0 ? x * factor : 0;
            if (residual) y += tr_ref_load(d->dtype, residual, i);
            tr_ref_store(d->dtype, args->t[TR_DROPOUT_Y].data, i, y);
        }
    return TR_OK;
}

tr_status tr_ref_dropout_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_dropout_desc *d = &op->desc.dropout;
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t c = 0; c < d->width; c++) {
            int64_t i = r * d->width + c;
            double factor = mask(op, args, r, c);
            double dy = tr_ref_load(d->dtype, args->t[TR_DROPOUT_DGRAD_DY].data, i);
            tr_ref_store(d->dtype, args->t[TR_DROPOUT_DGRAD_DX].data, i,
                         factor != 0 ? dy * factor : 0);
        }
    return TR_OK;
}
