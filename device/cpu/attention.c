/* Causal self-attention. Forward, a task is one query head of one sequence; backward, one key head
 * with the query heads that share it.
 *
 * A head's keys and values are packed once in FP32 (kernels.h). Rows of queries are then multiplied
 * only with keys that they see, so the upper triangle and keys before a window or a document take
 * no time. Scores live in scratch, a few rows at a time, never as a whole [seq, seq]. Backward
 * computes the scores again from the saved log-sum-exp (Dao et al. 2022, section 3.1). */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

/* Query rows that backward processes together, the depth of the products for DK and DV. A multiple
 * of TR_GEMM_ROWS. */
enum { QUERIES = 48 };

/* Strides of one head's rows within packed QKV and within Y, and the padded sizes of its packings.
 */
typedef struct head_shape {
    int64_t seq, dim, seq_padded, dim_padded;
    int64_t score_step; /* floats between score rows: an odd number of cache lines, so that rows use
                           all cache sets */
    int64_t qkv_step, y_step;
    float scale;
} head_shape;

static head_shape shape_of(const tr_attention_desc *d) {
    return (head_shape){.seq = d->seq,
                        .dim = d->head_size,
                        .seq_padded = tr_panel_up(d->seq),
                        .dim_padded = tr_panel_up(d->head_size),
                        .score_step = tr_panel_up(d->seq) | TR_PANEL,
                        .qkv_step = tr_attention_row(d),
                        .y_step = d->heads * d->head_size,
                        .scale = tr_attention_scale(d)};
}

/* Element of position 0 of one head of packed QKV: query heads, then key heads, then value heads.
 */
static int64_t qkv_offset(const tr_attention_desc *d, int64_t batch, int64_t head) {
    return batch * d->seq * tr_attention_row(d) + head * d->head_size;
}
static int64_t key_offset(const tr_attention_desc *d, int64_t batch, int64_t key) {
    return qkv_offset(d, batch, d->heads + key);
}
static int64_t value_offset(const tr_attention_desc *d, int64_t batch, int64_t key) {
    return qkv_offset(d, batch, d->heads + d->kv_heads + key);
}

static int64_t y_offset(const tr_attention_desc *d, int64_t batch, int64_t head) {
    return (batch * d->seq * d->heads + head) * d->head_size;
}

/* Fills first[n] with the first token that each of the tokens t .. t + n - 1 of a sequence sees.
 * Returns the panel of the least of them. */
static int64_t first_seen(const tr_attention_desc *d, const int32_t *starts, int64_t batch,
                          int64_t t, int64_t n, int64_t *first) {
    int64_t least = t;
    for (int64_t r = 0; r < n; r++) {
        first[r] = tr_attention_first(d, t + r, d->documents ? starts[batch * d->seq + t + r] : 0);
        least = tr_min_i64(least, first[r]);
    }
    return least / TR_PANEL;
}

/* Loads out[rows, dim] = rows of storage times factor. */
static void load_rows(tr_dtype dtype, const void *base, int64_t offset, int64_t step, int64_t rows,
                      int64_t dim, float factor, float *out) {
    float in[TR_BLOCK];
    for (int64_t r = 0; r < rows; r++) {
        const float *x = tr_row_load(dtype, base, offset + r * step, dim, in);
#pragma omp simd
        for (int64_t i = 0; i < dim; i++) out[r * dim + i] = x[i] * factor;
    }
}

/* Packs the matrix [rows, dim] to panels: out[dim / 16][rows_total][16], zeros past dim. */
static void pack(const float *x, int64_t step, int64_t rows, int64_t rows_total, int64_t dim,
                 float *out) {
    for (int64_t p = 0; p * TR_PANEL < dim; p++) {
        int64_t n = tr_min_i64(TR_PANEL, dim - p * TR_PANEL);
        for (int64_t r = 0; r < rows; r++) {
            float *to = out + (p * rows_total + r) * TR_PANEL;
            const float *from = x + r * step + p * TR_PANEL;
            for (int64_t i = 0; i < n; i++) to[i] = from[i];
            for (int64_t i = n; i < TR_PANEL; i++) to[i] = 0;
        }
    }
}

