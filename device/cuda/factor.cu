/* Kernels of FACTOR_SUMS and FACTOR. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/cuda/sumsq.cuh"
#include "device/elementwise.h"

namespace {

/* A warp sums the squares of a row, in blocks of 4096 elements. packs: all rows start on 16
 * bytes. */
template <bool packs, typename T>
__device__ void sum_rows(const tr_factor_desc &d, float scale, const T *x, double *rows) {
    for (int64_t i = tr_first_row(); i < d.rows; i += tr_row_stride()) {
        double sum = 0;
        for (int64_t at = 0; at < d.cols; at += TR_SUMSQ_BLOCK) {
            const int64_t left = d.cols - at;
            sum += tr_warp_sumsq<packs>(
                x + i * d.cols + at, left < TR_SUMSQ_BLOCK ? left : (int64_t)TR_SUMSQ_BLOCK, scale);
        }
        if (tr_lane() == 0) rows[i] = sum;
    }
}

template <bool packs, typename T>
__global__ void sum_gradient_rows(tr_factor_desc d, const tr_step_state *state, const T *x,
                                  double *rows) {
    sum_rows<packs>(d, tr_factor_scale(&d, state), x, rows);
}

template <bool packs>
__global__ void sum_direction_rows(tr_factor_desc d, const float *u, double *rows) {
    sum_rows<packs>(d, 1.0f, u, rows);
}

/* One block. */
__global__ void add_rows(int64_t n, const tr_step_state *state, const double *rows, double *norm) {
    if (state->skip) return;
    const double total = tr_block_total(n, rows);
    if (threadIdx.x == 0) *norm = total;
}

/* A thread adds one column of one block of rows. partial[blocks][cols]. */
template <typename T>
__global__ void sum_cols(tr_factor_desc d, const tr_step_state *state, int64_t blocks, const T *x,
                         double *partial) {
    const float scale = tr_factor_scale(&d, state);
    const int64_t block = tr_factor_block(d.rows);
    for (int64_t k = tr_first_item(); k < blocks * d.cols; k += tr_item_stride()) {
        const int64_t first = k / d.cols * block, left = d.rows - first;
        const int64_t n = left < block ? left : block;
        const T *at = x + first * d.cols + k % d.cols;
        double sum = 0;
#pragma unroll 8
        for (int64_t i = 0; i < n; i++) {
            const double y = tr_load_one(at + i * d.cols) * scale;
            sum += y * y;
        }
        partial[k] = sum;
    }
}

__global__ void finish_cols(int64_t blocks, int64_t n, const double *partial, double *cols) {
    for (int64_t j = tr_first_item(); j < n; j += tr_item_stride()) {
        double sum = 0;
#pragma unroll 8
        for (int64_t k = 0; k < blocks; k++) sum += partial[k * n + j];
        cols[j] = sum;
    }
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

/* One block: a thread adds one lane, and the first one adds the lanes. */
__global__ void add_total(int64_t n, const float *x, double *total) {
    __shared__ double lanes[TR_FACTOR_LANES];
    lanes[threadIdx.x] = tr_factor_lane(x, n, (int)threadIdx.x);
    __syncthreads();
    if (threadIdx.x != 0) return;
    double sum = 0;
    for (int j = 0; j < TR_FACTOR_LANES; j++) sum += lanes[j];
    *total = sum;
}

/* factor: of the rows, then of the columns. */
__global__ void make_factors(tr_factor_desc d, const double *total, const float *r, const float *c,
                             float *factor) {
    for (int64_t i = tr_first_item(); i < d.rows + d.cols; i += tr_item_stride())
        factor[i] = i < d.rows ? tr_factor_row(*total, r[i]) : tr_factor_col(c[i - d.rows]);
}

/* A thread takes N adjacent elements of a row, of which cols is a multiple. */
template <typename T, int N>
__global__ void apply(tr_factor_desc d, const tr_step_state *state, const float *factor, const T *x,
                      float *u) {
    if (state->skip) return;
    const float scale = tr_factor_scale(&d, state);
    const int64_t packs = d.cols / N;
    for (int64_t i = tr_first_item(); i < d.rows * packs; i += tr_item_stride()) {
        const float row = factor[i / packs], *cols = factor + d.rows + i % packs * N;
        float v[N];
        tr_load(x + i * N, v);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = v[j] * scale * (row * cols[j]);
        tr_store(u + i * N, v);
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
    const int64_t blocks = tr_cuda_factor_blocks(d->rows);
    TR_LAUNCH(tr_dispatch_type(dtype_of(d), [=](auto storage) {
        using T = typename decltype(storage)::type;
        const T *const from = static_cast<const T *>(x);
        const bool packs = tr_rows_aligned(dtype_of(d), d->cols, x);
        TR_LAUNCH(tr_launch(stream, tr_grid(d->rows, TR_WARPS), TR_THREADS,
                            packs ? sum_gradient_rows<true, T> : sum_gradient_rows<false, T>, *d,
                            state, from, rows));
        return tr_launch(stream, tr_grid(blocks * d->cols, TR_THREADS), TR_THREADS, sum_cols<T>, *d,
                         state, blocks, from, partial);
    }));
    return tr_launch(stream, tr_grid(d->cols, TR_THREADS), TR_THREADS, finish_cols, blocks, d->cols,
                     partial, cols);
}

cudaError_t tr_cuda_launch_factor(cudaStream_t stream, const tr_factor_desc *d,
                                  const tr_step_state *state, const void *x, const double *rows,
                                  const double *cols, float *r, float *c, double *norm, float *u,
                                  void *scratch) {
    const bool by_cols = d->cols == d->all_cols;
    const unsigned grid = tr_grid(d->rows + d->cols, TR_THREADS);
    double *total = static_cast<double *>(scratch), *sums = total + 1;
    float *factor = reinterpret_cast<float *>(sums + d->rows);
    const bool packs = tr_rows_aligned(TR_F32, d->cols, u);
    TR_LAUNCH(tr_launch(stream, grid, TR_THREADS, update_moments, *d, state, rows, cols, r, c));
    TR_LAUNCH(tr_launch(stream, 1, TR_FACTOR_LANES, add_total, by_cols ? d->cols : d->rows,
                        by_cols ? c : r, total));
    TR_LAUNCH(tr_launch(stream, grid, TR_THREADS, make_factors, *d, total, r, c, factor));
    TR_LAUNCH(
        tr_dispatch(dtype_of(d), tr_rows_aligned(dtype_of(d), d->cols, x, u), [=](auto storage) {
            using T = typename decltype(storage)::type;
            constexpr int N = decltype(storage)::pack;
            return tr_launch(stream, tr_grid(d->rows * d->cols, 4 * TR_THREADS), TR_THREADS,
                             apply<T, N>, *d, state, factor, static_cast<const T *>(x), u);
        }));
    if (!norm) return cudaSuccess;
    TR_LAUNCH(tr_launch(stream, tr_grid(d->rows, TR_WARPS), TR_THREADS,
                        packs ? sum_direction_rows<true> : sum_direction_rows<false>, *d, u, sums));
    return tr_launch(stream, 1, TR_SUMSQ_LANES, add_rows, d->rows, state, sums, norm);
}
