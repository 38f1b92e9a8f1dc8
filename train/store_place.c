/* Places the parameters of a store in its memory (train/store_impl.h). */
#include "train/store_impl.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct place {
    tr_store *store;
    const tr_mesh *mesh;
    tr_mesh_groups *groups;
    const tr_model *model;
    const tr_placement *placement;
    /* The first elements of each kind of memory, and elements used of it. */
    char *master, *state[TR_OPTIM_STATES], *value, *grad;
    size_t values, masters, states[TR_OPTIM_STATES], grads;
    char *addend;
    size_t *used; /* [stages * most buckets]: elements of gradients used of each in the arena, and
                     in the addends */
    size_t *used_values;      /* [stages * most buckets]: of values */
    int buckets;              /* most of a stage */
    size_t size;              /* bytes of an element, except of values and states */
    bool run_ends, span_ends; /* the next parameter begins another run; another span */
} place;

static int slot_of(const tr_store *store, const char *name, int use) {
    for (int i = 0; i < store->slots; i++)
        if (store->slot[i].param->use == use &&
            strcmp(tr_param_name(store->slot[i].param), name) == 0)
            return i;
    return -1;
}

static tr_status list_param(void *context, int stage, tr_param *param, bool shares) {
    place *at = context;
    tr_store *store = at->store;
    tr_store_slot *slot = &store->slot[store->slots];
    *slot = (tr_store_slot){.param = param,
                            .stage = stage,
                            .bucket = tr_placement_bucket(at->placement, at->model, stage, param),
                            .optimizer = tr_optim_kind_for(store->optimizer, param),
                            .portion = {.extent = param->count},
                            .shares = shares ? slot_of(store, tr_param_name(param), 0) : -1};
    store->slots++;
    TR_TRY(tr_param_layout_make(param, at->mesh, &slot->layout));
    if (!at->groups || (param->frozen && !store->divides_values)) return TR_OK;
    if (!param->frozen) TR_TRY(tr_mesh_groups_get(at->groups, &slot->layout.sum, &slot->sum));
    if (!param->frozen && tr_mesh_part_size(&slot->layout.across) > 1) {
        TR_TRY(tr_mesh_groups_get(at->groups, &slot->layout.across, &slot->across));
        TR_TRY(tr_mesh_groups_get(at->groups, &slot->layout.owners, &slot->near));
    }
    if (!store->divided) return TR_OK;
    slot->portion = tr_param_portion(param, store->divided);
    return tr_mesh_groups_get(at->groups, &slot->layout.owners, &slot->owners);
}

static tr_status set_tie(void *context, const tr_tie *t) {
    place *at = context;
    tr_store *store = at->store;
    tr_store_slot *slot = &store->slot[slot_of(store, tr_param_name(t->param), t->param->use)];
    return tr_mesh_groups_get(at->groups, &t->ranks, &slot->tie);
}

/* Returns memory + `offset` elements, or NULL if this store has no such memory. */
static char *element(const place *at, char *memory, size_t offset) {
    return memory ? memory + offset * at->size : NULL;
}

/* Adds the gradient to the last span if it has the same group, or begins another. end: of the
 * gradients in its memory. */
static void add_to_span(place *at, const tr_store_slot *slot, size_t end) {
    tr_store *store = at->store;
    tr_span *span = store->spans ? &store->span[store->spans - 1] : NULL;
    if (!span || at->span_ends || span->stage != slot->stage || span->bucket != slot->bucket ||
        span->sum != slot->sum) {
        span = &store->span[store->spans++];
        *span = (tr_span){.stage = slot->stage,
                          .bucket = slot->bucket,
                          .slot = (int)(slot - store->slot),
                          .sum = slot->sum};
    }
    at->span_ends = false;
    span->count = (int64_t)(end - store->slot[span->slot].place);
}

/* Places the gradient after those already placed: in the store's memory, or in the arena, and
 * there the sum of its portion in the store's memory. */
static void place_grad(place *at, tr_store_slot *slot) {
    tr_store *store = at->store;
    tr_param *param = slot->param;
    const bool owns = !param->frozen && slot->portion.extent > 0;
    const size_t size = tr_dtype_size(store->grad_dtype);
    param->grad = param->addend = NULL;
    if (!at->groups || !param->has_grad) return;
    size_t *used = &at->used[slot->stage * at->buckets + slot->bucket];
    const size_t in_bucket = tr_memory_params_begin(param, *used);
    *used = in_bucket + (size_t)param->count;
    if (at->addend) param->addend = element(at, at->addend, in_bucket);
    if (!store->in_arena) {
        slot->place = tr_memory_params_begin(param, at->grads);
        at->grads = slot->place + (size_t)param->count;
        param->grad = at->grad + slot->place * size;
        slot->grad = (char *)param->grad + (size_t)slot->portion.begin * size;
    } else {
        slot->place = in_bucket;
        if (owns) {
            at->grads = tr_memory_params_align(at->grads);
            slot->grad = at->grad + at->grads * size;
            at->grads += (size_t)slot->portion.extent;
        }
    }
    if (!owns) slot->grad = NULL;
    slot->direction = !owns           ? NULL
                      : param->addend ? element(at, param->addend, (size_t)slot->portion.begin)
                                      : slot->grad;
    if (param->frozen) at->span_ends = true;
    else add_to_span(at, slot, slot->place + (size_t)param->count);
}

