#include "base/text.h"
#include "device/device_impl.h"
#include "device/op_table.h"

static bool changes_result(const tr_fusion *f) {
    return f->residual || f->activate || f->activate_grad;
}

bool tr_matmul_is_plain(const tr_matmul_desc *d) {
    return !changes_result(&d->fused) && !d->fused.bias_grad;
}

bool tr_matmul_only_sums(const tr_matmul_desc *d) {
    return !d->fused.activate && !d->fused.activate_grad && !d->fused.bias_grad;
}

static const char *fusion_fault(const tr_matmul_desc *d) {
    const tr_fusion *f = &d->fused;
    if ((unsigned)f->activation >= TR_ACTIVATION_COUNT) return "there is no such activation";
    if (d->accumulate && (f->bias || changes_result(f)))
        return "it does not accumulate what a fusion changes";
    if (d->scale != 0 && (d->accumulate || f->bias || f->bias_grad || changes_result(f)))
        return "only a product without accumulation and fusion is scaled";
    if (changes_result(f) && d->ldc && d->ldc != d->n)
        return "C is dense with a residual or an activation";
    if (f->activate + f->activate_grad + f->residual > 1)
        return "a residual, an activation and its gradient exclude each other";
    if (f->bias && (f->activate_grad || f->bias_grad)) return "a gradient has no bias";
    if (f->bias_grad_of_a && !f->bias_grad) return "only a bias gradient is one of A";
    if (f->bias_grad_of_a && (!d->trans_a || (d->lda && d->lda != d->m)))
        return "a bias gradient of A is that of a dense, transposed A";
    if (f->bias_grad && !f->bias_grad_of_a && (d->trans_b || (d->ldb && d->ldb != d->n)))
        return "a bias gradient is that of a dense, untransposed B";
    return NULL;
}

static const char *fault(const tr_op_desc *desc) {
    const tr_matmul_desc *d = &desc->matmul;
    if (!tr_op_sizes_fit(1, d->m, d->n, 1) || !tr_op_sizes_fit(1, d->m, d->k, 1) ||
        !tr_op_sizes_fit(1, d->n, d->k, 1))
        return "m, n and k must be positive";
    if (d->lda && d->lda < (d->trans_a ? d->m : d->k)) return "lda is shorter than a row of A";
    if (d->ldb && d->ldb < (d->trans_b ? d->k : d->n)) return "ldb is shorter than a row of B";
    if (d->ldc && d->ldc < d->n) return "ldc is shorter than a row of C";
    if (!tr_op_sizes_fit(0, d->lda, d->trans_a ? d->k : d->m, 1) ||
        !tr_op_sizes_fit(0, d->ldb, d->trans_b ? d->n : d->k, 1) ||
        !tr_op_sizes_fit(0, d->ldc, d->m, 1))
        return "a leading dimension is out of range";
    if (d->accumulate && d->c != tr_dtype_acc(d->a) && d->c != d->a)
        return "it accumulates in f32, of f64 in f64, or in the type of A";
    return fusion_fault(d);
}

static bool same_fusion(const tr_fusion *a, const tr_fusion *b) {
    return a->bias == b->bias && a->residual == b->residual && a->activate == b->activate &&
           a->activate_grad == b->activate_grad && a->bias_grad == b->bias_grad &&
           a->bias_grad_of_a == b->bias_grad_of_a && a->activation == b->activation;
}

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_matmul_desc *a = &x->matmul, *b = &y->matmul;
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->scale == b->scale && a->align == b->align && a->a == b->a &&
           a->b == b->b && a->c == b->c && a->trans_a == b->trans_a && a->trans_b == b->trans_b &&
           a->accumulate == b->accumulate && same_fusion(&a->fused, &b->fused);
}

static void text(const tr_op_desc *desc, char *to, size_t size) {
    const tr_matmul_desc *d = &desc->matmul;
    const tr_fusion *f = &d->fused;
    tr_text_add(to, size, " m %lld n %lld k %lld a %s b %s c %s", (long long)d->m, (long long)d->n,
                (long long)d->k, tr_dtype_name(d->a), tr_dtype_name(d->b), tr_dtype_name(d->c));
    tr_text_add(to, size, " lda %lld ldb %lld ldc %lld", (long long)d->lda, (long long)d->ldb,
                (long long)d->ldc);
    tr_text_add(to, size, "%s%s%s", d->trans_a ? " trans_a" : "", d->trans_b ? " trans_b" : "",
                d->accumulate ? " accumulate" : "");
    tr_text_add(to, size, "%s%s%s%s%s", f->bias ? " bias" : "", f->residual ? " residual" : "",
                f->activate ? " activate" : "", f->activate_grad ? " activate_grad" : "",
                !f->bias_grad       ? ""
                : f->bias_grad_of_a ? " bias_grad_of_a"
                                    : " bias_grad");
    if (f->activation) tr_text_add(to, size, " activation %d", (int)f->activation);
    if (d->scale != 0) tr_text_add(to, size, " scale %.17g", d->scale);
    if (d->align != 0) tr_text_add(to, size, " align %lld", (long long)d->align);
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
    if (d->fused.bias) t[TR_MATMUL_BIAS] = tr_tensor_vector(NULL, d->b, d->n);
    if (d->fused.residual) t[TR_MATMUL_RESIDUAL] = matrix(d->c, d->m, d->n, 0);
    if (d->fused.activate || d->fused.activate_grad) t[TR_MATMUL_AUX] = matrix(d->c, d->m, d->n, 0);
    if (d->fused.bias_grad)
        t[TR_MATMUL_DBIAS] =
            tr_tensor_vector(NULL, tr_dtype_acc(d->b), d->fused.bias_grad_of_a ? d->m : d->n);
}

