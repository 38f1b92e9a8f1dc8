/* QUANTIZE and DEQUANTIZE. */
#include "base/code8.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

/* Draws the words of elements at .. at + n - 1 of X, n <= TR_BLOCK, to draw[]. */
static void draw_words(const tr_op *op, const tr_op_args *args, int64_t at, int64_t n,
                       uint32_t *draw) {
    const tr_quantize_desc *d = &op->desc.quantize;
    uint32_t bits[TR_BLOCK + 8 + TR_CPU_PHILOX_MORE];
    for (int64_t i = 0, length; i < n; i += length) {
        const tr_quantize_box *box;
        int64_t adjacent;
        const int64_t place = tr_quantize_place(d, args->element + at + i, &box, &adjacent),
                      quad = place / 4;
        length = tr_min_i64(n - i, adjacent);
        tr_cpu_kernels_of(op)->philox(tr_rounding_key(args->state->seed, box->name, d->use),
                                      (uint64_t)quad,
                                      tr_rounding_counter(args->state->step, args->sample),
                                      (place + length + 3) / 4 - quad, bits);
        memcpy(draw + i, bits + (place - 4 * quad), (size_t)length * sizeof *draw);
    }
}

static void encode(tr_op *op, const tr_op_args *args) {
    const int64_t count = op->desc.quantize.count;
    const float *x = args->t[TR_QUANTIZE_X].data;
    uint8_t *y = args->t[TR_QUANTIZE_Y].data;
    float *scales = args->t[TR_QUANTIZE_SCALES].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t at = 0; at < count; at += TR_CODE8_BLOCK) {
        const int64_t n = tr_min_i64(TR_CODE8_BLOCK, count - at);
        uint32_t draw[TR_CODE8_BLOCK];
        draw_words(op, args, at, n, draw);
        scales[at / TR_CODE8_BLOCK] =
            tr_cpu_kernels_of(op)->encode(op->desc.quantize.code, n, x + at, draw, y + at);
    }
}

static tr_status run_dequantize(tr_op *op, const tr_op_args *args) {
    const tr_quantize_desc *d = &op->desc.quantize;
    const uint8_t *y = args->t[TR_QUANTIZE_Y].data;
    const float *scales = args->t[TR_QUANTIZE_SCALES].data;
    float *x = args->t[TR_QUANTIZE_X].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->count))
    for (int64_t at = 0; at < d->count; at += TR_CODE8_BLOCK) {
        const int64_t n = tr_min_i64(d->count - at, TR_CODE8_BLOCK);
        tr_cpu_kernels_of(op)->decode(d->code, n, y + at, scales[at / TR_CODE8_BLOCK], x + at);
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
        draw_words(op, args, at, n, draw);
        tr_cpu_kernels_of(op)->round_drawn(args->adds, n, x + at, draw, y + at);
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
