/* Causal self-attention. Forward, a task is one query head of one sequence; backward, one key head
 * with the query heads that share it.
 *
 * A head's keys and values are packed once (panels.h). Rows of queries are then multiplied only
 * with keys that they see, so the upper triangle and keys before a window or a document take no
 * time. Scores live in scratch, a few rows at a time, never as a whole [seq, seq]. Backward
 * computes the scores again from the saved log-sum-exp (Dao et al. 2022, section 3.1).
 *
 * In BF16 the products take BF16 and add in FP32: scores and softmax are FP32, and P and the
 * gradient of the scores are rounded as operands of the next product. FP16 is widened, and nothing
 * but the results is rounded. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/panels.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

/* Query rows that backward processes together, the depth of the products for DK and DV. A multiple
 * of TR_GEMM_MOST_ROWS. */
enum { QUERIES = 64 };

/* Strides of one head's rows within packed QKV and within Y, and the padded sizes of its
 * packings. */
typedef struct head_shape {
    tr_dtype dtype, words; /* of the storage, of the products' operands */
    bool rounds;           /* operands of products are not FP32 */
    int64_t seq, dim, seq_padded, dim_padded;
    int64_t rows;                    /* of A in a product */
    int64_t seq_words, dim_words;    /* depths of that many numbers */
    int64_t score_step, score_words; /* floats between rows of scores, words between rows of P: an
                                        odd number of cache lines, to use all cache sets */
    int64_t qkv_step, y_step;
    float scale;
} head_shape;

static head_shape shape_of(const tr_device *device, const tr_attention_desc *d) {
    const tr_dtype words = tr_panel_dtype(d->dtype);
    const int64_t seq_words = tr_panel_words(words, d->seq);
    return (head_shape){.dtype = d->dtype,
                        .words = words,
                        .rounds = words != TR_F32,
                        .seq = d->seq,
                        .dim = d->head_size,
                        .seq_padded = tr_panel_up(d->seq),
                        .dim_padded = tr_panel_up(d->head_size),
                        .rows = ((const tr_cpu_device *)device)->kernels->gemm_rows[words],
                        .seq_words = seq_words,
                        .dim_words = tr_panel_words(words, d->head_size),
                        .score_step = tr_panel_up(d->seq) | TR_PANEL,
                        .score_words = tr_panel_up(seq_words) | TR_PANEL,
                        .qkv_step = tr_attention_row(d),
                        .y_step = d->heads * d->head_size,
                        .scale = tr_attention_scale(d)};
}

/* Returns the element of position 0 of one head of packed QKV: query heads, then key heads, then
 * value heads. */
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

/* Rows of one head of packed QKV, from element `offset` on. */
static tr_stored_rows qkv_rows(const head_shape *h, const void *qkv, int64_t offset) {
    return (tr_stored_rows){h->dtype, qkv, offset, h->qkv_step};
}

/* Sets a row's scores of keys before `first` and from `end` on so that their exponentials are 0:
 * -infinity in the panels of the others, and past those, up to `width`, zeros. Returns the number
 * of these panels. */
static int64_t hide(int64_t first, int64_t end, int64_t width, float *score) {
    const int64_t panels = tr_panel_up(end) / TR_PANEL;
    for (int64_t i = 0; i < first; i++) score[i] = -INFINITY;
    for (int64_t i = end; i < panels * TR_PANEL; i++) score[i] = -INFINITY;
    for (int64_t i = panels * TR_PANEL; i < width; i++) score[i] = 0;
    return panels;
}

/* Divides memory at `base` into parts of size[i] floats or words, and returns its bytes. Only
 * counts where `base` is NULL. */
static size_t divide(char *base, int parts, const int64_t *size, void **part) {
    size_t at = 0;
    for (int i = 0; i < parts; i++) {
        if (base) part[i] = base + at;
        at += tr_align_up((size_t)size[i] * sizeof(float));
    }
    return at;
}

/* Forward's memory for one thread. */
typedef struct forward_work {
    tr_word *keys;        /* transposed: [seq / 16][dim][16] */
    tr_word *values;      /* [dim / 16][seq][16] */
    tr_word *queries, *p; /* [rows, dim], [rows, score_words]; in FP32 p is `scores` */
    float *scores, *out;  /* [rows, score_step], [rows, dim_padded] */
} forward_work;

