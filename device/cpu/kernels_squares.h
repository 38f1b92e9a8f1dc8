/* The kernels `sumsq`, `factor_sums` and `factor` of kernels.h. Uses the vectors of kernels_body.h,
 * which includes it. */

/* LANES numbers in FP64, and a strip of BF16, at any address. */
typedef double doubles __attribute__((vector_size(8 * LANES)));
typedef double doubles_any __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
typedef uint16_t narrow_any __attribute__((vector_size(2 * STRIP), aligned(2), may_alias));
enum { HALVES = 2 }; /* of a strip, which are LANES numbers each */
_Static_assert(STRIP == HALVES * LANES, "a strip is two vectors of FP64");

/* GCC 12 converts these vectors by parts, unless it is told the instructions. */
static inline strip widen_narrow(narrow_any x) {
#if defined __AVX512F__
    return (strip)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16);
#elif defined __AVX2__
    return (strip)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)x), 16);
#else
    return (strip)(__builtin_convertvector(x, words) << 16);
#endif
}

/* Returns half h of x in FP64. */
static inline doubles to_doubles(strip x, int h) {
#if defined __AVX512F__
    return (doubles)_mm512_cvtps_pd(h ? _mm512_extractf32x8_ps((__m512)x, 1)
                                      : _mm512_castps512_ps256((__m512)x));
#elif defined __AVX2__
    return (doubles)_mm256_cvtps_pd(h ? _mm256_extractf128_ps((__m256)x, 1)
                                      : _mm256_castps256_ps128((__m256)x));
#else
    doubles y;
    for (int i = 0; i < LANES; i++) y[i] = (double)x[h * LANES + i];
    return y;
#endif
}

/* Returns sum + w w. w is an FP32 number, so its square is exact, and adding it in one instruction
 * changes no bit. */
static inline doubles add_square(doubles w, doubles sum) {
#if defined __AVX512F__
    return (doubles)_mm512_fmadd_pd((__m512d)w, (__m512d)w, (__m512d)sum);
#elif defined __AVX2__ && defined __FMA__
    return (doubles)_mm256_fmadd_pd((__m256d)w, (__m256d)w, (__m256d)sum);
#else
    return w * w + sum;
#endif
}

enum { SQUARES = 8, LINE = 64 }; /* sums in registers; bytes of a cache line */

/* What `sumsq`, `factor_sums` and `factor` sum squares of. */
typedef enum squares_of { OF_X, OF_SCALED, OF_FACTORED } squares_of;
typedef struct squares_args {
    const void *x; /* BF16, or FP32 */
    int64_t ld;
    int64_t ahead; /* elements from x to the block that is read after this one: it is prefetched */
    float scale, a;
    const float *b;
    double *sums, *cols; /* OF_SCALED: cols */
    float *u;            /* OF_FACTORED: gets the factored elements */
} squares_args;

/* Adds the square of element i of the row that begins at x[from] to *lane, and OF_SCALED to
 * cols[i]. */
static inline __attribute__((always_inline)) void
square_one(squares_of of, bool bf16, const squares_args *s, int64_t from, int64_t i, double *lane) {
    float v =
        bf16 ? tr_bf16_to_f32(((const uint16_t *)s->x)[from + i]) : ((const float *)s->x)[from + i];
    if (of != OF_X) v *= s->scale;
    if (of == OF_FACTORED) s->u[i] = v *= s->a * s->b[i];
    const double square = (double)v * (double)v;
    *lane += square;
    if (of == OF_SCALED) s->cols[i] += square;
}

/* Returns a strip of the numbers that square_one squares, from element i on. OF_FACTORED: writes it
 * to u. */
static inline __attribute__((always_inline)) strip
load_strip(squares_of of, bool bf16, const squares_args *s, int64_t from, int64_t i) {
    strip v = bf16 ? widen_narrow(*(const narrow_any *)((const uint16_t *)s->x + from + i))
                   : (strip) * (const strip_any *)((const float *)s->x + from + i);
    if (of != OF_X) v *= s->scale;
    if (of == OF_FACTORED) {
        v *= s->a * *(const strip_any *)(s->b + i);
        *(strip_any *)(s->u + i) = v;
    }
    return v;
}

