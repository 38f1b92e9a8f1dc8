/* Counter-based random numbers: Philox4x32 (Salmon et al., SC 2011), and the uses Trireme makes of
 * it. A number is a pure function of (seed, stream, position), so no rank, thread or layout can
 * change it. The arithmetic is shared by host and device. */
#pragma once

#include "base/host_device.h"

#include <math.h>
#include <stdint.h>

typedef struct tr_philox {
    uint32_t v[4];
} tr_philox;

/* The rounds of most numbers, and those of stochastic rounding: seven are the fewest that pass
 * BigCrush (section 5.2 of the paper), and an optimizer step draws for every element. */
enum { TR_PHILOX_ROUNDS = 10, TR_ROUNDING_ROUNDS = 7 };

/* Returns the 64-bit product. A GPU has one instruction for it, of which the compiler makes two
 * when it forgets that the upper halves of the factors are 0. */
TR_HOSTDEVICE static inline uint64_t tr_wide_product(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
    uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return (uint64_t)a * b;
#endif
}

/* Runs `rounds` over a 128-bit counter with a 64-bit key. */
TR_HOSTDEVICE static inline tr_philox
tr_philox_rounds(int rounds, uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < rounds; round++) {
        uint64_t p0 = tr_wide_product(0xD2511F53u, c0), p1 = tr_wide_product(0xCD9E8D57u, c2);
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    tr_philox out = {{c0, c1, c2, c3}};
    return out;
}

/* Philox4x32-10. */
TR_HOSTDEVICE static inline tr_philox tr_philox4x32(uint64_t key, uint64_t counter_low,
                                                    uint64_t counter_high) {
    return tr_philox_rounds(TR_PHILOX_ROUNDS, key, counter_low, counter_high);
}

/* Returns word i of 0..3. Written without an array index, which would keep the words out of
 * registers. */
TR_HOSTDEVICE static inline uint32_t tr_philox_word(tr_philox r, int64_t i) {
    return i == 0 ? r.v[0] : i == 1 ? r.v[1] : i == 2 ? r.v[2] : r.v[3];
}

/* Returns half-word i of 0..7, the lower half of a word first, as in little-endian memory. */
TR_HOSTDEVICE static inline uint32_t tr_philox_half(tr_philox r, int64_t i) {
    return tr_philox_word(r, i / 2) >> (16 * (i % 2)) & 0xffffu;
}

/* Mixes 64 bits with SplitMix64's finaliser; nested calls fold several words into one key. */
TR_HOSTDEVICE static inline uint64_t tr_mix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Returns the 64-bit FNV-1a hash of a name, which is the stream of a parameter or a dropout
 * site. */
static inline uint64_t tr_hash_name(const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (uint64_t)(unsigned char)*name) * 0x100000001b3u;
    return h;
}

/* Returns a uniform number in (0, 1] with 24 bits, which FP32 holds exactly. */
TR_HOSTDEVICE static inline float tr_uniform(uint32_t bits) {
    return (float)((bits >> 8) + 1) * (1.0f / 16777216.0f);
}

/* Returns the bound of dropout: an element is kept when its 32 random bits are below it. The bound
 * is the same on host and device for every p. */
TR_HOSTDEVICE static inline uint32_t tr_dropout_threshold(float p) {
    double keep = (1.0 - (double)p) * 4294967296.0;
    return keep >= 4294967295.0 ? 4294967295u : (uint32_t)keep;
}

/* The Philox key of one dropout site, and the upper half of the counter for one global sample in
 * one step. The lower half is the index of four elements (`quad`). */
TR_HOSTDEVICE static inline uint64_t tr_dropout_key(uint64_t seed, uint64_t site) {
    return tr_mix64(seed ^ tr_mix64(site));
}
TR_HOSTDEVICE static inline uint64_t tr_dropout_counter(int64_t step, int64_t sample) {
    return tr_mix64((uint64_t)step) ^ (uint64_t)sample;
}