static size_t forward_layout(const head_shape *h, char *base, forward_work *work) {
    const int64_t size[] = {h->seq_padded * h->dim_words, h->seq_words * h->dim_padded,
                            h->rows * h->dim_words,       h->rows * h->score_step,
                            h->rows * h->dim_padded,      h->rounds ? h->rows * h->score_words : 0};
    enum { PARTS = sizeof size / sizeof *size };
    void *part[PARTS];
    size_t bytes = divide(base, PARTS, size, part);
    if (base)
        *work = (forward_work){.keys = part[0],
                               .values = part[1],
                               .queries = part[2],
                               .scores = part[3],
                               .out = part[4],
                               .p = part[h->rounds ? 5 : 3]};
    return bytes;
}

/* One head's queries of a sequence, at consecutive positions. */
typedef struct head_queries {
    const void *data;     /* packed QKV */
    void *y;              /* Y */
    int64_t query, out;   /* the first row's element in QKV and in Y */
    int64_t batch, begin; /* the sequence, and the position of the first query */
    int64_t count;
    const int32_t *starts;
    float *lse; /* [count]; NULL: it is not written */
} head_queries;

/* Computes one query head; its key and value are packed. */
static void head_forward(const tr_op *op, const head_queries *q, const forward_work *w) {
    const tr_attention_desc *d = &op->desc.attention;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const head_shape h = shape_of(op->context.device, d);
    for (int64_t row = 0; row < q->count; row += h.rows) {
        const int64_t rows = tr_min_i64(h.rows, q->count - row), t = q->begin + row;
        const int64_t end = t + rows;
        int64_t first[TR_GEMM_MOST_ROWS],
            panel = first_seen(d, q->starts, q->batch, t, rows, first);
        const int64_t from = panel * TR_PANEL, width = tr_panel_up(end) - from; /* of the scores */
        float sums[TR_GEMM_MOST_ROWS];
        const tr_stored_rows queries = qkv_rows(&h, q->data, q->query + row * h.qkv_step);
        tr_pack_left(&queries, rows, h.dim, h.dim_words, w->queries);
        kernels->gemm[h.words](rows, width / TR_PANEL, h.dim_words, w->queries, h.dim_words, 1,
                               w->keys + from * h.dim_words, h.dim_words * TR_PANEL, w->scores,
                               h.score_step, false);
        for (int64_t r = 0; r < rows; r++) {
            float top, *scores = w->scores + r * h.score_step;
            const int64_t panels = hide(first[r] - from, t + r + 1 - from, width, scores);
            sums[r] = kernels->softmax(panels, h.scale, scores, &top);
            if (q->lse) q->lse[row + r] = top + logf(sums[r]);
            if (h.rounds)
                (void)kernels->round_row(width / TR_PANEL, scores,
                                         (uint16_t *)(w->p + r * h.score_words));
        }
        kernels->gemm[h.words](rows, h.dim_padded / TR_PANEL, tr_panel_words(h.words, end - from),
                               w->p, h.score_words, 1,
                               w->values + tr_panel_words(h.words, from) * TR_PANEL,
                               h.seq_words * TR_PANEL, w->out, h.dim_padded, false);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = q->out + (row + r) * h.y_step;
            kernels->row_scale(d->dtype, q->y, at, h.dim, 1.0f / sums[r],
                               w->out + r * h.dim_padded);
        }
    }
}

/* Returns how many threads have a task, of which each has scratch. */
static int threads_for(const tr_device *device, int64_t tasks) {
    return (int)tr_min_i64(device->threads, tasks);
}