/* Adds the sums of squares of rows of n <= TR_SUMSQ_BLOCK elements to s->sums[rows]. `of`, `bf16`
 * and `rows` are constants after inlining. A group of neighbouring lanes stays in registers over
 * the whole block. Hardware does not prefetch in this order, so the next block is prefetched, to
 * the second cache: a first one of 32 KiB does not hold two blocks of FP32. */
static inline __attribute__((always_inline)) void sum_squares(squares_of of, bool bf16, int rows,
                                                              int64_t n, const squares_args *s) {
    enum { GROUP = SQUARES * LANES };
    const int group = GROUP / rows, size = bf16 ? 2 : 4;
    const int64_t whole = n / TR_SUMSQ_LANES * TR_SUMSQ_LANES;
    double lane[2][TR_SUMSQ_LANES];
    int64_t next = s->ahead;
    for (int g = 0; g < TR_SUMSQ_LANES; g += group) {
        doubles sum[2][SQUARES] = {0};
        for (int64_t i = g; i < whole; i += TR_SUMSQ_LANES) {
            for (int r = 0; r < rows; r++)
                for (int j = 0; j < group; j += LINE / size)
                    __builtin_prefetch((const char *)s->x + (r * s->ld + next + j) * size, 0, 2);
            for (int j = 0; of == OF_FACTORED && bf16 && j < group; j += LINE / 4)
                __builtin_prefetch(s->u + next + j, 0, 2);
            next += group;
#pragma GCC unroll 4
            for (int v = 0; v < group / LANES; v += HALVES) {
                doubles cols[HALVES] = {{0}};
                for (int h = 0; h < HALVES && of == OF_SCALED; h++)
                    cols[h] = *(const doubles_any *)(s->cols + i + (v + h) * LANES);
#pragma GCC unroll 2
                for (int r = 0; r < rows; r++) {
                    const strip x = load_strip(of, bf16, s, r * s->ld, i + v * LANES);
                    for (int h = 0; h < HALVES; h++) {
                        const doubles w = to_doubles(x, h);
                        sum[r][v + h] = add_square(w, sum[r][v + h]);
                        cols[h] = add_square(w, cols[h]);
                    }
                }
                for (int h = 0; h < HALVES && of == OF_SCALED; h++)
                    *(doubles_any *)(s->cols + i + (v + h) * LANES) = cols[h];
            }
        }
        for (int r = 0; r < rows; r++) memcpy(lane[r] + g, sum[r], (size_t)group * sizeof(double));
    }
    for (int r = 0; r < rows; r++) {
        for (int64_t i = whole; i < n; i++)
            square_one(of, bf16, s, r * s->ld, i, &lane[r][i - whole]);
        s->sums[r] += tr_sumsq_lanes(lane[r], n);
    }
}

static double sumsq(tr_dtype dtype, int64_t n, const void *x) {
    double sum = 0;
    const squares_args s = {.x = x, .ahead = TR_SUMSQ_BLOCK, .sums = &sum};
    if (dtype == TR_BF16) sum_squares(OF_X, true, 1, n, &s);
    else sum_squares(OF_X, false, 1, n, &s);
    return sum;
}

static void factor_sums(tr_dtype dtype, int rows, int64_t n, const void *x, int64_t ld, float scale,
                        double *sums, double *cols) {
    const squares_args s = {
        .x = x, .ld = ld, .ahead = rows * ld, .scale = scale, .sums = sums, .cols = cols};
    if (dtype == TR_BF16) {
        if (rows == 2) sum_squares(OF_SCALED, true, 2, n, &s);
        else sum_squares(OF_SCALED, true, 1, n, &s);
    } else if (rows == 2) sum_squares(OF_SCALED, false, 2, n, &s);
    else sum_squares(OF_SCALED, false, 1, n, &s);
}

static double factor(tr_dtype dtype, int64_t n, const void *x, int64_t ld, float scale, float a,
                     const float *b, float *u) {
    double sum = 0;
    const squares_args s = {
        .x = x, .ahead = ld, .scale = scale, .a = a, .b = b, .sums = &sum, .u = u};
    if (dtype == TR_BF16) sum_squares(OF_FACTORED, true, 1, n, &s);
    else sum_squares(OF_FACTORED, false, 1, n, &s);
    return sum;
}
