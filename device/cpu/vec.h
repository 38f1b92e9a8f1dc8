/* Rows of numbers on the host: loads and stores of either storage type, sums in a fixed order, and
 * an exponential that vectorises. Private to device/cpu/.
 *
 * Sums use explicit vectors, so their order depends on the length alone, not on the compiler, the
 * alignment or the number of threads. Element-wise loops are plain loops: each element's arithmetic
 * is the same in any vector width. */
#pragma once

#include "base/dtype.h"
#include "base/half.h"
#include "base/minmax.h"
#include "device/elementwise.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#if defined __FMA__ || defined __F16C__
#include <immintrin.h>
#endif

/* Elements that a loop processes at a time, in buffers on the stack when the storage has 16 bits.
 * The buffers begin cache lines of TR_LINE bytes, because a wide load or store that crosses two
 * lines takes longer. */
enum { TR_BLOCK = 1024, TR_LINE = 64 };

typedef float tr_v8 __attribute__((vector_size(32)));
/* The same at any address, over memory of type float. */
typedef float tr_v8_any __attribute__((vector_size(32), aligned(4), may_alias));

/* a * b + c per lane, rounded once where the processor can. */
static inline tr_v8 tr_v8_fma(tr_v8 a, tr_v8 b, tr_v8 c) {
#ifdef __FMA__
    return (tr_v8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Returns the sum of the lanes, added as a tree. */
static inline float tr_v8_sum(tr_v8 v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* Returns the sum of x[n]; element i is added to lane i % 16. */
static inline float tr_vec_sum(const float *x, int64_t n) {
    tr_v8 low = {0}, high = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        low += *(const tr_v8_any *)(x + i);
        high += *(const tr_v8_any *)(x + i + 8);
    }
    float tail = 0;
    for (; i < n; i++) tail += x[i];
    return tr_v8_sum(low + high) + tail;
}

/* Returns the sum of x[n] * y[n], in tr_vec_sum's order. */
static inline float tr_vec_dot(const float *x, const float *y, int64_t n) {
    tr_v8 low = {0}, high = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        low = tr_v8_fma(*(const tr_v8_any *)(x + i), *(const tr_v8_any *)(y + i), low);
        high = tr_v8_fma(*(const tr_v8_any *)(x + i + 8), *(const tr_v8_any *)(y + i + 8), high);
    }
    float tail = 0;
    for (; i < n; i++) tail += x[i] * y[i];
    return tr_v8_sum(low + high) + tail;
}

/* Returns the largest of x[n], -infinity for none. May ignore a NaN: a caller that shifts exponents
 * by the maximum gets the NaN then. */
static inline float tr_vec_max(const float *x, int64_t n) {
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

/* e^x within 1.5 ulp, subnormal results and overflow included; NaN stays NaN. x = k ln 2 + r with
 * |r| <= ln 2 / 2 (ln 2 in two parts, so that k times the first is exact), then the Taylor series
 * to r^7, with a remainder r^8/8! of at most 0.09 ulp, and 2^k in two factors, each of which is a
 * normal number. The bounds are applied at the end, where compilers turn them into blends. */
static inline __attribute__((always_inline)) float tr_expf(float x) {
    /* Adding 1.5 * 2^23 rounds to an integer, which the low bits of `shifted` hold. */
    const float magic = 12582912.0f + 2 * 127;
    float shifted = x * 1.44269504f + magic, k = shifted - magic;
    float r = fmaf(k, -0x1.62ep-1f, x);      /* ln 2, first 12 bits */
    r = fmaf(k, -0x1.0bfbe8e7bcd5ep-15f, r); /* ln 2, the rest */
    float p = 1.0f / 5040;
    p = fmaf(p, r, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* The integer is k + 2 * 127. Half of it, rounded down, is the first factor's exponent with its
     * bias, and the rest the second's. */
    const uint32_t bits = tr_float_bits(shifted);
    const uint32_t first = bits << 22 & 0xff800000u, second = (bits << 23) - first;
    float y = p * tr_bits_float(first) * tr_bits_float(second);
    y = x > 89.0f ? INFINITY : y;
    return x < -104.0f ? 0.0f : y;
}

/* to[n] = FP16 from[n], and back, rounded to nearest. The instructions do what base/half.h does,
 * except that they make NaNs quiet. */
static inline void tr_halves_widen(int64_t n, const uint16_t *from, float *to) {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#endif
    for (; i < n; i++) to[i] = tr_half_widen(from[i]);
}
static inline void tr_halves_round(int64_t n, const float *from, uint16_t *to) {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++) to[i] = tr_half_round(from[i]);
}

/* Returns elements offset .. offset + n - 1 of storage at `base` as FP32: the memory itself, or
 * widened into buffer[n]. `row_load` and `row_store` of kernels.h are this function and
 * tr_row_store in the processor's widest vectors. Rows of a head are too short for them: a wide
 * load right after narrower stores of the same bytes stalls. */
static inline const float *tr_row_load(tr_dtype dtype, const void *base, int64_t offset, int64_t n,
                                       float *buffer) {
    if (dtype == TR_F32) return (const float *)base + offset;
    const uint16_t *from = (const uint16_t *)base + offset;
    if (dtype == TR_F16) {
        tr_halves_widen(n, from, buffer);
        return buffer;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) buffer[i] = tr_bf16_to_f32(from[i]);
    return buffer;
}

/* Returns where to write FP32 results for elements from `offset` on: the memory itself, or
 * buffer. */
static inline float *tr_row_target(tr_dtype dtype, void *base, int64_t offset, float *buffer) {
    return dtype == TR_F32 ? (float *)base + offset : buffer;
}

/* Rounds the values written to tr_row_target's buffer into storage. Does nothing for FP32. */
static inline void tr_row_store(tr_dtype dtype, void *base, int64_t offset, int64_t n,
                                const float *written) {
    if (dtype == TR_F32) return;
    uint16_t *to = (uint16_t *)base + offset;
    if (dtype == TR_F16) {
        tr_halves_round(n, written, to);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = tr_f32_to_bf16(written[i]);
}
