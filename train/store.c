#include "train/store_impl.h"

#include "base/memory.h"
#include "layers/lora_config.h"
#include "partition/offload.h"

#include <stdlib.h>
#include <string.h>

/* Opens the cpu device that steps masters and states, and allocates these. */
static tr_status alloc_offloaded(tr_store *store, const tr_param_memory *sum) {
    const size_t bytes =
        tr_memory_masters_bytes(sum, store->dtype) + tr_memory_states_bytes(sum, store->dtype);
    const tr_device_options options = {.threads = store->device->threads};
    store->part = tr_offload_part(sum);
    TR_TRY(tr_device_open("cpu", &options, &store->host));
    if (bytes == 0) return TR_OK;
    return tr_device_kept_alloc(store->device, TR_MEMORY_OFFLOAD, bytes,
                                (void **)&store->offloaded);
}

static tr_status alloc_store(tr_store *store, const tr_param_memory *sum, bool trains) {
    size_t values, grads, states;
    tr_memory_params_bytes(sum, store->dtype, &values, &grads, &states);
    TR_TRY(tr_calloc((size_t)sum->params, sizeof *store->slot, &store->slot));
    TR_TRY(tr_calloc((size_t)sum->params, sizeof *store->span, &store->span));
    TR_TRY(tr_calloc((size_t)sum->params, sizeof *store->run, &store->run));
    TR_TRY(tr_device_alloc(store->device, TR_MEMORY_PARAMETERS, values, (void **)&store->values));
    if (!trains) return TR_OK;
    if (grads > 0)
        TR_TRY(tr_device_alloc(store->device, TR_MEMORY_GRADIENTS, grads, (void **)&store->grads));
    if (sum->optimizer.offload) return alloc_offloaded(store, sum);
    if (states == 0) return TR_OK;
    return tr_device_alloc(store->device, TR_MEMORY_OPTIMIZER, states, (void **)&store->states);
}

bool tr_store_gathers(const tr_store_slot *slot) {
    return slot->owners && slot->shares < 0;
}

/* Lists the gathers of values after updates. */
static tr_status list_gathers(tr_store *store) {
    const size_t size = tr_dtype_size(store->dtype);
    TR_TRY(tr_gathers_create(&store->gathers));
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        if (tr_store_gathers(slot))
            TR_TRY(tr_gathers_add(store->gathers, store, slot, slot->param->value, 1, size));
    }
    return TR_OK;
}

/* Sets what the store's memory depends on, without allocating it. */
static void describe_store(tr_store *store, const tr_store_desc *d, const tr_mesh *divided) {
    store->device = d->device;
    store->world = d->world;
    store->dtype = d->dtype;
    store->acc = tr_dtype_acc(d->dtype);
    store->optimizer = d->optimizer.kind;
    store->grad_dtype = tr_optim_grad_dtype(d->optimizer, d->dtype);
    store->state_dtype = tr_optim_state_dtype(d->optimizer, d->dtype);
    store->no_master = d->optimizer.no_master && d->dtype != store->acc;
    store->mesh = *d->mesh;
    store->divided = divided ? &store->mesh : NULL;
    store->in_arena = divided && tr_memory_in_arena(d->mesh, d->zero);
    store->divides_values = divided && tr_memory_gathers(d->mesh, d->zero);
}

tr_status tr_store_create(const tr_store_desc *d, tr_store **out) {
    tr_status status = TR_OK;
    tr_store *store = NULL;
    const tr_mesh *divided = d->groups ? tr_memory_divided(d->mesh, d->zero) : NULL;
    tr_optim_memory optimizer = d->optimizer;
    optimizer.offload &= d->groups != NULL;
    const tr_param_memory sum = tr_memory_of_params(
        d->model, d->placement, d->mesh->index[TR_AXIS_PP], divided, d->zero, optimizer);
    TR_TRY(tr_calloc(1, sizeof *store, &store));
    describe_store(store, d, divided);
    TR_TRY_OUT(alloc_store(store, &sum, d->groups != NULL));
    TR_TRY_OUT(tr_store_place_params(store, d, &sum));
    if (divided && !store->divides_values) TR_TRY_OUT(list_gathers(store));
out:
    if (status != TR_OK) tr_store_destroy(store);
    else *out = store;
    return status;
}

