/* Causal attention, its gradient, and its step of one token. */
#include "device/ref/ref_impl.h"

#include <math.h>

/* Rows of head_dim elements, `stride` elements apart, from element `first` of storage. */
typedef struct head_rows {
    const void *memory;
    int64_t first, stride;
} head_rows;

static double load(const tr_attention_desc *d, head_rows rows, int64_t row, int64_t c) {
    return tr_ref_load(d->dtype, rows.memory, rows.first + row * rows.stride + c);
}

static double dot(const tr_attention_desc *d, head_rows a, int64_t i, head_rows b, int64_t j) {
    double sum = 0;
    for (int64_t c = 0; c < d->head_dim; c++) sum += load(d, a, i, c) * load(d, b, j, c);
    return sum;
}

/* Query i over the keys and values 0..last: y[head_dim] stored from element `to` on; returns the
 * log-sum-exp of the scaled scores. p[last + 1] is scratch. */
static double attend(const tr_attention_desc *d, head_rows q, int64_t i, head_rows k, head_rows v,
                     int64_t last, double *p, void *y, int64_t to) {
    double scale = 1 / sqrt((double)d->head_dim), largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= last; j++) {
        p[j] = scale * dot(d, q, i, k, j);
        largest = fmax(largest, p[j]);
    }
    for (int64_t j = 0; j <= last; j++) sum += exp(p[j] - largest);
    double lse = largest + log(sum);
    for (int64_t c = 0; c < d->head_dim; c++) {
        double value = 0;
        for (int64_t j = 0; j <= last; j++) value += exp(p[j] - largest) / sum * load(d, v, j, c);
        tr_ref_store(d->dtype, y, to + c, value);
    }
    return lse;
}

/* Part 0, 1, 2 (q, k, v) of head h of sequence b in packed QKV[batch, seq, 3, heads, head_dim]. */
static head_rows packed(const tr_attention_desc *d, const void *qkv, int64_t seq, int64_t b,
                        int64_t h, int64_t part) {
    int64_t width = d->heads * d->head_dim;
    return (head_rows){qkv, b * seq * 3 * width + part * width + h * d->head_dim, 3 * width};
}

/* Head h of sequence b in [batch, seq, heads, head_dim]. */
static head_rows plain(const tr_attention_desc *d, const void *memory, int64_t seq, int64_t b,
                       int64_t h) {
    int64_t width = d->heads * d->head_dim;
    return (head_rows){memory, b * seq * width + h * d->head_dim, width};
}

tr_status tr_ref_attention(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    const void *qkv = args->t[TR_ATTENTION_QKV].data;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads; h++) {
            head_rows q = packed(d, qkv, d->seq, b, h, 0), k = packed(d, qkv, d->seq, b, h, 1);
            head_rows v = packed(d, qkv, d->seq, b, h, 2);
            head_rows y = plain(d, args->t[TR_ATTENTION_Y].data, d->seq, b, h);
            for (int64_t i = 0; i < d->seq; i++) {
                double lse = attend(d, q, i, k, v, i, args->scratch, args->t[TR_ATTENTION_Y].data,
                                    y.first + i * y.stride);
                tr_ref_store(TR_F32, args->t[TR_ATTENTION_LSE].data,
                             (b * d->heads + h) * d->seq + i, lse);
            }
        }
    return TR_OK;
}

/* P and dS of one head, [seq, seq] each, zero above the diagonal: p = exp(s - lse),
 * ds = p (dy.v - dy.y) scale (Dao et al. 2022, algorithm 4 without its tiles). */
