/* Kernels of layer normalisation (Ba, Kiros and Hinton 2016): a warp takes a row. */
#include "device/cuda/columns.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/norm.cuh"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

template <typename T, int N>
__global__ void layernorm(int64_t rows, int64_t width, float eps, const T *x, const T *gamma,
                          const T *beta, T *y, float *means, float *rstds) {
    for (int64_t r = tr_first_row(); r < rows; r += tr_row_stride())
        tr_warp_layernorm<T, N>(width, eps, x + r * width, gamma, beta, y + r * width, means + r,
                                rstds + r);
}

/* dx may be residual: a pack is read before it is written, by the same thread. */
template <typename T, int N>
__global__ void layernorm_dgrad(int64_t rows, int64_t width, const T *dy, const T *x,
                                const T *gamma, const float *means, const float *rstds,
                                const T *residual, T *dx) {
    constexpr int step = TR_WARP * N;
    const int64_t first = tr_lane() * N;
    for (int64_t r = tr_first_row(); r < rows; r += tr_row_stride()) {
        const int64_t row = r * width;
        const float mean = means[r], rstd = rstds[r];
        float g[N], n[N], v[N], sum_g = 0, sum_gn = 0;
        for (int64_t c = first; c < width; c += step) {
            tr_load(dy + row + c, g);
            tr_load(x + row + c, n);
            tr_load(gamma + c, v);
#pragma unroll
            for (int i = 0; i < N; i++) {
                g[i] *= v[i];
                sum_g += g[i];
                sum_gn += g[i] * tr_layernorm_centred(n[i], mean, rstd);
            }
        }
        const float mean_g = tr_warp_sum(sum_g) / (float)width;
        const float mean_gn = tr_warp_sum(sum_gn) / (float)width;
        for (int64_t c = first; c < width; c += step) {
            tr_load(dy + row + c, g);
            tr_load(x + row + c, n);
            tr_load(gamma + c, v);
#pragma unroll
            for (int i = 0; i < N; i++)
                g[i] = tr_layernorm_dgrad(g[i] * v[i], tr_layernorm_centred(n[i], mean, rstd), rstd,
                                          mean_g, mean_gn);
            if (residual) {
                tr_load(residual + row + c, v);
#pragma unroll
                for (int i = 0; i < N; i++) g[i] += v[i];
            }
            tr_store(dx + row + c, g);
        }
    }
}

/* The column sums of LAYERNORM_WGRAD: dgamma, dbeta. */
template <typename T> struct wgrad_rows {
    const T *dy, *x;
    const float *means, *rstds;
    int64_t width;
    template <int N> __device__ void add(int64_t row, int64_t column, float (&total)[2][N]) const {
        float d[N], v[N];
        const float mean = means[row], rstd = rstds[row];
        tr_load(dy + row * width + column, d);
        tr_load(x + row * width + column, v);
#pragma unroll
        for (int i = 0; i < N; i++) {
            total[0][i] += d[i] * tr_layernorm_centred(v[i], mean, rstd);
            total[1][i] += d[i];
        }
    }
};

} // namespace

cudaError_t tr_cuda_launch_layernorm(cudaStream_t stream, const tr_layernorm_desc *d, const void *x,
                                     const void *gamma, const void *beta, void *y, float *means,
                                     float *rstds) {
    const int64_t rows = d->rows, width = d->width;
    const float eps = (float)d->eps;
    bool packs = tr_rows_aligned(d->dtype, width, x, gamma, beta, y);
    return tr_dispatch(d->dtype, packs, [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(rows, TR_WARPS), TR_THREADS,
                         layernorm<typename S::type, S::pack>, rows, width, eps, x, gamma, beta, y,
                         means, rstds);
    });
}

cudaError_t tr_cuda_launch_layernorm_dgrad(cudaStream_t stream, const tr_layernorm_desc *d,
                                           const void *dy, const void *x, const void *gamma,
                                           const float *means, const float *rstds,
                                           const void *residual, void *dx) {
    const int64_t rows = d->rows, width = d->width;
    bool packs = tr_rows_aligned(d->dtype, width, dy, x, gamma, residual, dx);
    return tr_dispatch(d->dtype, packs, [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(rows, TR_WARPS), TR_THREADS,
                         layernorm_dgrad<typename S::type, S::pack>, rows, width, dy, x, gamma,
                         means, rstds, residual, dx);
    });
}

cudaError_t tr_cuda_launch_layernorm_wgrad(cudaStream_t stream, const tr_layernorm_desc *d,
                                           const void *dy, const void *x, const float *means,
                                           const float *rstds, float *dgamma, float *dbeta,
                                           float *partial, bool adds) {
    const int64_t rows = d->rows, width = d->width;
    bool packs = tr_rows_aligned(d->dtype, width, dy, x);
    return tr_dispatch(d->dtype, packs, [=](auto storage) {
        using S = decltype(storage);
        using T = typename S::type;
        float *const out[] = {dgamma, dbeta};
        return tr_launch_columns<S::pack, 2>(stream, rows, width,
                                             wgrad_rows<T>{static_cast<const T *>(dy),
                                                           static_cast<const T *>(x), means, rstds,
                                                           width},
                                             partial, out, adds);
    });
}
