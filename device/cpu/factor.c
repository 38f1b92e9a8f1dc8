/* FACTOR_SUMS and FACTOR. */
#include "device/cpu/columns.h"
#include "device/cpu/cpu_impl.h"
#include "device/elementwise.h"

static tr_dtype dtype_of(const tr_factor_desc *d) {
    return d->bf16_grad ? TR_BF16 : TR_F32;
}

/* Returns x from element `at` on. */
static const void *element(const tr_factor_desc *d, const void *x, int64_t at) {
    return (const char *)x + (size_t)at * tr_dtype_size(dtype_of(d));
}

/* Sums a block of rows: of each row to rows[0..n), of each column to cols[cols]. */
static void sum_block(const tr_op *op, float scale, int64_t n, const void *x, double *rows,
                      double *cols) {
    const tr_factor_desc *d = &op->desc.factor;
    const int64_t width = d->cols;
    for (int64_t j = 0; j < width; j++) cols[j] = 0;
    for (int64_t i = 0; i < n; i++) rows[i] = 0;
    for (int64_t i = 0; i < n; i += 2)
        for (int64_t at = 0; at < width; at += TR_SUMSQ_BLOCK)
            tr_cpu_kernels_of(op)->factor_sums(
                dtype_of(d), i + 1 < n ? 2 : 1, tr_min_i64(TR_SUMSQ_BLOCK, width - at),
                element(d, x, i * width + at), width, scale, rows + i, cols + at);
}

static int64_t blocks_of(const tr_factor_desc *d) {
    const int64_t block = tr_factor_block(d->rows);
    return (d->rows + block - 1) / block;
}

/* Adds the blocks' sums of n columns, in ascending order. A column's sums lie apart, so columns are
 * added side by side. */
static void add_blocks(const tr_factor_desc *d, const double *partial, int64_t n, double *cols) {
    const int64_t blocks = blocks_of(d);
    for (int64_t j = 0; j < n; j++) cols[j] = 0;
    for (int64_t k = 0; k < blocks; k++)
        for (int64_t j = 0; j < n; j++) cols[j] += partial[k * d->cols + j];
}

static tr_status run_factor_sums(tr_op *op, const tr_op_args *args) {
    const tr_factor_desc d = op->desc.factor;
    const int64_t block = tr_factor_block(d.rows), blocks = blocks_of(&d);
    const void *x = args->t[TR_FACTOR_X].data;
    const float scale = tr_factor_scale(&d, args->state);
    double *partial = args->scratch, *rows = args->t[TR_FACTOR_ROWS].data,
           *cols = args->t[TR_FACTOR_COLS].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d.rows *d.cols))
    for (int64_t k = 0; k < blocks; k++)
        sum_block(op, scale, tr_min_i64(block, d.rows - k * block),
                  element(&d, x, k * block * d.cols), rows + k * block, partial + k * d.cols);
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, blocks *d.cols))
    for (int64_t j = 0; j < d.cols; j += TR_COLUMNS)
        add_blocks(&d, partial + j, tr_min_i64(TR_COLUMNS, d.cols - j), cols + j);
    return TR_OK;
}

static void update_moments(const tr_op_args *args, int state, int sums, int64_t n, int64_t count) {
    const double weight = args->state->square_weight, *sum = args->t[sums].data;
    float *moment = args->t[state].data;
    for (int64_t i = 0; i < n; i++) moment[i] = tr_factor_moment(weight, moment[i], sum[i], count);
}

static double total_of(const float *x, int64_t n) {
    double total = 0;
    for (int lane = 0; lane < TR_FACTOR_LANES; lane++) total += tr_factor_lane(x, n, lane);
    return total;
}

static tr_status run_factor(tr_op *op, const tr_op_args *args) {
    const tr_factor_desc d = op->desc.factor;
    const float *r = args->t[TR_FACTOR_R].data, *c = args->t[TR_FACTOR_C].data;
    double *norms = args->scratch, *norm = args->t[TR_FACTOR_NORM].data;
    const void *x = args->t[TR_FACTOR_X].data;
    float *u = args->t[TR_FACTOR_U].data, *b = (float *)(void *)(norms + d.rows);
    if (args->state->skip) return TR_OK;
    update_moments(args, TR_FACTOR_R, TR_FACTOR_ROWS, d.rows, d.all_cols);
    update_moments(args, TR_FACTOR_C, TR_FACTOR_COLS, d.cols, d.all_rows);
    const double total = d.cols == d.all_cols ? total_of(c, d.cols) : total_of(r, d.rows);
    for (int64_t j = 0; j < d.cols; j++) b[j] = tr_factor_col(c[j]);
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d.rows *d.cols))
    for (int64_t i = 0; i < d.rows; i++) {
        norms[i] = 0;
        for (int64_t at = 0; at < d.cols; at += TR_SUMSQ_BLOCK)
            norms[i] += tr_cpu_kernels_of(op)->factor(
                dtype_of(&d), tr_min_i64(TR_SUMSQ_BLOCK, d.cols - at),
                element(&d, x, i * d.cols + at), d.cols, tr_factor_scale(&d, args->state),
                tr_factor_row(total, r[i]), b + at, u + i * d.cols + at);
    }
    if (norm) *norm = tr_sumsq_total(norms, d.rows);
    return TR_OK;
}

tr_status tr_cpu_prepare_factor_sums(const tr_op_context *context, const tr_op_desc *desc,
                                     tr_op **out) {
    const size_t partial = (size_t)(blocks_of(&desc->factor) * desc->factor.cols);
    return tr_host_op_create(context, desc, 0, partial * sizeof(double), run_factor_sums, out);
}
tr_status tr_cpu_prepare_factor(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    const tr_factor_desc *d = &desc->factor;
    return tr_host_op_create(context, desc, 0,
                             (size_t)d->rows * sizeof(double) + (size_t)d->cols * sizeof(float),
                             run_factor, out);
}
