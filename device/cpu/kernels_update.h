/* The kernel `update` of kernels.h. Uses the vectors of kernels_body.h, which includes it. */

/* Elements that are stepped at a time: a block of codes, and eight for each of some sets of Philox
 * counters. */
enum { CHUNK = TR_CODE8_BLOCK, CHUNK_SETS = CHUNK / (8 * PHILOX_COUNTERS), UPDATE_OUTPUTS = 5 };
_Static_assert(CHUNK == CHUNK_SETS * 8 * PHILOX_COUNTERS, "a chunk uses all numbers of its sets");

/* How many elements ahead each strip prefetches its operands: the hardware's own prefetches, which
 * end at a page, come too late for this number of operands. */
enum { UPDATE_AHEAD = 512 };

/* Where the half-words come from that are drawn. */
typedef struct drawing {
    bool draws;
    philox_key key;
    uint64_t first, high;
} drawing;

/* Adjacent elements, 2 * STRIP of them: those of even and those of odd places, which are the low
 * and the high halves of words where they are BF16. So a half-word is widened, and one is stored,
 * by a shift or a mask; in the order of places both would take shuffles of half-words. */
typedef struct strips {
    strip even, odd;
} strips;

/* Pairs of half-words in memory, and in registers. */
typedef uint32_t pairs_any __attribute__((vector_size(4 * STRIP), aligned(2), may_alias));
typedef uint16_t half_words __attribute__((vector_size(4 * STRIP)));

#if defined __AVX512F__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define EVEN(a, b)         SHUFFLE(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define ODD(a, b)          SHUFFLE(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#define FIRST(a, b)        SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define SECOND(a, b)       SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#else
#define EVEN(a, b)   __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define ODD(a, b)    __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15)
#define FIRST(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define SECOND(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#endif

static inline __attribute__((always_inline)) strips load_strips(bool bf16, const void *from,
                                                                int64_t i) {
    if (bf16) {
        __builtin_prefetch((const uint16_t *)from + i + UPDATE_AHEAD);
        const words pairs = *(const pairs_any *)((const uint16_t *)from + i);
        return (strips){(strip)(pairs << 16), (strip)(pairs & 0xffff0000u)};
    }
    const float *x = (const float *)from + i;
    __builtin_prefetch(x + UPDATE_AHEAD);
    __builtin_prefetch(x + STRIP + UPDATE_AHEAD);
    const strip a = *(const strip_any *)x, b = *(const strip_any *)(x + STRIP);
    return (strips){EVEN(a, b), ODD(a, b)};
}

/* Stores FP32. */
static inline __attribute__((always_inline)) void store_wide(strips x, void *to, int64_t i) {
    *(strip_any *)((float *)to + i) = FIRST(x.even, x.odd);
    *(strip_any *)((float *)to + i + STRIP) = SECOND(x.even, x.odd);
}

/* Stores BF16: the numbers and what is added to their bits, cut off (round_bits). */
static inline __attribute__((always_inline)) void store_bf16(strips x, words even, words odd,
                                                             void *to, int64_t i) {
    pairs_any *out = (pairs_any *)((uint16_t *)to + i);
#if defined __AVX512F__
    if (__builtin_expect(!_mm512_cmp_ps_mask((__m512)x.even, (__m512)x.odd, _CMP_UNORD_Q), 1)) {
        *out = ((words)x.even + even) >> 16 | (((words)x.odd + odd) & 0xffff0000u);
        return;
    }
#endif
    *out = round_bits(x.even, even) | round_bits(x.odd, odd) << 16;
}

/* The half-words of a use, in pairs. */
static inline __attribute__((always_inline)) words drawn_pairs(const uint16_t *draw, int use) {
    return (words)((half_words)((const pairs_any *)draw)[0] * tr_rounding_factor(use));
}

/* Stores numbers, rounded as tr_round_bf16 by the half-words of a use if they are BF16. */
static inline __attribute__((always_inline)) void
store_drawn(bool bf16, strips x, const uint16_t *draw, int use, void *to, int64_t i) {
    if (!bf16) {
        store_wide(x, to, i);
        return;
    }
    const words bits = drawn_pairs(draw, use);
    store_bf16(x, bits & 0xffffu, bits >> 16, to, i);
}

