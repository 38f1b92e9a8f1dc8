/* Kernels of root-mean-square normalisation (Zhang and Sennrich 2019). */
#include "device/cuda/columns.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/norm.cuh"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

template <typename T, int N>
__global__ void __launch_bounds__(TR_THREADS, 3)
    rmsnorm(tr_rmsnorm_desc d, tr_team team, const T *x, const T *gamma, T *y, float *rstds,
            T *copy) {
    for (int64_t r = team.first(); team.goes_on(r); r += team.stride()) {
        const tr_columns_of<N> columns(team, r, d.width);
        const T *row = x + tr_rmsnorm_row(&d, d.ldx, r);
        tr_kept<T, N> kept;
        tr_keep<T>(columns, row, kept);
        tr_team_rmsnorm<T>(team, columns, kept, d.width, (float)d.eps, row, gamma,
                           y + tr_rmsnorm_row(&d, d.ldy, r), rstds + r,
                           copy ? copy + r * d.width : nullptr);
    }
}

/* dx may be dy or residual. */
template <typename T, int N>
__global__ void __launch_bounds__(TR_THREADS, 2)
    rmsnorm_dgrad(tr_rmsnorm_desc d, tr_team team, const T *dy, const T *x, const T *gamma,
                  const float *rstds, const T *residual, T *dx, T *copy) {
    for (int64_t r = team.first(); team.goes_on(r); r += team.stride()) {
        const tr_columns_of<N> columns(team, r, d.width);
        const T *row = x + tr_rmsnorm_row(&d, d.ldx, r);
        const int64_t to = tr_rmsnorm_row(&d, d.ldy, r);
        const T *added = residual ? residual + to : nullptr;
        tr_kept<T, N> kept_dy, kept_x, kept_added;
        tr_keep<T>(columns, dy + to, kept_dy);
        tr_keep<T>(columns, row, kept_x);
        tr_keep<T>(columns, added, kept_added);
        const float rstd = r < team.rows ? rstds[r] : 0.0f;
        float g[N], n[N], scale[N], sum[1] = {};
        const auto load = [&](int64_t c, const tr_raw<T, N> &d, const tr_raw<T, N> &v) {
            tr_load(gamma + c, scale);
            tr_unpack<T>(d, g);
            tr_unpack<T>(v, n);
        };
        const auto add = [&](int64_t c, const tr_raw<T, N> &d, const tr_raw<T, N> &v) {
            load(c, d, v);
#pragma unroll
            for (int i = 0; i < N; i++) sum[0] += g[i] * scale[i] * (n[i] * rstd);
        };
        columns.kept([&](int k, int64_t c) { add(c, kept_dy[k], kept_x[k]); });
        columns.rest(
            [&](int64_t c) { add(c, tr_load_raw<N>(dy + to + c), tr_load_raw<N>(row + c)); });
        team.sum(sum);
        const float mean = sum[0] / (float)d.width;
        const auto write = [&](int64_t c, const tr_raw<T, N> &dy, const tr_raw<T, N> &v,
                               const tr_raw<T, N> &of_added) {
            float out[N];
            load(c, dy, v);
            tr_unpack<T>(of_added, out);
            if (copy) tr_store(copy + r * d.width + c, g);
#pragma unroll
            for (int i = 0; i < N; i++)
                out[i] += tr_rmsnorm_dgrad(g[i] * scale[i], n[i] * rstd, rstd, mean);
            tr_store(dx + to + c, out);
        };
        columns.kept([&](int k, int64_t c) { write(c, kept_dy[k], kept_x[k], kept_added[k]); });
        columns.rest([&](int64_t c) {
            write(c, tr_load_raw<N>(dy + to + c), tr_load_raw<N>(row + c), tr_read<N>(added, c));
        });
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
        const tr_team team = tr_team_of(d.rows, d.width / S::pack);
        return tr_launch(stream, tr_team_grid(team), TR_THREADS, rmsnorm<typename S::type, S::pack>,
                         d, team, x, gamma, y, rstds, kept);
    });
}

cudaError_t tr_cuda_launch_rmsnorm_dgrad(cudaStream_t stream, const tr_rmsnorm_desc *desc,
                                         const void *dy, const void *x, const void *gamma,
                                         const float *rstds, const void *residual, void *dx,
                                         void *kept) {
    const tr_rmsnorm_desc d = *desc;
    return tr_dispatch(d.dtype, aligned(desc, dy, x, gamma, residual, dx, kept), [=](auto storage) {
        using S = decltype(storage);
        const tr_team team = tr_team_of(d.rows, d.width / S::pack);
        return tr_launch(stream, tr_team_grid(team), TR_THREADS,
                         rmsnorm_dgrad<typename S::type, S::pack>, d, team, dy, x, gamma, rstds,
                         residual, dx, kept);
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
