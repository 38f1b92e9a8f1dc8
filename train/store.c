#include "train/store.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { TIE_PIECE = 1 << 20 };

static bool owns(const tr_placement *placement, int stage, int pp_rank) {
    return placement->owner[stage] == pp_rank;
}

static int stage_of_layer(const tr_placement *placement, int layer) {
    int stage = 0;
    while (layer >= placement->first[stage + 1]) stage++;
    return stage;
}

/* The other use of a tied parameter (GPT-2 ties two), or NULL. *layer is where it lives. */
static const tr_param *other_use(const tr_model *model, const tr_param *param, int *layer) {
    for (int i = 0; i < model->count; i++)
        for (int k = 0; k < model->layers[i]->params_count; k++) {
            const tr_param *p = &model->layers[i]->params[k];
            if (p->use != param->use && strcmp(tr_param_name(p), tr_param_name(param)) == 0) {
                *layer = i;
                return p;
            }
        }
    return NULL;
}

/* Calls visit for every parameter of this rank in registry order. */
typedef void (*visit_fn)(void *context, int stage, tr_param *param);
static void for_each_local(const tr_model *model, const tr_placement *placement, int pp_rank,
                           visit_fn visit, void *context) {
    for (int s = 0; s < placement->stages; s++) {
        if (!owns(placement, s, pp_rank)) continue;
        for (int i = placement->first[s]; i < placement->first[s + 1]; i++)
            for (int k = 0; k < model->layers[i]->params_count; k++)
                visit(context, s, &model->layers[i]->params[k]);
    }
}

/* Elements that a parameter takes in every kind of memory: 16-bit values begin on TR_ALIGN too. */
static size_t room_of(const tr_param *param) {
    return tr_align_up((size_t)param->count * sizeof(uint16_t)) / sizeof(uint16_t);
}

typedef struct measure {
    const tr_model *model;
    const tr_placement *placement;
    int pp_rank;
    size_t values, grads; /* elements */
    int slots;
} measure;

/* True when use 0 of this (tied) parameter is on this rank too: value and state are shared. */
static bool shares_here(const tr_model *model, const tr_placement *placement, int pp_rank,
                        const tr_param *param) {
    int layer;
    return param->use > 0 && other_use(model, param, &layer) &&
           owns(placement, stage_of_layer(placement, layer), pp_rank);
}

tr_status tr_store_visit(const tr_model *model, const tr_placement *placement, int pp_rank,
                         tr_store_visit_fn visit, void *context) {
    for (int s = 0; s < placement->stages; s++) {
        if (!owns(placement, s, pp_rank)) continue;
        for (int i = placement->first[s]; i < placement->first[s + 1]; i++)
            for (int k = 0; k < model->layers[i]->params_count; k++) {
                tr_param *param = &model->layers[i]->params[k];
                TR_TRY(visit(context, param, shares_here(model, placement, pp_rank, param)));
            }
    }
    return TR_OK;
}

static void measure_param(void *context, int stage, tr_param *param) {
    (void)stage;
    measure *sum = context;
    size_t room = room_of(param);
    sum->slots++;
    sum->grads += room;
    if (!shares_here(sum->model, sum->placement, sum->pp_rank, param)) sum->values += room;
}

/* Of a master, and of the value in the model's type beside it. */
static size_t value_size(tr_dtype dtype) {
    return sizeof(float) + (dtype == TR_F32 ? 0 : tr_dtype_size(dtype));
}

void tr_store_bytes(const tr_model *model, const tr_placement *placement, int pp_rank,
                    tr_dtype dtype, size_t *values, size_t *grads, size_t *states) {
    measure sum = {.model = model, .placement = placement, .pp_rank = pp_rank};
    for_each_local(model, placement, pp_rank, measure_param, &sum);
    *values = sum.values * value_size(dtype);
    *grads = sum.grads * sizeof(float);
    *states = sum.values * 2 * sizeof(float);
}

typedef struct place {
    tr_store *store;
    const tr_model *model;
    const tr_placement *placement;
    int pp_rank, last_stage;
    float *master, *m, *v; /* of the parameter that is placed next */
    char *value;
    float *grad;
} place;

static int slot_of(const tr_store *store, const char *name, int use) {
    for (int i = 0; i < store->slots; i++)
        if (store->slot[i].param->use == use &&
            strcmp(tr_param_name(store->slot[i].param), name) == 0)
            return i;
    return -1;
}

