/* QUANTIZE and DEQUANTIZE. */
#include "base/code8.h"
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

/* Encodes x[n], the block of elements at .. at + n - 1 of a parameter. */
static void encode_block(const tr_op *op, const tr_step_state *state, int64_t at, int64_t n,
                         const float *x, uint8_t *y, float *scale) {
    const bool squares = op->desc.quantize.squares;
    uint32_t draw[TR_BLOCK];
    float largest = 0;
    draw_words(op, state, at, n, draw);
    for (int64_t i = 0; i < n; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    const float s = tr_code8_scale(largest);
    *scale = s;
    if (squares)
        for (int64_t i = 0; i < n; i++) y[i] = tr_code8_encode(x[i], s, true, draw[i]);
    else
        for (int64_t i = 0; i < n; i++) y[i] = tr_code8_encode(x[i], s, false, draw[i]);
}

static void encode(tr_op *op, const tr_op_args *args) {
    const int64_t count = op->desc.quantize.count;
    const float *x = args->t[TR_QUANTIZE_X].data;
    uint8_t *y = args->t[TR_QUANTIZE_Y].data;
    float *scales = args->t[TR_QUANTIZE_SCALES].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t at = 0; at < count; at += TR_CODE8_BLOCK)
        encode_block(op, args->state, args->element + at, tr_min_i64(TR_CODE8_BLOCK, count - at),
                     x + at, y + at, scales + at / TR_CODE8_BLOCK);
}

static tr_status run_dequantize(tr_op *op, const tr_op_args *args) {
    const tr_quantize_desc *d = &op->desc.quantize;
    const bool squares = d->squares;
    const uint8_t *y = args->t[TR_QUANTIZE_Y].data;
    const float *scales = args->t[TR_QUANTIZE_SCALES].data;
    float *x = args->t[TR_QUANTIZE_X].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->count))
    for (int64_t at = 0; at < d->count; at += TR_CODE8_BLOCK) {
        const int64_t end = tr_min_i64(d->count, at + TR_CODE8_BLOCK);
        const float scale = scales[at / TR_CODE8_BLOCK];
        for (int64_t i = at; i < end; i++) x[i] = tr_code8_decode(y[i], scale, squares);
    }
    return TR_OK;
}

static tr_status run_quantize(tr_op *op, const tr_op_args *args) {
    const tr_quantize_desc *d = &op->desc.quantize;
    const float *x = args->t[TR_QUANTIZE_X].data;
    uint16_t *y = args->t[TR_QUANTIZE_Y].data;
    if (args->state->skip) return TR_OK;
    if (d->to == TR_U8) {
        encode(op, args);
        return TR_OK;
    }
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
tr_status tr_cpu_prepare_dequantize(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_dequantize, out);
}
