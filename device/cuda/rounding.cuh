/* The random bits of QUANTIZE and of steps that round. Private to the kernels. */
#pragma once

#include "device/cuda/eight.cuh"
#include "device/elementwise.h"

/* The draws of a parameter's elements, in ascending order. Keeps where the elements before `end`
 * are in the tensor that was drawn for last, and its key: both take longer than a Philox call. */
struct tr_draws {
    const tr_quantize_desc &d;
    uint64_t seed, counter, name, key;
    int64_t end, shift; /* from an element to its position in the tensor */
};

__device__ static inline tr_draws tr_draws_begin(const tr_quantize_desc &d,
                                                 const tr_step_state *state, int64_t sample) {
    const uint64_t name = d.box[0].name;
    return {d,
            state->seed,
            tr_rounding_counter(state->step, sample),
            name,
            tr_rounding_key(state->seed, name, d.use),
            0,
            0};
}

__device__ static inline void tr_draws_seek(tr_draws &s, int64_t at) {
    const tr_quantize_box *box;
    int64_t adjacent;
    s.shift = tr_quantize_place(&s.d, at, &box, &adjacent) - at;
    s.end = at + adjacent;
    if (box->name == s.name) return;
    s.name = box->name;
    s.key = tr_rounding_key(s.seed, s.name, s.d.use);
}

/* Returns the half-words of eight elements from `at` on, which each use multiplies (tr_draw_of).
 * Mostly these are the elements that share a Philox call; otherwise there are more calls, and each
 * half-word is shifted in behind those before it: an index that varies would keep the words out of
 * registers. */
__device__ static inline tr_philox tr_draws_of(tr_draws &s, int64_t at) {
    constexpr int n = TR_QUANTIZE_SHARERS;
    if (at >= s.end) tr_draws_seek(s, at);
    uint64_t place = (uint64_t)(at + s.shift);
    if (place % n == 0 && at + n <= s.end) return tr_rounding_bits(s.key, place / n, s.counter);
    tr_philox out = {};
#pragma unroll 1
    for (int i = 0; i < n;) {
        if (at + i >= s.end) tr_draws_seek(s, at + i);
        place = (uint64_t)(at + i + s.shift);
        const tr_philox r = tr_rounding_bits(s.key, place / n, s.counter);
#pragma unroll 1
        for (uint64_t k = place % n; k < n && i < n && at + i < s.end; k++, i++) {
            for (int w = 0; w < 3; w++) out.v[w] = out.v[w] >> 16 | out.v[w + 1] << 16;
            out.v[3] = out.v[3] >> 16 | tr_philox_half(r, (int64_t)k) << 16;
        }
    }
    return out;
}

/* Returns the random half-word of a use for element i of eight. The one that it is made of may have
 * other bits above it. */
__device__ static inline uint32_t tr_draw_of(tr_philox half, int i, int use) {
    return tr_rounding_draw(half.v[i / 2] >> 16 * (i % 2), use);
}

/* Return the upper halves of two words, and the upper bytes of four, the first one lowest. */
__device__ static inline uint32_t tr_upper_halves(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
    return __byte_perm(a, b, 0x7632);
#else
    return a >> 16 | (b & 0xffff0000u);
#endif
}
__device__ static inline uint32_t tr_upper_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#ifdef __CUDA_ARCH__
    return __byte_perm(__byte_perm(a, b, 0x0073), __byte_perm(c, d, 0x0073), 0x5410);
#else
    return a >> 24 | b >> 24 << 8 | c >> 24 << 16 | d >> 24 << 24;
#endif
}

/* Stores numbers that are rounded to BF16 by these half-words. */
template <bool WHOLE>
__device__ static inline void tr_round_eight(const tr_eight<WHOLE> &e, const float (&from)[8],
                                             tr_philox half, int use, tr_bf16 *to) {
    uint32_t rounded[8];
    tr_pack_words<4> pack;
#pragma unroll
    for (int i = 0; i < 8; i++) rounded[i] = tr_round_bits(from[i], tr_draw_of(half, i, use));
#pragma unroll
    for (int i = 0; i < 4; i++) pack.word[i] = tr_upper_halves(rounded[2 * i], rounded[2 * i + 1]);
    if constexpr (WHOLE) {
        tr_store_raw(to + e.at, pack);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < e.n) to[e.at + i].bits = (uint16_t)(rounded[i] >> 16);
    }
}
