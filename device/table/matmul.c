#include "device/op_table.h"

static const char *epilogue_fault(const tr_matmul_desc *d) {
    bool of_result = d->epilogue == TR_EPILOGUE_GELU || d->epilogue == TR_EPILOGUE_GELU_DGRAD;
    if ((unsigned)d->epilogue > TR_EPILOGUE_BIAS_GRAD) return "there is no such epilogue";
    if (of_result && d->accumulate) return "it does not accumulate what an epilogue changes";
    if (of_result && d->ldc && d->ldc != d->n) return "C is dense with an epilogue";
    if (d->epilogue == TR_EPILOGUE_GELU_DGRAD && d->bias) return "a gradient has no bias";
    if (d->epilogue == TR_EPILOGUE_BIAS_GRAD &&
        (d->trans_b || (d->ldb && d->ldb != d->n) || d->bias))
        return "a bias gradient is that of a dense, untransposed B";
    return NULL;
}

static const char *fault(const tr_op_desc *desc) {
    const tr_matmul_desc *d = &desc->matmul;
    if (!tr_op_sizes_fit(1, d->m, d->n, d->k)) return "m, n and k must be positive";
    if (d->lda && d->lda < (d->trans_a ? d->m : d->k)) return "lda is shorter than a row of A";
    if (d->ldb && d->ldb < (d->trans_b ? d->k : d->n)) return "ldb is shorter than a row of B";
    if (d->ldc && d->ldc < d->n) return "ldc is shorter than a row of C";
    if (!tr_op_sizes_fit(0, d->lda, d->trans_a ? d->k : d->m, 1) ||
        !tr_op_sizes_fit(0, d->ldb, d->trans_b ? d->n : d->k, 1) ||
        !tr_op_sizes_fit(0, d->ldc, d->m, 1))
        return "a leading dimension is out of range";
    if (d->accumulate && d->c != tr_dtype_acc(d->a)) return "it accumulates in f32, of f64 in f64";
    if (d->accumulate && d->bias) return "it has no bias when it accumulates";
    return epilogue_fault(d);
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_matmul_desc *a = &x->matmul, *b = &y->matmul;
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->a == b->a && a->b == b->b && a->c == b->c &&
           a->trans_a == b->trans_a && a->trans_b == b->trans_b && a->bias == b->bias &&
           a->accumulate == b->accumulate && a->epilogue == b->epilogue;
}

static tr_tensor matrix(tr_dtype dtype, int64_t rows, int64_t columns, int64_t ld) {
    return tr_tensor_narrow(tr_tensor_matrix(NULL, dtype, rows, ld ? ld : columns), columns);
}

static void operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_matmul_desc *d = &desc->matmul;
    t[TR_MATMUL_A] =
        d->trans_a ? matrix(d->a, d->k, d->m, d->lda) : matrix(d->a, d->m, d->k, d->lda);
    t[TR_MATMUL_B] =
        d->trans_b ? matrix(d->b, d->n, d->k, d->ldb) : matrix(d->b, d->k, d->n, d->ldb);
    t[TR_MATMUL_C] = matrix(d->c, d->m, d->n, d->ldc);
    if (d->bias) t[TR_MATMUL_BIAS] = tr_tensor_vector(NULL, d->b, d->n);
    if (d->epilogue == TR_EPILOGUE_GELU || d->epilogue == TR_EPILOGUE_GELU_DGRAD)
        t[TR_MATMUL_AUX] = matrix(d->c, d->m, d->n, 0);
    if (d->epilogue == TR_EPILOGUE_BIAS_GRAD)
        t[TR_MATMUL_DBIAS] = tr_tensor_vector(NULL, tr_dtype_acc(d->b), d->n);
}

static double flops(const tr_op_desc *desc) {
    return 2.0 * (double)desc->matmul.m * (double)desc->matmul.n * (double)desc->matmul.k;
}

const tr_op_row tr_op_row_matmul = {
    .name = "matmul",
    .slot = {[TR_MATMUL_A] = {"a", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_MATMUL_B] = {"b", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_MATMUL_C] = {"c", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_MATMUL_BIAS] = {"bias", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_MATMUL_AUX] = {"aux", TR_SLOT_BOTH, TR_TYPES_STORAGE},
             [TR_MATMUL_DBIAS] = {"dbias", TR_SLOT_BOTH, TR_TYPES_ACC}},
    .fault = fault,
    .same = same,
    .operands = operands,
    .flops = flops,
};
