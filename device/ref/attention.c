/* Causal attention, its gradient, and its step of one token. */
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"

#include <math.h>
#include <string.h>

/* Rows of head_size elements, `stride` elements apart, from element `first` of storage. */
typedef struct head_rows {
    const void *memory;
    int64_t first, stride;
} head_rows;

static double load(const tr_attention_desc *d, head_rows rows, int64_t row, int64_t c) {
    return tr_ref_load(d->dtype, rows.memory, rows.first + row * rows.stride + c);
}

static double dot(const tr_attention_desc *d, head_rows a, int64_t i, head_rows b, int64_t j) {
    double sum = 0;
    for (int64_t c = 0; c < d->head_size; c++) sum += load(d, a, i, c) * load(d, b, j, c);
    return sum;
}

static double scale_of(const tr_attention_desc *d) {
    return d->scale > 0 ? (double)d->scale : 1 / sqrt((double)d->head_size);
}

/* Query i over the keys and values first..last: y[head_size] stored from element `to` on; returns
 * the log-sum-exp of the scaled scores. p[last + 1] is scratch. */
static double attend(const tr_attention_desc *d, head_rows q, int64_t i, head_rows k, head_rows v,
                     int64_t first, int64_t last, double *p, void *y, int64_t to) {
    double scale = scale_of(d), largest = -INFINITY, sum = 0;
    for (int64_t j = first; j <= last; j++) {
        p[j] = scale * dot(d, q, i, k, j);
        largest = fmax(largest, p[j]);
    }
    for (int64_t j = first; j <= last; j++) sum += exp(p[j] - largest);
    double lse = largest + log(sum);
    for (int64_t c = 0; c < d->head_size; c++) {
        double value = 0;
        for (int64_t j = first; j <= last; j++)
            value += exp(p[j] - largest) / sum * load(d, v, j, c);
        tr_ref_store(d->dtype, y, to + c, value);
    }
    return lse;
}

/* Head `head` of sequence b in packed QKV[batch, seq, heads + 2 kv_heads, head_size]. */
static head_rows packed(const tr_attention_desc *d, const void *qkv, int64_t seq, int64_t b,
                        int64_t head) {
    int64_t row = tr_attention_row(d);
    return (head_rows){qkv, b * seq * row + head * d->head_size, row};
}

/* The same of `heads` heads. */
static head_rows plain(const tr_attention_desc *d, int64_t heads, const void *memory, int64_t seq,
                       int64_t b, int64_t h) {
    int64_t width = heads * d->head_size;
    return (head_rows){memory, b * seq * width + h * d->head_size, width};
}

/* The query head h of sequence b, with the key and value that it looks at. */
typedef struct triple {
    head_rows q, k, v;
} triple;

static triple triple_of(const tr_attention_desc *d, const void *qkv, int64_t seq, int64_t b,
                        int64_t h) {
    int64_t key = d->heads + tr_attention_kv_head(d, h);
    return (triple){packed(d, qkv, seq, b, h), packed(d, qkv, seq, b, key),
                    packed(d, qkv, seq, b, key + d->kv_heads)};
}

/* The first token that token t of sequence b sees. */
static int64_t first_of(const tr_attention_desc *d, const int32_t *starts, int64_t b, int64_t t) {
    return tr_attention_first(d, t, d->documents ? starts[b * d->seq + t] : 0);
}

tr_status tr_ref_attention(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    void *out = args->t[TR_ATTENTION_Y].data;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads; h++) {
            triple x = triple_of(d, args->t[TR_ATTENTION_QKV].data, d->seq, b, h);
            head_rows y = plain(d, d->heads, out, d->seq, b, h);
            for (int64_t i = 0; i < d->seq; i++) {
                int64_t first = first_of(d, args->t[TR_ATTENTION_STARTS].data, b, i);
                double lse = attend(d, x.q, i, x.k, x.v, first, i, args->scratch, out,
                                    y.first + i * y.stride);
                tr_ref_set(args, TR_ATTENTION_LSE, (b * d->heads + h) * d->seq + i, lse);
            }
        }
    return TR_OK;
}

/* P and dS of one head, [seq, seq] each, zero where a query does not see a key: p = exp(s - lse),
 * ds = p (dp - delta) scale, dp = dy.v, and delta the mean of dp that p weights. (Dao et al. 2022,
 * algorithm 4, has dy.y instead, which is equal except for the rounding of y; every key of the row
 * would share that error. A row of p adds up to 1 except for the rounding of lse, which a sum p.dp
 * would pass on likewise.) */
