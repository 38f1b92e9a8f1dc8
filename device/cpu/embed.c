/* Token and position embeddings. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

static tr_status run_embed(tr_op *op, const tr_op_args *args) {
    const tr_embed_desc *d = &op->desc.embed;
    const int32_t *tokens = args->t[TR_EMBED_TOKENS].data;
    const char *table = args->t[TR_EMBED_TABLE].data;
    char *y = args->t[TR_EMBED_Y].data;
    size_t bytes = (size_t)d->width * tr_dtype_size(d->dtype);
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t r = 0; r < d->rows; r++) {
        int64_t entry = tokens[r] - d->vocab_begin;
        if (entry >= 0 && entry < d->vocab)
            memcpy(y + (size_t)r * bytes, table + (size_t)entry * bytes, bytes);
        else memset(y + (size_t)r * bytes, 0, bytes);
    }
    return TR_OK;
}

/* Zeros a gradient that is not added to, before rows are added, since some entries have none. */
static void begin_table(const tr_op *op, const tr_op_args *args, float *table, int64_t entries) {
    const int64_t width = op->desc.embed.width;
    if (args->adds) return;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, entries *width))
    for (int64_t e = 0; e < entries; e++)
        memset(table + e * width, 0, (size_t)width * sizeof *table);
}

/* Adds each row of dy to its entry of the table: its token's in `index`, or the entry of its
 * position after its document's start in `index`. Several rows may have the same entry, so threads
 * divide the columns, and one thread adds to each element of the table, in row order. */
static void add_rows(const tr_op *op, bool tokens, const int32_t *index, const void *dys,
                     float *table) {
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    enum { COLUMNS = 64 };
    const tr_embed_desc *d = &op->desc.embed;
    const int64_t entries = tokens ? d->vocab : d->seq;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t c = 0; c < d->width; c += COLUMNS) {
        int64_t n = tr_min_i64(COLUMNS, d->width - c);
        for (int64_t r = 0; r < d->rows; r++) {
            int64_t entry = tokens ? index[r] - d->vocab_begin : r % d->seq - index[r];
            if (entry < 0 || entry >= entries) continue;
            kernels->row_add(d->dtype, dys, r * d->width + c, n, table + entry * d->width + c);
        }
    }
}

static tr_status run_embed_wgrad(tr_op *op, const tr_op_args *args) {
    float *table = args->t[TR_EMBED_WGRAD_DTABLE].data;
    begin_table(op, args, table, op->desc.embed.vocab);
    add_rows(op, true, args->t[TR_EMBED_WGRAD_TOKENS].data, args->t[TR_EMBED_WGRAD_DY].data, table);
    return TR_OK;
}

static tr_status run_position(tr_op *op, const tr_op_args *args) {
    const tr_embed_desc *d = &op->desc.embed;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const tr_tensor *t = args->t;
    const int32_t *starts = t[TR_POSITION_STARTS].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t r = 0; r < d->rows; r++) {
        _Alignas(TR_LINE) float in_x[TR_BLOCK], in_table[TR_BLOCK], out[TR_BLOCK];
        int64_t row = r * d->width;
        int64_t position = tr_token_position(d->decode, d->seq, args->state, d->first + r);
        int64_t entry = (position - (d->documents ? starts[r] : 0)) * d->width;
        for (int64_t c = 0; c < d->width; c += TR_BLOCK) {
            int64_t n = tr_min_i64(TR_BLOCK, d->width - c);
            const float *x = kernels->row_load(d->dtype, t[TR_POSITION_X].data, row + c, n, in_x);
            const float *e =
                kernels->row_load(d->dtype, t[TR_POSITION_TABLE].data, entry + c, n, in_table);
            float *y = tr_row_target(d->dtype, t[TR_POSITION_Y].data, row + c, out);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) y[i] = x[i] + e[i];
            kernels->row_store(d->dtype, t[TR_POSITION_Y].data, row + c, n, y);
        }
    }
    return TR_OK;
}

static tr_status run_position_wgrad(tr_op *op, const tr_op_args *args) {
    const tr_embed_desc *d = &op->desc.embed;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    float *table = args->t[TR_POSITION_WGRAD_DTABLE].data;
    begin_table(op, args, table, d->seq);
    if (d->documents) {
        add_rows(op, false, args->t[TR_POSITION_WGRAD_STARTS].data,
                 args->t[TR_POSITION_WGRAD_DY].data, table);
        return TR_OK;
    }
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t s = 0; s < d->seq; s++) {
        for (int64_t r = s; r < d->rows; r += d->seq)
            for (int64_t c = 0; c < d->width; c += TR_BLOCK)
                kernels->row_add(d->dtype, args->t[TR_POSITION_WGRAD_DY].data, r * d->width + c,
                                 tr_min_i64(TR_BLOCK, d->width - c), table + s * d->width + c);
    }
    return TR_OK;
}

tr_status tr_cpu_prepare_embed(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_embed, out);
}
tr_status tr_cpu_prepare_embed_wgrad(const tr_op_context *context, const tr_op_desc *desc,
                                     tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_embed_wgrad, out);
}
tr_status tr_cpu_prepare_position(const tr_op_context *context, const tr_op_desc *desc,
                                  tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_position, out);
}
tr_status tr_cpu_prepare_position_wgrad(const tr_op_context *context, const tr_op_desc *desc,
                                        tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_position_wgrad, out);
}
