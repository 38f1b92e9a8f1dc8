/* ROPE. */
#include "device/rope.h"
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"

#include <math.h>

/* The two elements of a pair, turned by an angle and multiplied by a magnitude. */
static void rotate(const tr_rope_desc *d, void *x, int64_t first, double cosine, double sine) {
    int64_t second = first + d->head_size / 2;
    double a = tr_ref_load(d->dtype, x, first), b = tr_ref_load(d->dtype, x, second);
    tr_ref_store(d->dtype, x, first, a * cosine - b * sine);
    tr_ref_store(d->dtype, x, second, b * cosine + a * sine);
}

tr_status tr_ref_rope(tr_op *op, const tr_op_args *args) {
    const tr_rope_desc *d = &op->desc.rope;
    const int32_t *starts = args->t[TR_ROPE_STARTS].data;
    double magnitude = tr_rope_magnitude(d);
    for (int64_t r = 0; r < d->rows; r++) {
        int64_t position = tr_token_position(d->decode, d->seq, args->state, r);
        if (d->documents) position -= starts[r];
        for (int64_t i = 0; i < d->head_size / 2; i++) {
            double angle = (double)position * tr_rope_frequency(d, i);
            double cosine = magnitude * cos(angle);
            double sine = magnitude * sin(d->inverse ? -angle : angle);
            for (int64_t h = 0; h < d->heads; h++)
                rotate(d, args->t[TR_ROPE_X].data, r * d->ld + h * d->head_size + i, cosine, sine);
        }
    }
    return TR_OK;
}
