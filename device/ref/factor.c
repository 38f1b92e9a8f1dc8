/* FACTOR_SUMS and FACTOR. */
#include "base/minmax.h"
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"

/* Returns element i of G. */
static double gradient(const tr_factor_desc *d, const tr_op_args *args, int64_t i) {
    const double x = tr_ref_get(args, TR_FACTOR_X, i);
    if (!d->scales) return x;
    return tr_ref_scalar(d->dtype, x * tr_ref_scalar(d->dtype, args->state->gradient_factor));
}

static double squared(double x) {
    return x * x;
}

/* Returns the sum of squares of a row of G, or of U. */
static double sum_row(const tr_factor_desc *d, const tr_op_args *args, int64_t row, bool of_u) {
    double sum = 0;
    for (int64_t at = 0; at < d->cols; at += TR_SUMSQ_BLOCK) {
        double lane[TR_SUMSQ_LANES] = {0};
        const int64_t n = tr_min_i64(TR_SUMSQ_BLOCK, d->cols - at);
        for (int64_t j = 0; j < n; j++) {
            const int64_t i = row * d->cols + at + j;
            lane[j % TR_SUMSQ_LANES] +=
                squared(of_u ? tr_ref_get(args, TR_FACTOR_U, i) : gradient(d, args, i));
        }
        sum += tr_sumsq_lanes(lane, n);
    }
    return sum;
}

static double sum_col(const tr_factor_desc *d, const tr_op_args *args, int64_t col) {
    const int64_t block = tr_factor_block(d->rows);
    double sum = 0;
    for (int64_t first = 0; first < d->rows; first += block) {
        double partial = 0;
        for (int64_t i = first; i < d->rows && i < first + block; i++)
            partial += squared(gradient(d, args, i * d->cols + col));
        sum += partial;
    }
    return sum;
}

tr_status tr_ref_factor_sums(tr_op *op, const tr_op_args *args) {
    const tr_factor_desc *d = &op->desc.factor;
    for (int64_t i = 0; i < d->rows; i++)
        ((double *)args->t[TR_FACTOR_ROWS].data)[i] = sum_row(d, args, i, false);
    for (int64_t j = 0; j < d->cols; j++)
        ((double *)args->t[TR_FACTOR_COLS].data)[j] = sum_col(d, args, j);
    return TR_OK;
}

static void update_moments(const tr_op_args *args, int state, int sums, int64_t n, int64_t count) {
    const double b = args->state->square_weight, *sum = args->t[sums].data;
    for (int64_t i = 0; i < n; i++)
        tr_ref_set(args, state, i,
                   (1 - b) * tr_ref_get(args, state, i) + b * (sum[i] + 1e-30 * (double)count));
}

static double total_of(const tr_op_args *args, int state, int64_t n) {
    double total = 0;
    for (int lane = 0; lane < TR_FACTOR_LANES; lane++) {
        double sum = 0;
        for (int64_t i = lane; i < n; i += TR_FACTOR_LANES) sum += tr_ref_get(args, state, i);
        total += sum;
    }
    return total;
}

tr_status tr_ref_factor(tr_op *op, const tr_op_args *args) {
    const tr_factor_desc *d = &op->desc.factor;
    double lane[TR_SUMSQ_LANES] = {0}, *norm = args->t[TR_FACTOR_NORM].data;
    if (args->state->skip) return TR_OK;
    update_moments(args, TR_FACTOR_R, TR_FACTOR_ROWS, d->rows, d->all_cols);
    update_moments(args, TR_FACTOR_C, TR_FACTOR_COLS, d->cols, d->all_rows);
    const double total = d->cols == d->all_cols ? total_of(args, TR_FACTOR_C, d->cols)
                                                : total_of(args, TR_FACTOR_R, d->rows);
    for (int64_t i = 0; i < d->rows; i++) {
        const double a = tr_ref_scalar(d->dtype, sqrt(total / tr_ref_get(args, TR_FACTOR_R, i)));
        for (int64_t j = 0; j < d->cols; j++) {
            const int64_t at = i * d->cols + j;
            const double b = tr_ref_scalar(d->dtype, 1 / sqrt(tr_ref_get(args, TR_FACTOR_C, j)));
            tr_ref_set(args, TR_FACTOR_U, at,
                       gradient(d, args, at) * tr_ref_scalar(d->dtype, a * b));
        }
        lane[i % TR_SUMSQ_LANES] += sum_row(d, args, i, true);
    }
    if (norm) *norm = tr_sumsq_lanes(lane, d->rows);
    return TR_OK;
}
