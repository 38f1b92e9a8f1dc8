/* Sums of squares in the order of SUMSQ. Private to the kernels. */
#pragma once

#include "device/cuda/eight.cuh"
#include "device/cuda/kernel.cuh"
#include "device/elementwise.h"

/* Elements that a thread of a warp loads at a time: its lanes of the sum. */
enum { TR_SUMSQ_PER_THREAD = TR_SUMSQ_LANES / TR_WARP };

/* Adds the squares of a thread's elements to its lanes of the sum. */
__device__ static inline void tr_sumsq_add(const float (&v)[TR_SUMSQ_PER_THREAD],
                                           double (&lane)[TR_SUMSQ_PER_THREAD]) {
#pragma unroll
    for (int j = 0; j < TR_SUMSQ_PER_THREAD; j++) {
        const double y = v[j];
        lane[j] += y * y;
    }
}

/* Returns in lane 0 a warp's sum of the squares of n <= TR_SUMSQ_BLOCK elements of x, after
 * change(tr_eight, elements) has changed them. Those beyond n are 0, and must stay so. All lanes
 * take part. packs: x starts on 16 bytes. */
template <bool packs, typename T, typename F>
__device__ static inline double tr_warp_squares(const T *x, int64_t n, F change) {
    constexpr int several = 4; /* in flight before the first is waited for */
    const int64_t begin = TR_SUMSQ_PER_THREAD * tr_lane();
    double lane[TR_SUMSQ_PER_THREAD] = {};
    int64_t at = 0;
    for (; at + several * TR_SUMSQ_LANES <= n; at += several * TR_SUMSQ_LANES) {
        float v[several][TR_SUMSQ_PER_THREAD];
#pragma unroll
        for (int k = 0; k < several; k++)
            tr_load_eight(tr_eight<packs>{begin + at + k * TR_SUMSQ_LANES, 8}, x, v[k]);
#pragma unroll
        for (int k = 0; k < several; k++) {
            change(tr_eight<packs>{begin + at + k * TR_SUMSQ_LANES, 8}, v[k]);
            tr_sumsq_add(v[k], lane);
        }
    }
    for (; at < n; at += TR_SUMSQ_LANES) {
        const int64_t left = n - at - begin;
        const auto add = [&](auto e) {
            float v[TR_SUMSQ_PER_THREAD];
            tr_load_eight(e, x, v);
            change(e, v);
            tr_sumsq_add(v, lane);
        };
        if (packs && left >= 8) add(tr_eight<true>{begin + at, 8});
        else add(tr_eight<false>{begin + at, left < 8 ? (int)left : 8});
    }
    /* Lanes j and j + half: of two threads, then of one. */
#pragma unroll
    for (int away = TR_WARP / 2; away > 0; away /= 2)
#pragma unroll
        for (int j = 0; j < TR_SUMSQ_PER_THREAD; j++)
            lane[j] += __shfl_xor_sync(0xffffffffu, lane[j], away);
#pragma unroll
    for (int half = TR_SUMSQ_PER_THREAD / 2; half > 0; half /= 2)
#pragma unroll
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}
template <bool packs, typename T>
__device__ static inline double tr_warp_sumsq(const T *x, int64_t n) {
    return tr_warp_squares<packs>(x, n, [](auto, auto &) {});
}

/* Returns the sum of n numbers, `step` apart, in ascending order. */
template <typename T>
__device__ static inline double tr_sum_apart(int64_t n, int64_t step, const T *x) {
    constexpr int several = 16; /* in flight before the first is waited for */
    double sum = 0;
    for (; n > 0; n -= several) {
        const int here = n < several ? (int)n : several;
        T v[several];
#pragma unroll
        for (int k = 0; k < several; k++, x += step) v[k] = k < here ? *x : 0;
#pragma unroll
        for (int k = 0; k < several; k++) sum += (double)v[k]; /* a zero adds nothing */
    }
    return sum;
}

/* Returns the sum of x[i], i % TR_SUMSQ_LANES the thread, in ascending order. */
template <typename T> __device__ static inline double tr_sum_lane(int64_t n, const T *x) {
    return tr_sum_apart((n - threadIdx.x + TR_SUMSQ_LANES - 1) / TR_SUMSQ_LANES, TR_SUMSQ_LANES,
                        x + threadIdx.x);
}

/* A block of TR_SUMSQ_LANES threads adds the sums of blocks, partial[blocks], as SUMSQ does: a
 * thread adds one lane, then the lanes are added by halves. Returns the total in thread 0. */
__device__ static inline double tr_block_total(int64_t blocks, const double *partial) {
    __shared__ double lanes[TR_SUMSQ_LANES];
    lanes[threadIdx.x] = tr_sum_lane(blocks, partial);
    for (unsigned half = TR_SUMSQ_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) lanes[threadIdx.x] += lanes[threadIdx.x + half];
    }
    return lanes[0];
}
