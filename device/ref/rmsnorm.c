/* RMSNORM and its gradients. */
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"

#include <math.h>

tr_status tr_ref_rmsnorm(tr_op *op, const tr_op_args *args) {
    const tr_rmsnorm_desc *d = &op->desc.rmsnorm;
    const void *x = args->t[TR_RMS_X].data, *gamma = args->t[TR_RMS_GAMMA].data;
    void *kept = args->t[TR_RMS_KEPT].data;
    for (int64_t r = 0; r < d->rows; r++) {
        int64_t from = tr_rmsnorm_row(d, d->ldx, r), to = tr_rmsnorm_row(d, d->ldy, r);
        double squares = 0;
        for (int64_t c = 0; c < d->width; c++) {
            double v = tr_ref_load(d->dtype, x, from + c);
            squares += v * v;
        }
        double rstd = 1 / sqrt(squares / (double)d->width + tr_ref_scalar(d->dtype, d->eps));
        for (int64_t c = 0; c < d->width; c++) {
            double v = tr_ref_load(d->dtype, x, from + c);
            if (kept) tr_ref_store(d->dtype, kept, r * d->width + c, v);
            tr_ref_store(d->dtype, args->t[TR_RMS_Y].data, to + c,
                         v * rstd * tr_ref_load(d->dtype, gamma, c));
        }
        tr_ref_set(args, TR_RMS_RSTD, r, rstd);
    }
    return TR_OK;
}

tr_status tr_ref_rmsnorm_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_rmsnorm_desc *d = &op->desc.rmsnorm;
    const void *dy = args->t[TR_RMS_DGRAD_DY].data, *x = args->t[TR_RMS_DGRAD_X].data;
    const void *gamma = args->t[TR_RMS_DGRAD_GAMMA].data,
               *residual = args->t[TR_RMS_DGRAD_RESIDUAL].data;
    void *kept = args->t[TR_RMS_DGRAD_KEPT].data;
    for (int64_t r = 0; r < d->rows; r++) {
        int64_t from = tr_rmsnorm_row(d, d->ldx, r), to = tr_rmsnorm_row(d, d->ldy, r);
        double rstd = tr_ref_get(args, TR_RMS_DGRAD_RSTD, r), mean_gn = 0;
        for (int64_t c = 0; c < d->width; c++)
            mean_gn += tr_ref_load(d->dtype, dy, to + c) * tr_ref_load(d->dtype, gamma, c) *
                       tr_ref_load(d->dtype, x, from + c) * rstd / (double)d->width;
        for (int64_t c = 0; c < d->width; c++) {
            double v = tr_ref_load(d->dtype, dy, to + c), g = v * tr_ref_load(d->dtype, gamma, c);
            double n = tr_ref_load(d->dtype, x, from + c) * rstd;
            double dx = rstd * (g - n * mean_gn);
            if (kept) tr_ref_store(d->dtype, kept, r * d->width + c, v);
            if (residual) dx += tr_ref_load(d->dtype, residual, to + c);
            tr_ref_store(d->dtype, args->t[TR_RMS_DGRAD_DX].data, to + c, dx);
        }
    }
    return TR_OK;
}

tr_status tr_ref_rmsnorm_wgrad(tr_op *op, const tr_op_args *args) {
    const tr_rmsnorm_desc *d = &op->desc.rmsnorm;
    for (int64_t c = 0; c < d->width; c++) {
        double dgamma = 0;
        for (int64_t r = 0; r < d->rows; r++)
            dgamma += tr_ref_load(d->dtype, args->t[TR_RMS_WGRAD_DY].data,
                                  tr_rmsnorm_row(d, d->ldy, r) + c) *
                      tr_ref_load(d->dtype, args->t[TR_RMS_WGRAD_X].data,
                                  tr_rmsnorm_row(d, d->ldx, r) + c) *
                      tr_ref_get(args, TR_RMS_WGRAD_RSTD, r);
        tr_ref_accumulate(args, TR_RMS_WGRAD_DGAMMA, c, dgamma);
    }
    return TR_OK;
}
