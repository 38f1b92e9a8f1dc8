#include "train/updates.h"

#include "base/code8.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "partition/muon.h"
#include "partition/quantized.h"

#include <stdlib.h>

/* The operators of a run, of whole parts and of the rest; NULL where there are none. A run without
 * `step` has directions that are its gradients (tr_pace_scales). */
enum { WHOLE, REST, SIZES };
typedef struct run_step {
    tr_op *step[SIZES], *descend[SIZES];
    tr_op *widen[TR_QUANTIZED_KINDS][SIZES], *quantize[TR_QUANTIZED_KINDS][SIZES];
    int states;
} run_step;

struct tr_updates {
    const tr_store *store;
    tr_device *device;              /* that steps */
    run_step *run;                  /* [store->runs] */
    int64_t part;                   /* elements that are stepped at a time, at most */
    char *memory;                   /* of `wide`, the device's or the host's */
    char *wide[TR_QUANTIZED_KINDS]; /* a part of each kind in FP32; NULL: it is not quantized */
};

tr_run_part tr_run_part_of(const tr_store *store, int i, int64_t at, int64_t count) {
    const tr_run *run = &store->run[i];
    const bool directs = tr_run_has_directions(store, i);
    return (tr_run_part){
        .run = i,
        .at = at,
        .count = count,
        .grad = run->grad + (size_t)at * tr_dtype_size(store->grad_dtype),
        .direction = directs ? run->direction + (size_t)at * tr_dtype_size(store->acc) : NULL,
        .value = (char *)run->value + (size_t)at * tr_dtype_size(store->dtype)};
}

bool tr_run_has_directions(const tr_store *store, int i) {
    return tr_optim_row_of(store->run[i].optimizer)->by_tensor;
}

int tr_run_lap(const tr_store *store, int i) {
    return store->slot[store->run[i].slot].lap;
}

/* Returns the type in which the store keeps numbers of this kind. */
static tr_dtype dtype_of(const tr_store *store, int kind) {
    if (kind == TR_PARAM_ROUNDING_GRADIENT) return store->grad_dtype;
    return kind == TR_PARAM_ROUNDING_VALUE ? store->dtype : store->state_dtype;
}

/* Returns the code in which the store keeps a run's numbers of this kind, if it is TR_U8. */
static tr_code8 code_of(const tr_run *run, int kind) {
    return kind < TR_OPTIM_STATES ? tr_optim_row_of(run->optimizer)->code[kind] : TR_CODE8_SIGNED;
}

/* Returns true when the steps of a run widen numbers of this kind. */
static bool widens(const tr_updates *u, const run_step *x, int kind) {
    return u->wide[kind] && (kind >= TR_PARAM_ROUNDING_VALUE || kind < x->states);
}

/* Describes the step of `count` elements of a run along their directions. */
static tr_status describe_descend(const tr_updates *u, const tr_optim_config *config,
                                  const tr_run *run, int64_t count, tr_dtype dtype,
                                  tr_op_desc *out) {
    const tr_store_slot *slot = &u->store->slot[run->slot];
    const bool is_muon = run->optimizer == TR_OPTIM_MUON;
    tr_muon muon;
    *out = tr_optim_descend(count, is_muon ? 0 : slot->layout.parts, dtype, run->lr_scale);
    if (is_muon) {
        TR_TRY(tr_muon_make(slot->param, &slot->layout, &muon));
        out->descend.factor = muon.length;
    }
    if (run->optimizer == TR_OPTIM_ADAFACTOR || run->optimizer == TR_OPTIM_ADAFACTOR_VECTOR)
        out->descend.whole = tr_global_count(&slot->param->tensor[0]);
    if (tr_optim_row_of(run->optimizer)->decays_last)
        out->descend.weight_decay = run->decay ? config->weight_decay : 0;
    return TR_OK;
}

