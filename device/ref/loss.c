/* Cross entropy over a split vocabulary, in its four parts, and three of them in turn. */
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"

#include <math.h>

tr_status tr_ref_xent_max(tr_op *op, const tr_op_args *args) {
    const tr_xent_desc *d = &op->desc.xent;
    for (int64_t r = 0; r < d->rows; r++) {
        double largest = -INFINITY;
        for (int64_t v = 0; v < d->vocab; v++) {
            const double logit =
                tr_ref_load(d->dtype, args->t[TR_XENT_LOGITS].data, r * tr_xent_ld(d) + v);
            if (logit > largest) largest = logit; /* GCC 12 for AArch64 cannot compile fmax here */
        }
        tr_ref_set(args, TR_XENT_MAX, r, largest);
    }
    return TR_OK;
}

tr_status tr_ref_xent_sum(tr_op *op, const tr_op_args *args) {
    const tr_xent_desc *d = &op->desc.xent;
    const int32_t *labels = args->t[TR_XENT_LABELS].data;
    for (int64_t r = 0; r < d->rows; r++) {
        double largest = tr_ref_get(args, TR_XENT_MAX, r), sum = 0, of_label = 0;
        for (int64_t v = 0; v < d->vocab; v++) {
            double away =
                tr_ref_load(d->dtype, args->t[TR_XENT_LOGITS].data, r * tr_xent_ld(d) + v) -
                largest;
            sum += exp(away);
            if (d->vocab_begin + v == labels[r]) of_label += away;
        }
        tr_ref_set(args, TR_XENT_SUMS, 2 * r, sum);
        tr_ref_set(args, TR_XENT_SUMS, 2 * r + 1, of_label);
    }
    return TR_OK;
}

tr_status tr_ref_xent_loss(tr_op *op, const tr_op_args *args) {
    const int32_t *labels = args->t[TR_XENT_LABELS].data;
    double *loss = args->t[TR_XENT_LOSS].data;
    loss[0] = loss[1] = 0;
    for (int64_t r = 0; r < op->desc.xent.rows; r++) {
        if (labels[r] < 0) continue;
        loss[0] +=
            log(tr_ref_get(args, TR_XENT_SUMS, 2 * r)) - tr_ref_get(args, TR_XENT_SUMS, 2 * r + 1);
        loss[1] += 1;
    }
    return TR_OK;
}

tr_status tr_ref_xent_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_xent_desc *d = &op->desc.xent;
    const int32_t *labels = args->t[TR_XENT_LABELS].data;
    void *logits = args->t[TR_XENT_LOGITS].data;
    for (int64_t r = 0; r < d->rows; r++) {
        bool counts = labels[r] >= 0;
        double largest = tr_ref_get(args, TR_XENT_MAX, r);
        double sum = tr_ref_get(args, TR_XENT_SUMS, 2 * r);
        for (int64_t v = 0; v < d->vocab; v++) {
            int64_t i = r * tr_xent_ld(d) + v;
            double softmax = exp(tr_ref_load(d->dtype, logits, i) - largest) / sum;
            double onehot = d->vocab_begin + v == labels[r] ? 1 : 0;
            tr_ref_store(d->dtype, logits, i,
                         counts ? (softmax - onehot) * args->state->loss_scale : 0);
        }
    }
    return TR_OK;
}

tr_status tr_ref_xent(tr_op *op, const tr_op_args *args) {
    TR_TRY(tr_ref_xent_max(op, args));
    TR_TRY(tr_ref_xent_sum(op, args));
    return tr_ref_xent_dgrad(op, args);
}
