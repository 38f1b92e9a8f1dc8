#include "device/ref/ref_impl.h"

tr_status tr_ref_matmul(tr_op *op, const tr_op_args *args) {
    const tr_matmul_desc *d = &op->desc.matmul;
    const void *a = args->t[TR_MATMUL_A].data, *b = args->t[TR_MATMUL_B].data,
               *bias = args->t[TR_MATMUL_BIAS].data;
    void *c = args->t[TR_MATMUL_C].data;
    const int64_t lda = tr_matmul_lda(d), ldb = tr_matmul_ldb(d), ldc = tr_matmul_ldc(d);
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t j = 0; j < d->n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < d->k; l++)
                sum += tr_ref_load(d->a, a, d->trans_a ? l * lda + i : i * lda + l) *
                       tr_ref_load(d->b, b, d->trans_b ? j * ldb + l : l * ldb + j);
            if (d->scale != 0) sum *= d->scale;
            if (d->fused.bias) sum += tr_ref_load(d->b, bias, j);
            if (d->fused.residual) sum += tr_ref_get(args, TR_MATMUL_RESIDUAL, i * d->n + j);
            if (d->accumulate) tr_ref_accumulate(args, TR_MATMUL_C, i * ldc + j, sum);
            else tr_ref_store(d->c, c, i * ldc + j, sum);
        }
    return TR_OK;
}