static void head_gradients(const tr_attention_desc *d, const tr_op_args *args, int64_t b, int64_t h,
                           double *p, double *ds) {
    const void *qkv = args->t[TR_ATTENTION_DGRAD_QKV].data;
    head_rows q = packed(d, qkv, d->seq, b, h, 0), k = packed(d, qkv, d->seq, b, h, 1);
    head_rows v = packed(d, qkv, d->seq, b, h, 2);
    head_rows y = plain(d, args->t[TR_ATTENTION_DGRAD_Y].data, d->seq, b, h);
    head_rows dy = plain(d, args->t[TR_ATTENTION_DGRAD_DY].data, d->seq, b, h);
    double scale = 1 / sqrt((double)d->head_dim);
    for (int64_t i = 0; i < d->seq; i++) {
        double lse = tr_ref_load(TR_F32, args->t[TR_ATTENTION_DGRAD_LSE].data,
                                 (b * d->heads + h) * d->seq + i);
        double delta = dot(d, dy, i, y, i);
        for (int64_t j = 0; j < d->seq; j++) {
            int64_t at = i * d->seq + j;
            p[at] = j <= i ? exp(scale * dot(d, q, i, k, j) - lse) : 0;
            ds[at] = j <= i ? p[at] * (dot(d, dy, i, v, j) - delta) * scale : 0;
        }
    }
}

tr_status tr_ref_attention_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    const void *qkv = args->t[TR_ATTENTION_DGRAD_QKV].data;
    void *dqkv = args->t[TR_ATTENTION_DGRAD_DQKV].data;
    double *p = args->scratch, *ds = p + d->seq * d->seq;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads; h++) {
            head_gradients(d, args, b, h, p, ds);
            head_rows q = packed(d, qkv, d->seq, b, h, 0), k = packed(d, qkv, d->seq, b, h, 1);
            head_rows v = packed(d, qkv, d->seq, b, h, 2);
            head_rows dy = plain(d, args->t[TR_ATTENTION_DGRAD_DY].data, d->seq, b, h);
            for (int64_t i = 0; i < d->seq; i++)
                for (int64_t c = 0; c < d->head_dim; c++) {
                    double dq = 0, dk = 0, dv = 0; /* of row i; the sums run over j */
                    for (int64_t j = 0; j < d->seq; j++) {
                        dq += ds[i * d->seq + j] * load(d, k, j, c);
                        dk += ds[j * d->seq + i] * load(d, q, j, c);
                        dv += p[j * d->seq + i] * load(d, dy, j, c);
                    }
                    tr_ref_store(d->dtype, dqkv, q.first + i * q.stride + c, dq);
                    tr_ref_store(d->dtype, dqkv, k.first + i * k.stride + c, dk);
                    tr_ref_store(d->dtype, dqkv, v.first + i * v.stride + c, dv);
                }
        }
    return TR_OK;
}

tr_status tr_ref_attention_decode(tr_op *op, const tr_op_args *args) {
    const tr_attention_desc *d = &op->desc.attention;
    const void *qkv = args->t[TR_DECODE_QKV].data;
    void *kcache = args->t[TR_DECODE_KCACHE].data, *vcache = args->t[TR_DECODE_VCACHE].data;
    int64_t position = args->state->position;
    if (position < 0 || position >= d->seq)
        return TR_FAIL(TR_ERR_INTERNAL, "position %lld is outside a cache of %lld tokens",
                       (long long)position, (long long)d->seq);
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads; h++) {
            head_rows k = plain(d, kcache, d->seq, b, h), v = plain(d, vcache, d->seq, b, h);
            for (int64_t c = 0; c < d->head_dim; c++) {
                tr_ref_store(d->dtype, kcache, k.first + position * k.stride + c,
                             load(d, packed(d, qkv, 1, b, h, 1), 0, c));
                tr_ref_store(d->dtype, vcache, v.first + position * v.stride + c,
                             load(d, packed(d, qkv, 1, b, h, 2), 0, c));
            }
            (void)attend(d, packed(d, qkv, 1, b, h, 0), 0, k, v, position, args->scratch,
                         args->t[TR_DECODE_Y].data, plain(d, NULL, 1, b, h).first);
        }
    return TR_OK;
}
