/* The kernels of kernels.h, for the instruction set of the including file, which names the table
 * TR_KERNELS. */
#include "base/code8.h"
#include "device/cpu/kernels.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

/* The functions of an activation: f(x) and f'(x), given e, the exponential of an exponent of x. */
#define ACTIVATION(name, value, exponent, slope, slope_exponent)                                   \
    static void name(int64_t n, const float *x, float *y) {                                        \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = value(x[i], exponent(x[i]));    \
    }                                                                                              \
    static void name##_dgrad(int64_t n, const float *dy, const float *x, float *dx) {              \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) dx[i] =                                \
            dy[i] * slope(x[i], slope_exponent(x[i]));                                             \
    }
#define E_GELU(x)            tr_expf(tr_gelu_exponent(x))
#define E_GELU_DGRAD(x)      tr_expf(tr_gelu_dgrad_exponent(x))
#define E_GELU_ERF(x)        tr_expf(tr_gelu_erf_exponent(x))
#define E_SILU(x)            tr_expf(-(x))
#define E_SILU_DGRAD(x)      tr_expf(tr_silu_dgrad_exponent(x))
#define RELU2(x, none)       tr_relu2(x)
#define RELU2_DGRAD(x, none) tr_relu2_dgrad(x)
#define NONE(x)              0
ACTIVATION(gelu, tr_gelu, E_GELU, tr_gelu_dgrad, E_GELU_DGRAD)
ACTIVATION(gelu_erf, tr_gelu_erf, E_GELU_ERF, tr_gelu_erf_dgrad, E_GELU_ERF)
ACTIVATION(silu, tr_silu, E_SILU, tr_silu_dgrad, E_SILU_DGRAD)
ACTIVATION(relu2, RELU2, NONE, RELU2_DGRAD, NONE)

static void exponential(int64_t n, const float *x, float scale, float shift, float factor,
                        float *y) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = tr_expf(x[i] * scale - shift) * factor;
}

#include "device/cpu/kernels_philox.h"
#include "device/cpu/kernels_transpose.h"

static void round_drawn(bool adds, int64_t n, const float *x, const uint16_t *draw, int use,
                        uint16_t *y) {
    if (adds) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = tr_round_bf16(tr_bf16_to_f32(y[i]) + x[i], tr_rounding_draw(draw[i], use));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = tr_round_bf16(x[i], tr_rounding_draw(draw[i], use));
    }
}