static tr_status run_attention(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    const head_shape h = shape_of(op->context.device, d);
    const size_t bytes = forward_layout(&h, NULL, NULL);
    const void *qkv = args->t[TR_ATTENTION_QKV].data;
    const int64_t tasks = d->batch * d->heads;
#pragma omp parallel num_threads(threads_for(op->context.device, tasks))
    {
        forward_work work = {0};
        char *mine = (char *)args->scratch + (size_t)tr_cpu_thread() * bytes;
        int64_t packed = -1; /* the packed (batch, key head) */
        forward_layout(&h, mine, &work);
#pragma omp for schedule(static)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t batch = task / d->heads, head = task % d->heads;
            const int64_t key = tr_attention_kv_head(d, head);
            if (packed != batch * d->kv_heads + key) {
                packed = batch * d->kv_heads + key;
                const tr_stored_rows keys = qkv_rows(&h, qkv, key_offset(d, batch, key));
                const tr_stored_rows values = qkv_rows(&h, qkv, value_offset(d, batch, key));
                tr_pack_right_transposed(tr_cpu_kernels_of(op), &keys, h.seq, h.dim, h.dim_words,
                                         work.keys);
                tr_pack_right(tr_cpu_kernels_of(op), &values, h.seq, h.dim, h.seq_words,
                              work.values);
            }
            const head_queries q = {.data = qkv,
                                    .y = args->t[TR_ATTENTION_Y].data,
                                    .query = qkv_offset(d, batch, head),
                                    .out = y_offset(d, batch, head),
                                    .batch = batch,
                                    .count = d->seq,
                                    .starts = args->t[TR_ATTENTION_STARTS].data,
                                    .lse = (float *)args->t[TR_ATTENTION_LSE].data +
                                           (batch * d->heads + head) * d->seq};
            head_forward(op, &q, &work);
        }
    }
    return TR_OK;
}

/* Backward's memory for one thread. */
typedef struct backward_work {
    tr_word *key_columns, *value_columns; /* transposed: [seq / 16][dim][16] */
    tr_word *keys;                        /* [dim / 16][seq][16] */
    tr_word *queries, *dy;                /* [QUERIES, dim] */
    tr_word *query_panels, *dy_panels;    /* [dim / 16][QUERIES][16] */
    tr_word *p, *ds;                      /* [QUERIES, score_step], queries are the depth */
    float *dkeys, *dvalues;               /* [seq, dim_padded] */
    float *dq;                            /* [rows, dim_padded] */
    /* Of `rows` queries; in FP32 their rows of p and ds. */
    float *scores, *dscores; /* [rows, score_step] */
    tr_word *ds_left;        /* [rows, score_words], keys are the depth */
} backward_work;

static size_t backward_layout(const head_shape *h, char *base, backward_work *work) {
    const int64_t queries = tr_panel_words(h->words, QUERIES), rounded = h->rounds ? h->rows : 0;
    const int64_t size[] = {
        h->seq_padded * h->dim_words, h->seq_padded * h->dim_words, h->seq_words * h->dim_padded,
        QUERIES * h->dim_words,       QUERIES * h->dim_words,       queries * h->dim_padded,
        queries * h->dim_padded,      queries * h->score_step,      queries * h->score_step,
        h->seq * h->dim_padded,       h->seq * h->dim_padded,       h->rows * h->dim_padded,
        rounded * h->score_step,      rounded * h->score_step,      rounded * h->score_words};
    enum { PARTS = sizeof size / sizeof *size };
    void *part[PARTS];
    size_t bytes = divide(base, PARTS, size, part);
    if (base)
        *work = (backward_work){part[0],  part[1],  part[2],  part[3],  part[4],
                                part[5],  part[6],  part[7],  part[8],  part[9],
                                part[10], part[11], part[12], part[13], part[14]};
    return bytes;
}

/* Rounds rows of x[rows, step] times factor into one head of DQKV. */
static void store_rows(const tr_cpu_kernels *kernels, const head_shape *h, void *base,
                       int64_t offset, int64_t rows, float factor, const float *x) {
    for (int64_t r = 0; r < rows; r++)
        kernels->row_scale(h->dtype, base, offset + r * h->qkv_step, h->dim, factor,
                           x + r * h->dim_padded);
}

/* n <= QUERIES query rows of a head, from row t on, and the keys from `from` to `end` that any of
 * them sees. */
typedef struct query_block {
    int64_t batch, head, t, n, from, end;
    int64_t query, out;     /* the first row's element in QKV and DQKV, in Y and DY */
    int64_t first[QUERIES]; /* key that a row sees */
} query_block;

/* Computes P and the gradient of the scores of one row of the block from its product with the keys
 * and that of DY with the values, zeros where it sees no key. The gradients of a row's scores add
 * up to zero; all keys share what they miss it by, and gradients of keys' biases hold little else.
 * So the mean of dP is taken under P as it is here, which adds up to 1 only up to LSE's rounding.
 * In FP32 it is that of dP - DY . Y, which is smaller; 16 bits round the results far more. */
