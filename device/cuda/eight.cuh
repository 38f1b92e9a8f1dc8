/* Eight neighbouring elements of a thread: as many as share a Philox call. Private to the
 * kernels. */
#pragma once

#include "device/cuda/kernel.cuh"
#include "device/cuda/pack.cuh"

/* Elements at .. at + 7 if WHOLE, which memory has in whole packs, so that their loads are without
 * branches, and all in flight before the first is waited for. Otherwise the n <= 8 elements from
 * `at` on, one by one; there are none if n <= 0. */
template <bool WHOLE> struct tr_eight {
    int64_t at;
    int n;
};

/* Calls step(tr_eight) for this thread's elements of `count`, in ascending order, for all threads
 * of a warp in the same way and as often, so that they may shuffle: a warp has 256 neighbours.
 * packs: operands start on 16 bytes. */
template <typename F>
__device__ static inline void tr_each_eight(int64_t count, bool packs, F step) {
    constexpr int64_t span = 8 * TR_WARP;
    const int64_t whole = packs ? count / span * span : 0, stride = 8 * tr_item_stride();
    int64_t at = 8 * tr_first_item();
    for (; at < whole; at += stride) step(tr_eight<true>{at, 8});
    for (; at < (count + span - 1) / span * span; at += stride) {
        const int64_t left = count - at;
        step(tr_eight<false>{at, left < 8 ? (int)left : 8});
    }
}

/* Returns the blocks for tr_each_eight: at most as many as keep all multiprocessors busy, so that
 * each thread takes several eights after its preparation. */
static inline unsigned tr_grid_eight(int64_t count) {
    const unsigned blocks = tr_grid(count, 8 * TR_THREADS);
    return blocks < 4096 ? blocks : 4096;
}

/* Elements that are not there are loaded as 0. */
template <bool WHOLE, typename T>
__device__ static inline void tr_load_eight(const tr_eight<WHOLE> &e, const T *from,
                                            float (&to)[8]) {
    if constexpr (WHOLE) {
        tr_load(from + e.at, to);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = i < e.n ? tr_load_one(from + e.at + i) : 0.0f;
    }
}

template <bool WHOLE, typename T>
__device__ static inline void tr_store_eight(const tr_eight<WHOLE> &e, const float (&from)[8],
                                             T *to) {
    if constexpr (WHOLE) {
        tr_store(to + e.at, from);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < e.n) tr_store_one(to + e.at + i, from[i]);
    }
}