/* Packs a head's rows from storage: as panels of [seq, dim] in `rows`, and of [dim, seq] in
 * `columns`; either may be NULL. */
static void pack_head(const head_shape *h, tr_dtype dtype, const void *base, int64_t offset,
                      float *rows, float *columns) {
    float in[TR_BLOCK];
    for (int64_t t = 0; t < h->seq_padded; t++) {
        const float *x =
            t < h->seq ? tr_row_load(dtype, base, offset + t * h->qkv_step, h->dim, in) : NULL;
        if (rows && x) pack(x, 0, 1, h->seq, h->dim, rows + t * TR_PANEL);
        if (!columns) continue;
        float *to = columns + t / TR_PANEL * h->dim * TR_PANEL + t % TR_PANEL;
        for (int64_t i = 0; i < h->dim; i++) to[i * TR_PANEL] = x ? x[i] : 0.0f;
    }
}

/* Turns a row of n scores into exp(score - largest), zeros up to `end`; returns their sum. */
static float exponentials(const tr_cpu_kernels *kernels, float *score, int64_t n, int64_t end,
                          float *largest) {
    float top = tr_vec_max(score, n);
    kernels->exponential(n, score, top, 1.0f, score);
    for (int64_t i = n; i < end; i++) score[i] = 0;
    *largest = top;
    return tr_vec_sum(score, n);
}

/* Forward's memory for one thread. */
typedef struct forward_work {
    float *keys;                   /* [seq / 16][dim][16] */
    float *values;                 /* [dim / 16][seq][16] */
    float *queries, *scores, *out; /* [6, dim], [6, score_step], [6, dim_padded] */
} forward_work;

static size_t forward_layout(const head_shape *h, float *base, forward_work *work) {
    size_t at = 0, keys = at;
    size_t values = at += (size_t)(h->seq_padded * h->dim);
    size_t queries = at += (size_t)(h->seq * h->dim_padded);
    size_t scores = at += (size_t)(TR_GEMM_ROWS * h->dim);
    size_t out = at += (size_t)(TR_GEMM_ROWS * h->score_step);
    at += (size_t)(TR_GEMM_ROWS * h->dim_padded);
    if (base)
        *work =
            (forward_work){base + keys, base + values, base + queries, base + scores, base + out};
    return tr_align_up(at * sizeof(float));
}

/* Computes one query head; its key and value are packed. */
static void head_forward(const tr_op *op, const tr_op_args *args, int64_t batch, int64_t head,
                         const forward_work *w) {
    const tr_attention_desc *d = &op->desc.attention;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const head_shape h = shape_of(d);
    const void *qkv = args->t[TR_ATTENTION_QKV].data;
    float *lse = (float *)args->t[TR_ATTENTION_LSE].data + (batch * d->heads + head) * h.seq;
    for (int64_t t = 0; t < h.seq; t += TR_GEMM_ROWS) {
        int64_t rows = tr_min_i64(TR_GEMM_ROWS, h.seq - t), end = t + rows, first[TR_GEMM_ROWS];
        int64_t panel = first_seen(d, args->t[TR_ATTENTION_STARTS].data, batch, t, rows, first);
        const int64_t from = panel * TR_PANEL; /* the first key of the scores */
        float sums[TR_GEMM_ROWS], buffer[TR_BLOCK];
        load_rows(d->dtype, qkv, qkv_offset(d, batch, head) + t * h.qkv_step, h.qkv_step, rows,
                  h.dim, h.scale, w->queries);
        kernels->gemm(rows, tr_panel_up(end) / TR_PANEL - panel, h.dim, w->queries, h.dim, 1,
                      w->keys + from * h.dim, h.dim * TR_PANEL, w->scores, h.score_step, false);
        for (int64_t r = 0; r < rows; r++) {
            float top, *scores = w->scores + r * h.score_step;
            const int64_t unseen = first[r] - from;
            for (int64_t i = 0; i < unseen; i++) scores[i] = 0;
            sums[r] =
                exponentials(kernels, scores + unseen, t + r + 1 - first[r], end - first[r], &top);
            lse[t + r] = top + logf(sums[r]);
        }
        kernels->gemm(rows, h.dim_padded / TR_PANEL, end - from, w->scores, h.score_step, 1,
                      w->values + from * TR_PANEL, h.seq * TR_PANEL, w->out, h.dim_padded, false);
        for (int64_t r = 0; r < rows; r++) {
            int64_t at = y_offset(d, batch, head) + (t + r) * h.y_step;
            const float *out = w->out + r * h.dim_padded;
            const float factor = 1.0f / sums[r];
            float *y = tr_row_target(d->dtype, args->t[TR_ATTENTION_Y].data, at, buffer);
#pragma omp simd
            for (int64_t i = 0; i < h.dim; i++) y[i] = out[i] * factor;
            tr_row_store(d->dtype, args->t[TR_ATTENTION_Y].data, at, h.dim, y);
        }
    }
}

