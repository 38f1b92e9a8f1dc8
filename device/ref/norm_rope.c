/* NORM_ROPE and its gradient. */
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"
#include "device/rope.h"

#include <math.h>

/* One head: where its elements of X and of the dense operands begin, its index among all heads, and
 * its token's position. */
typedef struct ref_head {
    int64_t x, at, index;
    double position;
} ref_head;

static ref_head head_of(const tr_rope_desc *d, const tr_op_args *args, const int32_t *starts,
                        int64_t index) {
    const int64_t row = index / d->heads, head = index % d->heads;
    const int64_t position = tr_token_position(d->decode, d->seq, args->state, row);
    return (ref_head){.x = row * d->ld + head * d->head_size,
                      .at = index * d->head_size,
                      .index = index,
                      .position = (double)(position - (d->documents ? starts[row] : 0))};
}

/* Turns a pair by its angle, or back. */
static void rotate(const tr_rope_desc *d, double position, int64_t pair, bool back, double *a,
                   double *b) {
    const double angle = position * tr_rope_frequency(d, pair), first = *a, second = *b;
    const double cosine = tr_rope_magnitude(d) * cos(angle);
    const double sine = tr_rope_magnitude(d) * sin(back ? -angle : angle);
    *a = first * cosine - second * sine;
    *b = second * cosine + first * sine;
}

static void forward(const tr_norm_rope_desc *n, const tr_op_args *args, const ref_head *h) {
    const tr_rope_desc *d = &n->rope;
    const int64_t half = d->head_size / 2;
    double squares = 0;
    for (int64_t c = 0; c < d->head_size; c++) {
        const double v = tr_ref_get(args, TR_NORM_ROPE_X, h->x + c);
        if (!d->decode) tr_ref_set(args, TR_NORM_ROPE_KEPT, h->at + c, v);
        squares += v * v;
    }
    const double rstd = 1 / sqrt(squares / (double)d->head_size + tr_ref_scalar(d->dtype, n->eps));
    tr_ref_set(args, TR_NORM_ROPE_RSTD, h->index, rstd);
    for (int64_t i = 0; i < half; i++) {
        double a = tr_ref_get(args, TR_NORM_ROPE_X, h->x + i);
        double b = tr_ref_get(args, TR_NORM_ROPE_X, h->x + half + i);
        a *= rstd * tr_ref_get(args, TR_NORM_ROPE_GAMMA, i);
        b *= rstd * tr_ref_get(args, TR_NORM_ROPE_GAMMA, half + i);
        rotate(d, h->position, i, false, &a, &b);
        tr_ref_set(args, TR_NORM_ROPE_X, h->x + i, a);
        tr_ref_set(args, TR_NORM_ROPE_X, h->x + half + i, b);
    }
}

/* The gradient of the norm's result, pair by pair. */
static void gradient_of_pair(const tr_rope_desc *d, const tr_op_args *args, const ref_head *h,
                             int64_t i, double *a, double *b) {
    *a = tr_ref_get(args, TR_NORM_ROPE_DGRAD_DX, h->x + i);
    *b = tr_ref_get(args, TR_NORM_ROPE_DGRAD_DX, h->x + d->head_size / 2 + i);
    rotate(d, h->position, i, true, a, b);
}

/* dy gamma, and x rstd, of element c. */
static double weighted(const tr_op_args *args, int64_t c, double dy) {
    return dy * tr_ref_get(args, TR_NORM_ROPE_DGRAD_GAMMA, c);
}
static double normal(const tr_op_args *args, const ref_head *h, int64_t c) {
    return tr_ref_get(args, TR_NORM_ROPE_DGRAD_X, h->at + c) *
           tr_ref_get(args, TR_NORM_ROPE_DGRAD_RSTD, h->index);
}

static void backward(const tr_rope_desc *d, const tr_op_args *args, const ref_head *h) {
    const int64_t half = d->head_size / 2;
    const double rstd = tr_ref_get(args, TR_NORM_ROPE_DGRAD_RSTD, h->index);
    double a, b, mean = 0;
    for (int64_t i = 0; i < half; i++) {
        gradient_of_pair(d, args, h, i, &a, &b);
        mean += weighted(args, i, a) * normal(args, h, i) / (double)d->head_size;
        mean += weighted(args, half + i, b) * normal(args, h, half + i) / (double)d->head_size;
    }
    for (int64_t i = 0; i < half; i++) {
        gradient_of_pair(d, args, h, i, &a, &b);
        tr_ref_set(args, TR_NORM_ROPE_DGRAD_DNORMED, h->at + i, a);
        tr_ref_set(args, TR_NORM_ROPE_DGRAD_DNORMED, h->at + half + i, b);
        a = rstd * (weighted(args, i, a) - normal(args, h, i) * mean);
        b = rstd * (weighted(args, half + i, b) - normal(args, h, half + i) * mean);
        tr_ref_set(args, TR_NORM_ROPE_DGRAD_DX, h->x + i, a);
        tr_ref_set(args, TR_NORM_ROPE_DGRAD_DX, h->x + half + i, b);
    }
}

tr_status tr_ref_norm_rope(tr_op *op, const tr_op_args *args) {
    const tr_norm_rope_desc *d = &op->desc.norm_rope;
    for (int64_t i = 0; i < d->rope.rows * d->rope.heads; i++) {
        const ref_head h = head_of(&d->rope, args, args->t[TR_NORM_ROPE_STARTS].data, i);
        forward(d, args, &h);
    }
    return TR_OK;
}

tr_status tr_ref_norm_rope_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_rope_desc *d = &op->desc.norm_rope.rope;
    for (int64_t i = 0; i < d->rows * d->heads; i++) {
        const ref_head h = head_of(d, args, args->t[TR_NORM_ROPE_DGRAD_STARTS].data, i);
        backward(d, args, &h);
    }
    return TR_OK;
}