static void list_param(void *context, int stage, tr_param *param) {
    place *at = context;
    tr_store *store = at->store;
    if (stage != at->last_stage) store->stages++;
    at->last_stage = stage;
    tr_slot *slot = &store->slot[store->slots];
    *slot = (tr_slot){.param = param,
                      .stage = store->stages - 1,
                      .shares = shares_here(at->model, at->placement, at->pp_rank, param)
                                    ? slot_of(store, tr_param_name(param), 0)
                                    : -1,
                      .counted = param->use == 0};
    store->slots++;
}

/* `count` elements on, unless this store has no such memory. */
static float *next(float *memory, size_t count) {
    return memory ? memory + count : NULL;
}

static void place_own(place *at, tr_slot *slot, tr_run *run) {
    const size_t room = room_of(slot->param);
    if (run->count == 0)
        *run = (tr_run){at->grad, at->master, at->m, at->v, at->value, 0, slot->param->decay};
    slot->master = at->master;
    slot->m = at->m;
    slot->v = at->v;
    slot->param->value = at->value;
    run->count += (int64_t)room;
    at->master += room;
    at->m = next(at->m, room);
    at->v = next(at->v, room);
    at->value += room * tr_dtype_size(at->store->dtype);
}

static void place_shared(const tr_store *store, tr_slot *slot) {
    const tr_slot *first = &store->slot[slot->shares];
    slot->master = first->master;
    slot->m = first->m;
    slot->v = first->v;
    slot->param->value = first->param->value;
}

/* The parameters of a stage: those that decay, those that do not, those that share. */
static void place_stage(place *at, int stage) {
    tr_store *store = at->store;
    enum { DECAYS, STAYS, SHARES, KINDS };
    float *first = at->grad;
    for (int kind = 0; kind < KINDS; kind++) {
        tr_run *run = &store->run[store->runs];
        for (int i = 0; i < store->slots; i++) {
            tr_slot *slot = &store->slot[i];
            int own = slot->shares >= 0 ? SHARES : slot->param->decay ? DECAYS : STAYS;
            if (slot->stage != stage || own != kind) continue;
            if (kind == SHARES) place_shared(store, slot);
            else place_own(at, slot, run);
            slot->param->grad = at->grad;
            at->grad = next(at->grad, room_of(slot->param));
        }
        if (kind != SHARES && run->count > 0) store->runs++;
    }
    store->stage_grad[stage] = (tr_span){first, first ? at->grad - first : 0};
}

/* Tie groups, in registry order of use 0, so that all members meet them in one order. */
static tr_status open_ties(tr_store *store, tr_world *world, const tr_mesh *mesh,
                           const tr_model *model, const tr_placement *placement, int id) {
    for (int i = 0; i < model->count; i++)
        for (int k = 0; k < model->layers[i]->params_count; k++) {
            const tr_param *param = &model->layers[i]->params[k];
            int other_layer;
            if (param->use != 0 || !other_use(model, param, &other_layer)) continue;
            int here = placement->owner[stage_of_layer(placement, i)];
            int there = placement->owner[stage_of_layer(placement, other_layer)];
            if (here == there) continue;
            /* One group per column of the mesh: ids must be unique in the world. */
            int group_id = id++ * mesh->degree[TR_AXIS_DP] * mesh->degree[TR_AXIS_TP] +
                           mesh->index[TR_AXIS_DP] * mesh->degree[TR_AXIS_TP] +
                           mesh->index[TR_AXIS_TP];
            if (mesh->index[TR_AXIS_PP] != here && mesh->index[TR_AXIS_PP] != there) continue;
            int index[TR_AXIS_COUNT], ranks[2];
            memcpy(index, mesh->index, sizeof index);
            index[TR_AXIS_PP] = here;
            ranks[0] = tr_mesh_rank(mesh, index);
            index[TR_AXIS_PP] = there;
            ranks[1] = tr_mesh_rank(mesh, index);
            int slot =
                slot_of(store, tr_param_name(param), mesh->index[TR_AXIS_PP] == here ? 0 : 1);
            TR_TRY(tr_group_open(world, store->device, ranks, 2, group_id, TIE_PIECE,
                                 &store->slot[slot].tie));
        }
    return TR_OK;
}

