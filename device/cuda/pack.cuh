/* Storage elements in packs of up to 16 bytes, read and written as FP32. Private to the kernels. */
#pragma once

#include "base/dtype.h"
#include "base/half.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

/* Returns the larger ones of two pairs of elements of T, computed in FP32; NaNs are ignored. */
template <typename T> __device__ static inline uint32_t tr_larger_pair(uint32_t a, uint32_t b) {
    return T::pair(fmaxf(T::widen((uint16_t)a), T::widen((uint16_t)b)),
                   fmaxf(T::widen((uint16_t)(a >> 16)), T::widen((uint16_t)(b >> 16))));
}

/* An element of BF16 storage, and of FP16. widen: to FP32. pair: two elements in one word, the
 * first in its lower half, rounded to nearest, ties to even. larger: like tr_larger_pair. */
struct tr_bf16 {
    uint16_t bits;
    __device__ static inline float widen(uint16_t h) {
        return tr_bf16_to_f32(h);
    }
    __device__ static inline uint32_t pair(float first, float second) {
#ifdef __CUDA_ARCH__
        uint32_t pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
        return pair;
#else
        return (uint32_t)tr_f32_to_bf16(first) | (uint32_t)tr_f32_to_bf16(second) << 16;
#endif
    }
    __device__ static inline uint32_t larger(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
        uint32_t pair;
        asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
        return pair;
#else
        return tr_larger_pair<tr_bf16>(a, b);
#endif
    }
};
struct tr_f16 {
    uint16_t bits;
    __device__ static inline float widen(uint16_t h) {
#ifdef __CUDA_ARCH__
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
        return f;
#else
        return tr_half_widen(h);
#endif
    }
    __device__ static inline uint32_t pair(float first, float second) {
#ifdef __CUDA_ARCH__
        uint32_t pair;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
        return pair;
#else
        return (uint32_t)tr_half_round(first) | (uint32_t)tr_half_round(second) << 16;
#endif
    }
    __device__ static inline uint32_t larger(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
        uint32_t pair;
        asm("max.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
        return pair;
#else
        return tr_larger_pair<tr_f16>(a, b);
#endif
    }
};

/* N elements of storage T in FP32 registers are one access to memory of N * sizeof(T) bytes, which
 * must be aligned to that. Kernels are made for N = 16 / sizeof(T) and, for rows that do not start
 * on 16 bytes, for N = 1. */
template <typename T, int N> struct tr_storage {
    using type = T;
    static constexpr int pack = N;
};

template <int WORDS> struct __attribute__((aligned(4 * WORDS), may_alias)) tr_pack_words {
    uint32_t word[WORDS];
};
template <int N> struct __attribute__((aligned(4 * N), may_alias)) tr_floats { float value[N]; };

/* Eight FP32 numbers are two packs. */
template <int N> __device__ static inline void tr_load(const float *from, float (&to)[N]) {
    constexpr int n = N < 4 ? N : 4;
#pragma unroll
    for (int k = 0; k < N; k += n) {
        const tr_floats<n> pack = *reinterpret_cast<const tr_floats<n> *>(from + k);
#pragma unroll
        for (int i = 0; i < n; i++) to[k + i] = pack.value[i];
    }
}

/* T: tr_bf16 or tr_f16. */
template <typename T, int N> __device__ static inline void tr_load(const T *from, float (&to)[N]) {
    if constexpr (N == 1) {
        to[0] = T::widen(from->bits);
    } else {
        const tr_pack_words<N / 2> pack = *reinterpret_cast<const tr_pack_words<N / 2> *>(from);
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = T::widen((uint16_t)(pack.word[i / 2] >> 16 * (i % 2)));
    }
}

/* N elements as they are in memory, in registers of 32 bits where they fill some. */
template <typename T, int N>
using tr_raw =
    std::conditional_t<N * sizeof(T) % 4 == 0, tr_pack_words<(N * sizeof(T) + 3) / 4>, T>;
template <int N, typename T> __device__ static inline tr_raw<T, N> tr_load_raw(const T *from) {
    return *reinterpret_cast<const tr_raw<T, N> *>(from);
}
/* The same `at` elements behind `from`; zeros if that is NULL. */
template <int N, typename T>
__device__ static inline tr_raw<T, N> tr_read(const T *from, int64_t at) {
    tr_raw<T, N> raw = {};
    if (from) raw = tr_load_raw<N>(from + at);
    return raw;
}
template <typename T, int N>
__device__ static inline void tr_unpack(const tr_raw<T, N> &raw, float (&to)[N]) {
    tr_load(reinterpret_cast<const T *>(&raw), to);
}
template <typename T, int N> __device__ static inline tr_raw<T, N> tr_pack(const float (&from)[N]) {
    tr_raw<T, N> raw;
    if constexpr (sizeof(T) == 4) {
        memcpy(&raw, from, sizeof raw);
    } else if constexpr (N == 1) {
        raw.bits = (uint16_t)T::pair(from[0], 0.0f);
    } else {
#pragma unroll
        for (int i = 0; i < N / 2; i++) raw.word[i] = T::pair(from[2 * i], from[2 * i + 1]);
    }
    return raw;
}

/* Writes elements to global memory. 16 bytes are one store, where the compiler often makes one for
 * each word of a struct. */
template <typename R> __device__ static inline void tr_store_raw(void *to, const R &raw) {
    *static_cast<R *>(to) = raw;
}
__device__ static inline void tr_store_raw(void *to, const tr_pack_words<4> &raw) {
#ifdef __CUDA_ARCH__
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(raw.word[0]), "r"(raw.word[1]),
                   "r"(raw.word[2]), "r"(raw.word[3])
                 : "memory");
#else
    *static_cast<tr_pack_words<4> *>(to) = raw;
#endif
}