/* Stores the numbers' copy in the model's type. */
static inline __attribute__((always_inline)) void store_value(tr_dtype dtype, strips x, void *to,
                                                              int64_t i) {
    if (dtype == TR_F32) {
        store_wide(x, to, i);
        return;
    }
    __builtin_prefetch((uint16_t *)to + i + UPDATE_AHEAD);
    if (dtype == TR_BF16) {
        store_bf16(x, half_up(x.even), half_up(x.odd), to, i);
        return;
    }
    float copy[2 * STRIP];
    store_wide(x, copy, 0);
    tr_halves_round(2 * STRIP, copy, (uint16_t *)to + i);
}

#include "device/cpu/kernels_codes.h"

/* How the states of a step are stored, as far as its loop is made for it: in codes, of which these
 * are the first state's (the second one's are those of squares), or otherwise. */
typedef enum coding { CODED_NOT, CODED_SIGNED, CODED_EVEN } coding;

static inline tr_code8 code_of(coding of, int state) {
    return state == 1 ? TR_CODE8_SQUARES : of == CODED_EVEN ? TR_CODE8_EVEN : TR_CODE8_SIGNED;
}

/* The states of a block in codes, in FP32, with the scales that they were decoded by and the
 * factors that they are encoded by. The factors come from the largest sizes, which are known only
 * when all of the block is stepped. */
typedef struct coded_block {
    strips x[TR_UPDATE_STATES][CODE_STRIPS];
    float scale[TR_UPDATE_STATES], inverse[TR_UPDATE_STATES];
} coded_block;

static inline __attribute__((always_inline)) void *state_of(const tr_cpu_update *u, int state) {
    return state == 0 ? u->m : u->v;
}

static inline __attribute__((always_inline)) strips load_state(const tr_cpu_update *u, coding of,
                                                               const code_numbers *c, int state,
                                                               const coded_block *b, int64_t at,
                                                               int k) {
    if (of != CODED_NOT)
        return decode_strips(code_of(of, state), &c[state],
                             (const uint8_t *)state_of(u, state) + at + k, b->scale[state]);
    return load_strips(u->state_dtype == TR_BF16, state_of(u, state), at + k);
}

static inline __attribute__((always_inline)) void
store_state(const tr_cpu_update *u, coding of, int state, coded_block *b, strips *most, strips x,
            const uint16_t *draw, int64_t at, int k) {
    if (of != CODED_NOT) {
        b->x[state][k / (2 * STRIP)] = x;
        *most = larger_sizes(x, *most);
    } else store_drawn(u->state_dtype == TR_BF16, x, draw + k, state, state_of(u, state), at + k);
}

static void open_block(const tr_cpu_update *u, int states, int64_t at, coded_block *b) {
    for (int k = 0; k < states; k++) b->scale[k] = u->scales[k][at / TR_CODE8_BLOCK];
}

static void scale_block(const tr_cpu_update *u, int states, int64_t at, const strips *most,
                        coded_block *b) {
    for (int k = 0; k < states; k++) {
        const float scale = scale_of(most[k]);
        u->scales[k][at / TR_CODE8_BLOCK] = scale;
        b->inverse[k] = tr_code8_half_inverse(scale);
    }
}

/* Encodes the block that begins at `at`. */
static inline __attribute__((always_inline)) void encode_block(const tr_cpu_update *u, coding of,
                                                               const code_numbers *c, int states,
                                                               const coded_block *b, int64_t at) {
#pragma GCC unroll 1
    for (int k = 0; k < CHUNK; k += 2 * STRIP)
        for (int j = 0; j < states; j++)
            encode_strips(code_of(of, j), &c[j], &b->x[j][k / (2 * STRIP)], b->inverse[j],
                          u->drawn + at + k, j, (uint8_t *)state_of(u, j) + at + k);
}

/* Steps whole chunks. The step, the rule, the coding, and what the caller has set in its own copy
 * of the scalars, are constants where this is inlined. The types of operands are branches that each
 * chunk takes alike, because a loop for each combination would be hundreds of them. */