static void row_backward(const tr_op *op, const head_shape *h, const tr_op_args *args,
                         const query_block *b, int64_t row, const float *dy, float *p, float *ds) {
    const float *lse = (const float *)args->t[TR_ATTENTION_DGRAD_LSE].data +
                       (b->batch * op->desc.attention.heads + b->head) * h->seq;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const float *y = args->t[TR_ATTENTION_DGRAD_Y].data;
    const float near =
        h->dtype == TR_F32 ? tr_vec_dot(dy, y + b->out + row * h->y_step, h->dim) : 0;
    const int64_t t = b->t + row, first = b->first[row] - b->from, end = t + 1 - b->from;
    const int64_t width = tr_panel_up(b->end) - b->from, panels = hide(first, end, width, p);
    for (int64_t i = 0; i < first; i++) ds[i] = 0;
    for (int64_t i = end; i < width; i++) ds[i] = 0;
    kernels->exponential(panels * TR_PANEL, p, h->scale, lse[t], 1.0f, p);
    kernels->softmax_dgrad(panels, near, p, ds);
}

/* Takes sum times a mean key from DQ[dim] of one row. The gradients of a row's scores add up to
 * zero, but rounded they add up to `sum`, with which DQ would hold what all keys have in common: DQ
 * is the sum over the keys' distances from any key, here from the mean of the last eight that the
 * row sees. */
static void centre(const tr_op *op, const head_shape *h, const tr_op_args *args,
                   const query_block *b, int64_t row, float sum, float *dq) {
    enum { KEYS = 8 };
    const tr_attention_desc *d = &op->desc.attention;
    const int64_t t = b->t + row, n = tr_min_i64(KEYS, t + 1 - b->first[row]);
    const int64_t keys = key_offset(d, b->batch, tr_attention_kv_head(d, b->head));
    const float factor = sum / (float)n;
    float in[TR_BLOCK];
    for (int64_t k = t + 1 - n; k <= t; k++) {
        const float *key = tr_row_load(h->dtype, args->t[TR_ATTENTION_DGRAD_QKV].data,
                                       keys + k * h->qkv_step, h->dim, in);
#pragma omp simd
        for (int64_t i = 0; i < h->dim; i++) dq[i] -= factor * key[i];
    }
}

/* Computes rows g .. g + rows - 1 of the block, at most h->rows: stores DQ, leaves P and DS. */
static void group_backward(const tr_op *op, const head_shape *h, const tr_op_args *args,
                           const query_block *b, int64_t g, int64_t rows, const backward_work *w) {
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const int64_t step = h->score_step, at = b->from * h->dim_words, seen = b->t + g + rows;
    const int64_t width = tr_panel_up(b->end) - b->from;
    const int64_t panels = (tr_panel_up(seen) - b->from) / TR_PANEL;
    const tr_word *left[] = {w->queries + g * h->dim_words, w->dy + g * h->dim_words};
    float *p = h->rounds ? w->scores : (float *)w->p + g * step;
    float *ds = h->rounds ? w->dscores : (float *)w->ds + g * step, sums[TR_GEMM_MOST_ROWS];
    kernels->gemm[h->words](rows, panels, h->dim_words, left[0], h->dim_words, 1,
                            w->key_columns + at, h->dim_words * TR_PANEL, p, step, false);
    kernels->gemm[h->words](rows, panels, h->dim_words, left[1], h->dim_words, 1,
                            w->value_columns + at, h->dim_words * TR_PANEL, ds, step, false);
    for (int64_t r = 0; r < rows; r++)
        row_backward(op, h, args, b, g + r, (const float *)left[1] + r * h->dim_words, p + r * step,
                     ds + r * step);
    if (h->rounds) {
        if (rows % 2 != 0) { /* the second row of the last words */
            memset(p + rows * step, 0, (size_t)width * sizeof *p);
            memset(ds + rows * step, 0, (size_t)width * sizeof *ds);
        }
        for (int64_t r = 0; r < rows; r += 2) {
            const int64_t to = (g + r) / 2 * step;
            kernels->round_rows(width / TR_PANEL, p + r * step, p + (r + 1) * step, w->p + to);
            kernels->round_rows(width / TR_PANEL, ds + r * step, ds + (r + 1) * step, w->ds + to);
        }
        for (int64_t r = 0; r < rows; r++)
            sums[r] = kernels->round_row(width / TR_PANEL, ds + r * step,
                                         (uint16_t *)(w->ds_left + r * h->score_words));
    }
    kernels->gemm[h->words](rows, h->dim_padded / TR_PANEL,
                            tr_panel_words(h->words, seen - b->from),
                            h->rounds ? w->ds_left : w->ds + g * step, h->score_words, 1,
                            w->keys + tr_panel_words(h->words, b->from) * TR_PANEL,
                            h->seq_words * TR_PANEL, w->dq, h->dim_padded, false);
    if (h->rounds)
        for (int64_t r = 0; r < rows; r++)
            centre(op, h, args, b, g + r, sums[r], w->dq + r * h->dim_padded);
    store_rows(kernels, h, args->t[TR_ATTENTION_DGRAD_DQKV].data, b->query + g * h->qkv_step, rows,
               h->scale, w->dq);
}