static tr_status run_attention(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    const head_shape h = shape_of(d);
    const size_t bytes = forward_layout(&h, NULL, NULL);
    const void *qkv = args->t[TR_ATTENTION_QKV].data;
    const int64_t tasks = d->batch * d->heads;
#pragma omp parallel num_threads(op->context.device->threads)
    {
        forward_work work = {0};
        char *mine = (char *)args->scratch + (size_t)tr_cpu_thread() * bytes;
        int64_t packed = -1; /* the packed (batch, key head) */
        forward_layout(&h, (float *)(void *)mine, &work);
#pragma omp for schedule(static)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t batch = task / d->heads, head = task % d->heads;
            const int64_t key = tr_attention_kv_head(d, head);
            if (packed != batch * d->kv_heads + key) {
                packed = batch * d->kv_heads + key;
                pack_head(&h, d->dtype, qkv, key_offset(d, batch, key), NULL, work.keys);
                pack_head(&h, d->dtype, qkv, value_offset(d, batch, key), work.values, NULL);
            }
            head_forward(op, args, batch, head, &work);
        }
    }
    return TR_OK;
}

/* Backward's memory for one thread. */
typedef struct backward_work {
    float *key_columns, *value_columns; /* [seq / 16][dim][16] */
    float *keys;                        /* [dim / 16][seq][16] */
    float *dkeys, *dvalues;             /* [seq, dim_padded] */
    float *queries, *dy;                /* [QUERIES, dim] */
    float *query_panels, *dy_panels;    /* [dim / 16][QUERIES][16] */
    float *p, *ds;                      /* [QUERIES, score_step] */
    float *dq;                          /* [6, dim_padded] */
} backward_work;

static size_t backward_layout(const head_shape *h, float *base, backward_work *work) {
    const int64_t size[] = {
        h->seq_padded * h->dim,  h->seq_padded * h->dim,  h->seq * h->dim_padded,
        h->seq * h->dim_padded,  h->seq * h->dim_padded,  QUERIES * h->dim,
        QUERIES * h->dim,        QUERIES * h->dim_padded, QUERIES * h->dim_padded,
        QUERIES * h->score_step, QUERIES * h->score_step, TR_GEMM_ROWS * h->dim_padded};
    enum { PARTS = sizeof size / sizeof *size };
    size_t at = 0, begin[PARTS];
    for (int i = 0; i < PARTS; i++) {
        begin[i] = at;
        at += (size_t)size[i];
    }
    if (base)
        *work =
            (backward_work){base + begin[0], base + begin[1], base + begin[2],  base + begin[3],
                            base + begin[4], base + begin[5], base + begin[6],  base + begin[7],
                            base + begin[8], base + begin[9], base + begin[10], base + begin[11]};
    return tr_align_up(at * sizeof(float));
}

/* Rounds rows of x[rows, step] times factor into one head of DQKV. */
static void store_rows(const head_shape *h, tr_dtype dtype, void *base, int64_t offset,
                       int64_t rows, float factor, const float *x) {
    float buffer[TR_BLOCK];
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = offset + r * h->qkv_step;
        float *to = tr_row_target(dtype, base, at, buffer);
        const float *from = x + r * h->dim_padded;
#pragma omp simd
        for (int64_t i = 0; i < h->dim; i++) to[i] = from[i] * factor;
        tr_row_store(dtype, base, at, h->dim, to);
    }
}

