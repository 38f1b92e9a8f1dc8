/* The inner loops that depend most on the instruction set, compiled twice: for the build's target
 * and for AVX-512. Both do the same operations on each element and add in the same order, so the
 * choice does not change a bit. Private to device/cpu/. */
#pragma once

#include "device/op.h"

#include <stdbool.h>
#include <stdint.h>

enum { TR_PANEL = 16, TR_GEMM_ROWS = 6 };

typedef struct tr_cpu_kernels {
    /* y[n] = f(x); dx[n] = f'(x) dy, dx may be dy. */
    void (*activation[TR_ACTIVATION_COUNT])(int64_t n, const float *x, float *y);
    void (*activation_dgrad[TR_ACTIVATION_COUNT])(int64_t n, const float *dy, const float *x,
                                                  float *dx);
    /* y[n] = exp(x - shift) * factor; y may be x. */
    void (*exponential)(int64_t n, const float *x, float shift, float factor, float *y);
    /* bits[4 * quads]: Philox4x32-10 of the counters (first + i, high) under key; bits has room for
     * 4 * 8 more. */
    void (*philox)(uint64_t key, uint64_t first, uint64_t high, int64_t quads, uint32_t *bits);
    /* C[rows, 16 * panels] = (C +) A[rows, k] B, rows <= TR_GEMM_ROWS. A's element (i, j) is
     * a[i * row_step + j * column_step]; B lies in panels of 16 columns, B[panel][k][16],
     * panel_step floats apart; C is row-major. */
    void (*gemm)(int64_t rows, int64_t panels, int64_t k, const float *a, int64_t row_step,
                 int64_t column_step, const float *b, int64_t panel_step, float *c, int64_t ldc,
                 bool accumulate);
} tr_cpu_kernels;

extern const tr_cpu_kernels tr_cpu_kernels_base, tr_cpu_kernels_wide;

/* Returns n rounded up to whole panels. */
static inline int64_t tr_panel_up(int64_t n) {
    return (n + TR_PANEL - 1) / TR_PANEL * TR_PANEL;
}
