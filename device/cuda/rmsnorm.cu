/* Kernels of root-mean-square normalisation (Zhang and Sennrich 2019): a warp takes a row. */
#include "device/cuda/columns.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/norm.cuh"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

template <typename T, int N>
__global__ void rmsnorm(tr_rmsnorm_desc d, const T *x, const T *gamma, T *y, float *rstds,
                        T *kept) {
    for (int64_t r = tr_first_row(); r < d.rows; r += tr_row_stride())
        tr_warp_rmsnorm<T, N>(d.width, (float)d.eps, x + tr_rmsnorm_row(&d, d.ldx, r), gamma,
                              y + tr_rmsnorm_row(&d, d.ldy, r), rstds + r,
                              kept ? kept + r * d.width : nullptr);
}

/* dx may be dy or residual. */
template <typename T, int N>
__global__ void rmsnorm_dgrad(tr_rmsnorm_desc d, const T *dy, const T *x, const T *gamma,
                              const float *rstds, const T *residual, T *dx, T *kept) {
    constexpr int step = TR_WARP * N;
    const int64_t first = tr_lane() * N, width = d.width;
    for (int64_t r = tr_first_row(); r < d.rows; r += tr_row_stride()) {
        const T *row = x + tr_rmsnorm_row(&d, d.ldx, r);
        const int64_t to = tr_rmsnorm_row(&d, d.ldy, r);
        const float rstd = rstds[r];
        float g[N], n[N], v[N], sum = 0;
        for (int64_t c = first; c < width; c += step) {
            tr_load(dy + to + c, g);
            tr_load(row + c, n);
            tr_load(gamma + c, v);
#pragma unroll
            for (int i = 0; i < N; i++) sum += g[i] * v[i] * (n[i] * rstd);
        }
        const float mean = tr_warp_sum(sum) / (float)width;
        for (int64_t c = first; c < width; c += step) {
            tr_load(dy + to + c, g);
            tr_load(row + c, n);
            tr_load(gamma + c, v);
            if (kept) tr_store(kept + r * width + c, g);
#pragma unroll
            for (int i = 0; i < N; i++)
                g[i] = tr_rmsnorm_dgrad(g[i] * v[i], n[i] * rstd, rstd, mean);
            if (residual) {
                tr_load(residual + to + c, v);
#pragma unroll
                for (int i = 0; i < N; i++) g[i] += v[i];
            }
            tr_store(dx + to + c, g);
        }
    }
}

/* The column sum of RMSNORM_WGRAD. */
template <typename T> struct wgrad_rows {
    tr_rmsnorm_desc d;
    const T *dy, *x;
    const float *rstds;
    template <int N> __device__ void add(int64_t row, int64_t column, float (&total)[1][N]) const {
        float g[N], v[N];
        const float rstd = rstds[row];
        tr_load(dy + tr_rmsnorm_row(&d, d.ldy, row) + column, g);
        tr_load(x + tr_rmsnorm_row(&d, d.ldx, row) + column, v);
#pragma unroll
        for (int i = 0; i < N; i++) total[0][i] += g[i] * (v[i] * rstd);
    }
};

/* True when every row starts on 16 bytes. */
template <typename... P> bool aligned(const tr_rmsnorm_desc *d, P... pointers) {
    return tr_rows_aligned(d->dtype, d->width, pointers...) && tr_rows_aligned(d->dtype, d->ldx) &&
           tr_rows_aligned(d->dtype, d->ldy);
}

} // namespace

cudaError_t tr_cuda_launch_rmsnorm(cudaStream_t stream, const tr_rmsnorm_desc *desc, const void *x,
                                   const void *gamma, void *y, float *rstds, void *kept) {
    const tr_rmsnorm_desc d = *desc;
    return tr_dispatch(d.dtype, aligned(desc, x, gamma, y, kept), [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(d.rows, TR_WARPS), TR_THREADS,
                         rmsnorm<typename S::type, S::pack>, d, x, gamma, y, rstds, kept);
    });
}

cudaError_t tr_cuda_launch_rmsnorm_dgrad(cudaStream_t stream, const tr_rmsnorm_desc *desc,
                                         const void *dy, const void *x, const void *gamma,
                                         const float *rstds, const void *residual, void *dx,
                                         void *kept) {
    const tr_rmsnorm_desc d = *desc;
    return tr_dispatch(d.dtype, aligned(desc, dy, x, gamma, residual, dx, kept), [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(d.rows, TR_WARPS), TR_THREADS,
                         rmsnorm_dgrad<typename S::type, S::pack>, d, dy, x, gamma, rstds, residual,
                         dx, kept);
    });
}

cudaError_t tr_cuda_launch_rmsnorm_wgrad(cudaStream_t stream, const tr_rmsnorm_desc *desc,
                                         const void *dy, const void *x, const float *rstds,
                                         float *dgamma, float *partial, bool adds) {
    const tr_rmsnorm_desc d = *desc;
    return tr_dispatch(d.dtype, aligned(desc, dy, x), [=](auto storage) {
        using S = decltype(storage);
        using T = typename S::type;
        float *const out[] = {dgamma};
        const wgrad_rows<T> rows = {d, static_cast<const T *>(dy), static_cast<const T *>(x),
                                    rstds};
        return tr_launch_columns<S::pack, 1>(stream, d.rows, d.width, rows, partial, out, adds);
    });
}
