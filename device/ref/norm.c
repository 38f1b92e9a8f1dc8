/* LAYERNORM and its gradients. */
#include "device/ref/ref_impl.h"

#include <math.h>

tr_status tr_ref_layernorm(tr_op *op, const tr_op_args *args) {
    const tr_layernorm_desc *d = &op->desc.layernorm;
    const void *x = args->t[TR_LN_X].data;
    for (int64_t r = 0; r < d->rows; r++) {
        int64_t row = r * d->width;
        double mean = 0, variance = 0;
        for (int64_t c = 0; c < d->width; c++) mean += tr_ref_load(d->dtype, x, row + c);
        mean /= (double)d->width;
        for (int64_t c = 0; c < d->width; c++) {
            double away = tr_ref_load(d->dtype, x, row + c) - mean;
            variance += away * away;
        }
        double rstd = 1 / sqrt(variance / (double)d->width + tr_ref_scalar(d->dtype, d->eps));
        for (int64_t c = 0; c < d->width; c++)
            tr_ref_store(d->dtype, args->t[TR_LN_Y].data, row + c,
                         (tr_ref_load(d->dtype, x, row + c) - mean) * rstd *
                                 tr_ref_load(d->dtype, args->t[TR_LN_GAMMA].data, c) +
                             tr_ref_load(d->dtype, args->t[TR_LN_BETA].data, c));
        tr_ref_set(args, TR_LN_MEAN, r, mean);
        tr_ref_set(args, TR_LN_RSTD, r, rstd);
    }
    return TR_OK;
}

/* With n = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - n mean(g n)), means over the
 * row. */
tr_status tr_ref_layernorm_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_layernorm_desc *d = &op->desc.layernorm;
    const void *dy = args->t[TR_LN_DGRAD_DY].data, *x = args->t[TR_LN_DGRAD_X].data;
    const void *gamma = args->t[TR_LN_DGRAD_GAMMA].data,
               *residual = args->t[TR_LN_DGRAD_RESIDUAL].data;
    for (int64_t r = 0; r < d->rows; r++) {
        int64_t row = r * d->width;
        double mean = tr_ref_get(args, TR_LN_DGRAD_MEAN, r);
        double rstd = tr_ref_get(args, TR_LN_DGRAD_RSTD, r);
        double mean_g = 0, mean_gn = 0;
        for (int64_t c = 0; c < d->width; c++) {
            double g = tr_ref_load(d->dtype, dy, row + c) * tr_ref_load(d->dtype, gamma, c);
            mean_g += g;
            mean_gn += g * (tr_ref_load(d->dtype, x, row + c) - mean) * rstd;
        }
        mean_g /= (double)d->width;
        mean_gn /= (double)d->width;
        for (int64_t c = 0; c < d->width; c++) {
            double g = tr_ref_load(d->dtype, dy, row + c) * tr_ref_load(d->dtype, gamma, c);
            double n = (tr_ref_load(d->dtype, x, row + c) - mean) * rstd;
            double dx = rstd * (g - mean_g - n * mean_gn);
            if (residual) dx += tr_ref_load(d->dtype, residual, row + c);
            tr_ref_store(d->dtype, args->t[TR_LN_DGRAD_DX].data, row + c, dx);
        }
    }
    return TR_OK;
}

tr_status tr_ref_layernorm_wgrad(tr_op *op, const tr_op_args *args) {
    const tr_layernorm_desc *d = &op->desc.layernorm;
    for (int64_t c = 0; c < d->width; c++) {
        double dgamma = 0, dbeta = 0;
        for (int64_t r = 0; r < d->rows; r++) {
            double dy = tr_ref_load(d->dtype, args->t[TR_LN_WGRAD_DY].data, r * d->width + c);
            double x = tr_ref_load(d->dtype, args->t[TR_LN_WGRAD_X].data, r * d->width + c);
            dgamma += dy * (x - tr_ref_get(args, TR_LN_WGRAD_MEAN, r)) *
                      tr_ref_get(args, TR_LN_WGRAD_RSTD, r);
            dbeta += dy;
        }
        tr_ref_accumulate(args, TR_LN_WGRAD_DGAMMA, c, dgamma);
        tr_ref_accumulate(args, TR_LN_WGRAD_DBETA, c, dbeta);
    }
    return TR_OK;
}
