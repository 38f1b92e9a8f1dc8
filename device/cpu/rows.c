/* Element-wise operators (ACTIVATION, ADD, CAST), the sum of each column (BIAS_GRAD), and that of
 * rows in their order (ADD_ROWS). */
#include "device/cpu/columns.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"

static tr_status run_activation(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    int64_t count = d->rows * d->width;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t at = 0; at < count; at += TR_BLOCK) {
        _Alignas(TR_LINE) float in[TR_BLOCK], out[TR_BLOCK];
        int64_t n = tr_min_i64(TR_BLOCK, count - at);
        const float *x = kernels->row_load(d->dtype, args->t[TR_ACTIVATION_X].data, at, n, in);
        float *y = tr_row_target(d->dtype, args->t[TR_ACTIVATION_Y].data, at, out);
        kernels->activation[d->activation](n, x, y);
        kernels->row_store(d->dtype, args->t[TR_ACTIVATION_Y].data, at, n, y);
    }
    return TR_OK;
}

static tr_status run_activation_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    int64_t count = d->rows * d->width;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t at = 0; at < count; at += TR_BLOCK) {
        _Alignas(TR_LINE) float in_dy[TR_BLOCK], in_x[TR_BLOCK], out[TR_BLOCK];
        int64_t n = tr_min_i64(TR_BLOCK, count - at);
        const float *dy =
            kernels->row_load(d->dtype, args->t[TR_ACTIVATION_DGRAD_DY].data, at, n, in_dy);
        const float *x =
            kernels->row_load(d->dtype, args->t[TR_ACTIVATION_DGRAD_X].data, at, n, in_x);
        float *dx = tr_row_target(d->dtype, args->t[TR_ACTIVATION_DGRAD_DX].data, at, out);
        kernels->activation_dgrad[d->activation](n, dy, x, dx);
        kernels->row_store(d->dtype, args->t[TR_ACTIVATION_DGRAD_DX].data, at, n, dx);
    }
    return TR_OK;
}

static tr_status run_add(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    int64_t count = d->rows * d->width;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t at = 0; at < count; at += TR_BLOCK) {
        _Alignas(TR_LINE) float in_a[TR_BLOCK], in_b[TR_BLOCK], out[TR_BLOCK];
        int64_t n = tr_min_i64(TR_BLOCK, count - at);
        const float *a = kernels->row_load(d->dtype, args->t[TR_ADD_A].data, at, n, in_a);
        const float *b = kernels->row_load(d->dtype, args->t[TR_ADD_B].data, at, n, in_b);
        float *y = tr_row_target(d->dtype, args->t[TR_ADD_Y].data, at, out);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
        kernels->row_store(d->dtype, args->t[TR_ADD_Y].data, at, n, y);
    }
    return TR_OK;
}

static tr_status run_cast(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    int64_t count = d->rows * d->width;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t at = 0; at < count; at += TR_BLOCK) {
        _Alignas(TR_LINE) float in[TR_BLOCK];
        int64_t n = tr_min_i64(TR_BLOCK, count - at);
        float *wide = tr_row_target(d->to, args->t[TR_CAST_Y].data, at, in);
        const float *x = kernels->row_load(d->dtype, args->t[TR_CAST_X].data, at, n, wide);
        if (d->to != TR_F32) kernels->row_store(d->to, args->t[TR_CAST_Y].data, at, n, x);
        else if (x != wide) memcpy(wide, x, (size_t)n * sizeof *x);
    }
    return TR_OK;
}

static void add_rows_f64(const tr_rows_desc *d, const double *x, double *y) {
    for (int64_t i = 0; i < d->width; i++) {
        double sum = x[i];
        for (int64_t r = 1; r < d->rows; r++) sum += x[r * d->width + i];
        y[i] = sum;
    }
}

static tr_status run_add_rows(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const void *from = args->t[TR_ADD_ROWS_X].data;
    if (d->dtype == TR_F64) {
        add_rows_f64(d, from, args->t[TR_ADD_ROWS_Y].data);
        return TR_OK;
    }
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t at = 0; at < d->width; at += TR_BLOCK) {
        _Alignas(TR_LINE) float in[TR_BLOCK], sum[TR_BLOCK];
        const int64_t n = tr_min_i64(TR_BLOCK, d->width - at);
        memcpy(sum, kernels->row_load(d->dtype, from, at, n, in), (size_t)n * sizeof *sum);
        for (int64_t r = 1; r < d->rows; r++)
            kernels->row_add(d->dtype, from, r * d->width + at, n, sum);
        if (d->dtype == TR_F32)
            memcpy((float *)args->t[TR_ADD_ROWS_Y].data + at, sum, (size_t)n * sizeof *sum);
        else kernels->row_store(d->dtype, args->t[TR_ADD_ROWS_Y].data, at, n, sum);
    }
    return TR_OK;
}

static void bias_grad_rows(const tr_cpu_run *run, int64_t first_row, int64_t rows, int64_t column,
                           int64_t n, float *sums) {
    const tr_rows_desc *d = &run->op->desc.rows;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(run->op);
    for (int64_t r = first_row; r < first_row + rows; r++)
        kernels->row_add(d->dtype, run->args->t[TR_BIAS_GRAD_DY].data, r * d->width + column, n,
                         sums);
}

static tr_status run_bias_grad(tr_op *op, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    float *dbias[] = {args->t[TR_BIAS_GRAD_DBIAS].data};
    tr_columns_reduce(&(tr_cpu_run){op, args}, bias_grad_rows, d->rows, d->width, 1, dbias);
    return TR_OK;
}

tr_status tr_cpu_prepare_activation(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_activation, out);
}
tr_status tr_cpu_prepare_activation_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                          tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_activation_dgrad, out);
}
tr_status tr_cpu_prepare_add(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_add, out);
}
tr_status tr_cpu_prepare_cast(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_cast, out);
}
tr_status tr_cpu_prepare_add_rows(const tr_op_context *context, const tr_op_desc *desc,
                                  tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_add_rows, out);
}
tr_status tr_cpu_prepare_bias_grad(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    size_t scratch = tr_columns_scratch(desc->rows.rows, desc->rows.width, 1);
    return tr_host_op_create(context, desc, 0, scratch, run_bias_grad, out);
}