static double flops(const tr_op_desc *desc) {
    return 2.0 * (double)desc->matmul.m * (double)desc->matmul.n * (double)desc->matmul.k;
}

static tr_op_part product_part(const tr_matmul_desc *d) {
    tr_op_desc product = {.kind = TR_OP_MATMUL, .matmul = *d};
    product.matmul.fused = (tr_fusion){.bias = d->fused.bias};
    tr_op_part part = tr_op_part_of(product);
    part.from[TR_MATMUL_A] = TR_MATMUL_A;
    part.from[TR_MATMUL_B] = TR_MATMUL_B;
    part.from[TR_MATMUL_C] = d->fused.activate ? TR_MATMUL_AUX : TR_MATMUL_C;
    if (d->fused.bias) part.from[TR_MATMUL_BIAS] = TR_MATMUL_BIAS;
    return part;
}

/* An operator on the elements of C, or of the operand of the bias gradient. */
static tr_op_part rows_part(const tr_matmul_desc *d, tr_op_kind kind) {
    tr_rows_desc rows = {
        .rows = d->m, .width = d->n, .activation = d->fused.activation, .dtype = d->c};
    if (kind == TR_OP_ADD) rows.activation = (tr_activation)0;
    if (kind == TR_OP_BIAS_GRAD) rows = (tr_rows_desc){.rows = d->k, .width = d->n, .dtype = d->b};
    if (kind == TR_OP_BIAS_GRAD && d->fused.bias_grad_of_a) rows.width = d->m, rows.dtype = d->a;
    return tr_op_part_of((tr_op_desc){.kind = kind, .rows = rows});
}

static int decompose(const tr_op_desc *desc, tr_op_part *part) {
    const tr_matmul_desc *d = &desc->matmul;
    int n = 0;
    if (tr_matmul_is_plain(d)) return 0;
    part[n++] = product_part(d);
    if (d->fused.activate) {
        part[n] = rows_part(d, TR_OP_ACTIVATION);
        part[n].from[TR_ACTIVATION_X] = TR_MATMUL_AUX;
        part[n++].from[TR_ACTIVATION_Y] = TR_MATMUL_C;
    }
    if (d->fused.activate_grad) {
        part[n] = rows_part(d, TR_OP_ACTIVATION_DGRAD);
        part[n].from[TR_ACTIVATION_DGRAD_DY] = part[n].from[TR_ACTIVATION_DGRAD_DX] = TR_MATMUL_C;
        part[n++].from[TR_ACTIVATION_DGRAD_X] = TR_MATMUL_AUX;
    }
    if (d->fused.residual) {
        part[n] = rows_part(d, TR_OP_ADD);
        part[n].from[TR_ADD_A] = part[n].from[TR_ADD_Y] = TR_MATMUL_C;
        part[n++].from[TR_ADD_B] = TR_MATMUL_RESIDUAL;
    }
    if (d->fused.bias_grad) {
        part[n] = rows_part(d, TR_OP_BIAS_GRAD);
        part[n].from[TR_BIAS_GRAD_DY] = d->fused.bias_grad_of_a ? TR_MATMUL_A : TR_MATMUL_B;
        part[n++].from[TR_BIAS_GRAD_DBIAS] = TR_MATMUL_DBIAS;
    }
    return n;
}

const tr_op_row tr_op_row_matmul = {
    .name = "matmul",
    .slot = {[TR_MATMUL_A] = {"a", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_MATMUL_B] = {"b", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_MATMUL_C] = {"c", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_MATMUL_BIAS] = {"bias", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_MATMUL_RESIDUAL] = {"residual", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_MATMUL_AUX] = {"aux", TR_SLOT_BOTH | TR_SLOT_ONCE, TR_TYPES_STORAGE},
             [TR_MATMUL_DBIAS] = {"dbias", TR_SLOT_GRADIENT, TR_TYPES_ACC}},
    .fault = fault,
    .same = same,
    .text = text,
    .operands = operands,
    .flops = flops,
    .decompose = decompose,
};
