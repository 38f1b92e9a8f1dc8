/* A row-major product as a column-major library sees it. Builds without CUDA, so that the CPU tests
 * run it. Private to device/cuda (and its test).
 *
 * Row-major X[r, c] with leading dimension ld is column-major X'[c, r] with the same ld. A
 * column-major library is asked for C' = op(B)' op(A)': our B is its first operand, our A its
 * second, and what we call transposed it calls transposed. */
#pragma once

#include "device/op.h"

/* A stored matrix, column-major. */
typedef struct tr_blas_matrix {
    int64_t rows, columns, ld;
    tr_dtype dtype;
    bool transposed; /* used as its transpose in the product */
    int tensor;      /* TR_MATMUL_A, _B or _C: whose memory it is */
} tr_blas_matrix;

/* result[rows, columns] (+)= op(first) op(second) (+ bias[rows], broadcast over columns). */
typedef struct tr_blas_layout {
    tr_blas_matrix first, second, result;
} tr_blas_layout;

static inline tr_blas_layout tr_blas_layout_of(const tr_matmul_desc *d) {
    int64_t lda = d->lda ? d->lda : (d->trans_a ? d->m : d->k);
    int64_t ldb = d->ldb ? d->ldb : (d->trans_b ? d->k : d->n);
    int64_t ldc = d->ldc ? d->ldc : d->n;
    return (tr_blas_layout){
        .first = {.rows = d->trans_b ? d->k : d->n,
                  .columns = d->trans_b ? d->n : d->k,
                  .ld = ldb,
                  .dtype = d->b,
                  .transposed = d->trans_b,
                  .tensor = TR_MATMUL_B},
        .second = {.rows = d->trans_a ? d->m : d->k,
                   .columns = d->trans_a ? d->k : d->m,
                   .ld = lda,
                   .dtype = d->a,
                   .transposed = d->trans_a,
                   .tensor = TR_MATMUL_A},
        .result = {.rows = d->n, .columns = d->m, .ld = ldc, .dtype = d->c, .tensor = TR_MATMUL_C}};
}

/* True for the combinations of types that cuBLASLt documents for CUBLAS_COMPUTE_32F: operands of
 * one type, a result of that type or FP32, a bias of the result's type. */
static inline bool tr_blas_has_types(const tr_matmul_desc *d) {
    return d->a == d->b && (d->c == d->a || d->c == TR_F32) && (!d->bias || d->b == d->c);
}