static tr_status prepare_size(const tr_updates *u, const tr_optim_config *config, int i,
                              int64_t count, int size, size_t *scratch, run_step *out) {
    const tr_store *store = u->store;
    const tr_run *run = &store->run[i];
    const tr_dtype dtype = store->no_master ? store->acc : store->dtype;
    tr_optim_config own = *config;
    own.kind = run->optimizer;
    const tr_op_desc step = tr_optim_update(&own, count, dtype, run->decay, run->lr_scale);
    tr_op_desc descend;
    if (!tr_pace_scales(store, config, run->slot))
        TR_TRY(tr_op_prepare_fixed(u->device, step, scratch, &out->step[size]));
    if (tr_run_has_directions(store, i)) {
        TR_TRY(describe_descend(u, config, run, count, dtype, &descend));
        TR_TRY(tr_op_prepare_fixed(u->device, descend, scratch, &out->descend[size]));
    }
    for (int k = 0; k < TR_QUANTIZED_KINDS; k++) {
        if (!widens(u, out, k)) continue;
        const tr_op_desc widen = tr_quantized_widen(dtype_of(store, k), code_of(run, k), count);
        tr_op_desc quantize;
        TR_TRY(tr_op_prepare_fixed(u->device, widen, scratch, &out->widen[k][size]));
        if (k == TR_PARAM_ROUNDING_GRADIENT) continue; /* a step only reads it */
        TR_TRY(tr_param_rounding(store->slot[run->slot].param, dtype_of(store, k), code_of(run, k),
                                 k, count, &quantize));
        TR_TRY(tr_op_prepare_fixed(u->device, quantize, scratch, &out->quantize[k][size]));
    }
    return TR_OK;
}

static tr_status prepare_run(const tr_updates *u, const tr_optim_config *config, int i,
                             size_t *scratch) {
    const tr_run *run = &u->store->run[i];
    const int64_t rest = run->count % u->part;
    run_step *out = &u->run[i];
    out->states = tr_update_states(tr_optim_row_of(run->optimizer)->rule);
    if (run->count >= u->part) TR_TRY(prepare_size(u, config, i, u->part, WHOLE, scratch, out));
    return rest ? prepare_size(u, config, i, rest, REST, scratch, out) : TR_OK;
}

/* Returns true when a step widens some numbers. */
static bool quantizes(const tr_store *store, tr_optim_memory optimizer) {
    return store->state_dtype != store->acc || store->no_master || tr_optim_narrow_grads(optimizer);
}

static tr_status alloc_wide(tr_updates *u, tr_optim_memory optimizer, int64_t largest) {
    const tr_store *store = u->store;
    const size_t bytes = tr_quantized_bytes(tr_device_on_host(u->device), optimizer, largest);
    const size_t each = tr_align_up((size_t)u->part * sizeof(float));
    if (store->host) TR_TRY(tr_device_offload_alloc(store->device, bytes, (void **)&u->memory));
    else TR_TRY(tr_device_alloc(store->device, TR_MEMORY_DATA, bytes, (void **)&u->memory));
    char *next = u->memory;
    if (store->no_master) {
        u->wide[TR_PARAM_ROUNDING_VALUE] = next;
        next += each;
    }
    if (tr_optim_narrow_grads(optimizer)) {
        u->wide[TR_PARAM_ROUNDING_GRADIENT] = next;
        next += each;
    }
    for (int k = 0; k < TR_OPTIM_STATES && next < u->memory + bytes; k++, next += each)
        u->wide[k] = next;
    return TR_OK;
}

tr_status tr_updates_create(const tr_store *store, const tr_optim_config *config, size_t *scratch,
                            tr_updates **out) {
    tr_status status = TR_OK;
    tr_updates *u;
    int64_t largest = 0;
    const tr_optim_memory optimizer = tr_optim_memory_of(config);
    *out = NULL;
    TR_TRY(tr_calloc(1, sizeof *u, &u));
    u->store = store;
    u->device = store->host ? store->host : store->device;
    u->part = store->host ? store->part : INT64_MAX;
    /* Whole parameters count, also where data ranks divide them: every rank plans the same. */
    for (int i = 0; i < store->slots; i++)
        if (store->slot[i].shares < 0 && !store->slot[i].param->frozen &&
            store->slot[i].param->count > largest)
            largest = store->slot[i].param->count;
    if (largest > 0 && quantizes(store, optimizer)) {
        u->part = tr_quantized_part(tr_device_on_host(u->device), largest);
        TR_TRY_OUT(alloc_wide(u, optimizer, largest));
    }
    TR_TRY_OUT(tr_calloc((size_t)store->runs + 1, sizeof *u->run, &u->run));
    for (int i = 0; i < store->runs; i++) TR_TRY_OUT(prepare_run(u, config, i, scratch));
out:
    if (status != TR_OK) tr_updates_destroy(u);
    else *out = u;
    return status;
}

void tr_updates_destroy(tr_updates *u) {
    if (!u) return;
    for (int i = 0; u->run && i < u->store->runs; i++)
        for (int size = 0; size < SIZES; size++) {
            tr_op_release(u->run[i].step[size]);
            tr_op_release(u->run[i].descend[size]);
            for (int k = 0; k < TR_QUANTIZED_KINDS; k++) {
                tr_op_release(u->run[i].widen[k][size]);
                tr_op_release(u->run[i].quantize[k][size]);
            }
        }
    if (u->store->host) tr_device_offload_free(u->store->device, u->memory);
    else if (u->memory) tr_device_free(u->store->device, u->memory);
    free(u->run);
    free(u);
}

