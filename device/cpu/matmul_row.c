/* MATMUL with one row of A, as in the decoding of one text: B is read from memory and used once, at
 * about twice the rate of oneDNN's product (bench/sample.sh; a small B that stays in the cache
 * gains nothing). B's rows are summed, or multiplied with A when B is transposed. The order of sums
 * depends on the shape alone. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"

#include <stdio.h>
#include <string.h>

typedef struct row_product {
    const tr_matmul_desc *desc;
    const tr_cpu_kernels *kernels;
    const void *a, *b;
    const float *wide; /* A in FP32; unused when B is transposed */
    int64_t step;      /* words between B's rows */
} row_product;

/* Returns the words that n numbers take in storage. */
static int64_t words_of(tr_dtype dtype, int64_t n) {
    return dtype == TR_F32 ? n : (n + 1) / 2;
}

/* c[count] = elements at .. at + count - 1 of the product; count <= TR_BLOCK, at even. */
static void multiply(const row_product *x, int64_t at, int64_t count, float *c) {
    const tr_matmul_desc *d = x->desc;
    const int64_t offset = d->trans_b ? at * x->step : words_of(d->b, at);
    const tr_word *b = (const tr_word *)x->b + offset;
    if (d->trans_b) {
        x->kernels->dots[d->b](count, words_of(d->b, d->k), x->a, b, x->step, c);
        return;
    }
    float high[TR_BLOCK], low[TR_BLOCK];
    const int64_t words = words_of(d->b, count);
    x->kernels->combine[d->b](d->k, words, x->wide, b, x->step, d->b == TR_F32 ? c : low, high);
    for (int64_t i = 0; i < words && d->b != TR_F32; i++) {
        c[2 * i] = low[i];
        c[2 * i + 1] = high[i];
    }
}

void tr_cpu_matmul_finish(const tr_cpu_kernels *kernels, const tr_matmul_desc *d,
                          const tr_op_args *args, int64_t row, int64_t at, int64_t count,
                          float *c) {
    if (d->scale != 0)
        for (int64_t i = 0; i < count; i++) c[i] *= (float)d->scale;
    if (d->fused.bias) kernels->row_add(d->b, args->t[TR_MATMUL_BIAS].data, at, count, c);
    if (d->fused.residual)
        kernels->row_add(d->c, args->t[TR_MATMUL_RESIDUAL].data, row * d->n + at, count, c);
}

/* Elements at .. at + count - 1 of C, rounded once. */
static void finish(const row_product *x, const tr_op_args *args, int64_t at, int64_t count,
                   float *c) {
    const tr_matmul_desc *d = x->desc;
    void *to = args->t[TR_MATMUL_C].data;
    tr_cpu_matmul_finish(x->kernels, d, args, 0, at, count, c);
    if (d->c == TR_F32) memcpy((float *)to + at, c, (size_t)count * sizeof *c);
    else x->kernels->row_store(d->c, to, at, count, c);
}

static tr_status run_matmul_row(tr_op *op, const tr_op_args *args) {
    const tr_matmul_desc *d = &op->desc.matmul;
    row_product x = {.desc = d,
                     .kernels = tr_cpu_kernels_of(op),
                     .a = args->t[TR_MATMUL_A].data,
                     .b = args->t[TR_MATMUL_B].data,
                     .step = words_of(d->b, tr_matmul_ldb(d))};
    if (!d->trans_b) x.wide = x.kernels->row_load(d->a, x.a, 0, d->k, args->scratch);
    const int threads = tr_cpu_threads(op, d->n * d->k);
    const int64_t block = tr_min_i64(TR_BLOCK, tr_panel_up((d->n + threads - 1) / threads));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t at = 0; at < d->n; at += block) {
        float c[TR_BLOCK];
        const int64_t count = tr_min_i64(block, d->n - at);
        multiply(&x, at, count, c);
        finish(&x, args, at, count, c);
    }
    return TR_OK;
}

tr_status tr_cpu_prepare_matmul_row(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    const tr_matmul_desc *d = &desc->matmul;
    const bool whole_words =
        d->b == TR_F32 || (tr_matmul_ldb(d) % 2 == 0 && (d->trans_b ? d->k : d->n) % 2 == 0);
    const bool aligned = d->align == 0 || d->align % (int64_t)sizeof(tr_word) == 0;
    if (d->m != 1 || d->a != d->b || d->accumulate || (d->trans_a && tr_matmul_lda(d) > 1) ||
        !whole_words || !aligned)
        return TR_OK;
    const bool widens = d->a != TR_F32 && !d->trans_b;
    TR_TRY(tr_host_op_create(context, desc, 0, widens ? (size_t)d->k * sizeof(float) : 0,
                             run_matmul_row, out));
    (void)snprintf((*out)->plan, sizeof(*out)->plan, "row");
    return TR_OK;
}
