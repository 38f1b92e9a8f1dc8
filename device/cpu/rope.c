/* Rotary positions: ROPE. A row's cosines and sines are computed once for all of its heads. */
#include "device/rope.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

/* Pairs of the largest head. */
enum { PAIRS = TR_BLOCK / 2 };

typedef struct cpu_rope {
    tr_host_op base;
    float magnitude;
    uint64_t turns[]; /* [head_size / 2] */
} cpu_rope;

/* Turns the pairs of one head: a is its first half, b its second. */
static void rotate(int64_t half, const float *cosine, const float *sine, const float *a,
                   const float *b, float *to_a, float *to_b) {
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float first = a[i], second = b[i]; /* both are read before either is written */
        to_a[i] = first * cosine[i] - second * sine[i];
        to_b[i] = second * cosine[i] + first * sine[i];
    }
}

static tr_status run_rope(tr_op *op, const tr_op_args *args) {
    const cpu_rope *rope = (const cpu_rope *)op;
    const tr_rope_desc *d = &op->desc.rope;
    const int32_t *starts = args->t[TR_ROPE_STARTS].data;
    const int64_t half = d->head_size / 2;
    const float magnitude = rope->magnitude, towards = d->inverse ? -magnitude : magnitude;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(tr_cpu_threads(op, d->rows * d->heads * d->head_size))
    for (int64_t r = 0; r < d->rows; r++) {
        float cosine[PAIRS], sine[PAIRS], in[TR_BLOCK], out[TR_BLOCK];
        const int64_t index = d->decode ? args->state->position : r % d->seq;
        const uint64_t position = (uint64_t)(index - (d->documents ? starts[r] : 0));
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
            tr_rope_rotation(position * rope->turns[i], &cosine[i], &sine[i]);
            cosine[i] *= magnitude;
            sine[i] *= towards;
        }
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t at = r * d->ld + h * d->head_size;
            const float *x = tr_row_load(d->dtype, args->t[TR_ROPE_X].data, at, d->head_size, in);
            float *y = tr_row_target(d->dtype, args->t[TR_ROPE_X].data, at, out);
            rotate(half, cosine, sine, x, x + half, y, y + half);
            tr_row_store(d->dtype, args->t[TR_ROPE_X].data, at, d->head_size, y);
        }
    }
    return TR_OK;
}

tr_status tr_cpu_prepare_rope(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    const tr_rope_desc *d = &desc->rope;
    if (d->head_size > TR_BLOCK)
        return TR_FAIL(TR_ERR_DEVICE,
                       "the cpu device turns heads of up to %d by position, not of %lld: use more "
                       "heads",
                       (int)TR_BLOCK, (long long)d->head_size);
    size_t bytes = sizeof(cpu_rope) + (size_t)(d->head_size / 2) * sizeof(uint64_t);
    TR_TRY(tr_host_op_create(context, desc, bytes, 0, run_rope, out));
    cpu_rope *rope = (cpu_rope *)*out;
    rope->magnitude = (float)tr_rope_magnitude(d);
    tr_rope_turns(d, rope->turns);
    return TR_OK;
}
