/* 16-byte packs of storage elements, read and written as FP32. Private to the kernels. */
#pragma once

#include "base/dtype.h"

#include <cuda_bf16.h>
#include <stdint.h>

/* What a thread reads or writes at once. */
template <typename T> struct tr_pack {
    static constexpr int size = 16 / sizeof(T);
    alignas(16) T element[size];
};

__device__ static inline float tr_load(const float *x) {
    return *x;
}
__device__ static inline float tr_load(const __nv_bfloat16 *x) {
    return __bfloat162float(*x);
}
__device__ static inline void tr_store(float *x, float value) {
    *x = value;
}
__device__ static inline void tr_store(__nv_bfloat16 *x, float value) {
    *x = __float2bfloat16_rn(value);
}

template <typename T> __device__ static inline void tr_load_pack(const T *from, float *to) {
    tr_pack<T> pack = *reinterpret_cast<const tr_pack<T> *>(from);
#pragma unroll
    for (int i = 0; i < tr_pack<T>::size; i++) to[i] = tr_load(&pack.element[i]);
}

template <typename T> __device__ static inline void tr_store_pack(T *to, const float *from) {
    tr_pack<T> pack;
#pragma unroll
    for (int i = 0; i < tr_pack<T>::size; i++) tr_store(&pack.element[i], from[i]);
    *reinterpret_cast<tr_pack<T> *>(to) = pack;
}

/* True when all of a kernel's rows start on a pack: then whole packs may be read and written. */
static inline bool tr_packable(const void *pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}
