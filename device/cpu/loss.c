/* Cross entropy over a vocabulary that tensor ranks may share. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

/* --- a row ------------------------------------------------------------------------------------ */

static float row_max(const tr_op *op, const void *logits, int64_t r) {
    const tr_xent_desc *d = &op->desc.xent;
    const int64_t at = r * tr_xent_ld(d);
    if (d->dtype == TR_F32) /* wider vectors read memory a tenth slower */
        return tr_vec_max((const float *)logits + at, d->vocab);
    return tr_cpu_kernels_of(op)->row_largest(d->dtype, logits, at, d->vocab);
}

/* Also leaves the exponentials in kept[vocab], unless it is NULL. */
static void row_sum(const tr_op *op, const void *logits, int64_t r, int32_t label, float largest,
                    float sums[2], float *kept) {
    const tr_xent_desc *d = &op->desc.xent;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    _Alignas(TR_LINE) float in[TR_BLOCK], block[TR_BLOCK];
    double sum = 0;
    for (int64_t c = 0; c < d->vocab; c += TR_BLOCK) {
        int64_t n = tr_min_i64(TR_BLOCK, d->vocab - c);
        const float *x = kernels->row_load(d->dtype, logits, r * tr_xent_ld(d) + c, n, in);
        float *e = kept ? kept + c : block;
        kernels->exponential(n, x, 1.0f, largest, 1.0f, e);
        sum += (double)tr_vec_sum(e, n);
    }
    const int64_t column = tr_xent_column(d, label);
    sums[0] = (float)sum;
    sums[1] = 0;
    if (column >= 0)
        sums[1] += *tr_row_load(d->dtype, logits, r * tr_xent_ld(d) + column, 1, in) - largest;
}

/* logits = (softmax - onehot) * loss_scale, where `sum` is that of the whole vocabulary. `kept` has
 * the exponentials, or is NULL. */
static void row_gradient(const tr_op *op, void *logits, int64_t r, int32_t label, float largest,
                         float sum, float loss_scale, const float *kept) {
    const tr_xent_desc *d = &op->desc.xent;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    _Alignas(TR_LINE) float in[TR_BLOCK], out[TR_BLOCK];
    const float factor = loss_scale / sum;
    const int64_t column = tr_xent_column(d, label);
    for (int64_t c = 0; c < d->vocab; c += TR_BLOCK) {
        int64_t n = tr_min_i64(TR_BLOCK, d->vocab - c), at = r * tr_xent_ld(d) + c;
        float *dx = tr_row_target(d->dtype, logits, at, out);
        if (label < 0) {
            memset(dx, 0, (size_t)n * sizeof *dx);
        } else if (kept) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) dx[i] = kept[c + i] * factor;
        } else {
            const float *x = kernels->row_load(d->dtype, logits, at, n, in);
            kernels->exponential(n, x, 1.0f, largest, factor, dx);
        }
        if (column >= c && column < c + n) dx[column - c] -= loss_scale;
        kernels->row_store(d->dtype, logits, at, n, dx);
    }
}

/* --- operators -------------------------------------------------------------------------------- */

static tr_status run_xent_max(tr_op *op, const tr_op_args *args) {
    const tr_xent_desc *d = &op->desc.xent;
    const void *logits = args->t[TR_XENT_LOGITS].data;
    float *maxima = args->t[TR_XENT_MAX].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->vocab))
    for (int64_t r = 0; r < d->rows; r++) maxima[r] = row_max(op, logits, r);
    return TR_OK;
}

static tr_status run_xent_sum(tr_op *op, const tr_op_args *args) {
    const tr_xent_desc *d = &op->desc.xent;
    const void *logits = args->t[TR_XENT_LOGITS].data;
    const int32_t *labels = args->t[TR_XENT_LABELS].data;
    const float *maxima = args->t[TR_XENT_MAX].data;
    float *sums = args->t[TR_XENT_SUMS].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->vocab))
    for (int64_t r = 0; r < d->rows; r++)
        row_sum(op, logits, r, labels[r], maxima[r], &sums[2 * r], NULL);
    return TR_OK;
}

static tr_status run_xent_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_xent_desc *d = &op->desc.xent;
    void *logits = args->t[TR_XENT_LOGITS].data;
    const int32_t *labels = args->t[TR_XENT_LABELS].data;
    const float *maxima = args->t[TR_XENT_MAX].data, *sums = args->t[TR_XENT_SUMS].data;
    const float loss_scale = (float)args->state->loss_scale;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->vocab))
    for (int64_t r = 0; r < d->rows; r++)
        row_gradient(op, logits, r, labels[r], maxima[r], sums[2 * r], loss_scale, NULL);
    return TR_OK;
}

/* Returns the scratch of one thread: a row of exponentials. */
static size_t kept_bytes(const tr_xent_desc *d) {
    return tr_align_up((size_t)d->vocab * sizeof(float));
}

/* A row of 100 kB, and its exponentials, stay in a core's cache from its maximum to its
 * gradient. */
static tr_status run_xent(tr_op *op, const tr_op_args *args) {
    const tr_xent_desc *d = &op->desc.xent;
    void *logits = args->t[TR_XENT_LOGITS].data;
    const int32_t *labels = args->t[TR_XENT_LABELS].data;
    float *maxima = args->t[TR_XENT_MAX].data, *sums = args->t[TR_XENT_SUMS].data;
    const float loss_scale = (float)args->state->loss_scale;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->vocab))
    for (int64_t r = 0; r < d->rows; r++) {
        float *kept =
            (float *)(void *)((char *)args->scratch + (size_t)tr_cpu_thread() * kept_bytes(d));
        maxima[r] = row_max(op, logits, r);
        row_sum(op, logits, r, labels[r], maxima[r], &sums[2 * r], kept);
        row_gradient(op, logits, r, labels[r], maxima[r], sums[2 * r], loss_scale, kept);
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
tr_status tr_cpu_prepare_xent(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    const size_t scratch = kept_bytes(&desc->xent) * (size_t)context->device->threads;
    return tr_host_op_create(context, desc, 0, scratch, run_xent, out);
}