/* Adds the parameter to the last run, or begins another. */
static void add_to_run(place *at, const tr_store_slot *slot) {
    tr_store *store = at->store;
    const tr_param *param = slot->param;
    if (slot->portion.extent == 0) return;
    tr_run *run = store->runs ? &store->run[store->runs - 1] : NULL;
    const tr_optim_row *row = tr_optim_row_of(slot->optimizer);
    if (!run || at->run_ends || store->divided || store->state_dtype != store->acc ||
        store->no_master || row->by_tensor || run->decay != param->decay ||
        run->lr_scale != param->lr_scale || run->optimizer != slot->optimizer) {
        run = &store->run[store->runs++];
        *run = (tr_run){.slot = (int)(slot - store->slot),
                        .grad = slot->grad,
                        .direction = slot->direction,
                        .master = slot->master,
                        .value = slot->value,
                        .optimizer = slot->optimizer,
                        .decay = param->decay,
                        .lr_scale = param->lr_scale};
        const int states = tr_update_states(row->rule);
        for (int k = 0; k < states; k++) run->state[k] = slot->state[k];
    }
    at->run_ends = false;
    const int64_t before = run->master ? (char *)slot->master - run->master : 0; /* bytes */
    run->count = before / (int64_t)at->size + slot->portion.extent;
}

/* Places master and states of the portion. */
static void place_states(place *at, tr_store_slot *slot) {
    const tr_param *param = slot->param;
    const tr_mesh *divided = at->store->divided;
    const int64_t own = slot->portion.extent;
    if (at->master) {
        at->masters = tr_memory_states_begin(param, divided, at->masters);
        slot->master = element(at, at->master, at->masters);
        at->masters += (size_t)own;
    }
    for (int k = 0; k < tr_optim_states(slot->optimizer); k++) {
        at->states[k] =
            tr_memory_moments_begin(param, divided, at->store->state_dtype, at->states[k]);
        if (at->state[k])
            slot->state[k] = at->state[k] + at->states[k] * tr_dtype_size(at->store->state_dtype);
        at->states[k] += tr_memory_moments_length(
            at->store->state_dtype, tr_optim_state_count(slot->optimizer, param, k, own));
    }
}

/* Places the value: all of it, or the portion. */
static void place_value(place *at, tr_store_slot *slot) {
    tr_param *param = slot->param;
    const bool all = !at->store->divides_values, owns = slot->portion.extent > 0;
    const size_t size = tr_dtype_size(at->store->dtype);
    if (all) at->values = tr_memory_params_begin(param, at->values);
    else if (owns) at->values = tr_memory_params_align(at->values);
    char *first = at->value + at->values * size;
    at->values += (size_t)(all ? param->count : slot->portion.extent);
    param->value = all ? first : NULL;
    slot->value = !owns ? NULL : all ? first + (size_t)slot->portion.begin * size : first;
    if (at->store->dtype == at->store->acc) slot->master = slot->value;
}

/* Places the whole value in its bucket in the arena. */
static void place_whole(place *at, tr_store_slot *slot) {
    size_t *used = &at->used_values[slot->stage * at->buckets + slot->bucket];
    slot->value_place = tr_memory_params_begin(slot->param, *used);
    *used = slot->value_place + (size_t)slot->param->count;
}

/* Places value, state and gradient of a parameter that shares none. */
static void place_own(place *at, tr_store_slot *slot) {
    tr_param *param = slot->param;
    place_value(at, slot);
    place_whole(at, slot);
    if (!param->frozen && slot->portion.extent > 0) place_states(at, slot);
    place_grad(at, slot);
    if (param->frozen) at->run_ends = true;
    else add_to_run(at, slot);
}

static void place_shared(place *at, tr_store_slot *slot) {
    const tr_store_slot *first = &at->store->slot[slot->shares];
    slot->portion = first->portion;
    slot->master = first->master;
    slot->value = first->value;
    memcpy(slot->state, first->state, sizeof slot->state);
    slot->param->value = first->param->value;
    place_whole(at, slot);
    place_grad(at, slot);
}

/* Parameters that are joined to frozen ones are placed apart, since they interrupt runs. */
enum { DECAYS, STAYS, MIXED, SHARES, FROZEN, KINDS };

