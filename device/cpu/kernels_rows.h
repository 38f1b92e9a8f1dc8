/* The kernels `row_*`, `norm_*`, `angles` and `rotate` of kernels.h. Included by kernels_body.h. */
#include "device/cpu/vec.h"
#include "device/elementwise.h"

static void row_add(tr_dtype dtype, const void *base, int64_t offset, int64_t n, float *sums) {
    if (dtype == TR_BF16) {
        const uint16_t *x = (const uint16_t *)base + offset;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) sums[i] += tr_bf16_to_f32(x[i]);
        return;
    }
    _Alignas(TR_LINE) float in[TR_BLOCK];
    const float *x = tr_row_load(dtype, base, offset, n, in);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sums[i] += x[i];
}

static void row_scale(tr_dtype dtype, void *base, int64_t offset, int64_t n, float factor,
                      const float *x) {
    if (dtype == TR_BF16) {
        uint16_t *y = (uint16_t *)base + offset;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = tr_f32_to_bf16(x[i] * factor);
        return;
    }
    _Alignas(TR_LINE) float out[TR_BLOCK];
    float *y = tr_row_target(dtype, base, offset, out);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
    tr_row_store(dtype, base, offset, n, y);
}

static float row_largest(tr_dtype dtype, const void *base, int64_t offset, int64_t n) {
    _Alignas(TR_LINE) float in[TR_BLOCK];
    float largest = -INFINITY;
    for (int64_t at = 0; at < n; at += TR_BLOCK) {
        const int64_t count = tr_min_i64(TR_BLOCK, n - at);
        const float most = tr_vec_max(tr_row_load(dtype, base, offset + at, count, in), count);
        largest = most > largest ? most : largest;
    }
    return largest + 0.0f; /* -0 becomes 0, since which zero is found depends on the vectors */
}

static void norm(int64_t n, float mean, float rstd, const float *x, const float *gamma,
                 const float *beta, float *y) {
    if (beta) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = tr_layernorm_element(x[i], mean, rstd, gamma[i], beta[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = tr_layernorm_centred(x[i], mean, rstd) * gamma[i];
    }
}

static void norm_terms(int64_t n, float mean, float rstd, const float *dy, const float *x,
                       const float *gamma, float *g, float *normal) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        g[i] = dy[i] * gamma[i];
        normal[i] = tr_layernorm_centred(x[i], mean, rstd);
    }
}

static void norm_dgrad(int64_t n, float rstd, float mean_g, float mean_gn, const float *g,
                       const float *normal, const float *residual, float *dx) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float v = tr_layernorm_dgrad(g[i], normal[i], rstd, mean_g, mean_gn);
        dx[i] = residual ? v + residual[i] : v;
    }
}

static void angles(int64_t n, uint64_t position, const uint64_t *turns, float magnitude,
                   float towards, float *cosine, float *sine) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        tr_rope_rotation(position * turns[i], &cosine[i], &sine[i]);
        cosine[i] *= magnitude;
        sine[i] *= towards;
    }
}

static void rotate(int64_t half, const float *cosine, const float *sine, const float *x, float *y) {
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i], b = x[half + i]; /* both are read before either is written */
        y[i] = a * cosine[i] - b * sine[i];
        y[half + i] = b * cosine[i] + a * sine[i];
    }
}
