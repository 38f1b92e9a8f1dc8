/* Cross entropy over a vocabulary that tensor ranks may share. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

static tr_status run_xent_max(tr_op *op, const tr_op_args *args) {
    const tr_xent_desc *d = &op->desc.xent;
    float *maxima = args->t[TR_XENT_MAX].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->vocab))
    for (int64_t r = 0; r < d->rows; r++) {
        float in[TR_BLOCK], largest = -INFINITY;
        for (int64_t c = 0; c < d->vocab; c += TR_BLOCK) {
            int64_t n = tr_min_i64(TR_BLOCK, d->vocab - c);
            const float *x =
                tr_row_load(d->dtype, args->t[TR_XENT_LOGITS].data, r * tr_xent_ld(d) + c, n, in);
            float m = tr_vec_max(x, n);
            largest = m > largest ? m : largest;
        }
        maxima[r] = largest;
    }
    return TR_OK;
}

static tr_status run_xent_sum(tr_op *op, const tr_op_args *args) {
    const tr_xent_desc *d = &op->desc.xent;
    const int32_t *labels = args->t[TR_XENT_LABELS].data;
    const float *maxima = args->t[TR_XENT_MAX].data;
    float *sums = args->t[TR_XENT_SUMS].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->vocab))
    for (int64_t r = 0; r < d->rows; r++) {
        float in[TR_BLOCK], e[TR_BLOCK];
        const float largest = maxima[r];
        double sum = 0;
        for (int64_t c = 0; c < d->vocab; c += TR_BLOCK) {
            int64_t n = tr_min_i64(TR_BLOCK, d->vocab - c);
            const float *x =
                tr_row_load(d->dtype, args->t[TR_XENT_LOGITS].data, r * tr_xent_ld(d) + c, n, in);
            tr_cpu_kernels_of(op)->exponential(n, x, 1.0f, largest, 1.0f, e);
            sum += (double)tr_vec_sum(e, n);
        }
        int64_t column = tr_xent_column(d, labels[r]);
        sums[2 * r] = (float)sum;
        sums[2 * r + 1] = 0;
        if (column >= 0)
            sums[2 * r + 1] += *tr_row_load(d->dtype, args->t[TR_XENT_LOGITS].data,
                                            r * tr_xent_ld(d) + column, 1, in) -
                               largest;
    }
    return TR_OK;
}

/* LOGITS = (softmax - onehot) * loss_scale. */
static tr_status run_xent_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_xent_desc *d = &op->desc.xent;
    const int32_t *labels = args->t[TR_XENT_LABELS].data;
    const float *maxima = args->t[TR_XENT_MAX].data, *sums = args->t[TR_XENT_SUMS].data;
    void *logits = args->t[TR_XENT_LOGITS].data;
    const float loss_scale = (float)args->state->loss_scale;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->vocab))
    for (int64_t r = 0; r < d->rows; r++) {
        float in[TR_BLOCK], out[TR_BLOCK];
        const float largest = maxima[r], factor = loss_scale / sums[2 * r];
        const bool counts = labels[r] >= 0;
        const int64_t column = tr_xent_column(d, labels[r]);
        for (int64_t c = 0; c < d->vocab; c += TR_BLOCK) {
            int64_t n = tr_min_i64(TR_BLOCK, d->vocab - c), at = r * tr_xent_ld(d) + c;
            const float *x = tr_row_load(d->dtype, logits, at, n, in);
            float *dx = tr_row_target(d->dtype, logits, at, out);
            if (counts) {
                tr_cpu_kernels_of(op)->exponential(n, x, 1.0f, largest, factor, dx);
                if (column >= c && column < c + n) dx[column - c] -= loss_scale;
            } else {
                memset(dx, 0, (size_t)n * sizeof *dx);
            }
            tr_row_store(d->dtype, logits, at, n, dx);
        }
    }
    return TR_OK;
}

static tr_status run_xent_loss(tr_op *op, const tr_op_args *args) {
    const int32_t *labels = args->t[TR_XENT_LABELS].data;
    const float *sums = args->t[TR_XENT_SUMS].data;
    double *loss = args->t[TR_XENT_LOSS].data, sum = 0, count = 0;
    for (int64_t r = 0; r < op->desc.xent.rows; r++) {
        if (labels[r] < 0) continue;
        sum += tr_xent_row_loss(sums[2 * r], sums[2 * r + 1]);
        count++;
    }
    loss[0] = sum;
    loss[1] = count;
    return TR_OK;
}

tr_status tr_cpu_prepare_xent_max(const tr_op_context *context, const tr_op_desc *desc,
                                  tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_xent_max, out);
}
tr_status tr_cpu_prepare_xent_sum(const tr_op_context *context, const tr_op_desc *desc,
                                  tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_xent_sum, out);
}
tr_status tr_cpu_prepare_xent_loss(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_xent_loss, out);
}
tr_status tr_cpu_prepare_xent_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_xent_dgrad, out);
}
