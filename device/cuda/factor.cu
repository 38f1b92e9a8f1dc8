/* Kernels of FACTOR_SUMS and FACTOR. */
#include "device/cuda/eight.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/sumsq.cuh"
#include "device/elementwise.h"

namespace {

/* Adds the squares of v[] * scale, each to its column. Returns their sum. */
template <int COLUMNS, typename T>
__device__ double add_squares(const T (&v)[COLUMNS], float scale, double (&col)[COLUMNS]) {
    double sum = 0;
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) {
        const double y = tr_load_one(&v[k]) * scale;
        col[k] += y * y;
        sum += y * y;
    }
    return sum;
}

/* Returns a warp's sum of a row's lanes, by halves. */
__device__ double add_lanes(const double (&lanes)[TR_SUMSQ_LANES]) {
    double lane[TR_WARPS];
#pragma unroll
    for (int k = 0; k < TR_WARPS; k++) lane[k] = lanes[k * TR_WARP + tr_lane()];
#pragma unroll
    for (int half = TR_WARPS / 2; half > 0; half /= 2)
#pragma unroll
        for (int k = 0; k < half; k++) lane[k] += lane[k + half];
    return tr_warp_sum(lane[0]);
}

/* Sums squares along both axes, in the orders of FACTOR_SUMS. A block takes a block of rows and a
 * tile of at most TR_SUMSQ_BLOCK columns. A thread has COLUMNS of these, TR_SUMSQ_LANES apart, and
 * so one lane of each row; it loads rows long before it uses them. After eight rows each warp adds
 * the lanes of one. by_row[tiles][rows], by_col[blocks][cols]. */
template <int COLUMNS, typename T>
__global__ void __launch_bounds__(TR_SUMSQ_LANES, 2)
    sum_squares(tr_factor_desc d, const tr_step_state *state, int64_t blocks, int64_t tiles,
                const T *x, double *by_row, double *by_col) {
    constexpr int ROWS = 16 / COLUMNS, AHEAD = 2;
    __shared__ double lanes[TR_WARPS][TR_SUMSQ_LANES];
    const float scale = tr_factor_scale(&d, state);
    for (int64_t task = blockIdx.x; task < blocks * tiles; task += gridDim.x) {
        const int64_t block = task / tiles, tile = task % tiles, height = tr_factor_block(d.rows);
        const int64_t first = block * height, left = d.rows - first;
        const int64_t rows = left < height ? left : height;
        const int64_t column = tile * TR_SUMSQ_BLOCK + threadIdx.x;
        const int columns = column < d.cols ? (int)((d.cols - column - 1) / TR_SUMSQ_LANES) + 1 : 0;
        const auto load = [=](int64_t i, T(&to)[ROWS][COLUMNS]) {
#pragma unroll
            for (int m = 0; m < ROWS; m++) {
                const int64_t row = i + m < rows ? i + m : rows - 1; /* loads without a branch */
                const T *at = x + (first + row) * d.cols + column;
#pragma unroll
                for (int k = 0; k < COLUMNS; k++)
                    to[m][k] = k < columns ? at[k * TR_SUMSQ_LANES] : T{};
            }
        };
        T v[1 + AHEAD][ROWS][COLUMNS];
        double col[COLUMNS] = {};
#pragma unroll
        for (int k = 0; k < AHEAD; k++) load(k * ROWS, v[k]);
        for (int64_t i = 0; i < rows;)
#pragma unroll
            for (int now = 0; now <= AHEAD; now++) {
                if (i >= rows) break;
                load(i + AHEAD * ROWS, v[(now + AHEAD) % (1 + AHEAD)]);
#pragma unroll
                for (int m = 0; m < ROWS; m++) {
                    if (m > 0 && i + m >= rows) break;
                    lanes[(i + m) % TR_WARPS][threadIdx.x] = add_squares(v[now][m], scale, col);
                }
                i += ROWS;
                if (i % TR_WARPS != 0 && i < rows) continue;
                const int64_t row = (i - 1) / TR_WARPS * TR_WARPS + tr_warp();
                __syncthreads();
                const double sum = add_lanes(lanes[tr_warp()]);
                if (tr_lane() == 0 && row < rows) by_row[tile * d.rows + first + row] = sum;
                __syncthreads(); /* all threads have read, so the next lanes may be written */
            }
#pragma unroll
        for (int k = 0; k < COLUMNS; k++)
            if (k < columns) by_col[block * d.cols + column + k * TR_SUMSQ_LANES] = col[k];
    }
}

/* Adds the blocks' sums of columns, and the tiles' sums of rows. */
__global__ void finish_sums(tr_factor_desc d, int64_t blocks, int64_t tiles, const double *by_row,
                            const double *by_col, double *rows, double *cols) {
    for (int64_t k = tr_first_item(); k < d.cols + d.rows; k += tr_item_stride()) {
        const bool col = k < d.cols;
        const int64_t i = col ? k : k - d.cols, step = col ? d.cols : d.rows;
        (col ? cols : rows)[i] =
            tr_sum_apart(col ? blocks : tiles, step, (col ? by_col : by_row) + i);
    }
}

/* One block. */
__global__ void add_rows(int64_t n, const tr_step_state *state, const double *rows, double *norm) {
    if (state->skip) return;
    const double total = tr_block_total(n, rows);
    if (threadIdx.x == 0) *norm = total;
}