static inline __attribute__((always_inline)) void
update_chunks(const tr_cpu_update *u, tr_cpu_step step, tr_update_rule rule, coding of,
              tr_update_scalars s, const drawing *d, int64_t n) {
    const int states = step == TR_CPU_DESCEND ? 0 : tr_update_states(rule);
    const bool bf16_grad = u->bf16_grad, bf16_master = u->bf16_master;
    const tr_descend_scalars descent = u->descent;
    const void *grad = u->grad;
    void *master = u->master, *value = u->value, *direction = u->u;
    const tr_dtype dtype = u->dtype;
    lanes bits[CHUNK_SETS][2 * PHILOX_SETS];
    coded_block blocks[2]; /* this one and the one before */
    code_numbers numbers[TR_UPDATE_STATES];
    for (int k = 0; k < states && of != CODED_NOT; k++) list_numbers(code_of(of, k), &numbers[k]);
    for (int64_t at = 0; at < n; at += CHUNK) {
        const uint16_t *draw = u->drawn ? u->drawn + at : (const uint16_t *)bits;
        for (int set = 0; set < CHUNK_SETS && d->draws; set++)
            philox_sets(TR_ROUNDING_ROUNDS, &d->key,
                        d->first + (uint64_t)(at / 8 + set * PHILOX_COUNTERS), d->high, bits[set]);
        coded_block *const own = &blocks[at / CHUNK % 2];
        coded_block *const last = &blocks[(at / CHUNK + 1) % 2];
        strips most[TR_UPDATE_STATES] = {{{0}, {0}}};
        if (of != CODED_NOT) open_block(u, states, at, own);
#pragma GCC unroll 1
        for (int k = 0; k < CHUNK; k += 2 * STRIP) {
            union {
                strips all;
                float at[2 * STRIP];
            } g, w, mean, square;
            g.all = load_strips(bf16_grad, grad, at + k);
            w.all = load_strips(bf16_master, master, at + k);
            if (states > 0) mean.all = load_state(u, of, numbers, 0, own, at, k);
            if (states > 1) square.all = load_state(u, of, numbers, 1, own, at, k);
#pragma omp simd
            for (int j = 0; j < 2 * STRIP; j++) {
                float *mj = states > 0 ? &mean.at[j] : NULL,
                      *vj = states > 1 ? &square.at[j] : NULL;
                if (step == TR_CPU_DESCEND)
                    w.at[j] = tr_descend_element(&descent, g.at[j], w.at[j]);
                else if (step == TR_CPU_UPDATE)
                    tr_update_element(&s, rule, g.at[j], &w.at[j], mj, vj);
                else g.at[j] = tr_update_direction(&s, rule, g.at[j], w.at[j], mj, vj);
            }
            if (states > 0) store_state(u, of, 0, own, &most[0], mean.all, draw, at, k);
            if (states > 1) store_state(u, of, 1, own, &most[1], square.all, draw, at, k);
            if (step == TR_CPU_DIRECTION) store_wide(g.all, direction, at + k);
            else store_drawn(bf16_master, w.all, draw + k, TR_UPDATE_USE_MASTER, master, at + k);
            if (step != TR_CPU_DIRECTION && value) store_value(dtype, w.all, value, at + k);
        }
        if (of != CODED_NOT) scale_block(u, states, at, most, own);
        /* Processors encode the block before while they compute this one's scales. The loop above
         * would take a tenth longer with it: fewer roots and divisions would be in flight. */
        if (of != CODED_NOT && at > 0) encode_block(u, of, numbers, states, last, at - CHUNK);
    }
    if (of != CODED_NOT && n > 0)
        encode_block(u, of, numbers, states, &blocks[(n / CHUNK - 1) % 2], n - CHUNK);
}

/* A loop of its own for gradients that are taken as they are: compilers would compute the terms of
 * clips and penalties and then select. */
static inline __attribute__((always_inline)) void update_gradients(const tr_cpu_update *u,
                                                                   tr_cpu_step step,
                                                                   tr_update_rule rule, coding of,
                                                                   const drawing *d, int64_t n) {
    tr_update_scalars s = u->scalars;
    if (s.clamps || s.regular) {
        update_chunks(u, step, rule, of, s, d, n);
        return;
    }
    s.clamps = s.regular = 0;
    update_chunks(u, step, rule, of, s, d, n);
}