tr_status tr_store_create(tr_device *device, tr_world *world, const tr_mesh *mesh,
                          const tr_model *model, const tr_placement *placement, tr_dtype dtype,
                          tr_store_use use, int tie_group_id, tr_store **out) {
    tr_status status = TR_OK;
    tr_store *store = NULL;
    int pp_rank = mesh->index[TR_AXIS_PP];
    TR_TRY(tr_calloc(1, sizeof *store, &store));
    store->device = device;
    store->world = world;
    store->dtype = dtype;
    measure sum = {.model = model, .placement = placement, .pp_rank = pp_rank};
    for_each_local(model, placement, pp_rank, measure_param, &sum);
    size_t values, grads, states;
    tr_store_bytes(model, placement, pp_rank, dtype, &values, &grads, &states);
    store->grad_bytes = use == TR_STORE_TRAIN ? grads : 0;
    const size_t stages = (size_t)placement->stages;
    TR_TRY_OUT(tr_calloc((size_t)sum.slots, sizeof *store->slot, &store->slot));
    TR_TRY_OUT(tr_calloc(stages, sizeof *store->stage_grad, &store->stage_grad));
    TR_TRY_OUT(tr_calloc(2 * stages + 1, sizeof *store->run, &store->run));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_PARAMETERS, values, (void **)&store->values));
    if (use == TR_STORE_TRAIN) {
        TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_GRADIENTS, grads, (void **)&store->grads));
        TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_OPTIMIZER, states, (void **)&store->states));
    }
    place at = {.store = store,
                .model = model,
                .placement = placement,
                .pp_rank = pp_rank,
                .last_stage = -1,
                .master = (float *)store->values,
                .m = (float *)store->states,
                .v = next((float *)store->states, sum.values),
                .value = store->values + (dtype == TR_F32 ? 0 : sum.values * sizeof(float)),
                .grad = (float *)store->grads};
    for_each_local(model, placement, pp_rank, list_param, &at);
    for (int s = 0; s < store->stages; s++) place_stage(&at, s);
    TR_TRY_OUT(open_ties(store, world, mesh, model, placement, tie_group_id));
out:
    if (status != TR_OK) tr_store_destroy(store);
    else *out = store;
    return status;
}

void tr_store_destroy(tr_store *store) {
    if (!store) return;
    for (int i = 0; i < store->slots; i++)
        if (store->slot[i].tie) tr_group_close(store->slot[i].tie);
    if (store->values) tr_device_free(store->device, store->values);
    if (store->grads) tr_device_free(store->device, store->grads);
    if (store->states) tr_device_free(store->device, store->states);
    free(store->stage_grad);
    free(store->run);
    free(store->slot);
    free(store);
}

/* Initial values pass through one piece of staging memory, as large as the largest parameter. */
tr_status tr_store_init(tr_store *store, uint64_t seed, const tr_board *board) {
    tr_stream *stream = tr_device_compute(store->device);
    tr_status status = TR_OK;
    int64_t most = 0, drawn = 0, all = 0;
    float *host;
    for (int i = 0; i < store->slots; i++) {
        if (store->slot[i].shares >= 0) continue;
        all += store->slot[i].param->count;
        if (store->slot[i].param->count > most) most = store->slot[i].param->count;
    }
    tr_world_tell_work(store->world, 0, all);
    TR_TRY(tr_device_staging_alloc(store->device, (size_t)most * sizeof *host, (void **)&host));
    for (int i = 0; i < store->slots; i++) {
        tr_slot *slot = &store->slot[i];
        if (slot->shares >= 0) continue;
        if (tr_board_stop_requested(board))
            TR_TRY_OUT(TR_FAIL(TR_ERR_STOPPED, "stopped while parameters were drawn"));
        size_t bytes = (size_t)slot->param->count * sizeof *host;
        tr_param_init(slot->param, seed, store->device->threads, host);
        TR_TRY_OUT(tr_stream_copy(stream, slot->master, host, bytes));
        TR_TRY_OUT(tr_stream_zero(stream, slot->m, bytes));
        TR_TRY_OUT(tr_stream_zero(stream, slot->v, bytes));
        TR_TRY_OUT(tr_stream_sync(stream)); /* before `host` holds the next ones */
        drawn += slot->param->count;
        tr_world_tell_work(store->world, drawn, all);
    }
    status = tr_store_publish(store);
out:
    tr_device_staging_free(store->device, host);
    return status;
}

tr_status tr_store_publish(tr_store *store) {
    if (store->dtype == TR_F32) return TR_OK;
    tr_stream *stream = tr_device_compute(store->device);
    for (int i = 0; i < store->slots; i++) {
        tr_slot *slot = &store->slot[i];
        if (slot->shares >= 0) continue;
        tr_op_desc desc = {
            .kind = TR_OP_CAST,
            .rows = {.rows = 1, .width = slot->param->count, .dtype = TR_F32, .to = store->dtype}};
        tr_op *cast;
        TR_TRY(tr_op_prepare(store->device, &desc, &cast));
        tr_op_args args = {.t = {[TR_CAST_X] = slot->master, [TR_CAST_Y] = slot->param->value}};
        tr_status status = tr_op_run(cast, stream, &args);
        tr_op_release(cast);
        TR_TRY(status);
    }
    return tr_stream_sync(stream);
}
