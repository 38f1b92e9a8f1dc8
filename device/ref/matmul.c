#include "device/ref/ref_impl.h"

#include "base/minmax.h"

/* The sums of so many columns are made together, each in the order of k: of a row of them the type
 * is looked at once. */
enum { COLUMNS = 64 };

/* Loads n elements, from `at` on in steps of `step`. */
static void load(tr_dtype dtype, const void *from, int64_t at, int64_t step, int64_t n, double *x) {
    if (dtype == TR_F32)
        for (int64_t j = 0; j < n; j++) x[j] = ((const float *)from)[at + j * step];
    else
        for (int64_t j = 0; j < n; j++) x[j] = tr_ref_load(dtype, from, at + j * step);
}

tr_status tr_ref_matmul(tr_op *op, const tr_op_args *args) {
    const tr_matmul_desc *d = &op->desc.matmul;
    const void *a = args->t[TR_MATMUL_A].data, *b = args->t[TR_MATMUL_B].data,
               *bias = args->t[TR_MATMUL_BIAS].data;
    void *c = args->t[TR_MATMUL_C].data;
    const int64_t lda = tr_matmul_lda(d), ldb = tr_matmul_ldb(d), ldc = tr_matmul_ldc(d);
    const int64_t column = d->trans_b ? ldb : 1, row = d->trans_b ? 1 : ldb;
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t first = 0; first < d->n; first += COLUMNS) {
            double sums[COLUMNS] = {0}, x[COLUMNS];
            const int64_t n = tr_min_i64(COLUMNS, d->n - first);
            for (int64_t l = 0; l < d->k; l++) {
                const double of_a = tr_ref_load(d->a, a, d->trans_a ? l * lda + i : i * lda + l);
                load(d->b, b, first * column + l * row, column, n, x);
                for (int64_t j = 0; j < n; j++) sums[j] += of_a * x[j];
            }
            for (int64_t j = first; j < first + n; j++) {
                double sum = sums[j - first];
                if (d->scale != 0) sum *= d->scale;
                if (d->fused.bias) sum += tr_ref_load(d->b, bias, j);
                if (d->fused.residual) sum += tr_ref_get(args, TR_MATMUL_RESIDUAL, i * d->n + j);
                if (d->accumulate) tr_ref_accumulate(args, TR_MATMUL_C, i * ldc + j, sum);
                else tr_ref_store(d->c, c, i * ldc + j, sum);
            }
        }
    return TR_OK;
}