#if defined __AVX512F__
typedef float strip __attribute__((vector_size(64)));
typedef float strip_any __attribute__((vector_size(64), aligned(4), may_alias));
enum { STRIPS = 1 };
static inline strip multiply_add(strip a, strip b, strip c) {
    return (strip)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#else
typedef tr_v8 strip;
typedef tr_v8_any strip_any;
enum { STRIPS = 2 };
static inline strip multiply_add(strip a, strip b, strip c) {
    return tr_v8_fma(a, b, c);
}
#endif
enum { STRIP = TR_PANEL / STRIPS };
typedef uint32_t words __attribute__((vector_size(4 * STRIP)));
typedef uint32_t words_any __attribute__((vector_size(4 * STRIP), aligned(4), may_alias));

#include "device/cpu/kernels_squares.h"

/* The numbers of x and what is added to their bits, cut off to BF16, in the low halves of words. */
static inline __attribute__((always_inline)) words round_bits(strip x, words more) {
#if defined __AVX512F__
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    const __m512i up = (__m512i)((words)x + more), quiet = _mm512_set1_epi32(0x400000);
    return (words)_mm512_mask_or_epi32(up, nan, (__m512i)x, quiet) >> 16;
#else
    const words bits = (words)x, nan = (words)((bits & 0x7fffffffu) > 0x7f800000u);
    return ((nan & (bits | 0x400000u)) | (~nan & (bits + more))) >> 16;
#endif
}

/* What round_bits adds to round to nearest. */
static inline __attribute__((always_inline)) words half_up(strip x) {
    return 0x7fffu + ((words)x >> 16 & 1u);
}

/* The numbers of x rounded to BF16, to nearest; an instruction rounds subnormal numbers to 0. */
static inline __attribute__((always_inline)) words round_strip(strip x) {
#if defined __AVX512BF16__
    return (words)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    return round_bits(x, half_up(x));
#endif
}

static float round_row(int64_t panels, const float *x, uint16_t *y) {
    typedef uint16_t halves __attribute__((vector_size(2 * STRIP), aligned(2), may_alias));
    strip sum[STRIPS] = {0};
    float parts[TR_PANEL];
    for (int64_t i = 0; i < panels * TR_PANEL; i += TR_PANEL) {
#pragma GCC unroll 2
        for (int s = 0; s < STRIPS; s++) {
            const words rounded = round_strip(*(const strip_any *)(x + i + s * STRIP));
            sum[s] += (strip)(rounded << 16);
            *(halves *)(y + i + s * STRIP) = __builtin_convertvector(rounded, halves);
        }
    }
    memcpy(parts, sum, sizeof parts);
    return tr_vec_sum(parts, TR_PANEL);
}

static void round_rows(int64_t panels, const float *first, const float *second, tr_word *y) {
    for (int64_t i = 0; i < panels * TR_PANEL; i += STRIP) {
        const words low = round_strip(*(const strip_any *)(first + i));
        const words high = round_strip(*(const strip_any *)(second + i));
        *(words_any *)(y + i) = low | high << 16;
    }
}

/* Widens the low 16 bits of each word as tr_half_widen (base/half.h). */
static inline __attribute__((always_inline)) strip widen_halves(words h) {
    const words size = (h & 0x7fffu) << 13;
    const words top = (words)(size >= 0x0f800000u) & 0x7f800000u; /* infinity or NaN */
    const words wide = (words)((strip)size * 0x1p112f);
    return (strip)(wide | top | (h & 0x8000u) << 16);
}

/* The numbers in the low halves of words, and in their high halves. */
static inline __attribute__((always_inline)) strip low_numbers(tr_dtype dtype, words x) {
    return dtype == TR_F16 ? widen_halves(x) : (strip)(x << 16);
}
static inline __attribute__((always_inline)) strip high_numbers(tr_dtype dtype, words x) {
    return dtype == TR_F16 ? widen_halves(x >> 16) : (strip)(x & 0xffff0000u);
}

/* c plus the products of the numbers in the words a and b. A product of two BF16 or FP16 is exact
 * in FP32. */
static inline __attribute__((always_inline)) strip multiply_add_words(tr_dtype dtype, words a,
                                                                      words b, strip c) {
    if (dtype == TR_F32) return multiply_add((strip)a, (strip)b, c);
#if defined __AVX512BF16__
    if (dtype == TR_BF16) return (strip)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#endif
    c = multiply_add(high_numbers(dtype, a), high_numbers(dtype, b), c);
    return multiply_add(low_numbers(dtype, a), low_numbers(dtype, b), c);
}

/* The largest tile of C in registers: its rows, and its panels. */
#if defined __AVX512F__
enum { TILE_ROWS = 8, TILE_PANELS = 3 };
#else
enum { TILE_ROWS = 6, TILE_PANELS = 1 };
#endif
enum { TILE_STRIPS = TILE_PANELS * STRIPS };

/* A tile of C: `dtype`, `rows` and `panels` are constants after inlining. */
static inline __attribute__((always_inline)) void
gemm_tile(tr_dtype dtype, int rows, int panels, int64_t depth, const tr_word *a, int64_t row_step,
          int64_t column_step, const tr_word *b, int64_t panel_step, float *c, int64_t ldc,
          bool accumulate) {
    strip sum[TILE_ROWS][TILE_STRIPS];
    const int strips = panels * STRIPS;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 3
        for (int s = 0; s < strips; s++)
            sum[i][s] =
                accumulate ? (strip) * (const strip_any *)(c + i * ldc + s * STRIP) : (strip){0};
    for (int64_t j = 0; j < depth; j++) {
        words right[TILE_STRIPS];
#pragma GCC unroll 3
        for (int s = 0; s < strips; s++)
            right[s] = *(const words_any *)(b + s / STRIPS * panel_step + j * TR_PANEL +
                                            s % STRIPS * STRIP);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            words left = (words){0} + a[i * row_step + j * column_step];
#pragma GCC unroll 3
            for (int s = 0; s < strips; s++)
                sum[i][s] = multiply_add_words(dtype, left, right[s], sum[i][s]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 3
        for (int s = 0; s < strips; s++) *(strip_any *)(c + i * ldc + s * STRIP) = sum[i][s];
}

/* C of `rows` rows, which is a constant after inlining. */
static inline __attribute__((always_inline)) void
gemm_rows(tr_dtype dtype, int rows, int64_t panels, int64_t depth, const tr_word *a,
          int64_t row_step, int64_t column_step, const tr_word *b, int64_t panel_step, float *c,
          int64_t ldc, bool accumulate) {
#define TILE(n)                                                                                    \
    gemm_tile(dtype, rows, n, depth, a, row_step, column_step, b, panel_step, c, ldc, accumulate)
    for (; panels >= TILE_PANELS; panels -= TILE_PANELS) {
        TILE(TILE_PANELS);
        b += TILE_PANELS * panel_step, c += TILE_PANELS * TR_PANEL;
    }
    if (TILE_PANELS > 1 && panels == 1) TILE(1);
    if (TILE_PANELS > 2 && panels == 2) TILE(2);
#undef TILE
}

static inline __attribute__((always_inline)) void gemm(tr_dtype dtype, int64_t rows, int64_t panels,
                                                       int64_t depth, const tr_word *a,
                                                       int64_t row_step, int64_t column_step,
                                                       const tr_word *b, int64_t panel_step,
                                                       float *c, int64_t ldc, bool accumulate) {
#define ROWS(n)                                                                                    \
    for (; rows >= (n); rows -= (n), a += (n)*row_step, c += (n)*ldc)                              \
    gemm_rows(dtype, n, panels, depth, a, row_step, column_step, b, panel_step, c, ldc, accumulate)
    ROWS(TILE_ROWS);
    ROWS(4);
    ROWS(2);
    ROWS(1);
#undef ROWS
}

#define GEMM(name, dtype)                                                                          \
    static void name(int64_t rows, int64_t panels, int64_t depth, const tr_word *a,                \
                     int64_t row_step, int64_t column_step, const tr_word *b, int64_t panel_step,  \
                     float *c, int64_t ldc, bool accumulate) {                                     \
        gemm(dtype, rows, panels, depth, a, row_step, column_step, b, panel_step, c, ldc,          \
             accumulate);                                                                          \
    }
GEMM(gemm_f32, TR_F32)
#ifndef TR_GEMM_BF16 /* by instructions of its own */
GEMM(gemm_bf16, TR_BF16)
#define TR_GEMM_BF16      gemm_bf16
#define TR_GEMM_BF16_ROWS TILE_ROWS
#endif

static void pair(int64_t panels, const uint16_t *first, const uint16_t *second, tr_word *out,
                 int64_t panel_step) {
    for (int64_t p = 0; p < panels; p++) {
#pragma omp simd
        for (int64_t i = 0; i < TR_PANEL; i++)
            out[p * panel_step + i] = first[p * TR_PANEL + i] | (uint32_t)second[p * TR_PANEL + i]
                                                                    << 16;
    }
}

/* --- products of one row: B is read once, from memory, so rows are prefetched ----------------- */

enum { ROWS_AT_ONCE = 4, ROWS_SUMMED = 8 };

/* The second cache holds the rows that come next; the first would not. */
static inline void prefetch(const tr_word *at) {
    __builtin_prefetch(at, 0, 2);
}

/* The strip at `from`, of which `left` words exist; zeros stand for the others. */
static inline words load_words(const tr_word *from, int64_t left) {
    if (left >= STRIP) return *(const words_any *)from;
    words part = {0};
    memcpy(&part, from, (size_t)(left > 0 ? left : 0) * sizeof *from);
    return part;
}

/* Adds the products of the words from j on, of which `left` exist. `rows` and, but at the end of a
 * row, `left` are constants after inlining. */
static inline __attribute__((always_inline)) void dot_panel(tr_dtype dtype, int rows, int64_t left,
                                                            const tr_word *a, const tr_word *b,
                                                            int64_t b_step, strip (*sum)[STRIPS]) {
#pragma GCC unroll 2
    for (int s = 0; s < STRIPS; s++) {
        const words x = load_words(a + s * STRIP, left - s * STRIP);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            sum[r][s] = multiply_add_words(
                dtype, x, load_words(b + r * b_step + s * STRIP, left - s * STRIP), sum[r][s]);
    }
}

static inline __attribute__((always_inline)) void dot_rows(tr_dtype dtype, int rows, bool more,
                                                           int64_t depth, const tr_word *a,
                                                           const tr_word *b, int64_t b_step,
                                                           float *c) {
    strip sum[ROWS_AT_ONCE][STRIPS] = {0};
    int64_t j = 0;
    for (; j + TR_PANEL <= depth; j += TR_PANEL) {
#pragma GCC unroll 4
        for (int r = 0; r < rows && more; r++) prefetch(b + (rows + r) * b_step + j);
        dot_panel(dtype, rows, TR_PANEL, a + j, b + j, b_step, sum);
    }
    if (j < depth) dot_panel(dtype, rows, depth - j, a + j, b + j, b_step, sum);
    for (int r = 0; r < rows; r++) {
        float parts[TR_PANEL];
        memcpy(parts, sum[r], sizeof parts);
        c[r] = tr_vec_sum(parts, TR_PANEL);
    }
}

static inline __attribute__((always_inline)) void dots(tr_dtype dtype, int64_t rows, int64_t depth,
                                                       const tr_word *a, const tr_word *b,
                                                       int64_t b_step, float *c) {
    int64_t r = 0;
    for (; r + ROWS_AT_ONCE <= rows; r += ROWS_AT_ONCE)
        dot_rows(dtype, ROWS_AT_ONCE, r + 2 * ROWS_AT_ONCE <= rows, depth, a, b + r * b_step,
                 b_step, c + r);
    for (; r < rows; r++) dot_rows(dtype, 1, false, depth, a, b + r * b_step, b_step, c + r);
}

static inline __attribute__((always_inline)) void combine_rows(tr_dtype dtype, int rows, bool more,
                                                               int64_t width, const float *a,
                                                               const tr_word *b, int64_t b_step,
                                                               float *low, float *high) {
    for (int64_t j = 0; j < width; j += STRIP) {
        strip l = *(const strip_any *)(low + j), h = l;
        if (dtype != TR_F32) h = *(const strip_any *)(high + j);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const strip factor = (strip){0} + a[r];
            const words x = load_words(b + r * b_step + j, width - j);
            if (more) prefetch(b + (rows + r) * b_step + j);
            if (dtype == TR_F32) l = multiply_add(factor, (strip)x, l);
            else {
                l = multiply_add(factor, low_numbers(dtype, x), l);
                h = multiply_add(factor, high_numbers(dtype, x), h);
            }
        }
        *(strip_any *)(low + j) = l;
        if (dtype != TR_F32) *(strip_any *)(high + j) = h;
    }
}

static inline __attribute__((always_inline)) void combine(tr_dtype dtype, int64_t depth,
                                                          int64_t width, const float *a,
                                                          const tr_word *b, int64_t b_step,
                                                          float *low, float *high) {
    memset(low, 0, (size_t)tr_panel_up(width) * sizeof *low);
    if (dtype != TR_F32) memset(high, 0, (size_t)tr_panel_up(width) * sizeof *high);
    int64_t i = 0;
    for (; i + ROWS_SUMMED <= depth; i += ROWS_SUMMED)
        combine_rows(dtype, ROWS_SUMMED, i + 2 * ROWS_SUMMED <= depth, width, a + i, b + i * b_step,
                     b_step, low, high);
    for (; i < depth; i++)
        combine_rows(dtype, 1, false, width, a + i, b + i * b_step, b_step, low, high);
}

#define ROW_PRODUCTS(suffix, dtype)                                                                \
    static void dots_##suffix(int64_t rows, int64_t depth, const tr_word *a, const tr_word *b,     \
                              int64_t b_step, float *c) {                                          \
        dots(dtype, rows, depth, a, b, b_step, c);                                                 \
    }                                                                                              \
    static void combine_##suffix(int64_t depth, int64_t width, const float *a, const tr_word *b,   \
                                 int64_t b_step, float *low, float *high) {                        \
        combine(dtype, depth, width, a, b, b_step, low, high);                                     \
    }