/* Returns the kind of slot i and of those joined to it. */
static int kind_of(const tr_store *store, int i) {
    bool frozen = false, trained = false;
    if (store->slot[i].shares >= 0) return store->slot[i].param->frozen ? FROZEN : SHARES;
    while (store->slot[i].param->joined) i--;
    const bool decay = store->slot[i].param->decay;
    do {
        frozen |= store->slot[i].param->frozen;
        trained |= !store->slot[i].param->frozen;
        i++;
    } while (i < store->slots && store->slot[i].param->joined);
    return frozen && trained ? MIXED : frozen ? FROZEN : decay ? DECAYS : STAYS;
}

/* Places slot `first`, the others of its kind that the same group sums, and all parameters joined
 * to them. */
static void place_group(place *at, int first, bool *placed) {
    tr_store *store = at->store;
    const tr_store_slot *like = &store->slot[first];
    const int kind = kind_of(store, first);
    for (int i = first; i < store->slots && store->slot[i].stage == like->stage; i++) {
        tr_store_slot *slot = &store->slot[i];
        bool joins = slot->param->joined && placed[i - 1];
        bool alike = slot->sum == like->sum && !slot->param->joined;
        if (placed[i] || kind_of(store, i) != kind || !(joins || alike)) continue;
        if (slot->shares >= 0) place_shared(at, slot);
        else place_own(at, slot);
        placed[i] = true;
    }
}

/* Places the parameters of a stage: first those that decay, then those that do not, then the
 * others; within each kind group by group. */
static void place_stage(place *at, int stage, bool *placed) {
    tr_store *store = at->store;
    at->run_ends = true;
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < store->slots; i++)
            if (store->slot[i].stage == stage && kind_of(store, i) == kind && !placed[i])
                place_group(at, i, placed);
}

/* Numbers the laps: directions that cannot be in the memory of gradients are in that of the
 * addends, which has room for those of one bucket. */
static void count_laps(place *at) {
    tr_store *store = at->store;
    const bool by_tensor = tr_optim_row_of(store->optimizer)->by_tensor;
    store->laps = by_tensor && at->addend ? at->placement->stages * at->buckets : 1;
    for (int i = 0; i < store->slots; i++)
        store->slot[i].lap =
            store->laps > 1 ? store->slot[i].stage * at->buckets + store->slot[i].bucket : 0;
}

static tr_status place_all(place *at) {
    const tr_store *store = at->store;
    tr_status status = TR_OK;
    bool *placed = NULL;
    for (int i = 0; i < store->slots; i++)
        if (store->slot[i].bucket >= at->buckets) at->buckets = store->slot[i].bucket + 1;
    count_laps(at);
    const size_t buckets = (size_t)(at->placement->stages * at->buckets);
    TR_TRY_OUT(tr_calloc(buckets, sizeof *at->used, &at->used));
    TR_TRY_OUT(tr_calloc(buckets, sizeof *at->used_values, &at->used_values));
    TR_TRY_OUT(tr_calloc((size_t)store->slots, sizeof *placed, &placed));
    for (int s = 0; s < at->placement->stages; s++) place_stage(at, s, placed);
out:
    free(at->used);
    free(at->used_values);
    free(placed);
    return status;
}

tr_status tr_store_place_params(tr_store *store, const tr_store_desc *d,
                                const tr_param_memory *sum) {
    const size_t masters = tr_memory_masters_bytes(sum, d->dtype);
    place at = {.store = store,
                .mesh = d->mesh,
                .groups = d->groups,
                .model = d->model,
                .placement = d->placement,
                .value = store->values,
                .grad = store->grads,
                .size = tr_dtype_size(store->acc)};
    if (store->grads && sum->addend > 0)
        at.addend = store->grads + sum->grads * tr_dtype_size(store->grad_dtype);
    if (tr_store_has_masters(store)) at.master = store->host ? store->offloaded : store->values;
    if (at.master && !store->host) at.value += masters;
    at.state[0] = store->offloaded ? store->offloaded + masters : store->states;
    if (at.state[0]) at.state[1] = at.state[0] + sum->state[0] * tr_dtype_size(store->state_dtype);
    TR_TRY(tr_placement_visit(d->placement, d->model, d->mesh->index[TR_AXIS_PP], list_param, &at));
    TR_TRY(place_all(&at));
    if (!d->groups) return TR_OK;
    return tr_placement_visit_ties(d->placement, d->model, d->mesh, set_tie, &at);
}

void tr_store_place_bucket(tr_store *store, int stage, int bucket, void *memory) {
    for (int i = 0; i < store->slots; i++) {
        tr_store_slot *slot = &store->slot[i];
        if (slot->stage == stage && slot->bucket == bucket && slot->param->has_grad)
            slot->param->grad = (char *)memory + slot->place * tr_dtype_size(store->grad_dtype);
    }
}

void tr_store_place_value(const tr_store *store, const tr_store_slot *slot, void *bucket) {
    slot->param->value = (char *)bucket + slot->value_place * tr_dtype_size(store->dtype);
}
