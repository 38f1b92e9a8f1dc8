/* QUANTIZE and DEQUANTIZE. */
#include "base/code8.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

/* Memory of the random bits of a block. */
typedef struct draws {
    uint32_t words[TR_BLOCK + 8 + TR_CPU_PHILOX_MORE], kept[TR_BLOCK];
} draws;

/* Returns the random bits of elements at .. at + n - 1 of X, n <= TR_BLOCK: half-words or words
 * in `memory`. */
static const void *draw(const tr_op *op, const tr_op_args *args, int64_t at, int64_t n,
                        draws *memory) {
    const tr_quantize_desc *d = &op->desc.quantize;
    const int64_t sharers = tr_quantize_sharers(d->to), size = (int64_t)sizeof(tr_philox) / sharers;
    for (int64_t i = 0, length; i < n; i += length) {
        const tr_quantize_box *box;
        int64_t adjacent;
        const int64_t place = tr_quantize_place(d, args->element + at + i, &box, &adjacent),
                      first = place / sharers;
        length = tr_min_i64(n - i, adjacent);
        tr_cpu_kernels_of(op)->philox(
            tr_rounding_key(args->state->seed, box->name, d->use), (uint64_t)first,
            tr_rounding_counter(args->state->step, args->sample),
            (place + length + sharers - 1) / sharers - first, memory->words);
        const char *own = (const char *)memory->words + (place - first * sharers) * size;
        if (length == n) return own;
        memcpy((char *)memory->kept + i * size, own, (size_t)(length * size));
    }
    return memory->kept;
}

/* Elements of a part: several operands of as many stay in a core's L2 cache. */
enum { CACHED = 1 << 15 };

/* Prefetches into the L2 cache the numbers that lie one length of Y after those at y. A parameter
 * is stepped part by part (train/updates.h), so these belong to the next part: they are read from
 * memory while the numbers of this part are rounded. Past the end of the storage a prefetch has no
 * effect. Inlined, because compilers drop calls of functions that only prefetch. */
__attribute__((always_inline)) static inline void prefetch_next(int64_t count, int64_t n,
                                                                const void *y, int64_t size) {
    if (count > CACHED) return;
    for (int64_t i = 0; i < n * size; i += 64)
        __builtin_prefetch((const char *)y + count * size + i, 0, 2);
}

static void encode(tr_op *op, const tr_op_args *args) {
    const int64_t count = op->desc.quantize.count;
    const float *x = args->t[TR_QUANTIZE_X].data;
    uint8_t *y = args->t[TR_QUANTIZE_Y].data;
    float *scales = args->t[TR_QUANTIZE_SCALES].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t at = 0; at < count; at += TR_BLOCK) { /* blocks of codes begin here, too */
        const int64_t n = tr_min_i64(TR_BLOCK, count - at);
        draws memory;
        prefetch_next(count, n, y + at, sizeof *y);
        tr_cpu_kernels_of(op)->encode(op->desc.quantize.code, n, x + at,
                                      draw(op, args, at, n, &memory), y + at,
                                      scales + at / TR_CODE8_BLOCK);
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
        draws memory;
        prefetch_next(d->count, n, y + at, sizeof *y);
        tr_cpu_kernels_of(op)->round_drawn(args->adds, n, x + at, draw(op, args, at, n, &memory),
                                           y + at);
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