/* ds[n] = p (ds - delta), where ds came as dP. delta, the sum of p dP over the row, is also dy . y,
 * which FP32 takes since it is shorter. BF16 has rounded y, and every key of the row would share
 * the error: y is NULL then. */
static void score_gradient(const head_shape *h, int64_t n, const float *dy, const float *y,
                           const float *p, float *ds) {
    const float delta = y ? tr_vec_dot(dy, y, h->dim) : tr_vec_dot(p, ds, n);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) ds[i] = p[i] * (ds[i] - delta);
}

/* Computes one block of n <= QUERIES query rows from t0 on: stores DQ, adds to DK and DV. */
static void block_backward(const tr_op *op, const head_shape *h, const tr_op_args *args,
                           int64_t batch, int64_t head, int64_t t0, int64_t n,
                           const backward_work *w) {
    const tr_attention_desc *d = &op->desc.attention;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const void *qkv = args->t[TR_ATTENTION_DGRAD_QKV].data;
    const float *y = d->dtype == TR_F32 ? args->t[TR_ATTENTION_DGRAD_Y].data : NULL;
    const float *lse =
        (const float *)args->t[TR_ATTENTION_DGRAD_LSE].data + (batch * d->heads + head) * h->seq;
    const int64_t query = qkv_offset(d, batch, head) + t0 * h->qkv_step, end = t0 + n;
    const int64_t out = y_offset(d, batch, head) + t0 * h->y_step;
    const int64_t panels = h->dim_padded / TR_PANEL, step = h->score_step;
    int64_t first[QUERIES];
    const int64_t panel =
        first_seen(d, args->t[TR_ATTENTION_DGRAD_STARTS].data, batch, t0, n, first);
    const int64_t from = panel * TR_PANEL; /* the first key of the scores */
    load_rows(d->dtype, qkv, query, h->qkv_step, n, h->dim, h->scale, w->queries);
    load_rows(d->dtype, args->t[TR_ATTENTION_DGRAD_DY].data, out, h->y_step, n, h->dim, 1.0f,
              w->dy);
    pack(w->queries, h->dim, n, QUERIES, h->dim, w->query_panels);
    pack(w->dy, h->dim, n, QUERIES, h->dim, w->dy_panels);
    for (int64_t g = 0; g < n; g += TR_GEMM_ROWS) {
        int64_t rows = tr_min_i64(TR_GEMM_ROWS, n - g), seen = t0 + g + rows;
        float *p = w->p + g * step, *ds = w->ds + g * step;
        kernels->gemm(rows, tr_panel_up(seen) / TR_PANEL - panel, h->dim, w->queries + g * h->dim,
                      h->dim, 1, w->key_columns + from * h->dim, h->dim * TR_PANEL, p, step, false);
        kernels->gemm(rows, tr_panel_up(seen) / TR_PANEL - panel, h->dim, w->dy + g * h->dim,
                      h->dim, 1, w->value_columns + from * h->dim, h->dim * TR_PANEL, ds, step,
                      false);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t unseen = first[g + r] - from, visible = t0 + g + r + 1 - first[g + r];
            float *row_p = p + r * step, *row_ds = ds + r * step;
            for (int64_t i = 0; i < unseen; i++) row_p[i] = row_ds[i] = 0;
            const float *o = y ? y + out + (g + r) * h->y_step : NULL;
            kernels->exponential(visible, row_p + unseen, lse[t0 + g + r], 1.0f, row_p + unseen);
            score_gradient(h, visible, w->dy + (g + r) * h->dim, o, row_p + unseen,
                           row_ds + unseen);
            for (int64_t i = unseen + visible; i < end - from; i++) row_p[i] = row_ds[i] = 0;
        }
        kernels->gemm(rows, panels, seen - from, ds, step, 1, w->keys + from * TR_PANEL,
                      h->seq * TR_PANEL, w->dq, h->dim_padded, false);
        store_rows(h, d->dtype, args->t[TR_ATTENTION_DGRAD_DQKV].data, query + g * h->qkv_step,
                   rows, h->scale, w->dq);
    }
    for (int64_t k = from; k < end; k += TR_GEMM_ROWS) {
        /* Queries before key k do not see it. */
        int64_t rows = tr_min_i64(TR_GEMM_ROWS, end - k), before = k > t0 ? k - t0 : 0;
        const int64_t at = before * step + k - from;
        kernels->gemm(rows, panels, n - before, w->p + at, 1, step,
                      w->dy_panels + before * TR_PANEL, QUERIES * TR_PANEL,
                      w->dvalues + k * h->dim_padded, h->dim_padded, true);
        kernels->gemm(rows, panels, n - before, w->ds + at, 1, step,
                      w->query_panels + before * TR_PANEL, QUERIES * TR_PANEL,
                      w->dkeys + k * h->dim_padded, h->dim_padded, true);
    }
}