/* Computes a block: stores DQ, adds to DK and DV. */
static void block_backward(const tr_op *op, const head_shape *h, const tr_op_args *args,
                           int64_t batch, int64_t head, int64_t t, const backward_work *w) {
    const tr_attention_desc *d = &op->desc.attention;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const int64_t panels = h->dim_padded / TR_PANEL, step = h->score_step;
    const int64_t depth = tr_panel_words(h->words, QUERIES), n = tr_min_i64(QUERIES, h->seq - t);
    query_block b = {.batch = batch,
                     .head = head,
                     .t = t,
                     .n = n,
                     .end = t + n,
                     .query = qkv_offset(d, batch, head) + t * h->qkv_step,
                     .out = y_offset(d, batch, head) + t * h->y_step};
    b.from =
        TR_PANEL * first_seen(d, args->t[TR_ATTENTION_DGRAD_STARTS].data, batch, t, n, b.first);
    const tr_stored_rows queries = qkv_rows(h, args->t[TR_ATTENTION_DGRAD_QKV].data, b.query);
    const tr_stored_rows dy = {h->dtype, args->t[TR_ATTENTION_DGRAD_DY].data, b.out, h->y_step};
    tr_pack_left(&queries, n, h->dim, h->dim_words, w->queries);
    tr_pack_left(&dy, n, h->dim, h->dim_words, w->dy);
    tr_pack_right(tr_cpu_kernels_of(op), &queries, n, h->dim, depth, w->query_panels);
    tr_pack_right(tr_cpu_kernels_of(op), &dy, n, h->dim, depth, w->dy_panels);
    for (int64_t g = 0; g < n; g += h->rows)
        group_backward(op, h, args, &b, g, tr_min_i64(h->rows, n - g), w);
    for (int64_t k = b.from; k < b.end; k += h->rows) {
        /* Queries before key k do not see it. They are an even number. */
        const int64_t rows = tr_min_i64(h->rows, b.end - k);
        const int64_t before = tr_panel_words(h->words, k > t ? k - t : 0);
        const int64_t at = before * step + k - b.from, seen = tr_panel_words(h->words, n) - before;
        kernels->gemm[h->words](rows, panels, seen, w->p + at, 1, step,
                                w->dy_panels + before * TR_PANEL, depth * TR_PANEL,
                                w->dvalues + k * h->dim_padded, h->dim_padded, true);
        kernels->gemm[h->words](rows, panels, seen, w->ds + at, 1, step,
                                w->query_panels + before * TR_PANEL, depth * TR_PANEL,
                                w->dkeys + k * h->dim_padded, h->dim_padded, true);
    }
}

/* Computes one key head. The gradients of its key and value are sums over its query heads, in their
 * order. */
