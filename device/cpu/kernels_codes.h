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

static inline words widen_pairs(const uint8_t *from) {
#if defined __AVX512F__
    return (words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
#else
    return __builtin_convertvector(*(const code_pairs *)from, words);
#endif
}

static inline void store_pairs(words pairs, uint8_t *to) {
#if defined __AVX512F__
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16((__m512i)pairs));
#else
    *(code_pairs *)to = __builtin_convertvector(pairs, code_pairs);
#endif
}

/* The bits of a where the mask's are set, and those of b elsewhere. */
static inline words select_bits(words mask, words a, words b) {
#if defined __AVX512F__
    return (words)_mm512_ternarylogic_epi32((__m512i)mask, (__m512i)a, (__m512i)b, 0xca);
#else
    return (a & mask) | (b & ~mask);
#endif
}

/* The numbers of a code as vectors in memory. A compiler that knows them makes most of them for
 * each strip, by the unit that also shuffles, because it has no registers left for them. */
typedef struct code_numbers {
    words number, zero, fraction, middle, least; /* bits */
    strip low, half_low;
    ints most;
    words size, sign, even_sign, odd_sign, byte;
} code_numbers;

static __attribute__((noinline)) void list_numbers(tr_code8 code, code_numbers *c) {
    const int cut = 23 - tr_code8_fraction(code);
    const uint32_t zero = tr_code8_zero(code), largest = (uint32_t)tr_code8_largest(code) << cut;
    const words all = {0};
    c->number = all + ((code == TR_CODE8_SQUARES ? 0xffu : 0x7fu) << cut);
    c->zero = all + zero;
    c->fraction = all + (0xffffu << (cut - 16));
    c->middle = all + ((1u << (cut - 16)) >> 1);
    c->least = all + (zero + (1u << cut));
    c->low = (strip){0} + tr_code8_power(tr_code8_low(code));
    c->half_low = (strip){0} + tr_code8_power(tr_code8_low(code) - 1);
    c->most = (ints){0} + (int32_t)(zero + largest);
    c->size = all + 0x7fffffffu;
    c->sign = all + 0x80000000u;
    c->even_sign = all + 0x80u;
    c->odd_sign = all + 0x8000u;
    c->byte = all + 0xffu;
}

/* tr_code8_decode of the codes that begin at bit `low` of words: `code` and `low` are constants
 * after inlining. */
static inline __attribute__((always_inline)) strip
decode_strip(tr_code8 code, const code_numbers *c, words pairs, int low, float scale) {
    const int cut = 23 - tr_code8_fraction(code);
    const strip zeros = {0}, mean = (strip)((pairs << (cut - low) & c->number) | c->zero);
    const strip x =
        multiply_add(max_strip(mean, c->low), zeros - scale, mean * (zeros + 2.0f * scale));
    if (code == TR_CODE8_SQUARES) return x;
    return (strip)((words)x | (pairs << (24 - low) & c->sign));
}

/* Decodes 2 * STRIP adjacent codes. */
static inline __attribute__((always_inline)) strips
decode_strips(tr_code8 code, const code_numbers *c, const uint8_t *y, float scale) {
    const words pairs = widen_pairs(y);
    return (strips){decode_strip(code, c, pairs, 0, scale), decode_strip(code, c, pairs, 8, scale)};
}

/* a, at least `least` where x is not 0. */
static inline words at_least(words a, words least, strip x) {
#if defined __AVX512F__
    const __mmask16 above = _mm512_test_epi32_mask((__m512i)x, (__m512i)x);
    return (words)_mm512_mask_max_epu32((__m512i)a, above, (__m512i)a, (__m512i)least);
#else
    const words more = (words)(x != (strip){0}) & (words)(a < least);
    return (more & least) | (~more & a);
#endif
}

/* tr_code8_encode without the sign: returns words in which the codes begin at bit `to`; other bits
 * may be set, too. The 16 random bits begin at bit `from` of the words `draw`. `code`, `from` and
 * `to` are constants after inlining. */
static inline __attribute__((always_inline)) words encode_strip(tr_code8 code,
                                                                const code_numbers *c, strip x,
                                                                float inverse, words draw, int from,
                                                                int to) {
    const int cut = 23 - tr_code8_fraction(code), up = cut - 16 - from;
    const strip zeros = {0}, size = (strip)((words)x & c->size), half = size * (zeros + inverse);
    const words exact = (words)min_ints((ints)(half + max_strip(half, c->half_low)), c->most);
    const words more = ((up > 0 ? draw << up : draw >> -up) & c->fraction) | c->middle;
    const words bits = exact + more;
    return (code == TR_CODE8_SQUARES ? at_least(bits, c->least, size) : bits) >> (cut - to);
}

/* Encodes 2 * STRIP adjacent numbers by the half-words of a use. inverse: encode_strip's. */
static inline __attribute__((always_inline)) void
encode_strips(tr_code8 code, const code_numbers *c, const strips *x, float inverse,
              const uint16_t *draw, int use, uint8_t *y) {
    const words draws = drawn_pairs(draw, use);
    words even = encode_strip(code, c, x->even, inverse, draws, 0, 0);
    words odd = encode_strip(code, c, x->odd, inverse, draws, 16, 8);
    if (code != TR_CODE8_SQUARES) {
        even = select_bits(c->even_sign, (words)x->even >> 24, even);
        odd = select_bits(c->odd_sign, (words)x->odd >> 16, odd);
    }
    store_pairs(select_bits(c->byte, even, odd), y);
}

/* The largest sizes of even and of odd places. A NaN has no size. */
static inline __attribute__((always_inline)) strips larger_sizes(strips x, strips most) {
    return (strips){max_strip((strip)((words)x.even & 0x7fffffffu), most.even),
                    max_strip((strip)((words)x.odd & 0x7fffffffu), most.odd)};
}

/* Returns the scale of a block with these largest sizes. */
static inline float scale_of(strips sizes) {
    const strip most = max_strip(sizes.even, sizes.odd);
#if defined __AVX512F__
    return tr_code8_scale(_mm512_reduce_max_ps((__m512)most));
#else
    float largest = 0;
    for (int j = 0; j < STRIP; j++) largest = most[j] > largest ? most[j] : largest;
    return tr_code8_scale(largest);
#endif
}
