/* The inner loops that gain by wider vectors (docs/architecture.md), compiled for the build's
 * target, for AVX-512, for AVX-512 with BF16, and for AMX. All do the same operations on each
 * element and add in the same order, so the choice changes no bit, with two exceptions: BF16
 * instructions take subnormal numbers as zero, and AMX adds products of BF16 in an order of its
 * own. Private to device/cpu/. */
#pragma once

#include "device/elementwise.h"

#include <stdbool.h>
#include <stdint.h>

enum { TR_PANEL = 16, TR_GEMM_MOST_ROWS = 32 };

/* Words that the kernel `philox` may write after the last one. */
enum { TR_CPU_PHILOX_MORE = 4 * 32 };

/* What `gemm` reads of an operand at a time: a float, or two BF16 numbers that are neighbours along
 * the depth of the product, the first in the low half. `dots` and `combine` also take two FP16
 * numbers. */
typedef uint32_t tr_word __attribute__((may_alias));

/* Adjacent elements of UPDATE, DIRECTION or DESCEND. Operands that the step does not have are NULL,
 * and so is a value that is its own master. BF16 states and masters are rounded by a half-word of
 * each element, for uses 0 (M), 1 (V) and TR_UPDATE_USE_MASTER (tr_rounding_draw): drawn[], or with
 * `draws` those of Philox counters `first`, `high` and on, under `key`, of which `skipped` come
 * before the first element's. States of TR_U8 are blocks of codes, of which only the last may be
 * less than whole, and are rounded by drawn[]. */
typedef enum tr_cpu_step { TR_CPU_UPDATE, TR_CPU_DIRECTION, TR_CPU_DESCEND } tr_cpu_step;
typedef struct tr_cpu_update {
    tr_cpu_step step;
    tr_update_rule rule;
    tr_update_scalars scalars;
    tr_descend_scalars descent;
    const void *grad; /* DESCEND: the direction */
    void *master, *m, *v, *value, *u;
    tr_dtype dtype; /* of value */
    bool bf16_grad, bf16_master;
    tr_dtype state_dtype;            /* TR_F32, TR_BF16 or TR_U8 */
    tr_code8 code[TR_UPDATE_STATES]; /* of TR_U8 */
    float *scales[TR_UPDATE_STATES]; /* of their blocks */
    const uint16_t *drawn;
    bool draws;
    uint64_t key, first, high;
    int64_t skipped;
} tr_cpu_update;

/* Returns the elements from i on, with the same random bits. */
static inline tr_cpu_update tr_cpu_update_from(const tr_cpu_update *u, int64_t i) {
    const size_t wide = (size_t)i * 4, half = (size_t)i * 2;
    const size_t state = (size_t)i * tr_dtype_size(u->state_dtype);
    tr_cpu_update out = *u;
    out.grad = (const char *)u->grad + (u->bf16_grad ? half : wide);
    out.master = (char *)u->master + (u->bf16_master ? half : wide);
    if (u->m) out.m = (char *)u->m + state;
    if (u->v) out.v = (char *)u->v + state;
    if (u->value) out.value = (char *)u->value + (size_t)i * tr_dtype_size(u->dtype);
    if (u->u) out.u = (char *)u->u + wide;
    if (u->drawn) out.drawn = u->drawn + i;
    for (int k = 0; k < TR_UPDATE_STATES; k++)
        if (u->scales[k]) out.scales[k] = u->scales[k] + i / TR_CODE8_BLOCK;
    return out;
}

