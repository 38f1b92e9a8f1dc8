/* DROPOUT_ADD and DROPOUT_DGRAD. The mask is a function of seed, site, step, global sample and
 * element (base/philox.h), so it is drawn again for the gradient instead of kept. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

/* Sets scale[i] to 1/(1-p) or 0 for elements first .. first + n - 1 of one sample, n <=
 * TR_BLOCK. */
static void draw_mask(const tr_op *op, const tr_step_state *state, int64_t sample, int64_t first,
                      int64_t n, float *scale) {
    const tr_dropout_desc *d = &op->desc.dropout;
    uint32_t bits[TR_BLOCK + 8 + TR_CPU_PHILOX_MORE];
    int64_t quad = first / 4, quads = (first + n + 3) / 4 - quad;
    tr_cpu_kernels_of(op)->philox(TR_PHILOX_ROUNDS, tr_dropout_key(state->seed, d->site),
                                  (uint64_t)quad, tr_dropout_counter(state->step, sample), quads,
                                  bits);
    const uint32_t threshold = tr_dropout_threshold(d->p), *from = bits + (first - 4 * quad);
    const float kept = tr_dropout_scale(d->p);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) scale[i] = from[i] < threshold ? kept : 0.0f;
}

static bool drops(const tr_dropout_desc *d, const tr_op_args *args) {
    return d->p > 0 && args->state->train;
}

static int64_t row_sample(const tr_dropout_desc *d, const tr_op_args *args, int64_t row) {
    return args->state->first_sample + args->sample + (d->first + row) / d->seq;
}

/* Returns the first element of a row in its sample. */
static int64_t row_element(const tr_dropout_desc *d, int64_t row) {
    return (d->first + row) % d->seq * d->width;
}

static tr_status run_dropout_add(tr_op *op, const tr_op_args *args) {
    const tr_dropout_desc *d = &op->desc.dropout;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const tr_tensor *t = args->t;
    bool dropping = drops(d, args);
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t r = 0; r < d->rows; r++) {
        _Alignas(TR_LINE) float in_x[TR_BLOCK], in_bias[TR_BLOCK], in_residual[TR_BLOCK],
            sum[TR_BLOCK];
        _Alignas(TR_LINE) float scale[TR_BLOCK];
        for (int64_t c = 0; c < d->width; c += TR_BLOCK) {
            int64_t n = tr_min_i64(TR_BLOCK, d->width - c), at = r * d->width + c;
            const float *value = kernels->row_load(d->dtype, t[TR_DROPOUT_X].data, at, n, in_x);
            if (t[TR_DROPOUT_BIAS].data) {
                const float *bias =
                    kernels->row_load(d->dtype, t[TR_DROPOUT_BIAS].data, c, n, in_bias);
#pragma omp simd
                for (int64_t i = 0; i < n; i++) sum[i] = value[i] + bias[i];
                value = sum;
            }
            if (dropping) {
                draw_mask(op, args->state, row_sample(d, args, r), row_element(d, r) + c, n, scale);
#pragma omp simd
                for (int64_t i = 0; i < n; i++) sum[i] = scale[i] > 0 ? value[i] * scale[i] : 0.0f;
                value = sum;
            }
            float *y = tr_row_target(d->dtype, t[TR_DROPOUT_Y].data, at, in_x);
            if (t[TR_DROPOUT_RESIDUAL].data) {
                const float *residual =
                    kernels->row_load(d->dtype, t[TR_DROPOUT_RESIDUAL].data, at, n, in_residual);
#pragma omp simd
                for (int64_t i = 0; i < n; i++) y[i] = residual[i] + value[i];
            } else {
                memmove(y, value, (size_t)n * sizeof *y);
            }
            kernels->row_store(d->dtype, t[TR_DROPOUT_Y].data, at, n, y);
        }
    }
    return TR_OK;
}

static tr_status run_dropout_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_dropout_desc *d = &op->desc.dropout;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const tr_tensor *t = args->t;
    bool dropping = drops(d, args);
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t r = 0; r < d->rows; r++) {
        _Alignas(TR_LINE) float in[TR_BLOCK], out[TR_BLOCK], scale[TR_BLOCK];
        for (int64_t c = 0; c < d->width; c += TR_BLOCK) {
            int64_t n = tr_min_i64(TR_BLOCK, d->width - c), at = r * d->width + c;
            const float *dy = kernels->row_load(d->dtype, t[TR_DROPOUT_DGRAD_DY].data, at, n, in);
            float *dx = tr_row_target(d->dtype, t[TR_DROPOUT_DGRAD_DX].data, at, out);
            if (dropping) {
                draw_mask(op, args->state, row_sample(d, args, r), row_element(d, r) + c, n, scale);
#pragma omp simd
                for (int64_t i = 0; i < n; i++) dx[i] = scale[i] > 0 ? dy[i] * scale[i] : 0.0f;
            } else {
                memmove(dx, dy, (size_t)n * sizeof *dx);
            }
            kernels->row_store(d->dtype, t[TR_DROPOUT_DGRAD_DX].data, at, n, dx);
        }
    }
    return TR_OK;
}

tr_status tr_cpu_prepare_dropout_add(const tr_op_context *context, const tr_op_desc *desc,
                                     tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_dropout_add, out);
}
tr_status tr_cpu_prepare_dropout_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                       tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_dropout_dgrad, out);
}