static inline __attribute__((always_inline)) void update_rule(const tr_cpu_update *u,
                                                              tr_cpu_step step, tr_update_rule rule,
                                                              const drawing *d, int64_t n) {
    if (tr_update_states(rule) == 0 || u->state_dtype != TR_U8)
        update_gradients(u, step, rule, CODED_NOT, d, n);
    else if (rule == TR_UPDATE_MOMENTUM && u->code[0] == TR_CODE8_EVEN)
        update_gradients(u, step, rule, CODED_EVEN, d, n);
    else update_gradients(u, step, rule, CODED_SIGNED, d, n);
}

static inline __attribute__((always_inline)) void
update_step(const tr_cpu_update *u, tr_cpu_step step, const drawing *d, int64_t n) {
    switch (u->rule) {
    case TR_UPDATE_SGD: update_rule(u, step, TR_UPDATE_SGD, d, n); break;
    case TR_UPDATE_MOMENTUM: update_rule(u, step, TR_UPDATE_MOMENTUM, d, n); break;
    case TR_UPDATE_LION: update_rule(u, step, TR_UPDATE_LION, d, n); break;
    case TR_UPDATE_ROOT: update_rule(u, step, TR_UPDATE_ROOT, d, n); break;
    default: update_rule(u, step, TR_UPDATE_ADAMW, d, n);
    }
}

static void update_whole(const tr_cpu_update *u, const drawing *d, int64_t n) {
    switch (u->step) {
    case TR_CPU_DESCEND:
        update_chunks(u, TR_CPU_DESCEND, TR_UPDATE_SGD, CODED_NOT, u->scalars, d, n);
        break;
    case TR_CPU_DIRECTION: update_step(u, TR_CPU_DIRECTION, d, n); break;
    default: update_step(u, TR_CPU_UPDATE, d, n);
    }
}

/* Steps the first n elements, which are those from `begin` on of a chunk, in a copy. */
static void update_part(const tr_cpu_update *u, const drawing *d, int64_t begin, int64_t n) {
    float copy[1 + UPDATE_OUTPUTS][CHUNK] = {{0}};
    tr_cpu_update own = *u;
    void **operand[UPDATE_OUTPUTS] = {&own.master, &own.m, &own.v, &own.value, &own.u};
    void *out[UPDATE_OUTPUTS];
    const size_t state = tr_dtype_size(u->state_dtype);
    const size_t size[UPDATE_OUTPUTS] = {u->bf16_master ? 2 : 4, state, state,
                                         tr_dtype_size(u->dtype), 4};
    const size_t grad = u->bf16_grad ? 2 : 4;
    memcpy((char *)copy[0] + (size_t)begin * grad, u->grad, (size_t)n * grad);
    own.grad = copy[0];
    for (int k = 0; k < UPDATE_OUTPUTS; k++) {
        out[k] = *operand[k];
        if (!out[k]) continue;
        char *from = (char *)copy[1 + k] + (size_t)begin * size[k];
        memcpy(from, out[k], (size_t)n * size[k]);
        *operand[k] = copy[1 + k];
    }
    uint16_t drawn[CHUNK] = {0};
    if (u->drawn) {
        memcpy(drawn + begin, u->drawn, (size_t)n * sizeof *drawn);
        own.drawn = drawn;
    }
    update_whole(&own, d, CHUNK);
    for (int k = 0; k < UPDATE_OUTPUTS; k++)
        if (out[k])
            memcpy(out[k], (char *)copy[1 + k] + (size_t)begin * size[k], (size_t)n * size[k]);
}

static void update(const tr_cpu_update *u, int64_t n) {
    drawing d; /* not zeroed: the key is large */
    d.draws = u->draws, d.first = u->first, d.high = u->high;
    if (d.draws) d.key = philox_key_of(u->key);
    int64_t done = 0;
    if (u->skipped > 0) {
        done = tr_min_i64(n, CHUNK - u->skipped);
        update_part(u, &d, u->skipped, done);
        d.first += CHUNK / 8;
    }
    const int64_t whole = (n - done) / CHUNK * CHUNK;
    tr_cpu_update own = tr_cpu_update_from(u, done);
    update_whole(&own, &d, whole);
    d.first += (uint64_t)whole / 8;
    done += whole;
    own = tr_cpu_update_from(u, done);
    if (done < n) update_part(&own, &d, 0, n - done);
}
