#include "train/updates.h"

#include "base/code8.h"
#include "base/memory.h"
#include "layers/rounding.h"
#include "partition/muon.h"

#include <stdlib.h>

_Static_assert((int)TR_PARAM_ROUNDING_VALUE == TR_PARAM_ROUNDING_STATE + TR_UPDATE_USE_MASTER,
               "UPDATE rounds states and values with these uses");

/* The operators of a run, of whole parts and of the rest; NULL where there are none. FACTOR makes
 * the directions of a run without `step` (tr_directions_scales). */
enum { WHOLE, REST, SIZES };
typedef struct run_step {
    tr_op *step[SIZES], *descend[SIZES];
    int states;
} run_step;

struct tr_updates {
    const tr_store *store;
    tr_device *device; /* that steps */
    run_step *run;     /* [store->runs] */
    int64_t part;      /* elements that are stepped at a time, at most */
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

/* Describes the step of `count` elements of a run, or its direction. */
static tr_status describe_step(const tr_updates *u, const tr_optim_config *config,
                               const tr_run *run, int64_t count, tr_op_desc *out) {
    const tr_store *store = u->store;
    tr_optim_config own = *config;
    tr_op_desc rounding = {0};
    own.kind = run->optimizer;
    *out = tr_optim_update(&own, count, store->dtype, run->decay, run->lr_scale);
    out->update.bf16_grad = store->grad_dtype != store->acc;
    out->update.bf16_master = store->no_master;
    if (store->state_dtype != store->acc) out->update.state_dtype = store->state_dtype;
    for (int k = 0; k < TR_OPTIM_STATES; k++)
        out->update.code[k] = tr_optim_row_of(run->optimizer)->code[k];
    if (store->state_dtype != store->acc || store->no_master)
        TR_TRY(tr_param_rounding(store->slot[run->slot].param, TR_PARAM_ROUNDING_STATE, count,
                                 &rounding));
    out->update.rounding = rounding.quantize;
    return TR_OK;
}

static tr_status prepare_size(const tr_updates *u, const tr_optim_config *config, int i,
                              int64_t count, int size, size_t *scratch, run_step *out) {
    const tr_store *store = u->store;
    const tr_run *run = &store->run[i];
    tr_op_desc step;
    TR_TRY(describe_step(u, config, run, count, &step));
    if (!tr_directions_scales(store, config, run->slot))
        TR_TRY(tr_op_prepare_fixed(u->device, step, scratch, &out->step[size]));
    if (tr_run_has_directions(store, i)) {
        tr_op_desc descend;
        TR_TRY(describe_descend(u, config, run, count, store->dtype, &descend));
        descend.descend.bf16_master = store->no_master;
        descend.descend.rounding = step.update.rounding;
        TR_TRY(tr_op_prepare_fixed(u->device, descend, scratch, &out->descend[size]));
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

tr_status tr_updates_create(const tr_store *store, const tr_optim_config *config, size_t *scratch,
                            tr_updates **out) {
    tr_status status = TR_OK;
    tr_updates *u;
    *out = NULL;
    TR_TRY(tr_calloc(1, sizeof *u, &u));
    u->store = store;
    u->device = store->host ? store->host : store->device;
    u->part = store->host ? store->part : INT64_MAX;
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
        }
    free(u->run);
    free(u);
}

/* Returns state k of the part. */
static tr_tensor state_of(const tr_updates *u, const tr_run_part *part, int k) {
    const tr_dtype dtype = u->store->state_dtype;
    const size_t offset = (size_t)part->at * tr_dtype_size(dtype);
    return tr_tensor_vector(u->store->run[part->run].state[k] + offset, dtype, part->count);
}

static tr_tensor grad_of(const tr_updates *u, const tr_run_part *part) {
    return tr_tensor_vector(part->grad, u->store->grad_dtype, part->count);
}

static tr_tensor direction_of(const tr_updates *u, const tr_run_part *part) {
    return tr_tensor_vector(part->direction, u->store->acc, part->count);
}

/* Returns what is stepped: the master, or without masters, and in FP32, the value. */
static tr_tensor master_of(const tr_updates *u, const tr_run_part *part) {
    const tr_store *store = u->store;
    const size_t offset = (size_t)part->at * tr_dtype_size(store->acc);
    return tr_store_has_masters(store)
               ? tr_tensor_vector(store->run[part->run].master + offset, store->acc, part->count)
               : tr_tensor_vector(part->value, store->dtype, part->count);
}

/* Returns where the rounded master goes, unless that is the value itself. */
static tr_tensor value_of(const tr_updates *u, const tr_run_part *part) {
    if (u->store->no_master) return (tr_tensor){0};
    return tr_tensor_vector(part->value, u->store->dtype, part->count);
}

/* Returns the scales of the part's blocks in state k, which is in 8 bits. */
static tr_tensor scales_of(const tr_updates *u, const tr_run_part *part, int k) {
    const tr_run *run = &u->store->run[part->run];
    const float *scales =
        (const float *)(const void *)(run->state[k] + tr_code8_scales(run->count));
    return tr_tensor_vector(scales + part->at / TR_CODE8_BLOCK, TR_F32,
                            tr_code8_blocks(part->count));
}

static int size_of(const tr_updates *u, const tr_run_part *part) {
    return part->count == u->part ? WHOLE : REST;
}

/* Returns the part's first element in its parameter. */
static int64_t element_of(const tr_updates *u, const tr_run_part *part) {
    return u->store->slot[u->store->run[part->run].slot].portion.begin + part->at;
}

tr_status tr_updates_step(const tr_updates *u, const tr_run_part *part, tr_stream *stream,
                          tr_step_state *state, void *scratch) {
    const run_step *x = &u->run[part->run];
    const int size = size_of(u, part);
    tr_op_args args = {
        .t = {[TR_UPDATE_GRAD] = grad_of(u, part), [TR_UPDATE_MASTER] = master_of(u, part)},
        .scratch = scratch,
        .state = state,
        .element = element_of(u, part)};
    if (!x->step[size]) return TR_OK;
    if (part->direction) args.t[TR_UPDATE_U] = direction_of(u, part);
    else args.t[TR_UPDATE_VALUE] = value_of(u, part);
    for (int k = 0; k < x->states; k++) {
        args.t[TR_UPDATE_M + k] = state_of(u, part, k);
        if (u->store->state_dtype == TR_U8) args.t[TR_UPDATE_M_SCALES + k] = scales_of(u, part, k);
    }
    return tr_op_run(x->step[size], stream, &args);
}

tr_status tr_updates_descend(const tr_updates *u, const tr_run_part *part, const double *norms,
                             tr_stream *stream, tr_step_state *state, void *scratch) {
    tr_op *op = u->run[part->run].descend[size_of(u, part)];
    tr_op_args args = {.t = {[TR_DESCEND_U] = direction_of(u, part),
                             [TR_DESCEND_MASTER] = master_of(u, part),
                             [TR_DESCEND_VALUE] = value_of(u, part)},
                       .scratch = scratch,
                       .state = state,
                       .element = element_of(u, part)};
    const int64_t parts = op->desc.descend.parts;
    if (parts > 0) args.t[TR_DESCEND_NORMS] = tr_tensor_matrix(norms, TR_F64, parts, 2);
    return tr_op_run(op, stream, &args);
}

tr_status tr_updates_run(tr_updates *u, tr_directions *directions, tr_stream *stream,
                         tr_step_state *state, void *scratch) {
    const tr_store *store = u->store;
    for (int lap = 0; lap < store->laps; lap++) {
        for (int i = 0; i < store->runs; i++) {
            const tr_run_part whole = tr_run_part_of(store, i, 0, store->run[i].count);
            if (tr_run_lap(store, i) == lap)
                TR_TRY(tr_updates_step(u, &whole, stream, state, scratch));
        }
        TR_TRY(tr_directions_complete(directions, lap, stream, state, scratch));
        for (int i = 0; i < store->runs; i++) {
            const tr_run_part whole = tr_run_part_of(store, i, 0, store->run[i].count);
            if (tr_run_lap(store, i) == lap && whole.direction)
                TR_TRY(tr_updates_descend(u, &whole,
                                          tr_directions_norms(directions, store->run[i].slot),
                                          stream, state, scratch));
        }
    }
    return TR_OK;
}