void tr_store_destroy(tr_store *store) {
    if (!store) return;
    tr_gathers_destroy(store->gathers);
    tr_device_free(store->device, store->values);
    tr_device_free(store->device, store->grads);
    tr_device_free(store->device, store->states);
    tr_device_kept_free(store->device, store->offloaded);
    tr_device_close(store->host);
    free(store->span);
    free(store->run);
    free(store->slot);
    free(store);
}

tr_tensor tr_store_gradient(const tr_store *store, const tr_store_slot *slot) {
    return tr_tensor_vector(slot->param->grad, store->grad_dtype, slot->param->count);
}

static bool has_master(const tr_store *store, const tr_store_slot *slot) {
    return tr_store_has_masters(store) && !slot->param->frozen;
}

tr_holding tr_store_holding(const tr_store *store, const tr_mesh *mesh) {
    return (tr_holding){.mesh = mesh,
                        .divides = store->divided != NULL,
                        .divides_values = store->divides_values,
                        .has_masters = tr_store_has_masters(store)};
}

void *tr_store_slot_saved(const tr_store *store, const tr_store_slot *slot, tr_dtype *dtype,
                          tr_range *held) {
    const bool master = has_master(store, slot);
    *dtype = master ? store->acc : store->dtype;
    *held =
        master || store->divides_values ? slot->portion : (tr_range){.extent = slot->param->count};
    return master ? slot->master : store->divides_values ? slot->value : slot->param->value;
}

/* Converts values[count] to FP64 in place. */
static void widen(void *values, int64_t count) {
    char *bytes = values;
    for (int64_t i = count - 1; i >= 0; i--) {
        float narrow;
        memcpy(&narrow, bytes + i * (int64_t)sizeof narrow, sizeof narrow);
        const double wide = (double)narrow;
        memcpy(bytes + i * (int64_t)sizeof wide, &wide, sizeof wide);
    }
}

/* Converts FP32 values[count] to BF16 or FP16 in place. */
static void narrow(tr_dtype dtype, void *values, int64_t count) {
    const float *from = values;
    uint16_t *to = values;
    for (int64_t i = 0; i < count; i++) {
        float wide;
        memcpy(&wide, &from[i], sizeof wide);
        to[i] = tr_narrow_round(dtype, wide);
    }
}

/* Computes the slot's values from its masters. staging: where the host computes them first, if the
 * masters are there. */
static tr_status cast_master(tr_store *store, const tr_store_slot *slot, void *staging) {
    tr_device *device = staging ? store->host : store->device;
    tr_stream *stream = tr_device_compute(store->device);
    const int64_t count = slot->portion.extent;
    const size_t size = tr_dtype_size(store->dtype);
    const tr_op_desc desc = {
        .kind = TR_OP_CAST,
        .rows = {.rows = 1, .width = count, .dtype = store->acc, .to = store->dtype}};
    tr_op *cast;
    TR_TRY(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &cast));
    const tr_op_args args = {.t = {[TR_CAST_X] = tr_tensor_vector(slot->master, store->acc, count),
                                   [TR_CAST_Y] = tr_tensor_vector(staging ? staging : slot->value,
                                                                  store->dtype, count)}};
    tr_status status = tr_op_run(cast, tr_device_compute(device), &args);
    tr_op_release(cast);
    TR_TRY(status);
    if (!staging) return TR_OK;
    TR_TRY(tr_stream_copy(stream, slot->value, staging, (size_t)count * size));
    return tr_stream_sync(stream); /* before the next slot's values */
}

/* Computes the values from this rank's masters. */
static tr_status cast_masters(tr_store *store) {
    tr_status status = TR_OK;
    int64_t most = 0;
    void *staging = NULL;
    if (store->dtype == store->acc) return TR_OK;
    for (int i = 0; i < store->slots; i++)
        if (store->slot[i].portion.extent > most) most = store->slot[i].portion.extent;
    if (store->host)
        TR_TRY(tr_device_staging_alloc(store->device, (size_t)most * tr_dtype_size(store->dtype),
                                       &staging));
    for (int i = 0; i < store->slots && status == TR_OK; i++)
        if (store->slot[i].shares < 0 && store->slot[i].master)
            status = cast_master(store, &store->slot[i], staging);
    tr_device_staging_free(store->device, staging);
    return status == TR_OK ? tr_stream_sync(tr_device_compute(store->device)) : status;
}

/* Copies a parameter's drawn values from host[param->count] to its most precise copy; to the whole
 * value, too, of which other ranks have the masters of some elements. */
