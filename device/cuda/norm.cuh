/* Norms of a row by a warp. A lane's packs of the row start at columns lane * N, lane * N + 32 N,
 * ...; later readings of the row come from the first-level cache. Private to the kernels. */
#pragma once

#include "device/cuda/kernel.cuh"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

/* Writes LAYERNORM of x[width] to y[width], the mean and 1 / deviation to *means and *rstds. */
template <typename T, int N>
__device__ void tr_warp_layernorm(int64_t width, float eps, const T *x, const T *gamma,
                                  const T *beta, T *y, float *means, float *rstds) {
    constexpr int step = TR_WARP * N;
    const int64_t first = tr_lane() * N;
    float v[N], sum = 0, squares = 0;
    for (int64_t c = first; c < width; c += step) {
        tr_load(x + c, v);
#pragma unroll
        for (int i = 0; i < N; i++) sum += v[i];
    }
    const float mean = tr_warp_sum(sum) / (float)width;
    for (int64_t c = first; c < width; c += step) {
        tr_load(x + c, v);
#pragma unroll
        for (int i = 0; i < N; i++) squares += (v[i] - mean) * (v[i] - mean);
    }
    const float rstd = 1.0f / sqrtf(tr_warp_sum(squares) / (float)width + eps);
    for (int64_t c = first; c < width; c += step) {
        float g[N], b[N];
        tr_load(x + c, v);
        tr_load(gamma + c, g);
        tr_load(beta + c, b);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = tr_layernorm_element(v[i], mean, rstd, g[i], b[i]);
        tr_store(y + c, v);
    }
    if (tr_lane() == 0) {
        *means = mean;
        *rstds = rstd;
    }
}

/* Writes RMSNORM of x[width] to y[width], which may be x, 1 / root mean square to *rstds, and x as
 * it was to kept[width], unless kept is NULL. */
template <typename T, int N>
__device__ void tr_warp_rmsnorm(int64_t width, float eps, const T *x, const T *gamma, T *y,
                                float *rstds, T *kept) {
    constexpr int step = TR_WARP * N;
    const int64_t first = tr_lane() * N;
    float v[N], squares = 0;
    for (int64_t c = first; c < width; c += step) {
        tr_load(x + c, v);
#pragma unroll
        for (int i = 0; i < N; i++) squares += v[i] * v[i];
    }
    const float rstd = 1.0f / sqrtf(tr_warp_sum(squares) / (float)width + eps);
    for (int64_t c = first; c < width; c += step) {
        float g[N];
        tr_load(x + c, v);
        tr_load(gamma + c, g);
        if (kept) tr_store(kept + c, v);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = tr_rmsnorm_element(v[i], rstd, g[i]);
        tr_store(y + c, v);
    }
    if (tr_lane() == 0) *rstds = rstd;
}