/* Returns where the part's numbers of a kind are in FP32. A direction takes the memory of the FP32
 * gradient that it is made of. */
static tr_tensor wide_of(const tr_updates *u, const tr_run_part *part, int k) {
    const bool direction = k == TR_PARAM_ROUNDING_GRADIENT && part->direction;
    return tr_tensor_vector(direction ? part->direction : u->wide[k], TR_F32, part->count);
}

/* Returns the part's numbers of a kind, as the store keeps them. */
static tr_tensor kept_of(const tr_updates *u, const tr_run_part *part, int k) {
    const tr_dtype dtype = dtype_of(u->store, k);
    char *first = k == TR_PARAM_ROUNDING_VALUE ? part->value
                  : k == TR_PARAM_ROUNDING_GRADIENT
                      ? part->grad
                      : u->store->run[part->run].state[k] + (size_t)part->at * tr_dtype_size(dtype);
    return tr_tensor_vector(first, dtype, part->count);
}

/* Returns the part's numbers of a kind as operators of a step take them. */
static tr_tensor operand_of(const tr_updates *u, const tr_run_part *part, int k) {
    return u->wide[k] ? wide_of(u, part, k) : kept_of(u, part, k);
}

/* Returns what is stepped: the master, or without masters, and in FP32, the value. */
static tr_tensor master_of(const tr_updates *u, const tr_run_part *part) {
    const tr_store *store = u->store;
    const size_t offset = (size_t)part->at * tr_dtype_size(store->acc);
    return tr_store_has_masters(store)
               ? tr_tensor_vector(store->run[part->run].master + offset, store->acc, part->count)
               : operand_of(u, part, TR_PARAM_ROUNDING_VALUE);
}

/* Returns the scales of the part's blocks, if its numbers of this kind have scales. */
static tr_tensor scales_of(const tr_updates *u, const tr_run_part *part, int k) {
    const tr_run *run = &u->store->run[part->run];
    if (dtype_of(u->store, k) != TR_U8) return (tr_tensor){0};
    const float *scales =
        (const float *)(const void *)(run->state[k] + tr_code8_scales(run->count));
    return tr_tensor_vector(scales + part->at / TR_CODE8_BLOCK, TR_F32,
                            (part->count + TR_CODE8_BLOCK - 1) / TR_CODE8_BLOCK);
}

static int size_of(const tr_updates *u, const tr_run_part *part) {
    return part->count == u->part ? WHOLE : REST;
}

static tr_status widen(const tr_updates *u, const tr_run_part *part, int k, tr_stream *stream,
                       void *scratch) {
    const bool codes = dtype_of(u->store, k) == TR_U8;
    tr_op *op = u->run[part->run].widen[k][size_of(u, part)];
    tr_op_args args = {.scratch = scratch};
    if (!op) return TR_OK;
    args.t[codes ? TR_QUANTIZE_Y : TR_CAST_X] = kept_of(u, part, k);
    args.t[codes ? TR_QUANTIZE_X : TR_CAST_Y] = wide_of(u, part, k);
    if (codes) args.t[TR_QUANTIZE_SCALES] = scales_of(u, part, k);
    return tr_op_run(op, stream, &args);
}

static tr_status quantize(const tr_updates *u, const tr_run_part *part, int k, tr_stream *stream,
                          tr_step_state *state) {
    const tr_store_slot *slot = &u->store->slot[u->store->run[part->run].slot];
    tr_op *op = u->run[part->run].quantize[k][size_of(u, part)];
    if (!op) return TR_OK;
    const tr_op_args args = {.t = {[TR_QUANTIZE_X] = wide_of(u, part, k),
                                   [TR_QUANTIZE_Y] = kept_of(u, part, k),
                                   [TR_QUANTIZE_SCALES] = scales_of(u, part, k)},
                             .state = state,
                             .element = slot->portion.begin + part->at};
    return tr_op_run(op, stream, &args);
}