static void key_backward(const tr_op *op, const tr_op_args *args, int64_t batch, int64_t key,
                         const backward_work *w) {
    const tr_attention_desc *d = &op->desc.attention;
    const head_shape h = shape_of(op->context.device, d);
    const void *qkv = args->t[TR_ATTENTION_DGRAD_QKV].data;
    void *dqkv = args->t[TR_ATTENTION_DGRAD_DQKV].data;
    const int64_t keys = key_offset(d, batch, key), values = value_offset(d, batch, key);
    const int64_t group = d->heads / d->kv_heads;
    const tr_stored_rows key_rows = qkv_rows(&h, qkv, keys), value_rows = qkv_rows(&h, qkv, values);
    tr_pack_right(tr_cpu_kernels_of(op), &key_rows, h.seq, h.dim, h.seq_words, w->keys);
    tr_pack_right_transposed(tr_cpu_kernels_of(op), &key_rows, h.seq, h.dim, h.dim_words,
                             w->key_columns);
    tr_pack_right_transposed(tr_cpu_kernels_of(op), &value_rows, h.seq, h.dim, h.dim_words,
                             w->value_columns);
    memset(w->dkeys, 0, (size_t)(h.seq * h.dim_padded) * sizeof(float));
    memset(w->dvalues, 0, (size_t)(h.seq * h.dim_padded) * sizeof(float));
    for (int64_t head = key * group; head < (key + 1) * group; head++)
        for (int64_t t = 0; t < h.seq; t += QUERIES)
            block_backward(op, &h, args, batch, head, t, w);
    store_rows(tr_cpu_kernels_of(op), &h, dqkv, keys, h.seq, h.scale, w->dkeys);
    store_rows(tr_cpu_kernels_of(op), &h, dqkv, values, h.seq, 1.0f, w->dvalues);
}

static tr_status run_attention_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    const head_shape h = shape_of(op->context.device, d);
    const size_t bytes = backward_layout(&h, NULL, NULL);
    const int64_t tasks = d->batch * d->kv_heads;
#pragma omp parallel for schedule(static) num_threads(threads_for(op->context.device, tasks))
    for (int64_t task = 0; task < tasks; task++) {
        backward_work w = {0};
        char *mine = (char *)args->scratch + (size_t)tr_cpu_thread() * bytes;
        backward_layout(&h, mine, &w);
        key_backward(op, args, task / d->kv_heads, task % d->kv_heads, &w);
    }
    return TR_OK;
}

/* Writes the key and value of one of a sequence's tokens into the caches. */
static void cache_token(const tr_op *op, const tr_op_args *args, int64_t batch, int64_t index) {
    const tr_attention_desc *d = &op->desc.attention;
    const size_t element = tr_dtype_size(d->dtype);
    const int64_t width = d->kv_heads * d->head_size;
    const int64_t position = args->state->position[batch] + index;
    const int64_t token =
        (batch * d->decode + index) * tr_attention_row(d) + d->heads * d->head_size;
    char *const caches[] = {args->t[TR_DECODE_KCACHE].data, args->t[TR_DECODE_VCACHE].data};
    for (int part = 0; part < 2; part++)
        memcpy(caches[part] + (size_t)((batch * d->seq + position) * width) * element,
               (const char *)args->t[TR_DECODE_QKV].data + (size_t)(token + part * width) * element,
               (size_t)width * element);
}

