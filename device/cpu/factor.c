/* FACTOR_SUMS and FACTOR. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

/* Returns the sum of squares of a block of SUMSQ, n <= TR_SUMSQ_BLOCK, in its order, and adds each
 * square to sums[n]. */
static double add_squares(const float *x, int64_t n, double *sums) {
    double lane[TR_SUMSQ_LANES] = {0};
    for (int64_t i = 0; i < n; i += TR_SUMSQ_LANES) {
        const int64_t lanes = tr_min_i64(TR_SUMSQ_LANES, n - i);
#pragma omp simd
        for (int64_t j = 0; j < lanes; j++) {
            const double square = (double)x[i + j] * (double)x[i + j];
            lane[j] += square;
            sums[i + j] += square;
        }
    }
    return tr_sumsq_lanes(lane, n);
}

/* Sums a block of rows: of each row to rows[0..n), of each column to cols[cols]. */
static void sum_block(const tr_factor_desc *d, int64_t n, const float *x, double *rows,
                      double *cols) {
    for (int64_t j = 0; j < d->cols; j++) cols[j] = 0;
    for (int64_t i = 0; i < n; i++, x += d->cols) {
        rows[i] = 0;
        for (int64_t at = 0; at < d->cols; at += TR_SUMSQ_BLOCK)
            rows[i] += add_squares(x + at, tr_min_i64(TR_SUMSQ_BLOCK, d->cols - at), cols + at);
    }
}

static int64_t blocks_of(const tr_factor_desc *d) {
    const int64_t block = tr_factor_block(d->rows);
    return (d->rows + block - 1) / block;
}

static tr_status run_factor_sums(tr_op *op, const tr_op_args *args) {
    const tr_factor_desc d = op->desc.factor;
    const int64_t block = tr_factor_block(d.rows), blocks = blocks_of(&d);
    const float *x = args->t[TR_FACTOR_X].data;
    double *partial = args->scratch, *rows = args->t[TR_FACTOR_ROWS].data,
           *cols = args->t[TR_FACTOR_COLS].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d.rows *d.cols))
    for (int64_t k = 0; k < blocks; k++)
        sum_block(&d, tr_min_i64(block, d.rows - k * block), x + k * block * d.cols,
                  rows + k * block, partial + k * d.cols);
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, blocks *d.cols))
    for (int64_t j = 0; j < d.cols; j++) {
        cols[j] = 0;
        for (int64_t k = 0; k < blocks; k++) cols[j] += partial[k * d.cols + j];
    }
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
    float *x = args->t[TR_FACTOR_X].data, *b = args->scratch;
    if (args->state->skip) return TR_OK;
    update_moments(args, TR_FACTOR_R, TR_FACTOR_ROWS, d.rows, d.all_cols);
    update_moments(args, TR_FACTOR_C, TR_FACTOR_COLS, d.cols, d.all_rows);
    const double total = d.cols == d.all_cols ? total_of(c, d.cols) : total_of(r, d.rows);
    for (int64_t j = 0; j < d.cols; j++) b[j] = tr_factor_col(c[j]);
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d.rows *d.cols))
    for (int64_t i = 0; i < d.rows; i++) {
        const float a = tr_factor_row(total, r[i]);
#pragma omp simd
        for (int64_t j = 0; j < d.cols; j++) x[i * d.cols + j] *= a * b[j];
    }
    return TR_OK;
}

tr_status tr_cpu_prepare_factor_sums(const tr_op_context *context, const tr_op_desc *desc,
                                     tr_op **out) {
    const size_t partial = (size_t)(blocks_of(&desc->factor) * desc->factor.cols);
    return tr_host_op_create(context, desc, 0, partial * sizeof(double), run_factor_sums, out);
}
tr_status tr_cpu_prepare_factor(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_host_op_create(context, desc, 0, (size_t)desc->factor.cols * sizeof(float),
                             run_factor, out);
}