ROW_PRODUCTS(f32, TR_F32)
ROW_PRODUCTS(bf16, TR_BF16)
ROW_PRODUCTS(f16, TR_F16)

#include "device/cpu/kernels_rows.h"
#include "device/cpu/kernels_softmax.h"
#include "device/cpu/kernels_update.h"

const tr_cpu_kernels TR_KERNELS = {
    .row_load = tr_row_load,
    .row_store = tr_row_store,
    .row_add = row_add,
    .row_scale = row_scale,
    .row_largest = row_largest,
    .norm = norm,
    .norm_terms = norm_terms,
    .norm_dgrad = norm_dgrad,
    .angles = angles,
    .rotate = rotate,
    .activation = {[TR_ACTIVATION_GELU] = gelu,
                   [TR_ACTIVATION_GELU_ERF] = gelu_erf,
                   [TR_ACTIVATION_SILU] = silu,
                   [TR_ACTIVATION_RELU2] = relu2},
    .activation_dgrad = {[TR_ACTIVATION_GELU] = gelu_dgrad,
                         [TR_ACTIVATION_GELU_ERF] = gelu_erf_dgrad,
                         [TR_ACTIVATION_SILU] = silu_dgrad,
                         [TR_ACTIVATION_RELU2] = relu2_dgrad},
    .exponential = exponential,
    .softmax = softmax,
    .softmax_dgrad = softmax_dgrad,
    .round_row = round_row,
    .round_rows = round_rows,
    .philox = philox,
    .round_drawn = round_drawn,
    .update = update,
    .sumsq = sumsq,
    .factor_sums = factor_sums,
    .factor = factor,
    .gemm = {[TR_F32] = gemm_f32, [TR_BF16] = TR_GEMM_BF16},
    .gemm_rows = {[TR_F32] = TILE_ROWS, [TR_BF16] = TR_GEMM_BF16_ROWS},
    .pair = pair,
    .transpose = transpose,
    .dots = {[TR_F32] = dots_f32, [TR_BF16] = dots_bf16, [TR_F16] = dots_f16},
    .combine = {[TR_F32] = combine_f32, [TR_BF16] = combine_bf16, [TR_F16] = combine_f16},
};