static tr_status keep_drawn(const tr_store *store, const tr_store_slot *slot, float *host) {
    tr_stream *stream = tr_device_compute(store->device);
    const int64_t count = slot->param->count;
    tr_dtype dtype;
    tr_range held;
    void *to = tr_store_slot_saved(store, slot, &dtype, &held);
    const size_t size = tr_dtype_size(dtype);
    if (dtype == TR_F64) widen(host, count);
    if (tr_dtype_size(dtype) == sizeof(uint16_t)) narrow(dtype, host, count);
    if (held.extent > 0)
        TR_TRY(tr_stream_copy(stream, to, (char *)host + (size_t)held.begin * size,
                              (size_t)held.extent * size));
    TR_TRY(tr_stream_sync(stream)); /* before `host` gets other values */
    if (held.extent == count || store->divides_values) return TR_OK;
    narrow(store->dtype, host, count);
    TR_TRY(tr_stream_copy(stream, slot->param->value, host, (size_t)count * sizeof(uint16_t)));
    return tr_stream_sync(stream);
}

/* Initial values pass through one staging buffer of the largest parameter's size. */
static tr_status draw(tr_store *store, uint64_t seed, bool (*wanted)(const tr_store_slot *slot),
                      const tr_board *board) {
    tr_status status = TR_OK;
    const size_t size = tr_dtype_size(store->acc);
    int64_t most = 0, drawn = 0, all = 0;
    float *host;
    for (int i = 0; i < store->slots; i++) {
        if (!wanted(&store->slot[i])) continue;
        all += store->slot[i].param->count;
        if (store->slot[i].param->count > most) most = store->slot[i].param->count;
    }
    if (all == 0) return TR_OK;
    tr_world_tell_work(store->world, 0, all);
    TR_TRY(tr_device_staging_alloc(store->device, (size_t)most * size, (void **)&host));
    for (int i = 0; i < store->slots; i++) {
        tr_store_slot *slot = &store->slot[i];
        if (!wanted(slot)) continue;
        if (tr_board_stop_requested(board))
            TR_TRY_OUT(TR_FAIL(TR_ERR_STOPPED, "stopped while parameters were drawn"));
        TR_TRY_OUT(tr_param_init(slot->param, seed, store->device->threads, host));
        TR_TRY_OUT(keep_drawn(store, slot, host));
        drawn += slot->param->count;
        tr_world_tell_work(store->world, drawn, all);
    }
out:
    tr_device_staging_free(store->device, host);
    return status;
}

static bool has_value(const tr_store_slot *slot) {
    return slot->shares < 0;
}

static bool is_update(const tr_store_slot *slot) {
    return slot->shares < 0 && tr_lora_is_update(tr_param_name(slot->param));
}

tr_status tr_store_init(tr_store *store, uint64_t seed, const tr_board *board) {
    TR_TRY(tr_store_clear_states(store));
    TR_TRY(draw(store, seed, has_value, board));
    return cast_masters(store);
}

tr_status tr_store_init_updates(tr_store *store, uint64_t seed) {
    return draw(store, seed, is_update, NULL);
}

tr_status tr_store_clear_states(tr_store *store) {
    tr_stream *stream = tr_device_compute(store->host ? store->host : store->device);
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        if (slot->shares >= 0) continue;
        for (int k = 0; k < TR_OPTIM_STATES && slot->state[k]; k++) {
            const int64_t count =
                tr_optim_state_count(slot->optimizer, slot->param, k, slot->portion.extent);
            TR_TRY(tr_stream_zero(stream, slot->state[k],
                                  tr_memory_moments_length(store->state_dtype, count) *
                                      tr_dtype_size(store->state_dtype)));
        }
    }
    return tr_stream_sync(stream);
}

tr_status tr_store_complete(tr_store *store) {
    if (!store->outdated) return TR_OK;
    store->outdated = false;
    return tr_gathers_run(store->gathers, tr_device_compute(store->device));
}

tr_status tr_store_publish(tr_store *store) {
    store->outdated = false; /* each rank has loaded all values, or gathers them here */
    if (!store->gathers || !tr_store_has_masters(store)) return cast_masters(store);
    TR_TRY(tr_world_agree(store->world, cast_masters(store))); /* all ranks gather, or none */
    TR_TRY(tr_gathers_run(store->gathers, tr_device_compute(store->device)));
    return tr_world_sync(store->world, tr_device_compute(store->device));
}
