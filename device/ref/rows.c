/* BIAS_GRAD, GELU, GELU_DGRAD, ADD and CAST. */
#include "device/ref/ref_impl.h"

#include <math.h>

tr_status tr_ref_bias_grad(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    for (int64_t c = 0; c < d->width; c++) {
        double sum = 0;
        for (int64_t r = 0; r < d->rows; r++)
            sum += tr_ref_load(d->dtype, args->t[TR_BIAS_GRAD_DY].data, r * d->width + c);
        tr_ref_accumulate(args->t[TR_BIAS_GRAD_DBIAS].data, c, sum);
    }
    return TR_OK;
}

/* gelu(x) = x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3). */
static const double slope = 0.7978845608028654, cubic = 0.044715;

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(slope * (x + cubic * x * x * x)));
}

static double gelu_derivative(double x) {
    double t = tanh(slope * (x + cubic * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope * (1 + 3 * cubic * x * x);
}

tr_status tr_ref_gelu(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    for (int64_t i = 0; i < d->rows * d->width; i++)
        tr_ref_store(d->dtype, args->t[TR_GELU_Y].data, i,
                     gelu(tr_ref_load(d->dtype, args->t[TR_GELU_X].data, i)));
    return TR_OK;
}

tr_status tr_ref_gelu_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    for (int64_t i = 0; i < d->rows * d->width; i++)
        tr_ref_store(d->dtype, args->t[TR_GELU_DGRAD_DX].data, i,
                     tr_ref_load(d->dtype, args->t[TR_GELU_DGRAD_DY].data, i) *
                         gelu_derivative(tr_ref_load(d->dtype, args->t[TR_GELU_DGRAD_X].data, i)));
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
