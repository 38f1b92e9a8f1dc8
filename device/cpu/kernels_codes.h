/* States in the codes of base/code8.h for the kernel `update`: blocks of them, which are stepped as
 * strips. Included by kernels_update.h. */

enum { CODE_STRIPS = TR_CODE8_BLOCK / (2 * STRIP) };

/* Two adjacent codes a word, in memory and in registers. */
typedef uint16_t code_pairs __attribute__((vector_size(2 * STRIP), aligned(1), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * STRIP)));

/* a, or b where that is larger or a is a NaN. */
static inline strip max_strip(strip a, strip b) {
#if defined __AVX512F__
    return (strip)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined __AVX2__
    return (strip)_mm256_max_ps((__m256)a, (__m256)b);
#else
    const words larger = (words)(a > b);
    return (strip)((larger & (words)a) | (~larger & (words)b));
#endif
}

static inline ints min_ints(ints a, ints b) {
#if defined __AVX512F__
    return (ints)_mm512_min_epi32((__m512i)a, (__m512i)b);
#elif defined __AVX2__
    return (ints)_mm256_min_epi32((__m256i)a, (__m256i)b);
#else
    const ints less = a < b;
    return (less & a) | (~less & b);
#endif
}

/* The bits of a where the mask's are set, and those of b elsewhere. */
static inline words select_bits(uint32_t mask, words a, words b) {
#if defined __AVX512F__
    return (words)_mm512_ternarylogic_epi32(_mm512_set1_epi32((int)mask), (__m512i)a, (__m512i)b,
                                            0xca);
#else
    return (a & mask) | (b & ~mask);
#endif
}

/* tr_code8_decode of the codes that begin at bit `low` of words: `code` and `low` are constants
 * after inlining. */
static inline __attribute__((always_inline)) strip decode_strip(tr_code8 code, words pairs, int low,
                                                                float scale) {
    const int cut = 23 - tr_code8_fraction(code);
    const uint32_t number = (code == TR_CODE8_SQUARES ? 0xffu : 0x7fu) << cut;
    const strip zeros = {0}, least = zeros + tr_code8_power(tr_code8_low(code));
    const strip mean = (strip)((pairs << (cut - low) & number) | tr_code8_zero(code));
    const strip x =
        multiply_add(max_strip(mean, least), zeros - scale, mean * (zeros + 2.0f * scale));
    if (code == TR_CODE8_SQUARES) return x;
    return (strip)((words)x | (pairs << (24 - low) & 0x80000000u));
}

static inline __attribute__((always_inline)) void decode_block(tr_code8 code, const uint8_t *y,
                                                               float scale, strips *x) {
    for (int k = 0; k < CODE_STRIPS; k++) {
        const words pairs =
            __builtin_convertvector(*(const code_pairs *)(y + 2 * k * STRIP), words);
        x[k].even = decode_strip(code, pairs, 0, scale);
        x[k].odd = decode_strip(code, pairs, 8, scale);
    }
}

/* a, at least `least` where x is not 0. */
static inline words at_least(words a, uint32_t least, strip x) {
#if defined __AVX512F__
    const __mmask16 above = _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    return (words)_mm512_mask_max_epu32((__m512i)a, above, (__m512i)a,
                                        _mm512_set1_epi32((int)least));
#else
    const words more = (words)(x != (strip){0}) & (words)(a < least);
    return (more & least) | (~more & a);
#endif
}

/* tr_code8_encode without the sign: returns words in which the codes begin at bit `to`; other bits
 * may be set, too. The 16 random bits begin at bit `from` of the words `draw`. `code`, `from` and
 * `to` are constants after inlining. */
static inline __attribute__((always_inline)) words
encode_strip(tr_code8 code, strip x, float inverse, words draw, int from, int to) {
    const int cut = 23 - tr_code8_fraction(code), up = cut - 16 - from;
    const uint32_t zero = tr_code8_zero(code), middle = (1u << (cut - 16)) >> 1;
    const strip zeros = {0}, half_low = zeros + tr_code8_power(tr_code8_low(code) - 1);
    const strip half = (strip)((words)x & 0x7fffffffu) * (zeros + inverse);
    const ints most = (ints){0} + (int32_t)(zero + ((uint32_t)tr_code8_largest(code) << cut));
    const words exact = (words)min_ints((ints)(half + max_strip(half, half_low)), most);
    const words more = ((up > 0 ? draw << up : draw >> -up) & 0xffffu << (cut - 16)) | middle;
    const words bits = exact + more;
    return (code == TR_CODE8_SQUARES ? at_least(bits, zero + (1u << cut), x) : bits) >> (cut - to);
}

static inline __attribute__((always_inline)) void encode_block(tr_code8 code, const strips *x,
                                                               float scale, const uint16_t *draw,
                                                               int use, uint8_t *y) {
    const float inverse = scale > 0 ? 0.5f / scale : 0.0f;
    for (int k = 0; k < CODE_STRIPS; k++) {
        const words draws = drawn_pairs(draw + 2 * k * STRIP, use);
        words even = encode_strip(code, x[k].even, inverse, draws, 0, 0);
        words odd = encode_strip(code, x[k].odd, inverse, draws, 16, 8);
        if (code != TR_CODE8_SQUARES) {
            even = select_bits(0x80u, (words)x[k].even >> 24, even);
            odd = select_bits(0x8000u, (words)x[k].odd >> 16, odd);
        }
        *(code_pairs *)(y + 2 * k * STRIP) =
            __builtin_convertvector(select_bits(0xffu, even, odd), code_pairs);
    }
}

/* Returns the scale of a block. A NaN has no size. */
static inline float scale_of(const strips *x) {
    enum { SUMS = 4 };
    strip size[SUMS] = {{0}};
    for (int k = 0; k < CODE_STRIPS; k += SUMS / 2)
#pragma GCC unroll 2
        for (int j = 0; j < SUMS / 2; j++) {
            strip *const two = size + 2 * j;
            two[0] = max_strip((strip)((words)x[k + j].even & 0x7fffffffu), two[0]);
            two[1] = max_strip((strip)((words)x[k + j].odd & 0x7fffffffu), two[1]);
        }
    const strip most = max_strip(max_strip(size[0], size[1]), max_strip(size[2], size[3]));
#if defined __AVX512F__
    return tr_code8_scale(_mm512_reduce_max_ps((__m512)most));
#else
    float largest = 0;
    for (int j = 0; j < STRIP; j++) largest = most[j] > largest ? most[j] : largest;
    return tr_code8_scale(largest);
#endif
}

static void decode(tr_code8 code, const uint8_t *y, float scale, strips *x) {
    switch (code) {
    case TR_CODE8_SQUARES: decode_block(TR_CODE8_SQUARES, y, scale, x); break;
    case TR_CODE8_EVEN: decode_block(TR_CODE8_EVEN, y, scale, x); break;
    default: decode_block(TR_CODE8_SIGNED, y, scale, x);
    }
}

/* Encodes a block by the half-words of a use. */
static void encode(tr_code8 code, const strips *x, float scale, const uint16_t *draw, int use,
                   uint8_t *y) {
    switch (code) {
    case TR_CODE8_SQUARES: encode_block(TR_CODE8_SQUARES, x, scale, draw, use, y); break;
    case TR_CODE8_EVEN: encode_block(TR_CODE8_EVEN, x, scale, draw, use, y); break;
    default: encode_block(TR_CODE8_SIGNED, x, scale, draw, use, y);
    }
}
