/* QUANTIZE. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

/* Draws the words of elements at .. at + n - 1 of a parameter, n <= TR_BLOCK, to draw[]. */
static void draw_words(const tr_op *op, const tr_step_state *state, int64_t at, int64_t n,
                       uint32_t *draw) {
    const tr_quantize_desc *d = &op->desc.quantize;
    uint32_t bits[TR_BLOCK + 8 + 4 * 8];
    for (int64_t i = 0, length; i < n; i += length) {
        const tr_quantize_box *box;
        int64_t adjacent;
        const int64_t place = tr_quantize_place(d, at + i, &box, &adjacent), quad = place / 4;
        length = tr_min_i64(n - i, adjacent);
        tr_cpu_kernels_of(op)->philox(tr_rounding_key(state->seed, box->name, d->use),
                                      (uint64_t)quad, (uint64_t)state->step,
                                      (place + length + 3) / 4 - quad, bits);
        memcpy(draw + i, bits + (place - 4 * quad), (size_t)length * sizeof *draw);
    }
}

static tr_status run_quantize(tr_op *op, const tr_op_args *args) {
    const tr_quantize_desc *d = &op->desc.quantize;
    const float *x = args->t[TR_QUANTIZE_X].data;
    uint16_t *y = args->t[TR_QUANTIZE_Y].data;
    if (args->state->skip) return TR_OK;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->count))
    for (int64_t at = 0; at < d->count; at += TR_BLOCK) {
        const int64_t n = tr_min_i64(TR_BLOCK, d->count - at);
        uint32_t draw[TR_BLOCK];
        draw_words(op, args->state, args->element + at, n, draw);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[at + i] = tr_round_bf16(x[at + i], draw[i]);
    }
    return TR_OK;
}

tr_status tr_cpu_prepare_quantize(const tr_op_context *context, const tr_op_desc *desc,
                                  tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_quantize, out);
}
