/* Eight neighbouring elements of a thread: as many as share a Philox call. Private to the
 * kernels. */
#pragma once

#include "device/cuda/pack.cuh"

/* Elements at .. at + n - 1, n <= 8; there are none if n <= 0. packs: eight of them are whole
 * packs. */
struct tr_eight {
    int64_t at, n;
    bool packs;
};

/* Elements that are not there are loaded as 0. */
template <typename T>
__device__ static inline void tr_load_eight(const tr_eight &e, const T *from, float (&to)[8]) {
    if (e.packs && e.n == 8) {
        tr_load(from + e.at, to);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = i < e.n ? tr_load_one(from + e.at + i) : 0.0f;
}

template <typename T>
__device__ static inline void tr_store_eight(const tr_eight &e, const float (&from)[8], T *to) {
    if (e.packs && e.n == 8) {
        tr_store(to + e.at, from);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < e.n) tr_store_one(to + e.at + i, from[i]);
}