typedef struct tr_cpu_kernels {
    /* tr_row_load and tr_row_store (vec.h). */
    const float *(*row_load)(tr_dtype dtype, const void *base, int64_t offset, int64_t n,
                             float *buffer);
    void (*row_store)(tr_dtype dtype, void *base, int64_t offset, int64_t n, const float *written);
    /* sums[n] += elements of storage from `offset` on; n <= TR_BLOCK. */
    void (*row_add)(tr_dtype dtype, const void *base, int64_t offset, int64_t n, float *sums);
    /* Elements of storage from `offset` on = x[n] * factor; n <= TR_BLOCK. */
    void (*row_scale)(tr_dtype dtype, void *base, int64_t offset, int64_t n, float factor,
                      const float *x);
    /* Returns the largest of n elements of storage from `offset` on (tr_vec_max). */
    float (*row_largest)(tr_dtype dtype, const void *base, int64_t offset, int64_t n);
    /* y[n] = (x - mean) rstd gamma + beta, unless that is NULL: both norms, an RMS norm with a mean
     * of 0. */
    void (*norm)(int64_t n, float mean, float rstd, const float *x, const float *gamma,
                 const float *beta, float *y);
    /* g[n] = dy gamma and normal[n] = (x - mean) rstd, of which the gradient of a norm consists:
     * dx[n] = rstd (g - mean_g - normal mean_gn) + residual, unless that is NULL. An RMS norm has
     * means of 0, except mean_gn. */
    void (*norm_terms)(int64_t n, float mean, float rstd, const float *dy, const float *x,
                       const float *gamma, float *g, float *normal);
    void (*norm_dgrad)(int64_t n, float rstd, float mean_g, float mean_gn, const float *g,
                       const float *normal, const float *residual, float *dx);
    /* Cosines and sines of n phases (tr_rope_rotation), times `magnitude` and `towards`. */
    void (*angles)(int64_t n, uint64_t position, const uint64_t *turns, float magnitude,
                   float towards, float *cosine, float *sine);
    /* Turns the pairs x[i] and x[half + i] of a head; y may be x. */
    void (*rotate)(int64_t half, const float *cosine, const float *sine, const float *x, float *y);
    /* y[n] = f(x); dx[n] = f'(x) dy, dx may be dy. */
    void (*activation[TR_ACTIVATION_COUNT])(int64_t n, const float *x, float *y);
    void (*activation_dgrad[TR_ACTIVATION_COUNT])(int64_t n, const float *dy, const float *x,
                                                  float *dx);
    /* y[n] = exp(x * scale - shift) * factor; y may be x. */
    void (*exponential)(int64_t n, const float *x, float scale, float shift, float factor,
                        float *y);
    /* Turns x[16 * panels] into exp(scale * x - top), where *top = scale * the largest of them, and
     * returns their sum (tr_vec_sum). */
    float (*softmax)(int64_t panels, float scale, float *x, float *top);
    /* dp[16 * panels] = p (dp - mean), where mean is the sum of p dp divided by that of p. The sums
     * (tr_vec_sum) are of dp - near: the nearer to the mean, the less is rounded. */
    void (*softmax_dgrad)(int64_t panels, float near, const float *p, float *dp);
    /* y[16 * panels] = x rounded to BF16. Returns the sum of y, lane by lane as tr_vec_sum. */
    float (*round_row)(int64_t panels, const float *x, uint16_t *y);
    /* y[16 * panels] = the words of two rows, rounded to BF16. */
    void (*round_rows)(int64_t panels, const float *first, const float *second, tr_word *y);
    /* bits[4 * quads]: Philox4x32 of the counters (first + i, high) under key, by rounds of
     * TR_PHILOX_ROUNDS or TR_ROUNDING_ROUNDS; bits has room for TR_CPU_PHILOX_MORE more. */
    void (*philox)(int rounds, uint64_t key, uint64_t first, uint64_t high, int64_t quads,
                   uint32_t *bits);
    /* y[n] = x, or with `adds` y + x, rounded to BF16 (tr_round_bf16) by the random half-words of a
     * use (tr_rounding_draw). */
    void (*round_drawn)(bool adds, int64_t n, const float *x, const uint16_t *draw, int use,
                        uint16_t *y);
    /* Steps n elements. */
    void (*update)(const tr_cpu_update *u, int64_t n);
    /* Returns the sum of squares of a block of SUMSQ, n <= TR_SUMSQ_BLOCK, in its order. x is FP32
     * or BF16. */
    double (*sumsq)(tr_dtype dtype, int64_t n, const void *x);
    /* One or two rows of FACTOR_SUMS, `ld` apart: adds the sumsq of row[r][n] = x[r * ld + n] *
     * scale to sums[rows], and its squares, row after row, to cols[n]. x is FP32 or BF16. */
    void (*factor_sums)(tr_dtype dtype, int rows, int64_t n, const void *x, int64_t ld, float scale,
                        double *sums, double *cols);
    /* A row of FACTOR: u[n] = x * scale * (a * b[n]), where x is FP32 or BF16. Returns the sumsq of
     * u. The next row begins `ld` elements later. u may be x in FP32. */
    double (*factor)(tr_dtype dtype, int64_t n, const void *x, int64_t ld, float scale, float a,
                     const float *b, float *u);
    /* C[rows, 16 * panels] = (C +) A[rows, depth] B of the operands' dtype, TR_F32 or TR_BF16, for
     * at most TR_GEMM_MOST_ROWS rows, which are multiplied gemm_rows at a time. Depth counts its
     * words. A's word (i, j) is a[i * row_step + j * column_step]; B lies in panels of 16 columns,
     * B[panel][depth][16], panel_step words apart; C is row-major. Sums are FP32, in the order of
     * the depth, but the second number of a word comes first (AMX: gemm_tiles in kernels_amx.c). */
    void (*gemm[2])(int64_t rows, int64_t panels, int64_t depth, const tr_word *a, int64_t row_step,
                    int64_t column_step, const tr_word *b, int64_t panel_step, float *c,
                    int64_t ldc, bool accumulate);
    int64_t gemm_rows[2]; /* even */
    /* Pairs two rows of BF16 to words, the first in the low halves: out[i / 16 * panel_step + i %
     * 16] for i < 16 * panels. */
    void (*pair)(int64_t panels, const uint16_t *first, const uint16_t *second, tr_word *out,
                 int64_t panel_step);
    /* Transposes a square of words: out[i * out_step + j] = a[i + j * step] for i < rows, j <
     * depth, both at most 16; zeros for the other j < 16. */
    void (*transpose)(int64_t rows, int64_t depth, const tr_word *a, int64_t step, tr_word *out,
                      int64_t out_step);
    /* c[rows] = B a, dot products of a[depth] with the rows of B, b_step words apart, by dtype:
     * TR_F32, TR_BF16 or TR_F16. Word i is added to lane i % 16, the lanes as tr_vec_sum. */
    void (*dots[3])(int64_t rows, int64_t depth, const tr_word *a, const tr_word *b, int64_t b_step,
                    float *c);
    /* The sum of a[i] times row i of B[depth][width], in the order of i; rows are b_step words
     * apart. low[width]: of the words, if FP32, or of their low halves; high[width]: of their high
     * halves, if BF16 or FP16. Both have room for whole panels. */
    void (*combine[3])(int64_t depth, int64_t width, const float *a, const tr_word *b,
                       int64_t b_step, float *low, float *high);
} tr_cpu_kernels;

extern const tr_cpu_kernels tr_cpu_kernels_base, tr_cpu_kernels_wide, tr_cpu_kernels_bf16,
    tr_cpu_kernels_amx;

/* The instructions that kernels are compiled for, the richest last. */
typedef enum tr_cpu_set {
    TR_CPU_BASE, /* those that the build targets */
    TR_CPU_WIDE, /* AVX-512 */
    TR_CPU_BF16, /* AVX-512 with BF16 */
    TR_CPU_AMX,  /* and AMX with BF16 */
    TR_CPU_SETS
} tr_cpu_set;

/* Returns the kernels for these instructions, or NULL when this processor lacks them, multiplies
 * BF16 faster without them (tr_cpu_bf16_native), or the build leaves the kernels out
 * (TRIREME_WIDE_KERNELS). DNNL_MAX_CPU_ISA limits the instructions of both these and oneDNN. */
const tr_cpu_kernels *tr_cpu_kernels_for(tr_cpu_set set);

/* Returns n rounded up to whole panels. */
static inline int64_t tr_panel_up(int64_t n) {
    return (n + TR_PANEL - 1) / TR_PANEL * TR_PANEL;
}
