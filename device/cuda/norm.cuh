/* Norms of rows. A team of threads takes a row: as many lanes of a warp as the row has packs, or
 * several warps. A thread keeps its first packs of the row in registers, so that it reads them once
 * and has them all in flight at once; it reads the packs of a wider row again. Private to the
 * kernels. */
#pragma once

#include "device/cuda/kernel.cuh"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

enum { TR_KEPT = 4, TR_WARP_SHIFT = 5, TR_THREADS_SHIFT = 8 };

/* The teams of a grid: 2^shift threads each. */
struct tr_team {
    int64_t rows;
    int shift;

    /* A team's rows are first(), first() + stride(), ... All threads of a block go on while one of
     * them has a row, since they wait for each other in sums. */
    __device__ int64_t first() const {
        return tr_first_item() >> shift;
    }
    __device__ int64_t stride() const {
        return tr_item_stride() >> shift;
    }
    __device__ bool goes_on(int64_t row) const {
        return row - (threadIdx.x >> shift) < rows;
    }
    __device__ int64_t thread() const {
        return threadIdx.x & ((1u << shift) - 1);
    }

    /* Every thread gets the sums over its team: within warps, then warps in ascending order. */
    template <int SUMS> __device__ void sum(float (&value)[SUMS]) const {
        __shared__ float part[SUMS][TR_WARPS];
#pragma unroll
        for (int away = TR_WARP / 2; away > 0; away /= 2)
            if (away >> shift == 0)
#pragma unroll
                for (int s = 0; s < SUMS; s++)
                    value[s] += __shfl_xor_sync(0xffffffffu, value[s], away);
        if (shift <= TR_WARP_SHIFT) return;
        if (tr_lane() == 0)
#pragma unroll
            for (int s = 0; s < SUMS; s++) part[s][tr_warp()] = value[s];
        __syncthreads();
        const int warps = 1 << (shift - TR_WARP_SHIFT), from = tr_warp() & -warps;
#pragma unroll
        for (int s = 0; s < SUMS; s++) {
            value[s] = part[s][from];
            for (int w = 1; w < warps; w++) value[s] += part[s][from + w];
        }
        __syncthreads(); /* all threads have read, so the next sums may write */
    }
};

/* Returns the teams for rows of `packs` packs. It depends on the shape alone, as does therefore the
 * order of sums. */
static inline tr_team tr_team_of(int64_t rows, int64_t packs) {
    tr_team team = {rows, 0};
    while (team.shift < TR_THREADS_SHIFT &&
           (team.shift < TR_WARP_SHIFT ? 1 : TR_KEPT) * ((int64_t)1 << team.shift) < packs)
        team.shift++;
    return team;
}
static inline unsigned tr_team_grid(const tr_team &team) {
    return tr_grid(team.rows, TR_THREADS >> team.shift);
}

/* A thread's columns of its row: packs of N from `first` on, one every `step`, before `end`. */
template <int N> struct tr_columns_of {
    int64_t first, step, end;

    /* No columns: the team has no row. */
    __device__ tr_columns_of(const tr_team &team, int64_t row, int64_t width)
        : first(team.thread() * N), step((int64_t)N << team.shift),
          end(row < team.rows ? width : 0) {}
    /* Calls f(k, column) for the packs that are kept. */
    template <typename F> __device__ void kept(F f) const {
#pragma unroll
        for (int k = 0; k < TR_KEPT; k++) {
            const int64_t c = first + k * step;
            if (c < end) f(k, c);
        }
    }
    /* Calls f(column) for the others. */
    template <typename F> __device__ void rest(F f) const {
        for (int64_t c = first + TR_KEPT * step; c < end; c += step) f(c);
    }
    __device__ bool writes_row() const {
        return first == 0 && end > 0;
    }
};

template <typename T, int N> using tr_kept = tr_raw<T, N>[TR_KEPT];

