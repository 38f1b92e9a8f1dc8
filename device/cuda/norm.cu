/* Kernels of layer normalisation (Ba, Kiros and Hinton 2016). */
#include "device/cuda/columns.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/norm.cuh"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

template <typename T, int N>
__global__ void __launch_bounds__(TR_THREADS, 3)
    layernorm(tr_team team, int64_t width, float eps, const T *x, const T *gamma, const T *beta,
              T *y, float *means, float *rstds) {
    for (int64_t r = team.first(); team.goes_on(r); r += team.stride()) {
        const tr_columns_of<N> columns(team, r, width);
        tr_kept<T, N> kept;
        tr_keep<T>(columns, x + r * width, kept);
        tr_team_layernorm<T>(team, columns, kept, width, eps, x + r * width, gamma, beta,
                             y + r * width, means + r, rstds + r);
    }
}

/* dx may be residual: a pack is read before it is written, by the same thread. */
template <typename T, int N>
__global__ void __launch_bounds__(TR_THREADS, 2)
    layernorm_dgrad(tr_team team, int64_t width, const T *dy, const T *x, const T *gamma,
                    const float *means, const float *rstds, const T *residual, T *dx) {
    for (int64_t r = team.first(); team.goes_on(r); r += team.stride()) {
        const tr_columns_of<N> columns(team, r, width);
        const int64_t row = r * width;
        const T *added = residual ? residual + row : nullptr;
        tr_kept<T, N> kept_dy, kept_x, kept_added;
        tr_keep<T>(columns, dy + row, kept_dy);
        tr_keep<T>(columns, x + row, kept_x);
        tr_keep<T>(columns, added, kept_added);
        const bool own = r < team.rows;
        const float mean = own ? means[r] : 0.0f, rstd = own ? rstds[r] : 0.0f;
        float g[N], n[N], sums[2] = {};
        const auto weigh = [&](int64_t c, const tr_raw<T, N> &d, const tr_raw<T, N> &v) {
            float scale[N];
            tr_load(gamma + c, scale);
            tr_unpack<T>(d, g);
            tr_unpack<T>(v, n);
#pragma unroll
            for (int i = 0; i < N; i++) {
                g[i] *= scale[i];
                n[i] = tr_layernorm_centred(n[i], mean, rstd);
            }
        };
        const auto add = [&](int64_t c, const tr_raw<T, N> &d, const tr_raw<T, N> &v) {
            weigh(c, d, v);
#pragma unroll
            for (int i = 0; i < N; i++) {
                sums[0] += g[i];
                sums[1] += g[i] * n[i];
            }
        };
        columns.kept([&](int k, int64_t c) { add(c, kept_dy[k], kept_x[k]); });
        columns.rest(
            [&](int64_t c) { add(c, tr_load_raw<N>(dy + row + c), tr_load_raw<N>(x + row + c)); });
        team.sum(sums);
        const float mean_g = sums[0] / (float)width, mean_gn = sums[1] / (float)width;
        const auto write = [&](int64_t c, const tr_raw<T, N> &d, const tr_raw<T, N> &v,
                               const tr_raw<T, N> &of_added) {
            float to[N];
            weigh(c, d, v);
            tr_unpack<T>(of_added, to);
#pragma unroll
            for (int i = 0; i < N; i++)
                to[i] += tr_layernorm_dgrad(g[i], n[i], rstd, mean_g, mean_gn);
            tr_store(dx + row + c, to);
        };
        columns.kept([&](int k, int64_t c) { write(c, kept_dy[k], kept_x[k], kept_added[k]); });
        columns.rest([&](int64_t c) {
            write(c, tr_load_raw<N>(dy + row + c), tr_load_raw<N>(x + row + c),
                  tr_read<N>(added, c));
        });
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
        const tr_team team = tr_team_of(rows, width / S::pack);
        return tr_launch(stream, tr_team_grid(team), TR_THREADS,
                         layernorm<typename S::type, S::pack>, team, width, eps, x, gamma, beta, y,
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
        const tr_team team = tr_team_of(rows, width / S::pack);
        return tr_launch(stream, tr_team_grid(team), TR_THREADS,
                         layernorm_dgrad<typename S::type, S::pack>, team, width, dy, x, gamma,
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