static void head_gradients(const tr_attention_desc *d, const tr_op_args *args, int64_t b, int64_t h,
                           double *p, double *ds) {
    triple x = triple_of(d, args->t[TR_ATTENTION_DGRAD_QKV].data, d->seq, b, h);
    head_rows dy = plain(d, d->heads, args->t[TR_ATTENTION_DGRAD_DY].data, d->seq, b, h);
    double scale = scale_of(d);
    for (int64_t i = 0; i < d->seq; i++) {
        int64_t first = first_of(d, args->t[TR_ATTENTION_DGRAD_STARTS].data, b, i);
        double lse = tr_ref_get(args, TR_ATTENTION_DGRAD_LSE, (b * d->heads + h) * d->seq + i);
        double sum = 0, delta = 0, *row_p = p + i * d->seq, *row_ds = ds + i * d->seq;
        for (int64_t j = 0; j < d->seq; j++) {
            bool seen = j >= first && j <= i;
            row_p[j] = seen ? exp(scale * dot(d, x.q, i, x.k, j) - lse) : 0;
            row_ds[j] = seen ? dot(d, dy, i, x.v, j) : 0;
            sum += row_p[j];
            delta += row_p[j] * row_ds[j];
        }
        delta /= sum;
        for (int64_t j = 0; j < d->seq; j++) row_ds[j] = row_p[j] * (row_ds[j] - delta) * scale;
    }
}

/* Stores dQ of query head h, and adds its part to dk and dv[seq, head_size] of its key and
 * value. */
static void add_head(const tr_attention_desc *d, const tr_op_args *args, int64_t b, int64_t h,
                     const double *p, const double *ds, double *dk, double *dv) {
    triple x = triple_of(d, args->t[TR_ATTENTION_DGRAD_QKV].data, d->seq, b, h);
    head_rows dy = plain(d, d->heads, args->t[TR_ATTENTION_DGRAD_DY].data, d->seq, b, h);
    for (int64_t i = 0; i < d->seq; i++)
        for (int64_t c = 0; c < d->head_size; c++) {
            double sum_q = 0, sum_k = 0, sum_v = 0; /* of row i; the sums run over j */
            for (int64_t j = 0; j < d->seq; j++) {
                sum_q += ds[i * d->seq + j] * load(d, x.k, j, c);
                sum_k += ds[j * d->seq + i] * load(d, x.q, j, c);
                sum_v += p[j * d->seq + i] * load(d, dy, j, c);
            }
            tr_ref_store(d->dtype, args->t[TR_ATTENTION_DGRAD_DQKV].data,
                         x.q.first + i * x.q.stride + c, sum_q);
            dk[i * d->head_size + c] += sum_k;
            dv[i * d->head_size + c] += sum_v;
        }
}

tr_status tr_ref_attention_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    const int64_t group = d->heads / d->kv_heads, count = d->seq * d->head_size;
    double *p = args->scratch, *ds = p + d->seq * d->seq;
    double *dk = ds + d->seq * d->seq, *dv = dk + count;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t key = 0; key < d->kv_heads; key++) {
            memset(dk, 0, (size_t)(2 * count) * sizeof *dk);
            for (int64_t h = key * group; h < (key + 1) * group; h++) {
                head_gradients(d, args, b, h, p, ds);
                add_head(d, args, b, h, p, ds, dk, dv);
            }
            triple to = triple_of(d, args->t[TR_ATTENTION_DGRAD_DQKV].data, d->seq, b, key * group);
            for (int64_t i = 0; i < count; i++) {
                int64_t row = i / d->head_size, c = i % d->head_size;
                tr_ref_store(d->dtype, args->t[TR_ATTENTION_DGRAD_DQKV].data,
                             to.k.first + row * to.k.stride + c, dk[i]);
                tr_ref_store(d->dtype, args->t[TR_ATTENTION_DGRAD_DQKV].data,
                             to.v.first + row * to.v.stride + c, dv[i]);
            }
        }
    return TR_OK;
}

tr_status tr_ref_attention_decode(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    void *kcache = args->t[TR_DECODE_KCACHE].data, *vcache = args->t[TR_DECODE_VCACHE].data;
    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t begin = args->state->position[b];
        if (begin < 0 || begin > d->seq - d->decode)
            return TR_FAIL(TR_ERR_INTERNAL, "position %lld is outside a cache of %lld tokens",
                           (long long)begin, (long long)d->seq);
        for (int64_t h = 0; h < d->heads; h++) {
            int64_t key = tr_attention_kv_head(d, h);
            triple token = triple_of(d, args->t[TR_DECODE_QKV].data, d->decode, b, h);
            head_rows k = plain(d, d->kv_heads, kcache, d->seq, b, key);
            head_rows v = plain(d, d->kv_heads, vcache, d->seq, b, key);
            head_rows y = plain(d, d->heads, NULL, d->decode, b, h);
            for (int64_t i = 0; i < d->decode; i++) {
                const int64_t position = begin + i;
                for (int64_t c = 0; c < d->head_size; c++) {
                    tr_ref_store(d->dtype, kcache, k.first + position * k.stride + c,
                                 load(d, token.k, i, c));
                    tr_ref_store(d->dtype, vcache, v.first + position * v.stride + c,
                                 load(d, token.v, i, c));
                }
                (void)attend(d, token.q, i, k, v, tr_attention_first(d, position, 0), position,
                             args->scratch, args->t[TR_DECODE_Y].data, y.first + i * y.stride);
            }
        }
    }
    return TR_OK;
}