/* Steps at most u->part elements, or writes their directions. */
static tr_status step_at_once(const tr_updates *u, const tr_run_part *part, tr_stream *stream,
                              tr_step_state *state, void *scratch) {
    const run_step *x = &u->run[part->run];
    tr_op_args args = {.t = {[TR_UPDATE_GRAD] = operand_of(u, part, TR_PARAM_ROUNDING_GRADIENT),
                             [TR_UPDATE_MASTER] = master_of(u, part),
                             [TR_UPDATE_VALUE] = operand_of(u, part, TR_PARAM_ROUNDING_VALUE)},
                       .scratch = scratch,
                       .state = state};
    for (int k = 0; k < x->states; k++) args.t[TR_UPDATE_M + k] = operand_of(u, part, k);
    if (part->direction) args.t[TR_UPDATE_VALUE] = (tr_tensor){0};
    tr_op *step = x->step[size_of(u, part)];
    for (int k = 0; k < TR_QUANTIZED_KINDS; k++)
        if (step || k == TR_PARAM_ROUNDING_GRADIENT) TR_TRY(widen(u, part, k, stream, scratch));
    if (step) TR_TRY(tr_op_run(step, stream, &args));
    for (int k = 0; k < TR_QUANTIZED_KINDS; k++)
        if (k != TR_PARAM_ROUNDING_VALUE || !part->direction)
            TR_TRY(quantize(u, part, k, stream, state));
    return TR_OK;
}

/* Steps at most u->part elements along their directions. */
static tr_status descend_at_once(const tr_updates *u, const tr_run_part *part, const double *norms,
                                 tr_stream *stream, tr_step_state *state, void *scratch) {
    tr_op *op = u->run[part->run].descend[size_of(u, part)];
    tr_op_args args = {
        .t = {[TR_DESCEND_U] = tr_tensor_vector(part->direction, u->store->acc, part->count),
              [TR_DESCEND_MASTER] = master_of(u, part),
              [TR_DESCEND_VALUE] = operand_of(u, part, TR_PARAM_ROUNDING_VALUE)},
        .scratch = scratch,
        .state = state};
    const int64_t parts = op->desc.descend.parts;
    if (parts > 0) args.t[TR_DESCEND_NORMS] = tr_tensor_matrix(norms, TR_F64, parts, 2);
    TR_TRY(widen(u, part, TR_PARAM_ROUNDING_VALUE, stream, scratch));
    TR_TRY(tr_op_run(op, stream, &args));
    return quantize(u, part, TR_PARAM_ROUNDING_VALUE, stream, state);
}

/* Returns the elements of a part from `from` on that are stepped at once. */
static tr_run_part piece_of(const tr_updates *u, const tr_run_part *part, int64_t from) {
    const tr_store *store = u->store;
    tr_run_part own = *part;
    own.at += from;
    own.count = tr_min_i64(u->part, part->count - from);
    own.grad += (size_t)from * tr_dtype_size(store->grad_dtype);
    own.value += (size_t)from * tr_dtype_size(store->dtype);
    if (own.direction) own.direction += (size_t)from * tr_dtype_size(store->acc);
    return own;
}

tr_status tr_updates_step(tr_updates *u, const tr_run_part *part, tr_stream *stream,
                          tr_step_state *state, void *scratch) {
    for (int64_t from = 0; from < part->count; from += u->part) {
        const tr_run_part own = piece_of(u, part, from);
        TR_TRY(step_at_once(u, &own, stream, state, scratch));
    }
    return TR_OK;
}

tr_status tr_updates_descend(tr_updates *u, const tr_run_part *part, const double *norms,
                             tr_stream *stream, tr_step_state *state, void *scratch) {
    for (int64_t from = 0; from < part->count; from += u->part) {
        const tr_run_part own = piece_of(u, part, from);
        TR_TRY(descend_at_once(u, &own, norms, stream, state, scratch));
    }
    return TR_OK;
}

tr_status tr_updates_run(tr_updates *u, tr_pace *pace, tr_stream *stream, tr_step_state *state,
                         void *scratch) {
    const tr_store *store = u->store;
    for (int lap = 0; lap < store->laps; lap++) {
        for (int i = 0; i < store->runs; i++) {
            const tr_run_part whole = tr_run_part_of(store, i, 0, store->run[i].count);
            if (tr_run_lap(store, i) == lap)
                TR_TRY(tr_updates_step(u, &whole, stream, state, scratch));
        }
        TR_TRY(tr_pace_run(pace, lap, stream, state, scratch));
        for (int i = 0; i < store->runs; i++) {
            const tr_run_part whole = tr_run_part_of(store, i, 0, store->run[i].count);
            if (tr_run_lap(store, i) == lap && whole.direction)
                TR_TRY(tr_updates_descend(u, &whole, tr_pace_norms(pace, store->run[i].slot),
                                          stream, state, scratch));
        }
    }
    return TR_OK;
}