/* Starts to read the packs of a row that are kept. */
template <typename T, int N>
__device__ void tr_keep(const tr_columns_of<N> &columns, const T *row, tr_kept<T, N> &to) {
#pragma unroll
    for (int k = 0; k < TR_KEPT; k++) to[k] = {};
    if (row) columns.kept([&](int k, int64_t c) { to[k] = tr_load_raw<N>(row + c); });
}

/* Unpacks the packs that are kept. */
template <typename T, int N>
__device__ void tr_unpack_kept(const tr_columns_of<N> &columns, const tr_kept<T, N> &kept,
                               float (&to)[TR_KEPT][N]) {
    columns.kept([&](int k, int64_t) { tr_unpack<T>(kept[k], to[k]); });
}

/* Calls f(column, elements) for the thread's packs of a row: for those in v, which are kept, and
 * then for the others, which it reads. */
template <typename T, int N, typename F>
__device__ void tr_each_pack(const tr_columns_of<N> &columns, float (&v)[TR_KEPT][N], const T *row,
                             F f) {
    columns.kept([&](int k, int64_t c) { f(c, v[k]); });
    columns.rest([&](int64_t c) {
        float other[N];
        tr_load(row + c, other);
        f(c, other);
    });
}

/* Writes LAYERNORM of x[width] to y[width], the mean and 1 / deviation to *means and *rstds. */
template <typename T, int N>
__device__ void tr_team_layernorm(const tr_team &team, const tr_columns_of<N> &columns,
                                  const tr_kept<T, N> &kept, int64_t width, float eps, const T *x,
                                  const T *gamma, const T *beta, T *y, float *means, float *rstds) {
    float v[TR_KEPT][N], sum[1] = {}, squares[1] = {};
    tr_unpack_kept<T>(columns, kept, v);
    tr_each_pack(columns, v, x, [&](int64_t, const float(&e)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++) sum[0] += e[i];
    });
    team.sum(sum);
    const float mean = sum[0] / (float)width;
    tr_each_pack(columns, v, x, [&](int64_t, const float(&e)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++) squares[0] += (e[i] - mean) * (e[i] - mean);
    });
    team.sum(squares);
    const float rstd = 1.0f / sqrtf(squares[0] / (float)width + eps);
    tr_each_pack(columns, v, x, [&](int64_t c, float(&e)[N]) {
        float g[N], b[N];
        tr_load(gamma + c, g);
        tr_load(beta + c, b);
#pragma unroll
        for (int i = 0; i < N; i++) e[i] = tr_layernorm_element(e[i], mean, rstd, g[i], b[i]);
        tr_store(y + c, e);
    });
    if (columns.writes_row()) {
        *means = mean;
        *rstds = rstd;
    }
}

/* Writes RMSNORM of x[width] to y[width], which may be x, 1 / root mean square to *rstds, and x as
 * it was to copy[width], unless copy is NULL. */
template <typename T, int N>
__device__ void tr_team_rmsnorm(const tr_team &team, const tr_columns_of<N> &columns,
                                const tr_kept<T, N> &kept, int64_t width, float eps, const T *x,
                                const T *gamma, T *y, float *rstds, T *copy) {
    float v[TR_KEPT][N], squares[1] = {};
    tr_unpack_kept<T>(columns, kept, v);
    tr_each_pack(columns, v, x, [&](int64_t, const float(&e)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++) squares[0] += e[i] * e[i];
    });
    team.sum(squares);
    const float rstd = 1.0f / sqrtf(squares[0] / (float)width + eps);
    tr_each_pack(columns, v, x, [&](int64_t c, float(&e)[N]) {
        float g[N];
        tr_load(gamma + c, g);
        if (copy) tr_store(copy + c, e);
#pragma unroll
        for (int i = 0; i < N; i++) e[i] = tr_rmsnorm_element(e[i], rstd, g[i]);
        tr_store(y + c, e);
    });
    if (columns.writes_row()) *rstds = rstd;
}
