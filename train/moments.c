#include "train/moments.h"

#include "base/code8.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "partition/quantized.h"

#include <stdlib.h>

/* The operators of a run, of whole parts and of the rest; NULL where there are none. */
enum { WHOLE, REST, SIZES };
typedef struct run_step {
    tr_op *step[SIZES], *widen[TR_QUANTIZED_KINDS][SIZES], *quantize[TR_QUANTIZED_KINDS][SIZES];
    int states;
} run_step;

struct tr_moments {
    const tr_store *store;
    run_step *run;                  /* [store->runs] */
    int64_t part;                   /* elements that are stepped at a time */
    char *memory;                   /* device: of `wide` */
    char *wide[TR_QUANTIZED_KINDS]; /* a part of each kind in FP32; NULL: it is not quantized */
};

/* Returns the type in which the store keeps numbers of this kind. */
static tr_dtype dtype_of(const tr_store *store, int kind) {
    if (kind == TR_QUANTIZED_GRADIENT) return store->grad_dtype;
    return kind == TR_QUANTIZED_VALUE ? store->dtype : store->state_dtype;
}

/* Returns true when the steps of a run widen numbers of this kind. */
static bool widens(const tr_moments *m, const run_step *x, int kind) {
    return m->wide[kind] && (kind >= TR_QUANTIZED_VALUE || kind < x->states);
}

static tr_status prepare(const tr_store *store, const tr_op_desc *desc, size_t *scratch,
                         tr_op **out) {
    TR_TRY(tr_op_prepare(&(tr_op_context){.device = store->device}, desc, out));
    if ((*out)->scratch_bytes > *scratch) *scratch = (*out)->scratch_bytes;
    return TR_OK;
}

static tr_status prepare_size(const tr_moments *m, const tr_optim_config *config, const tr_run *run,
                              int64_t count, int size, size_t *scratch, run_step *out) {
    const tr_store *store = m->store;
    tr_optim_config own = *config;
    own.kind = run->optimizer;
    const tr_op_desc step = tr_optim_update(
        &own, count, store->no_master ? store->acc : store->dtype, run->decay, run->lr_scale);
    TR_TRY(prepare(store, &step, scratch, &out->step[size]));
    for (int k = 0; k < TR_QUANTIZED_KINDS; k++) {
        if (!widens(m, out, k)) continue;
        const tr_op_desc widen = tr_quantized_widen(dtype_of(store, k), k, count);
        tr_op_desc quantize;
        TR_TRY(prepare(store, &widen, scratch, &out->widen[k][size]));
        if (k == TR_QUANTIZED_GRADIENT) continue; /* a step only reads it */
        TR_TRY(tr_quantized_round(store->slot[run->slot].param, dtype_of(store, k), k, count,
                                  &quantize));
        TR_TRY(prepare(store, &quantize, scratch, &out->quantize[k][size]));
    }
    return TR_OK;
}

static tr_status prepare_run(const tr_moments *m, const tr_optim_config *config, int i,
                             size_t *scratch) {
    const tr_run *run = &m->store->run[i];
    const int64_t rest = run->count % m->part;
    run_step *out = &m->run[i];
    out->states = tr_update_states(tr_optim_row_of(run->optimizer)->rule);
    if (run->count >= m->part) TR_TRY(prepare_size(m, config, run, m->part, WHOLE, scratch, out));
    return rest ? prepare_size(m, config, run, rest, REST, scratch, out) : TR_OK;
}

static tr_status alloc_wide(tr_moments *m, tr_optim_memory optimizer, int64_t largest) {
    const size_t bytes = tr_quantized_bytes(m->store->device, optimizer, largest);
    const size_t each = tr_align_up((size_t)m->part * sizeof(float));
    if (bytes == 0) return TR_OK;
    TR_TRY(tr_device_alloc(m->store->device, TR_MEMORY_DATA, bytes, (void **)&m->memory));
    char *next = m->memory;
    if (m->store->no_master) {
        m->wide[TR_QUANTIZED_VALUE] = next;
        next += each;
    }
    if (m->store->grad_dtype != m->store->acc) {
        m->wide[TR_QUANTIZED_GRADIENT] = next;
        next += each;
    }
    for (int k = 0; k < TR_OPTIM_STATES && next < m->memory + bytes; k++, next += each)
        m->wide[k] = next;
    return TR_OK;
}

tr_status tr_moments_create(const tr_store *store, const tr_optim_config *config, size_t *scratch,
                            tr_moments **out) {
    tr_status status = TR_OK;
    tr_moments *m;
    int64_t largest = 0;
    *out = NULL;
    if (store->state_dtype == store->acc && store->grad_dtype == store->acc && !store->no_master)
        return TR_OK;
    TR_TRY(tr_calloc(1, sizeof *m, &m));
    m->store = store;
    /* Whole parameters count, also where data ranks divide them: every rank plans the same. */
    for (int i = 0; i < store->slots; i++)
        if (store->slot[i].shares < 0 && !store->slot[i].param->frozen &&
            store->slot[i].param->count > largest)
            largest = store->slot[i].param->count;
    m->part = tr_quantized_part(store->device, largest);
    TR_TRY_OUT(alloc_wide(m, tr_optim_memory_of(config), largest));
    TR_TRY_OUT(tr_calloc((size_t)store->runs + 1, sizeof *m->run, &m->run));
    for (int i = 0; i < store->runs; i++) TR_TRY_OUT(prepare_run(m, config, i, scratch));
out:
    if (status != TR_OK) tr_moments_destroy(m);
    else *out = m;
    return status;
}

