/* The kernel `philox` of kernels.h, and its parts for kernels that draw as they go. Included by
 * kernels_body.h. */

/* Numbers of 32 bits in lanes of 64, one counter a lane. */
#if defined __AVX512F__
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));

/* 64-bit products of the lanes' low halves. */
static inline lanes multiply(lanes a, lanes b) {
#if defined __AVX512F__
    return (lanes)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined __AVX2__
    return (lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

/* The lanes' upper halves, in their lower ones; the upper ones then hold anything. Shuffles and
 * products have units of their own in AVX-512, where shifts take those of products. */
static inline lanes upper(lanes x) {
#if defined __AVX512F__
    return (lanes)_mm512_shuffle_epi32((__m512i)x, _MM_PERM_DDBB);
#else
    return x >> 32;
#endif
}

/* The first and the second half of the lanes of a and b in turn: a0 b0 a1 b1 ... */
static inline lanes first_pairs(lanes a, lanes b) {
#if defined __AVX512F__
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}

static inline lanes second_pairs(lanes a, lanes b) {
#if defined __AVX512F__
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

enum { PHILOX_SETS = 4, PHILOX_COUNTERS = PHILOX_SETS * LANES };

/* A key as the rounds use it. */
typedef struct philox_key {
    lanes k0[TR_PHILOX_ROUNDS], k1[TR_PHILOX_ROUNDS];
} philox_key;

static inline philox_key philox_key_of(uint64_t key) {
    philox_key out;
    for (uint32_t r = 0; r < TR_PHILOX_ROUNDS; r++) {
        out.k0[r] = (lanes){0} + ((uint32_t)key + r * 0x9E3779B9u);
        out.k1[r] = (lanes){0} + ((uint32_t)(key >> 32) + r * 0xBB67AE85u);
    }
    return out;
}

/* Returns the counters from `first` on. */
static inline lanes counters_from(uint64_t first) {
    lanes index;
    for (int i = 0; i < LANES; i++) index[i] = (uint64_t)i;
    return index + first;
}

/* tr_philox_rounds (base/philox.h) of PHILOX_COUNTERS counters, (first + i, high): sets of LANES in
 * turn, so that some multiply while others wait for their products. pairs[2 * PHILOX_SETS]: the
 * results of one set after the other. */
static inline __attribute__((always_inline)) void
philox_sets(int rounds, const philox_key *key, uint64_t first, uint64_t high, lanes *pairs) {
    const lanes low_half = (lanes){0} + 0xffffffffu;
    const lanes m0 = (lanes){0} + 0xD2511F53u, m1 = (lanes){0} + 0xCD9E8D57u;
    lanes c0[PHILOX_SETS], c1[PHILOX_SETS], c2[PHILOX_SETS], c3[PHILOX_SETS];
#pragma GCC unroll 4
    for (int s = 0; s < PHILOX_SETS; s++) {
        c0[s] = counters_from(first + (uint64_t)(s * LANES));
        c1[s] = c0[s] >> 32;
        c2[s] = (lanes){0} + high;
        c3[s] = c2[s] >> 32;
    }
#pragma GCC unroll 10
    for (int r = 0; r < rounds; r++)
#pragma GCC unroll 4
        for (int s = 0; s < PHILOX_SETS; s++) {
            /* The high half of any of them may hold anything: multiply ignores it. */
            const lanes p0 = multiply(m0, c0[s]), p1 = multiply(m1, c2[s]);
            c0[s] = upper(p1) ^ c1[s] ^ key->k0[r];
            c2[s] = upper(p0) ^ c3[s] ^ key->k1[r];
            c1[s] = p1;
            c3[s] = p0;
        }
#pragma GCC unroll 4
    for (int s = 0; s < PHILOX_SETS; s++) {
        /* Two results a lane: a quad is 128 bits, in pairs of lanes. */
        const lanes even = (c0[s] & low_half) | c1[s] << 32;
        const lanes odd = (c2[s] & low_half) | c3[s] << 32;
        pairs[2 * s] = first_pairs(even, odd);
        pairs[2 * s + 1] = second_pairs(even, odd);
    }
}

static inline __attribute__((always_inline)) void philox_quads(int rounds, uint64_t key,
                                                               uint64_t first, uint64_t high,
                                                               int64_t quads, uint32_t *bits) {
    const philox_key keys = philox_key_of(key);
    for (int64_t q = 0; q < quads; q += PHILOX_COUNTERS) {
        lanes pairs[2 * PHILOX_SETS];
        philox_sets(rounds, &keys, first + (uint64_t)q, high, pairs);
        memcpy(bits + 4 * q, pairs, sizeof pairs);
    }
}

static void philox(int rounds, uint64_t key, uint64_t first, uint64_t high, int64_t quads,
                   uint32_t *bits) {
    if (rounds == TR_ROUNDING_ROUNDS)
        philox_quads(TR_ROUNDING_ROUNDS, key, first, high, quads, bits);
    else philox_quads(TR_PHILOX_ROUNDS, key, first, high, quads, bits);
}
