/* Sums of squares in the order of SUMSQ. Private to the kernels. */
#pragma once

#include "device/cuda/kernel.cuh"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

/* Elements that a thread of a warp loads at a time: its lanes of the sum. */
enum { TR_SUMSQ_PER_THREAD = TR_SUMSQ_LANES / TR_WARP };

/* Adds the squares of elements at .. of x[n] * scale to this thread's lanes. packs: x starts on 16
 * bytes. */
template <bool packs, typename T>
__device__ static inline void tr_sumsq_add(const T *x, int64_t n, int64_t at, float scale,
                                           double (&lane)[TR_SUMSQ_PER_THREAD]) {
    float v[TR_SUMSQ_PER_THREAD];
    at += (int64_t)TR_SUMSQ_PER_THREAD * tr_lane();
    if (packs && at + TR_SUMSQ_PER_THREAD <= n) {
        tr_load(x + at, v);
    } else {
#pragma unroll
        for (int j = 0; j < TR_SUMSQ_PER_THREAD; j++)
            v[j] = at + j < n ? tr_load_one(x + at + j) : 0.0f; /* a zero adds nothing */
    }
#pragma unroll
    for (int j = 0; j < TR_SUMSQ_PER_THREAD; j++) {
        const double y = v[j] * scale;
        lane[j] += y * y;
    }
}

/* A warp's sum of the squares of x[n] * scale, n <= TR_SUMSQ_BLOCK, in lane 0; all lanes take
 * part. */
template <bool packs, typename T>
__device__ static inline double tr_warp_sumsq(const T *x, int64_t n, float scale = 1) {
    double lane[TR_SUMSQ_PER_THREAD] = {};
    if (n == TR_SUMSQ_BLOCK) { /* without a branch, so that several loads are in flight */
#pragma unroll 4
        for (int64_t at = 0; at < TR_SUMSQ_BLOCK; at += TR_SUMSQ_LANES)
            tr_sumsq_add<packs>(x, TR_SUMSQ_BLOCK, at, scale, lane);
    } else {
        for (int64_t at = 0; at < n; at += TR_SUMSQ_LANES)
            tr_sumsq_add<packs>(x, n, at, scale, lane);
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

/* A block of TR_SUMSQ_LANES threads adds the sums of blocks, partial[blocks], as SUMSQ does: a
 * thread adds one lane, then the lanes are added by halves. Returns the total in thread 0. */
__device__ static inline double tr_block_total(int64_t blocks, const double *partial) {
    __shared__ double lanes[TR_SUMSQ_LANES];
    double sum = 0;
#pragma unroll 4
    for (int64_t b = threadIdx.x; b < blocks; b += TR_SUMSQ_LANES) sum += partial[b];
    lanes[threadIdx.x] = sum;
    for (unsigned half = TR_SUMSQ_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) lanes[threadIdx.x] += lanes[threadIdx.x + half];
    }
    return lanes[0];
}
