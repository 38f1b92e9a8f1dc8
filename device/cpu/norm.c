/* Layer normalisation (Ba, Kiros and Hinton 2016): LAYERNORM, _DGRAD, _WGRAD. */
#include "device/cpu/columns.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

/* Returns the sum over the row of X from element `from` on. */
static float row_sum(const tr_cpu_kernels *kernels, const tr_layernorm_desc *d, const void *x_base,
                     int64_t from) {
    _Alignas(TR_LINE) float buffer[TR_BLOCK];
    float sum = 0;
    for (int64_t c = 0; c < d->width; c += TR_BLOCK) {
        int64_t n = tr_min_i64(TR_BLOCK, d->width - c);
        sum += tr_vec_sum(kernels->row_load(d->dtype, x_base, from + c, n, buffer), n);
    }
    return sum;
}

static float row_variance(const tr_cpu_kernels *kernels, const tr_layernorm_desc *d,
                          const void *x_base, int64_t from, float mean) {
    _Alignas(TR_LINE) float buffer[TR_BLOCK], centred[TR_BLOCK];
    float sum = 0;
    for (int64_t c = 0; c < d->width; c += TR_BLOCK) {
        int64_t n = tr_min_i64(TR_BLOCK, d->width - c);
        const float *x = kernels->row_load(d->dtype, x_base, from + c, n, buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) centred[i] = x[i] - mean;
        sum += tr_vec_dot(centred, centred, n);
    }
    return sum / (float)d->width;
}

static tr_status run_layernorm(tr_op *op, const tr_op_args *args) {
    const tr_layernorm_desc *d = &op->desc.layernorm;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    float *means = args->t[TR_LN_MEAN].data, *rstds = args->t[TR_LN_RSTD].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t r = 0; r < d->rows; r++) {
        _Alignas(TR_LINE) float in[TR_BLOCK], in_gamma[TR_BLOCK], in_beta[TR_BLOCK], out[TR_BLOCK];
        int64_t row = r * d->width;
        float mean = row_sum(kernels, d, args->t[TR_LN_X].data, row) / (float)d->width;
        float rstd = 1.0f / sqrtf(row_variance(kernels, d, args->t[TR_LN_X].data, row, mean) +
                                  (float)d->eps);
        for (int64_t c = 0; c < d->width; c += TR_BLOCK) {
            int64_t n = tr_min_i64(TR_BLOCK, d->width - c);
            const float *x = kernels->row_load(d->dtype, args->t[TR_LN_X].data, row + c, n, in);
            const float *gamma =
                kernels->row_load(d->dtype, args->t[TR_LN_GAMMA].data, c, n, in_gamma);
            const float *beta =
                kernels->row_load(d->dtype, args->t[TR_LN_BETA].data, c, n, in_beta);
            float *y = tr_row_target(d->dtype, args->t[TR_LN_Y].data, row + c, out);
            kernels->norm(n, mean, rstd, x, gamma, beta, y);
            kernels->row_store(d->dtype, args->t[TR_LN_Y].data, row + c, n, y);
        }
        means[r] = mean;
        rstds[r] = rstd;
    }
    return TR_OK;
}

/* DX = rstd (g - mean(g) - xhat mean(g xhat)), g = DY * GAMMA. */
static tr_status run_layernorm_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_layernorm_desc *d = &op->desc.layernorm;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const float *means = args->t[TR_LN_DGRAD_MEAN].data, *rstds = args->t[TR_LN_DGRAD_RSTD].data;
    const void *residual_base = args->t[TR_LN_DGRAD_RESIDUAL].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t r = 0; r < d->rows; r++) {
        _Alignas(TR_LINE) float in_dy[TR_BLOCK], in_x[TR_BLOCK], in_gamma[TR_BLOCK], g[TR_BLOCK],
            xhat[TR_BLOCK];
        int64_t row = r * d->width;
        float mean = means[r], rstd = rstds[r], sum_g = 0, sum_gx = 0;
        for (int pass = 0; pass < 2; pass++) {
            float mean_g = sum_g / (float)d->width, mean_gx = sum_gx / (float)d->width;
            for (int64_t c = 0; c < d->width; c += TR_BLOCK) {
                int64_t n = tr_min_i64(TR_BLOCK, d->width - c);
                const float *dy =
                    kernels->row_load(d->dtype, args->t[TR_LN_DGRAD_DY].data, row + c, n, in_dy);
                const float *x =
                    kernels->row_load(d->dtype, args->t[TR_LN_DGRAD_X].data, row + c, n, in_x);
                const float *gamma =
                    kernels->row_load(d->dtype, args->t[TR_LN_DGRAD_GAMMA].data, c, n, in_gamma);
                kernels->norm_terms(n, mean, rstd, dy, x, gamma, g, xhat);
                if (pass == 0) {
                    sum_g += tr_vec_sum(g, n);
                    sum_gx += tr_vec_dot(g, xhat, n);
                    continue;
                }
                const float *residual =
                    residual_base ? kernels->row_load(d->dtype, residual_base, row + c, n, in_x)
                                  : NULL;
                float *dx = tr_row_target(d->dtype, args->t[TR_LN_DGRAD_DX].data, row + c, in_dy);
                kernels->norm_dgrad(n, rstd, mean_g, mean_gx, g, xhat, residual, dx);
                kernels->row_store(d->dtype, args->t[TR_LN_DGRAD_DX].data, row + c, n, dx);
            }
        }
    }
    return TR_OK;
}

static void layernorm_wgrad_rows(const tr_cpu_run *run, int64_t first_row, int64_t rows,
                                 int64_t column, int64_t n, float *sums) {
    const tr_layernorm_desc *d = &run->op->desc.layernorm;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(run->op);
    const tr_tensor *t = run->args->t;
    const float *means = t[TR_LN_WGRAD_MEAN].data, *rstds = t[TR_LN_WGRAD_RSTD].data;
    float *dgamma = sums, *dbeta = sums + TR_COLUMNS;
    _Alignas(TR_LINE) float in_dy[TR_COLUMNS], in_x[TR_COLUMNS];
    for (int64_t r = first_row; r < first_row + rows; r++) {
        int64_t at = r * d->width + column;
        const float *dy = kernels->row_load(d->dtype, t[TR_LN_WGRAD_DY].data, at, n, in_dy);
        const float *x = kernels->row_load(d->dtype, t[TR_LN_WGRAD_X].data, at, n, in_x);
        float mean = means[r], rstd = rstds[r];
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            dgamma[i] += dy[i] * tr_layernorm_centred(x[i], mean, rstd);
            dbeta[i] += dy[i];
        }
    }
}

static tr_status run_layernorm_wgrad(tr_op *op, const tr_op_args *args) {
    const tr_layernorm_desc *d = &op->desc.layernorm;
    float *out[] = {args->t[TR_LN_WGRAD_DGAMMA].data, args->t[TR_LN_WGRAD_DBETA].data};
    tr_columns_reduce(&(tr_cpu_run){op, args}, layernorm_wgrad_rows, d->rows, d->width, 2, out);
    return TR_OK;
}

tr_status tr_cpu_prepare_layernorm(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_layernorm, out);
}
tr_status tr_cpu_prepare_layernorm_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                         tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_layernorm_dgrad, out);
}
tr_status tr_cpu_prepare_layernorm_wgrad(const tr_op_context *context, const tr_op_desc *desc,
                                         tr_op **out) {
    size_t scratch = tr_columns_scratch(desc->layernorm.rows, desc->layernorm.width, 2);
    return tr_host_op_create(context, desc, 0, scratch, run_layernorm_wgrad, out);
}
