/* SUMSQ, STEP_FINISH and ADAMW. */
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"

tr_status tr_ref_sumsq(tr_op *op, const tr_op_args *args) {
    int64_t count = op->desc.sumsq.count;
    const float *x = args->t[TR_SUMSQ_X].data;
    double sum = 0;
    for (int64_t at = 0; at < count; at += TR_SUMSQ_BLOCK)
        sum += tr_sumsq_block(x + at, count - at < TR_SUMSQ_BLOCK ? count - at : TR_SUMSQ_BLOCK);
    *(double *)args->t[TR_SUMSQ_OUT].data = sum;
    return TR_OK;
}

tr_status tr_ref_step_finish(tr_op *op, const tr_op_args *args) {
    const tr_step_finish_desc *d = &op->desc.step_finish;
    tr_step_finish(args->t[TR_STEP_FINISH_LOSSES].data, d->losses,
                   args->t[TR_STEP_FINISH_NORMS].data, d->norms,
                   args->t[TR_STEP_FINISH_STATE].data);
    return TR_OK;
}

tr_status tr_ref_adamw(tr_op *op, const tr_op_args *args) {
    const tr_adamw_desc *d = &op->desc.adamw;
    const tr_step_state *state = args->state;
    if (state->skip) return TR_OK;
    double beta1 = (double)d->beta1, beta2 = (double)d->beta2;
    for (int64_t i = 0; i < d->count; i++) {
        double g =
            tr_ref_load(TR_F32, args->t[TR_ADAMW_GRAD].data, i) * (double)state->gradient_factor;
        double m = beta1 * tr_ref_load(TR_F32, args->t[TR_ADAMW_M].data, i) + (1 - beta1) * g;
        double v = beta2 * tr_ref_load(TR_F32, args->t[TR_ADAMW_V].data, i) + (1 - beta2) * g * g;
        double mhat = m / (double)state->bias_correction1;
        double vhat = v / (double)state->bias_correction2;
        double master = tr_ref_load(TR_F32, args->t[TR_ADAMW_MASTER].data, i);
        master -= (double)state->lr *
                  (mhat / (sqrt(vhat) + (double)d->eps) + (double)d->weight_decay * master);
        tr_ref_store(TR_F32, args->t[TR_ADAMW_M].data, i, m);
        tr_ref_store(TR_F32, args->t[TR_ADAMW_V].data, i, v);
        tr_ref_store(TR_F32, args->t[TR_ADAMW_MASTER].data, i, master);
        /* The copy is the stored master rounded, as everywhere else where it is made again. */
        if (args->t[TR_ADAMW_VALUE].data)
            tr_ref_store(d->dtype, args->t[TR_ADAMW_VALUE].data, i,
                         tr_ref_load(TR_F32, args->t[TR_ADAMW_MASTER].data, i));
    }
    return TR_OK;
}