__global__ void update_moments(tr_factor_desc d, const tr_step_state *state, const double *rows,
                               const double *cols, float *r, float *c) {
    if (state->skip) return;
    const double weight = state->square_weight;
    for (int64_t i = tr_first_item(); i < d.rows + d.cols; i += tr_item_stride()) {
        const int64_t j = i - d.rows;
        if (j < 0) r[i] = tr_factor_moment(weight, r[i], rows[i], d.all_cols);
        else c[j] = tr_factor_moment(weight, c[j], cols[j], d.all_rows);
    }
}

/* Blocks of TR_SUMSQ_LANES threads, each of which adds the total of x[n]: a thread adds one lane,
 * then all lanes. factor: of the columns, then of the rows. */
__global__ void make_factors(tr_factor_desc d, int64_t n, const float *x, const float *r,
                             const float *c, float *factor) {
    __shared__ double lanes[TR_FACTOR_LANES];
    lanes[threadIdx.x] = tr_sum_lane(n, x);
    __syncthreads();
    double total = 0;
    for (int j = 0; j < TR_FACTOR_LANES; j++) total += lanes[j];
    for (int64_t i = tr_first_item(); i < d.cols + d.rows; i += tr_item_stride())
        factor[i] = i < d.cols ? tr_factor_col(c[i]) : tr_factor_row(total, r[i - d.cols]);
}

/* A warp takes a row, and its sum of the squares of U, in blocks of 4096 elements. packs: all rows
 * start on 16 bytes. */
template <bool packs, typename T>
__global__ void apply(tr_factor_desc d, const tr_step_state *state, const float *factor, const T *x,
                      float *u, double *sums) {
    if (state->skip) return;
    const float scale = tr_factor_scale(&d, state);
    for (int64_t i = tr_first_row(); i < d.rows; i += tr_row_stride()) {
        const float row = factor[d.cols + i];
        double sum = 0;
        for (int64_t at = 0; at < d.cols; at += TR_SUMSQ_BLOCK) {
            const int64_t left = d.cols - at, first = i * d.cols + at;
            const auto change = [=](auto e, float(&v)[TR_SUMSQ_PER_THREAD]) {
                float cols[TR_SUMSQ_PER_THREAD];
                tr_load_eight(e, factor + at, cols);
#pragma unroll
                for (int j = 0; j < TR_SUMSQ_PER_THREAD; j++) v[j] = v[j] * scale * (row * cols[j]);
                tr_store_eight(e, v, u + first);
            };
            sum += tr_warp_squares<packs>(
                x + first, left < TR_SUMSQ_BLOCK ? left : (int64_t)TR_SUMSQ_BLOCK, change);
        }
        if (tr_lane() == 0) sums[i] = sum;
    }
}

/* Returns the dtype of X. */
tr_dtype dtype_of(const tr_factor_desc *d) {
    return d->bf16_grad ? TR_BF16 : TR_F32;
}

} // namespace

cudaError_t tr_cuda_launch_factor_sums(cudaStream_t stream, const tr_factor_desc *d,
                                       const tr_step_state *state, const void *x, double *rows,
                                       double *cols, double *partial) {
    const int64_t blocks = tr_cuda_factor_blocks(d->rows), tiles = tr_sumsq_blocks(d->cols);
    double *by_col = partial, *by_row = partial + blocks * d->cols;
    TR_LAUNCH(tr_dispatch_type(dtype_of(d), [=](auto storage) {
        using T = typename decltype(storage)::type;
        return tr_launch(stream, tr_grid(blocks * tiles, 1), TR_SUMSQ_LANES,
                         d->cols > 4 * TR_SUMSQ_LANES ? sum_squares<16, T> : sum_squares<4, T>, *d,
                         state, blocks, tiles, x, by_row, by_col);
    }));
    return tr_launch(stream, tr_grid(d->cols + d->rows, TR_THREADS), TR_THREADS, finish_sums, *d,
                     blocks, tiles, by_row, by_col, rows, cols);
}

cudaError_t tr_cuda_launch_factor(cudaStream_t stream, const tr_factor_desc *d,
                                  const tr_step_state *state, const void *x, const double *rows,
                                  const double *cols, float *r, float *c, double *norm, float *u,
                                  void *scratch) {
    const bool by_cols = d->cols == d->all_cols;
    const unsigned grid = tr_grid(d->rows + d->cols, TR_THREADS);
    double *sums = static_cast<double *>(scratch);
    float *factor = reinterpret_cast<float *>(sums + d->rows + d->rows % 2); /* on 16 bytes */
    TR_LAUNCH(tr_launch(stream, grid, TR_THREADS, update_moments, *d, state, rows, cols, r, c));
    TR_LAUNCH(tr_launch(stream, grid, TR_FACTOR_LANES, make_factors, *d,
                        by_cols ? d->cols : d->rows, by_cols ? c : r, r, c, factor));
    TR_LAUNCH(tr_dispatch_type(dtype_of(d), [=](auto storage) {
        using T = typename decltype(storage)::type;
        const bool packs = tr_rows_aligned(dtype_of(d), d->cols, x, u, factor);
        return tr_launch(stream, tr_grid(d->rows, TR_WARPS), TR_THREADS,
                         packs ? apply<true, T> : apply<false, T>, *d, state, factor, x, u, sums);
    }));
    if (!norm) return cudaSuccess;
    return tr_launch(stream, 1, TR_SUMSQ_LANES, add_rows, d->rows, state, sums, norm);
}