/* Computes one key head. The gradients of its key and value are sums over its query heads, in their
 * order. */
static void key_backward(const tr_op *op, const tr_op_args *args, int64_t batch, int64_t key,
                         const backward_work *w) {
    const tr_attention_desc *d = &op->desc.attention;
    const head_shape h = shape_of(d);
    const void *qkv = args->t[TR_ATTENTION_DGRAD_QKV].data;
    void *dqkv = args->t[TR_ATTENTION_DGRAD_DQKV].data;
    const int64_t keys = key_offset(d, batch, key), values = value_offset(d, batch, key);
    const int64_t group = d->heads / d->kv_heads;
    pack_head(&h, d->dtype, qkv, keys, w->keys, w->key_columns);
    pack_head(&h, d->dtype, qkv, values, NULL, w->value_columns);
    memset(w->dkeys, 0, (size_t)(h.seq * h.dim_padded) * sizeof(float));
    memset(w->dvalues, 0, (size_t)(h.seq * h.dim_padded) * sizeof(float));
    for (int64_t head = key * group; head < (key + 1) * group; head++)
        for (int64_t t = 0; t < h.seq; t += QUERIES)
            block_backward(op, &h, args, batch, head, t, tr_min_i64(QUERIES, h.seq - t), w);
    store_rows(&h, d->dtype, dqkv, keys, h.seq, 1.0f,
               w->dkeys); /* the queries were multiplied by the scale */
    store_rows(&h, d->dtype, dqkv, values, h.seq, 1.0f, w->dvalues);
}

static tr_status run_attention_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    const head_shape h = shape_of(d);
    const size_t bytes = backward_layout(&h, NULL, NULL);
#pragma omp parallel for schedule(static) num_threads(op->context.device->threads)
    for (int64_t task = 0; task < d->batch * d->kv_heads; task++) {
        backward_work w = {0};
        char *mine = (char *)args->scratch + (size_t)tr_cpu_thread() * bytes;
        backward_layout(&h, (float *)(void *)mine, &w);
        key_backward(op, args, task / d->kv_heads, task % d->kv_heads, &w);
    }
    return TR_OK;
}

/* Writes the token's key and value into the caches. */
static void cache_token(const tr_op *op, const tr_op_args *args, int64_t batch) {
    const tr_attention_desc *d = &op->desc.attention;
    const size_t element = tr_dtype_size(d->dtype);
    const int64_t width = d->kv_heads * d->head_size;
    const int64_t token = batch * tr_attention_row(d) + d->heads * d->head_size;
    char *const caches[] = {args->t[TR_DECODE_KCACHE].data, args->t[TR_DECODE_VCACHE].data};
    for (int part = 0; part < 2; part++)
        memcpy(caches[part] + (size_t)((batch * d->seq + args->state->position) * width) * element,
               (const char *)args->t[TR_DECODE_QKV].data + (size_t)(token + part * width) * element,
               (size_t)width * element);
}

