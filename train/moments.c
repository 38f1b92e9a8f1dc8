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
    tr_device *device;              /* that steps */
    run_step *run;                  /* [store->runs] */
    int64_t part;                   /* elements that are stepped at a time */
    char *memory;                   /* of `wide`, the device's or the host's */
    char *wide[TR_QUANTIZED_KINDS]; /* a part of each kind in FP32; NULL: it is not quantized */
};

/* Returns the type in which the store keeps numbers of this kind. */
static tr_dtype dtype_of(const tr_store *store, int kind) {
    if (kind == TR_PARAM_ROUNDING_GRADIENT) return store->grad_dtype;
    return kind == TR_PARAM_ROUNDING_VALUE ? store->dtype : store->state_dtype;
}

/* Returns true when the steps of a run widen numbers of this kind. */
static bool widens(const tr_moments *m, const run_step *x, int kind) {
    return m->wide[kind] && (kind >= TR_PARAM_ROUNDING_VALUE || kind < x->states);
}

static tr_status prepare(const tr_moments *m, const tr_op_desc *desc, size_t *scratch,
                         tr_op **out) {
    TR_TRY(tr_op_prepare(&(tr_op_context){.device = m->device}, desc, out));
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
    TR_TRY(prepare(m, &step, scratch, &out->step[size]));
    for (int k = 0; k < TR_QUANTIZED_KINDS; k++) {
        if (!widens(m, out, k)) continue;
        const tr_op_desc widen = tr_quantized_widen(dtype_of(store, k), k, count);
        tr_op_desc quantize;
        TR_TRY(prepare(m, &widen, scratch, &out->widen[k][size]));
        if (k == TR_PARAM_ROUNDING_GRADIENT) continue; /* a step only reads it */
        TR_TRY(tr_param_rounding(store->slot[run->slot].param, dtype_of(store, k),
                                 tr_quantized_squares(k), k, count, &quantize));
        TR_TRY(prepare(m, &quantize, scratch, &out->quantize[k][size]));
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

/* Returns true when a step widens some numbers. */
static bool quantizes(const tr_store *store, tr_optim_memory optimizer) {
    return store->state_dtype != store->acc || store->no_master || tr_optim_narrow_grads(optimizer);
}

static tr_status alloc_wide(tr_moments *m, tr_optim_memory optimizer, int64_t largest) {
    const tr_store *store = m->store;
    const size_t bytes = tr_quantized_bytes(tr_device_on_host(m->device), optimizer, largest);
    const size_t each = tr_align_up((size_t)m->part * sizeof(float));
    if (bytes == 0) return TR_OK;
    if (store->host) TR_TRY(tr_device_offload_alloc(store->device, bytes, (void **)&m->memory));
    else TR_TRY(tr_device_alloc(store->device, TR_MEMORY_DATA, bytes, (void **)&m->memory));
    char *next = m->memory;
    if (store->no_master) {
        m->wide[TR_PARAM_ROUNDING_VALUE] = next;
        next += each;
    }
    if (tr_optim_narrow_grads(optimizer)) {
        m->wide[TR_PARAM_ROUNDING_GRADIENT] = next;
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
    const tr_optim_memory optimizer = tr_optim_memory_of(config);
    const bool narrow = quantizes(store, optimizer);
    *out = NULL;
    if (!narrow && !store->host) return TR_OK;
    TR_TRY(tr_calloc(1, sizeof *m, &m));
    m->store = store;
    m->device = store->host ? store->host : store->device;
    /* Whole parameters count, also where data ranks divide them: every rank plans the same. */
    for (int i = 0; i < store->slots; i++)
        if (store->slot[i].shares < 0 && !store->slot[i].param->frozen &&
            store->slot[i].param->count > largest)
            largest = store->slot[i].param->count;
    m->part = narrow ? tr_quantized_part(tr_device_on_host(m->device), largest) : store->part;
    TR_TRY_OUT(alloc_wide(m, optimizer, largest));
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
    if (m->store->host) tr_device_offload_free(m->store->device, m->memory);
    else tr_device_free(m->store->device, m->memory);
    free(m->run);
    free(m);
}

static tr_tensor wide_of(const tr_moments *m, int k, int64_t n) {
    return tr_tensor_vector(m->wide[k], TR_F32, n);
}

/* Returns the part's numbers of a kind, as the store keeps them. */
static tr_tensor kept_of(const tr_moments *m, const tr_run_part *part, int k) {
    const tr_dtype dtype = dtype_of(m->store, k);
    char *first = k == TR_PARAM_ROUNDING_VALUE ? part->value
                  : k == TR_PARAM_ROUNDING_GRADIENT
                      ? part->grad
                      : m->store->run[part->run].state[k] + (size_t)part->at * tr_dtype_size(dtype);
    return tr_tensor_vector(first, dtype, part->count);
}

/* Returns the scales of the part's blocks, if its numbers of this kind have scales. */
static tr_tensor scales_of(const tr_moments *m, const tr_run_part *part, int k) {
    const tr_run *run = &m->store->run[part->run];
    if (dtype_of(m->store, k) != TR_U8) return (tr_tensor){0};
    const float *scales =
        (const float *)(const void *)(run->state[k] + tr_code8_scales(run->count));
    return tr_tensor_vector(scales + part->at / TR_CODE8_BLOCK, TR_F32,
                            (part->count + TR_CODE8_BLOCK - 1) / TR_CODE8_BLOCK);
}

static tr_status widen(const tr_moments *m, const tr_run_part *part, tr_op *op, int k,
                       tr_stream *stream, void *scratch) {
    const bool codes = dtype_of(m->store, k) == TR_U8;
    tr_op_args args = {.scratch = scratch};
    args.t[codes ? TR_QUANTIZE_Y : TR_CAST_X] = kept_of(m, part, k);
    args.t[codes ? TR_QUANTIZE_X : TR_CAST_Y] = wide_of(m, k, part->count);
    if (codes) args.t[TR_QUANTIZE_SCALES] = scales_of(m, part, k);
    return tr_op_run(op, stream, &args);
}

/* Returns the operands of the part's step, which are wide where they are not kept so. Without
 * masters, and in FP32, the value is stepped. */
static tr_op_args step_args(const tr_moments *m, const tr_run_part *part, const run_step *x) {
    const tr_store *store = m->store;
    const int64_t n = part->count;
    const size_t offset = (size_t)part->at * tr_dtype_size(store->acc);
    tr_op_args step = {.t = {[TR_UPDATE_GRAD] = m->wide[TR_PARAM_ROUNDING_GRADIENT]
                                                    ? wide_of(m, TR_PARAM_ROUNDING_GRADIENT, n)
                                                    : kept_of(m, part, TR_PARAM_ROUNDING_GRADIENT),
                             [TR_UPDATE_VALUE] = store->no_master
                                                     ? wide_of(m, TR_PARAM_ROUNDING_VALUE, n)
                                                     : kept_of(m, part, TR_PARAM_ROUNDING_VALUE)}};
    step.t[TR_UPDATE_MASTER] =
        store->no_master || store->dtype == store->acc
            ? step.t[TR_UPDATE_VALUE]
            : tr_tensor_vector(store->run[part->run].master + offset, store->acc, n);
    for (int k = 0; k < x->states; k++)
        step.t[TR_UPDATE_M + k] = m->wide[k] ? wide_of(m, k, n) : kept_of(m, part, k);
    return step;
}

/* Steps at most m->part elements. */
static tr_status step_at_once(const tr_moments *m, const tr_run_part *part, tr_stream *stream,
                              tr_step_state *state, void *scratch) {
    const tr_store *store = m->store;
    const tr_store_slot *slot = &store->slot[store->run[part->run].slot];
    const run_step *x = &m->run[part->run];
    const int size = part->count == m->part ? WHOLE : REST;
    tr_op_args step = step_args(m, part, x);
    step.scratch = scratch;
    step.state = state;
    if (x->step[size]->desc.kind == TR_OP_DIRECTION) step.t[TR_UPDATE_VALUE] = (tr_tensor){0};
    for (int k = 0; k < TR_QUANTIZED_KINDS; k++)
        if (widens(m, x, k)) TR_TRY(widen(m, part, x->widen[k][size], k, stream, scratch));
    TR_TRY(tr_op_run(x->step[size], stream, &step));
    for (int k = 0; k < TR_QUANTIZED_KINDS; k++) {
        if (!x->quantize[k][size]) continue;
        const tr_op_args quantize = {.t = {[TR_QUANTIZE_X] = wide_of(m, k, part->count),
                                           [TR_QUANTIZE_Y] = kept_of(m, part, k),
                                           [TR_QUANTIZE_SCALES] = scales_of(m, part, k)},
                                     .state = state,
                                     .element = slot->portion.begin + part->at};
        TR_TRY(tr_op_run(x->quantize[k][size], stream, &quantize));
    }
    return TR_OK;
}

tr_run_part tr_run_part_of(const tr_store *store, int i, int64_t at, int64_t count) {
    const tr_run *run = &store->run[i];
    return (tr_run_part){.run = i,
                         .at = at,
                         .count = count,
                         .grad = run->grad + (size_t)at * tr_dtype_size(store->grad_dtype),
                         .value = (char *)run->value + (size_t)at * tr_dtype_size(store->dtype)};
}

tr_status tr_moments_step(tr_moments *m, const tr_run_part *part, tr_stream *stream,
                          tr_step_state *state, void *scratch) {
    const size_t grad = tr_dtype_size(m->store->grad_dtype);
    const size_t value = tr_dtype_size(m->store->dtype);
    for (int64_t from = 0; from < part->count; from += m->part) {
        tr_run_part own = *part;
        own.at += from;
        own.count = tr_min_i64(m->part, part->count - from);
        own.grad += (size_t)from * grad;
        own.value += (size_t)from * value;
        TR_TRY(step_at_once(m, &own, stream, state, scratch));
    }
    return TR_OK;
}

tr_status tr_moments_run(tr_moments *m, tr_stream *stream, tr_step_state *state, void *scratch) {
    for (int i = 0; i < m->store->runs; i++) {
        const tr_run_part whole = tr_run_part_of(m->store, i, 0, m->store->run[i].count);
        TR_TRY(tr_moments_step(m, &whole, stream, state, scratch));
    }
    return TR_OK;
}