/* Computes one token's attention over the cache for one query head. scores[seq]. */
static void head_decode(const tr_op *op, const tr_op_args *args, int64_t batch, int64_t head,
                        float *scores) {
    const tr_attention_desc *d = &op->desc.attention;
    const int64_t position = args->state->position[batch], width = d->kv_heads * d->head_size;
    const int64_t token = batch * tr_attention_row(d) + head * d->head_size;
    const int64_t first = tr_attention_first(d, position, 0), seen = position + 1 - first;
    const int64_t cache =
        (batch * d->seq + first) * width + tr_attention_kv_head(d, head) * d->head_size;
    float in_q[TR_BLOCK], in[TR_BLOCK], out[TR_BLOCK] = {0}, top;
    const float *q = tr_row_load(d->dtype, args->t[TR_DECODE_QKV].data, token, d->head_size, in_q);
    for (int64_t j = 0; j < seen; j++) {
        const float *k = tr_row_load(d->dtype, args->t[TR_DECODE_KCACHE].data, cache + j * width,
                                     d->head_size, in);
        scores[j] = tr_vec_dot(q, k, d->head_size);
    }
    const float factor = 1.0f / tr_cpu_kernels_of(op)->softmax(hide(0, seen, seen, scores),
                                                               tr_attention_scale(d), scores, &top);
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

/* Computes one head of several tokens of a sequence: as in training, with keys and values from the
 * caches. */
static void head_decode_several(const tr_op *op, const tr_op_args *args, int64_t batch,
                                int64_t head, const forward_work *w) {
    const tr_attention_desc *d = &op->desc.attention;
    const head_shape h = shape_of(op->context.device, d);
    const int64_t width = d->kv_heads * d->head_size, begin = args->state->position[batch];
    const int64_t seen = begin + d->decode, row = batch * d->decode;
    const int64_t cache = batch * d->seq * width + tr_attention_kv_head(d, head) * d->head_size;
    const tr_stored_rows keys = {d->dtype, args->t[TR_DECODE_KCACHE].data, cache, width};
    const tr_stored_rows values = {d->dtype, args->t[TR_DECODE_VCACHE].data, cache, width};
    tr_pack_right_transposed(tr_cpu_kernels_of(op), &keys, seen, h.dim, h.dim_words, w->keys);
    tr_pack_right(tr_cpu_kernels_of(op), &values, seen, h.dim, h.seq_words, w->values);
    const head_queries q = {.data = args->t[TR_DECODE_QKV].data,
                            .y = args->t[TR_DECODE_Y].data,
                            .query = row * tr_attention_row(d) + head * d->head_size,
                            .out = (row * d->heads + head) * d->head_size,
                            .batch = batch,
                            .begin = begin,
                            .count = d->decode};
    head_forward(op, &q, w);
}

/* Returns the scratch bytes of a thread. */
static size_t decode_bytes(const tr_device *device, const tr_attention_desc *d) {
    const head_shape h = shape_of(device, d);
    return d->decode > 1 ? forward_layout(&h, NULL, NULL)
                         : tr_align_up((size_t)d->seq * sizeof(float));
}

static tr_status run_attention_decode(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    int64_t seen = 0;
    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t position = args->state->position[b];
        if (position < 0 || position > d->seq - d->decode)
            return TR_FAIL(TR_ERR_INTERNAL, "token %lld is outside the cache of %lld",
                           (long long)position, (long long)d->seq);
        seen += position;
    }
    const size_t bytes = decode_bytes(op->context.device, d);
    const head_shape h = shape_of(op->context.device, d);
    const int64_t tasks = d->batch * d->heads;
    const int64_t work = d->heads * d->decode * seen * d->head_size;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t i = 0; i < d->decode; i++) cache_token(op, args, b, i);
#pragma omp parallel for schedule(static)                                                          \
    num_threads((int)tr_min_i64(tr_cpu_threads(op, work), tasks))
    for (int64_t task = 0; task < tasks; task++) {
        char *mine = (char *)args->scratch + (size_t)tr_cpu_thread() * bytes;
        forward_work w;
        if (d->decode == 1) {
            head_decode(op, args, task / d->heads, task % d->heads, (float *)(void *)mine);
            continue;
        }
        forward_layout(&h, mine, &w);
        head_decode_several(op, args, task / d->heads, task % d->heads, &w);
    }
    return TR_OK;
}

static tr_status prepare(const tr_op_context *context, const tr_op_desc *desc, int64_t heads,
                         size_t bytes_a_thread, tr_host_compute_fn compute, tr_op **out) {
    if (desc->attention.head_size > TR_BLOCK)
        return TR_FAIL(TR_ERR_DEVICE,
                       "the cpu device's attention takes heads of up to %d, not %lld", TR_BLOCK,
                       (long long)desc->attention.head_size);
    const int threads = threads_for(context->device, desc->attention.batch * heads);
    const size_t scratch = bytes_a_thread * (size_t)threads;
    return tr_host_op_create(context, desc, 0, scratch, compute, out);
}

tr_status tr_cpu_prepare_attention(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    const head_shape h = shape_of(context->device, &desc->attention);
    return prepare(context, desc, desc->attention.heads, forward_layout(&h, NULL, NULL),
                   run_attention, out);
}
tr_status tr_cpu_prepare_attention_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                         tr_op **out) {
    const head_shape h = shape_of(context->device, &desc->attention);
    return prepare(context, desc, desc->attention.kv_heads, backward_layout(&h, NULL, NULL),
                   run_attention_dgrad, out);
}
tr_status tr_cpu_prepare_attention_decode(const tr_op_context *context, const tr_op_desc *desc,
                                          tr_op **out) {
    return prepare(context, desc, desc->attention.heads,
                   decode_bytes(context->device, &desc->attention), run_attention_decode, out);
}
