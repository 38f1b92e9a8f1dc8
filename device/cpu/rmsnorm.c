/* Root-mean-square normalisation (Zhang and Sennrich 2019): RMSNORM, _DGRAD, _WGRAD. */
#include "device/cpu/columns.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

static float row_rstd(const tr_cpu_kernels *kernels, const tr_rmsnorm_desc *d, const void *x_base,
                      int64_t from) {
    _Alignas(TR_LINE) float buffer[TR_BLOCK];
    float sum = 0;
    for (int64_t c = 0; c < d->width; c += TR_BLOCK) {
        int64_t n = tr_min_i64(TR_BLOCK, d->width - c);
        const float *x = kernels->row_load(d->dtype, x_base, from + c, n, buffer);
        sum += tr_vec_dot(x, x, n);
    }
    return 1.0f / sqrtf(sum / (float)d->width + (float)d->eps);
}

/* Copies the row that begins at element `from` of x to row r of the dense `kept`, where there is
 * one. */
static void keep_row(const tr_rmsnorm_desc *d, const void *x, int64_t from, void *kept, int64_t r) {
    const size_t element = tr_dtype_size(d->dtype);
    if (!kept) return;
    memcpy((char *)kept + (size_t)(r * d->width) * element,
           (const char *)x + (size_t)from * element, (size_t)d->width * element);
}

static tr_status run_rmsnorm(tr_op *op, const tr_op_args *args) {
    const tr_rmsnorm_desc *d = &op->desc.rmsnorm;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    float *rstds = args->t[TR_RMS_RSTD].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t r = 0; r < d->rows; r++) {
        _Alignas(TR_LINE) float in[TR_BLOCK], in_gamma[TR_BLOCK], out[TR_BLOCK];
        const int64_t from = tr_rmsnorm_row(d, d->ldx, r), to = tr_rmsnorm_row(d, d->ldy, r);
        const float rstd = row_rstd(kernels, d, args->t[TR_RMS_X].data, from);
        keep_row(d, args->t[TR_RMS_X].data, from, args->t[TR_RMS_KEPT].data, r);
        for (int64_t c = 0; c < d->width; c += TR_BLOCK) {
            int64_t n = tr_min_i64(TR_BLOCK, d->width - c);
            const float *x = kernels->row_load(d->dtype, args->t[TR_RMS_X].data, from + c, n, in);
            const float *gamma =
                kernels->row_load(d->dtype, args->t[TR_RMS_GAMMA].data, c, n, in_gamma);
            float *y = tr_row_target(d->dtype, args->t[TR_RMS_Y].data, to + c, out);
            kernels->norm(n, 0, rstd, x, gamma, NULL, y);
            kernels->row_store(d->dtype, args->t[TR_RMS_Y].data, to + c, n, y);
        }
        rstds[r] = rstd;
    }
    return TR_OK;
}

/* One row of DX = rstd (g - n mean(g n)) + RESIDUAL, g = DY * GAMMA, n = X * rstd: the mean in the
 * first pass over the row, DX in the second. */
static void row_dgrad(const tr_cpu_kernels *kernels, const tr_rmsnorm_desc *d, const tr_tensor *t,
                      int64_t r) {
    _Alignas(TR_LINE) float in_dy[TR_BLOCK], in_x[TR_BLOCK], in_gamma[TR_BLOCK], g[TR_BLOCK],
        normal[TR_BLOCK];
    const int64_t from = tr_rmsnorm_row(d, d->ldx, r), to = tr_rmsnorm_row(d, d->ldy, r);
    const float rstd = ((const float *)t[TR_RMS_DGRAD_RSTD].data)[r];
    float sum = 0;
    keep_row(d, t[TR_RMS_DGRAD_DY].data, to, t[TR_RMS_DGRAD_KEPT].data, r);
    for (int pass = 0; pass < 2; pass++) {
        const float mean = sum / (float)d->width;
        for (int64_t c = 0; c < d->width; c += TR_BLOCK) {
            int64_t n = tr_min_i64(TR_BLOCK, d->width - c);
            const float *dy =
                kernels->row_load(d->dtype, t[TR_RMS_DGRAD_DY].data, to + c, n, in_dy);
            const float *x = kernels->row_load(d->dtype, t[TR_RMS_DGRAD_X].data, from + c, n, in_x);
            const float *gamma =
                kernels->row_load(d->dtype, t[TR_RMS_DGRAD_GAMMA].data, c, n, in_gamma);
            kernels->norm_terms(n, 0, rstd, dy, x, gamma, g, normal);
            if (pass == 0) {
                sum += tr_vec_dot(g, normal, n);
                continue;
            }
            const void *residuals = t[TR_RMS_DGRAD_RESIDUAL].data;
            const float *residual =
                residuals ? kernels->row_load(d->dtype, residuals, to + c, n, in_x) : NULL;
            float *dx = tr_row_target(d->dtype, t[TR_RMS_DGRAD_DX].data, to + c, in_dy);
            kernels->norm_dgrad(n, rstd, 0, mean, g, normal, residual, dx);
            kernels->row_store(d->dtype, t[TR_RMS_DGRAD_DX].data, to + c, n, dx);
        }
    }
}

static tr_status run_rmsnorm_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_rmsnorm_desc *d = &op->desc.rmsnorm;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t r = 0; r < d->rows; r++) row_dgrad(kernels, d, args->t, r);
    return TR_OK;
}

static void rmsnorm_wgrad_rows(const tr_cpu_run *run, int64_t first_row, int64_t rows,
                               int64_t column, int64_t n, float *sums) {
    const tr_rmsnorm_desc *d = &run->op->desc.rmsnorm;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(run->op);
    const tr_tensor *t = run->args->t;
    const float *rstds = t[TR_RMS_WGRAD_RSTD].data;
    _Alignas(TR_LINE) float in_dy[TR_COLUMNS], in_x[TR_COLUMNS];
    for (int64_t r = first_row; r < first_row + rows; r++) {
        const int64_t from = tr_rmsnorm_row(d, d->ldx, r), to = tr_rmsnorm_row(d, d->ldy, r);
        const float *dy =
            kernels->row_load(d->dtype, t[TR_RMS_WGRAD_DY].data, to + column, n, in_dy);
        const float *x =
            kernels->row_load(d->dtype, t[TR_RMS_WGRAD_X].data, from + column, n, in_x);
        const float rstd = rstds[r];
#pragma omp simd
        for (int64_t i = 0; i < n; i++) sums[i] += dy[i] * (x[i] * rstd);
    }
}

static tr_status run_rmsnorm_wgrad(tr_op *op, const tr_op_args *args) {
    const tr_rmsnorm_desc *d = &op->desc.rmsnorm;
    float *dgamma[] = {args->t[TR_RMS_WGRAD_DGAMMA].data};
    tr_columns_reduce(&(tr_cpu_run){op, args}, rmsnorm_wgrad_rows, d->rows, d->width, 1, dgamma);
    return TR_OK;
}

tr_status tr_cpu_prepare_rmsnorm(const tr_op_context *context, const tr_op_desc *desc,
                                 tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_rmsnorm, out);
}
tr_status tr_cpu_prepare_rmsnorm_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                       tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_rmsnorm_dgrad, out);
}
tr_status tr_cpu_prepare_rmsnorm_wgrad(const tr_op_context *context, const tr_op_desc *desc,
                                       tr_op **out) {
    size_t scratch = tr_columns_scratch(desc->rmsnorm.rows, desc->rmsnorm.width, 1);
    return tr_host_op_create(context, desc, 0, scratch, run_rmsnorm_wgrad, out);
}