/* Computes one token's attention over the cache for one query head. scores[seq]. */
static void head_decode(const tr_op *op, const tr_op_args *args, int64_t batch, int64_t head,
                        float *scores) {
    const tr_attention_desc *d = &op->desc.attention;
    const int64_t position = args->state->position, width = d->kv_heads * d->head_size;
    const int64_t token = batch * tr_attention_row(d) + head * d->head_size;
    const int64_t first = tr_attention_first(d, position, 0), seen = position + 1 - first;
    const int64_t cache =
        (batch * d->seq + first) * width + tr_attention_kv_head(d, head) * d->head_size;
    float in_q[TR_BLOCK], in[TR_BLOCK], out[TR_BLOCK] = {0}, top;
    const float scale = tr_attention_scale(d);
    const float *q = tr_row_load(d->dtype, args->t[TR_DECODE_QKV].data, token, d->head_size, in_q);
    for (int64_t j = 0; j < seen; j++) {
        const float *k = tr_row_load(d->dtype, args->t[TR_DECODE_KCACHE].data, cache + j * width,
                                     d->head_size, in);
        scores[j] = tr_vec_dot(q, k, d->head_size) * scale;
    }
    const float factor = 1.0f / exponentials(tr_cpu_kernels_of(op), scores, seen, seen, &top);
    for (int64_t j = 0; j < seen; j++) {
        const float *v = tr_row_load(d->dtype, args->t[TR_DECODE_VCACHE].data, cache + j * width,
                                     d->head_size, in);
        const float p = scores[j] * factor;
#pragma omp simd
        for (int64_t i = 0; i < d->head_size; i++) out[i] = fmaf(p, v[i], out[i]);
    }
    int64_t at = (batch * d->heads + head) * d->head_size;
    float *y = tr_row_target(d->dtype, args->t[TR_DECODE_Y].data, at, in);
    memcpy(y, out, (size_t)d->head_size * sizeof *y);
    tr_row_store(d->dtype, args->t[TR_DECODE_Y].data, at, d->head_size, y);
}

static tr_status run_attention_decode(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    if (args->state->position < 0 || args->state->position >= d->seq)
        return TR_FAIL(TR_ERR_INTERNAL, "token %lld is outside the cache of %lld",
                       (long long)args->state->position, (long long)d->seq);
    const size_t bytes = tr_align_up((size_t)d->seq * sizeof(float));
    const int64_t tasks = d->batch * d->heads;
    const int64_t work = tasks * args->state->position * d->head_size;
    for (int64_t b = 0; b < d->batch; b++) cache_token(op, args, b);
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, work))
    for (int64_t task = 0; task < tasks; task++) {
        char *mine = (char *)args->scratch + (size_t)tr_cpu_thread() * bytes;
        head_decode(op, args, task / d->heads, task % d->heads, (float *)(void *)mine);
    }
    return TR_OK;
}

static tr_status prepare(const tr_op_context *context, const tr_op_desc *desc,
                         size_t bytes_a_thread, tr_host_compute_fn compute, tr_op **out) {
    if (desc->attention.head_size > TR_BLOCK)
        return TR_FAIL(TR_ERR_DEVICE,
                       "the cpu device's attention takes heads of up to %d, not %lld", TR_BLOCK,
                       (long long)desc->attention.head_size);
    size_t scratch = bytes_a_thread * (size_t)context->device->threads;
    return tr_host_op_create(context, desc, 0, scratch, compute, out);
}

tr_status tr_cpu_prepare_attention(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    const head_shape h = shape_of(&desc->attention);
    return prepare(context, desc, forward_layout(&h, NULL, NULL), run_attention, out);
}
tr_status tr_cpu_prepare_attention_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                         tr_op **out) {
    const head_shape h = shape_of(&desc->attention);
    return prepare(context, desc, backward_layout(&h, NULL, NULL), run_attention_dgrad, out);
}
tr_status tr_cpu_prepare_attention_decode(const tr_op_context *context, const tr_op_desc *desc,
                                          tr_op **out) {
    size_t bytes = tr_align_up((size_t)desc->attention.seq * sizeof(float));
    return prepare(context, desc, bytes, run_attention_decode, out);
}
