/* QUANTIZE, and the random bits for rounding. */
#include "device/cpu/cpu_impl.h"
#include "device/elementwise.h"

const uint16_t *tr_cpu_draw(const tr_op *op, const tr_op_args *args, const tr_quantize_desc *d,
                            int64_t at, int64_t n, tr_cpu_draws *memory) {
    for (int64_t i = 0, length; i < n; i += length) {
        const tr_quantize_box *box;
        int64_t adjacent;
        const int64_t place = tr_quantize_place(d, args->element + at + i, &box, &adjacent),
                      first = place / TR_QUANTIZE_SHARERS;
        length = tr_min_i64(n - i, adjacent);
        const int64_t end = (place + length + TR_QUANTIZE_SHARERS - 1) / TR_QUANTIZE_SHARERS;
        tr_cpu_kernels_of(op)->philox(
            TR_ROUNDING_ROUNDS, tr_rounding_key(args->state->seed, box->name, d->use),
            (uint64_t)first, tr_rounding_counter(args->state->step, args->sample), end - first,
            memory->words);
        const uint16_t *own =
            (const uint16_t *)memory->words + (place - first * TR_QUANTIZE_SHARERS);
        if (length == n) return own;
        memcpy(memory->kept + i, own, (size_t)length * sizeof *own);
    }
    return memory->kept;
}

static tr_status run_quantize(tr_op *op, const tr_op_args *args) {
    const tr_quantize_desc *d = &op->desc.quantize;
    const float *x = args->t[TR_QUANTIZE_X].data;
    uint16_t *y = args->t[TR_QUANTIZE_Y].data;
    if (args->state->skip) return TR_OK;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->count))
    for (int64_t at = 0; at < d->count; at += TR_BLOCK) {
        const int64_t n = tr_min_i64(TR_BLOCK, d->count - at);
        tr_cpu_draws memory;
        tr_cpu_kernels_of(op)->round_drawn(
            args->adds, n, x + at, tr_cpu_draw(op, args, d, at, n, &memory), d->use, y + at);
    }
    return TR_OK;
}

tr_status tr_cpu_prepare_quantize(const tr_op_context *context, const tr_op_desc *desc,
                                  tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_quantize, out);
}
