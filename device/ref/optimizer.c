/* SUMSQ, STEP_FINISH and ADAMW. */
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"

/* Adds FP32 in the order of all devices, FP64 in the order of the elements. */
tr_status tr_ref_sumsq(tr_op *op, const tr_op_args *args) {
    const tr_sumsq_desc *d = &op->desc.sumsq;
    double sum = 0;
    for (int64_t at = 0; d->dtype == TR_F32 && at < d->count; at += TR_SUMSQ_BLOCK) {
        int64_t left = d->count - at;
        sum += tr_sumsq_block((const float *)args->t[TR_SUMSQ_X].data + at,
                              left < TR_SUMSQ_BLOCK ? left : TR_SUMSQ_BLOCK);
    }
    for (int64_t i = 0; d->dtype == TR_F64 && i < d->count; i++) {
        double x = tr_ref_get(args, TR_SUMSQ_X, i);
        sum += x * x;
    }
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
    const double beta1 = tr_ref_scalar(d->dtype, d->beta1);
    const double beta2 = tr_ref_scalar(d->dtype, d->beta2);
    const double eps = tr_ref_scalar(d->dtype, d->eps);
    const double lr = tr_ref_scalar(d->dtype, tr_ref_scalar(d->dtype, state->lr) *
                                                  tr_ref_scalar(d->dtype, d->lr_scale));
    const double decay = tr_ref_scalar(d->dtype, d->weight_decay);
    const double correction1 = tr_ref_scalar(d->dtype, state->bias_correction1);
    const double correction2 = tr_ref_scalar(d->dtype, state->bias_correction2);
    const double factor = tr_ref_scalar(d->dtype, state->gradient_factor);
    for (int64_t i = 0; i < d->count; i++) {
        double g = tr_ref_get(args, TR_ADAMW_GRAD, i) * factor;
        double m = beta1 * tr_ref_get(args, TR_ADAMW_M, i) + (1 - beta1) * g;
        double v = beta2 * tr_ref_get(args, TR_ADAMW_V, i) + (1 - beta2) * g * g;
        double mhat = m / correction1, vhat = v / correction2;
        double master = tr_ref_get(args, TR_ADAMW_MASTER, i);
        master -= lr * (mhat / (sqrt(vhat) + eps) + decay * master);
        tr_ref_set(args, TR_ADAMW_M, i, m);
        tr_ref_set(args, TR_ADAMW_V, i, v);
        tr_ref_set(args, TR_ADAMW_MASTER, i, master);
        /* The copy is the rounded stored master, as everywhere that it is computed. */
        if (args->t[TR_ADAMW_VALUE].data)
            tr_ref_set(args, TR_ADAMW_VALUE, i, tr_ref_get(args, TR_ADAMW_MASTER, i));
    }
    return TR_OK;
}