template <typename T, int N> __device__ static inline void tr_store(T *to, const float (&from)[N]) {
    if constexpr (N * sizeof(T) > 16) {
#pragma unroll
        for (int k = 0; k < N; k += 4)
            tr_store(to + k, *reinterpret_cast<const float(*)[4]>(from + k));
    } else {
        tr_store_raw(to, tr_pack<T>(from));
    }
}

template <typename T> __device__ static inline float tr_load_one(const T *from) {
    float value[1];
    tr_load(from, value);
    return value[0];
}
template <typename T> __device__ static inline void tr_store_one(T *to, float value) {
    const float from[1] = {value};
    tr_store(to, from);
}

/* True when all pointers (NULL counts) start on 16 bytes. */
template <typename... P> static inline bool tr_aligned(P... pointers) {
    return (... && (reinterpret_cast<uintptr_t>(pointers) % 16 == 0));
}
/* The same for every row of tensors of width elements of storage. */
template <typename... P>
static inline bool tr_rows_aligned(tr_dtype dtype, int64_t width, P... pointers) {
    return width * (dtype == TR_F32 ? 4 : 2) % 16 == 0 && tr_aligned(pointers...);
}

/* Calls launch(tr_storage<T, 1>{}) for the storage type. */
template <typename F> static inline cudaError_t tr_dispatch_type(tr_dtype dtype, F launch) {
    if (dtype == TR_F32) return launch(tr_storage<float, 1>{});
    if (dtype == TR_F16) return launch(tr_storage<tr_f16, 1>{});
    return launch(tr_storage<tr_bf16, 1>{});
}

/* Calls launch(tr_storage<T, N>{}) for the storage type, in packs of 16 bytes or element by
 * element. */
template <typename F> static inline cudaError_t tr_dispatch(tr_dtype dtype, bool packs, F launch) {
    return tr_dispatch_type(dtype, [=](auto one) {
        using T = typename decltype(one)::type;
        return packs ? launch(tr_storage<T, 16 / (int)sizeof(T)>{}) : launch(one);
    });
}
