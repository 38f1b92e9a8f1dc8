/* Translates a row-major product for a column-major library. Builds without CUDA, so that the CPU
 * tests run it. Private to device/cuda (and its test).
 *
 * Row-major X[r, c] with leading dimension ld is column-major X'[c, r] with the same ld. The
 * library computes C' = op(B)' op(A)': our B is its first operand, our A its second, and
 * `transposed` means the same for both. */
#pragma once

#include "device/op.h"

/* A stored matrix, column-major. */
typedef struct tr_blas_matrix {
    int64_t rows, columns, ld;
    tr_dtype dtype;
    bool transposed; /* used as its transpose in the product */
    int tensor;      /* TR_MATMUL_A, _B or _C: the operand */
} tr_blas_matrix;

/* Extra work fused into the product, in the library's terms. */
typedef enum tr_blas_epilogue {
    TR_BLAS_PLAIN,
    TR_BLAS_BIAS,          /* + vector[rows], the same in every column */
    TR_BLAS_GELU_AUX,      /* aux = the product, result = gelu of it */
    TR_BLAS_GELU_AUX_BIAS, /* both */
    TR_BLAS_DGELU,         /* result = the product * gelu'(aux) */
    TR_BLAS_BGRAD_FIRST,   /* vector[rows] = the sums of op(first)'s rows; set, not added to */
    TR_BLAS_BGRAD_SECOND   /* vector[columns] = the sums of op(second)'s columns; likewise */
} tr_blas_epilogue;

/* result[rows, columns] (+)= op(first) op(second), and the epilogue. Its vector has the result's
 * type. */
typedef struct tr_blas_layout {
    tr_blas_matrix first, second, result;
    tr_blas_epilogue epilogue;
    int64_t aux_ld; /* aux is laid out as the result is, in its dtype */
} tr_blas_layout;

static inline tr_blas_epilogue tr_blas_epilogue_of(const tr_fusion *f) {
    if (f->activate) return f->bias ? TR_BLAS_GELU_AUX_BIAS : TR_BLAS_GELU_AUX;
    if (f->activate_grad) return TR_BLAS_DGELU;
    if (f->bias_grad_of_a) return TR_BLAS_BGRAD_SECOND;
    if (f->bias_grad) return TR_BLAS_BGRAD_FIRST; /* our B is the first operand */
    return f->bias ? TR_BLAS_BIAS : TR_BLAS_PLAIN;
}

static inline tr_blas_layout tr_blas_layout_of(const tr_matmul_desc *d) {
    int64_t lda = tr_matmul_lda(d), ldb = tr_matmul_ldb(d), ldc = tr_matmul_ldc(d);
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
        .result = {.rows = d->n, .columns = d->m, .ld = ldc, .dtype = d->c, .tensor = TR_MATMUL_C},
        .epilogue = tr_blas_epilogue_of(&d->fused),
        .aux_ld = ldc};
}

/* Returns true for products that cuBLASLt documents for CUBLAS_COMPUTE_32F: operands of one type, a
 * result of that type or FP32, a bias of the result's type, and aux with a leading dimension that
 * is a multiple of 8. A bias gradient has the result's type, but parameters' gradients are FP32.
 * The documents do not state the accuracy of its GELU, so it is used for BF16 and not for FP32. The
 * library may still have no algorithm on a GPU. */
static inline bool tr_blas_has(const tr_matmul_desc *d) {
    const tr_fusion *f = &d->fused;
    bool aux = f->activate || f->activate_grad;
    if (f->bias_grad && (d->c != TR_F32 || f->activate || f->activate_grad || f->residual))
        return false;
    if (aux && f->activation != TR_ACTIVATION_GELU) return false;
    return d->a == d->b && (d->c == d->a || d->c == TR_F32) && (!f->bias || d->b == d->c) &&
           (!aux || (d->c == TR_BF16 && d->n % 8 == 0));
}
