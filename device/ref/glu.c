/* GLU and GLU_DGRAD. */
#include "device/ref/ref_impl.h"

tr_status tr_ref_glu(tr_op *op, const tr_op_args *args) {
    const tr_glu_desc *d = &op->desc.glu;
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t c = 0; c < d->width; c++) {
            int64_t gate = 2 * r * d->width + c;
            double up = tr_ref_load(d->dtype, args->t[TR_GLU_X].data, gate + d->width);
            tr_ref_store(d->dtype, args->t[TR_GLU_Y].data, r * d->width + c,
                         up * tr_ref_activate(d->activation,
                                              tr_ref_load(d->dtype, args->t[TR_GLU_X].data, gate)));
        }
    return TR_OK;
}

tr_status tr_ref_glu_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_glu_desc *d = &op->desc.glu;
    const void *x = args->t[TR_GLU_DGRAD_X].data;
    void *dx = args->t[TR_GLU_DGRAD_DX].data;
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t c = 0; c < d->width; c++) {
            int64_t at = 2 * r * d->width + c;
            double dy = tr_ref_load(d->dtype, args->t[TR_GLU_DGRAD_DY].data, r * d->width + c);
            double gate = tr_ref_load(d->dtype, x, at),
                   up = tr_ref_load(d->dtype, x, at + d->width);
            tr_ref_store(d->dtype, dx, at, dy * up * tr_ref_slope(d->activation, gate));
            tr_ref_store(d->dtype, dx, at + d->width, dy * tr_ref_activate(d->activation, gate));
        }
    return TR_OK;
}