void tr_moments_destroy(tr_moments *m) {
    if (!m) return;
    for (int i = 0; m->run && i < m->store->runs; i++)
        for (int size = 0; size < SIZES; size++) {
            tr_op_release(m->run[i].step[size]);
            for (int k = 0; k < TR_QUANTIZED_KINDS; k++) {
                tr_op_release(m->run[i].widen[k][size]);
                tr_op_release(m->run[i].quantize[k][size]);
            }
        }
    if (m->memory) tr_device_free(m->store->device, m->memory);
    free(m->run);
    free(m);
}

static tr_tensor wide_of(const tr_moments *m, int k, int64_t n) {
    return tr_tensor_vector(m->wide[k], TR_F32, n);
}

/* Returns numbers at .. at + n - 1 of a run, as the store keeps them. */
static tr_tensor kept_of(const tr_moments *m, const tr_run *run, int k, int64_t at, int64_t n) {
    const tr_dtype dtype = dtype_of(m->store, k);
    char *first = k == TR_QUANTIZED_VALUE      ? run->value
                  : k == TR_QUANTIZED_GRADIENT ? run->grad
                                               : run->state[k];
    return tr_tensor_vector(first + (size_t)at * tr_dtype_size(dtype), dtype, n);
}

/* Returns the scales of the blocks of elements at .. at + n - 1, if it has scales. */
static tr_tensor scales_of(const tr_moments *m, const tr_run *run, int k, int64_t at, int64_t n) {
    if (dtype_of(m->store, k) != TR_U8) return (tr_tensor){0};
    const float *scales =
        (const float *)(const void *)(run->state[k] + tr_code8_scales(run->count));
    return tr_tensor_vector(scales + at / TR_CODE8_BLOCK, TR_F32,
                            (n + TR_CODE8_BLOCK - 1) / TR_CODE8_BLOCK);
}

static tr_status widen(const tr_moments *m, const tr_run *run, tr_op *op, int k, int64_t at,
                       int64_t n, tr_stream *stream, void *scratch) {
    const bool codes = dtype_of(m->store, k) == TR_U8;
    tr_op_args args = {.scratch = scratch};
    args.t[codes ? TR_QUANTIZE_Y : TR_CAST_X] = kept_of(m, run, k, at, n);
    args.t[codes ? TR_QUANTIZE_X : TR_CAST_Y] = wide_of(m, k, n);
    if (codes) args.t[TR_QUANTIZE_SCALES] = scales_of(m, run, k, at, n);
    return tr_op_run(op, stream, &args);
}

/* Returns the operands of the step of elements at .. at + n - 1, which are wide where they are not
 * kept so. */
static tr_op_args step_args(const tr_moments *m, const tr_run *run, const run_step *x, int64_t at,
                            int64_t n) {
    const tr_store *store = m->store;
    const size_t offset = (size_t)at * tr_dtype_size(store->acc);
    tr_op_args step = {
        .t = {[TR_UPDATE_GRAD] = m->wide[TR_QUANTIZED_GRADIENT]
                                     ? wide_of(m, TR_QUANTIZED_GRADIENT, n)
                                     : kept_of(m, run, TR_QUANTIZED_GRADIENT, at, n)}};
    step.t[TR_UPDATE_MASTER] = store->no_master
                                   ? wide_of(m, TR_QUANTIZED_VALUE, n)
                                   : tr_tensor_vector(run->master + offset, store->acc, n);
    step.t[TR_UPDATE_VALUE] =
        store->no_master ? step.t[TR_UPDATE_MASTER] : kept_of(m, run, TR_QUANTIZED_VALUE, at, n);
    for (int k = 0; k < x->states; k++)
        step.t[TR_UPDATE_M + k] = m->wide[k] ? wide_of(m, k, n) : kept_of(m, run, k, at, n);
    return step;
}

/* Steps elements at .. at + n - 1 of a run with the operators of this size. */
static tr_status step_part(const tr_moments *m, int i, int size, int64_t at, int64_t n,
                           tr_stream *stream, tr_step_state *state, void *scratch) {
    const tr_store *store = m->store;
    const tr_run *run = &store->run[i];
    const run_step *x = &m->run[i];
    tr_op_args step = step_args(m, run, x, at, n);
    step.scratch = scratch;
    step.state = state;
    if (x->step[size]->desc.kind == TR_OP_DIRECTION) step.t[TR_UPDATE_VALUE] = (tr_tensor){0};
    for (int k = 0; k < TR_QUANTIZED_KINDS; k++)
        if (widens(m, x, k)) TR_TRY(widen(m, run, x->widen[k][size], k, at, n, stream, scratch));
    TR_TRY(tr_op_run(x->step[size], stream, &step));
    for (int k = 0; k < TR_QUANTIZED_KINDS; k++) {
        if (!x->quantize[k][size]) continue;
        const tr_op_args quantize = {.t = {[TR_QUANTIZE_X] = wide_of(m, k, n),
                                           [TR_QUANTIZE_Y] = kept_of(m, run, k, at, n),
                                           [TR_QUANTIZE_SCALES] = scales_of(m, run, k, at, n)},
                                     .state = state,
                                     .element = store->slot[run->slot].portion.begin + at};
        TR_TRY(tr_op_run(x->quantize[k][size], stream, &quantize));
    }
    return TR_OK;
}

tr_status tr_moments_run(tr_moments *m, tr_stream *stream, tr_step_state *state, void *scratch) {
    for (int i = 0; i < m->store->runs; i++) {
        const int64_t count = m->store->run[i].count;
        for (int64_t at = 0; at < count; at += m->part) {
            const int64_t n = tr_min_i64(m->part, count - at);
            TR_TRY(step_part(m, i, n == m->part ? WHOLE : REST, at, n, stream, state, scratch));
        }
    }
    return TR_OK;
}