/* Returns the random bits of elements 4*quad .. 4*quad+3 of the (T, C) tensor of one global
 * sample. */
TR_HOSTDEVICE static inline tr_philox tr_dropout_bits(uint64_t seed, uint64_t site, int64_t step,
                                                      int64_t sample, int64_t quad) {
    return tr_philox4x32(tr_dropout_key(seed, site), (uint64_t)quad,
                         tr_dropout_counter(step, sample));
}

/* Numbers of one element that are rounded by one half-word of random bits: those of the uses 3 n,
 * 3 n + 1 and 3 n + 2. */
enum { TR_ROUNDING_USES = 3 };

/* The Philox key of the stochastic rounding of a tensor: `use` tells its numbers apart, such as two
 * moments. The counter's upper half holds the attempted step (below 2^32) and the first sample of a
 * micro-batch, or 0. The lower half is the index of eight neighbours in the whole tensor, which get
 * a half-word each. */
TR_HOSTDEVICE static inline uint64_t tr_rounding_key(uint64_t seed, uint64_t name_hash, int use) {
    return tr_mix64(seed ^ tr_mix64(tr_mix64(name_hash) + 1 + (uint64_t)(use / TR_ROUNDING_USES)));
}
TR_HOSTDEVICE static inline uint64_t tr_rounding_counter(int64_t step, int64_t sample) {
    return (uint64_t)step + ((uint64_t)sample << 32);
}

/* Returns the half-words of eight neighbours. */
TR_HOSTDEVICE static inline tr_philox tr_rounding_bits(uint64_t key, uint64_t place,
                                                       uint64_t counter) {
    return tr_philox_rounds(TR_ROUNDING_ROUNDS, key, place, counter);
}

/* Returns what an element's half-word is multiplied by, modulo 2^16, for a use: 1, g or g^2. Since
 * g is odd, each product is as likely to be any half-word. The three are a point of a lattice
 * (Korobov 1959). Its g has nearly the least worst-case error: the probability that two numbers
 * are rounded up together is within 7e-5 of the product of theirs, and that three are, within
 * 2e-4. */
TR_HOSTDEVICE static inline uint16_t tr_rounding_factor(int use) {
    const int k = use % TR_ROUNDING_USES;
    return k == 0 ? 1 : k == 1 ? 18497 : 41089;
}

/* Returns the random half-word of a use. */
TR_HOSTDEVICE static inline uint32_t tr_rounding_draw(uint32_t half, int use) {
    return half * tr_rounding_factor(use) & 0xffffu;
}

/* Computes the standard normal numbers 2 * pair and 2 * pair + 1 of stream `name_hash` (Box-Muller
 * in double). */
static inline void tr_normal_pair(uint64_t seed, uint64_t name_hash, uint64_t pair, float out[2]) {
    tr_philox r = tr_philox4x32(tr_mix64(seed ^ tr_mix64(name_hash)), pair, 0);
    double u = ((double)r.v[0] + 1.0) / 4294967296.0, a = (double)r.v[1] / 4294967296.0;
    double radius = sqrt(-2.0 * log(u)), sine, cosine;
    sincos(6.283185307179586 * a, &sine, &cosine);
    out[0] = (float)(radius * cosine);
    out[1] = (float)(radius * sine);
}

/* Returns standard normal number `index` of stream `name_hash`. */
static inline float tr_normal(uint64_t seed, uint64_t name_hash, uint64_t index) {
    float pair[2];
    tr_normal_pair(seed, name_hash, index / 2, pair);
    return pair[index % 2];
}

/* Returns uniform number `index` of stream `name_hash`, in (0, 1]. */
static inline float tr_uniform_number(uint64_t seed, uint64_t name_hash, uint64_t index) {
    const tr_philox r = tr_philox4x32(tr_mix64(seed ^ tr_mix64(name_hash)), index / 4, 1);
    return tr_uniform(tr_philox_word(r, (int64_t)(index % 4)));
}
