#include "train/optimizer.h"

#include "base/memory.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

/* The end of a step with a number of micro-batches. */
typedef struct finish_op {
    int micro_batches;
    int64_t first, losses; /* its part of the vector begins at entry `first` */
    tr_op *op;
} finish_op;

struct tr_optimizer {
    tr_optimizer_desc desc;
    tr_op **tie;         /* [store->slots]: adds this shared use's gradient to use 0's; or NULL */
    tr_sums *sums;       /* of gradients; forward_only: NULL, as are the norms */
    tr_norms *norms;     /* of those sums that this rank counts */
    tr_updates *updates; /* NULL: the host steps */
    tr_hosted *hosted;   /* NULL: the device steps */
    tr_directions *directions; /* NULL: no tensor is stepped by itself */
    tr_noise *noise;           /* NULL: not measured */
    finish_op *finish; /* [1 + desc.smaller_count]: the whole batch's, then those of `smaller` */
    finish_op *now;    /* of the step in progress */
    double *vector;    /* device: losses, norms, stop */
    tr_step_end_vector map; /* of its entries */
    _Atomic double *asks;   /* staging: not 0 once this rank asks to stop */
    double *results;        /* staging: the vector after its sum, from entry `read` on */
    int64_t read;
    double *spoil; /* staging */
    void *scratch;
};

/* Prepares the sums of uses that are tied to others on this rank. */
static tr_status prepare_ties(tr_optimizer *o, size_t *scratch) {
    const tr_store *store = o->desc.store;
    TR_TRY(tr_calloc((size_t)store->slots, sizeof *o->tie, &o->tie));
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        if (slot->shares < 0 || slot->param->frozen || slot->portion.extent == 0) continue;
        const tr_op_desc desc = tr_step_end_tie_op(slot->param, store->divided, store->grad_dtype);
        TR_TRY(tr_op_prepare_fixed(o->desc.device, desc, scratch, &o->tie[i]));
    }
    return TR_OK;
}

/* Prepares the norms of the parameters that this rank, or one that divides their updates with it,
 * counts. */
static tr_status prepare_norms(tr_optimizer *o, size_t *scratch) {
    const tr_store *store = o->desc.store;
    int64_t *entry;
    TR_TRY(tr_calloc((size_t)store->slots, sizeof *entry, &entry));
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        const tr_param *param = slot->param;
        entry[i] = param->frozen || param->use > 0 ? TR_NORM_NONE
                   : !slot->layout.counted
                       ? TR_NORM_ELSEWHERE
                       : 2 * o->map.losses + o->map.norm_entry[param->index] + slot->layout.part;
    }
    tr_status status =
        tr_norms_create(&(tr_norms_desc){.store = store, .entry = entry}, scratch, &o->norms);
    free(entry);
    return status;
}

static tr_status prepare_finish(tr_optimizer *o, int micro_batches, size_t *scratch,
                                finish_op *out) {
    const tr_mesh *mesh = o->desc.mesh;
    *out = (finish_op){.micro_batches = micro_batches,
                       .first = tr_step_end_first(&o->map, mesh, micro_batches),
                       .losses = tr_step_end_count(&o->map, mesh, micro_batches)};
    const tr_op_desc desc = tr_step_end_finish_op(&o->map, out->losses);
    return tr_op_prepare_fixed(o->desc.device, desc, scratch, &out->op);
}

/* Prepares what only steps that update parameters need. */
static tr_status prepare_training(tr_optimizer *o, size_t *scratch) {
    const tr_optimizer_desc *desc = &o->desc;
    const tr_store *store = desc->store;
    TR_TRY(tr_directions_create(store, &desc->config, desc->mesh, desc->tensor, scratch,
                                &o->directions));
    TR_TRY(tr_hosted_create(store, &desc->config, o->directions, &o->hosted));
    if (!o->hosted) TR_TRY(tr_updates_create(store, &desc->config, scratch, &o->updates));
    TR_TRY(prepare_ties(o, scratch));
    TR_TRY(prepare_norms(o, scratch));
    return tr_sums_create(store, desc->reduce, &o->sums);
}

tr_status tr_optimizer_create(const tr_optimizer_desc *desc, tr_optimizer **out) {
    tr_status status = TR_OK;
    tr_optimizer *o = NULL;
    size_t scratch = 0;
    const tr_store *store = desc->store;
    TR_TRY(tr_calloc(1, sizeof *o, &o));
    o->desc = *desc;
    TR_TRY_OUT(tr_step_end_vector_make(desc->model, desc->mesh, desc->micro_batches, desc->noise,
                                       &o->map));
    TR_TRY_OUT(tr_device_alloc(desc->device, TR_MEMORY_DATA, tr_step_end_vector_bytes(&o->map),
                               (void **)&o->vector));
    TR_TRY_OUT(tr_device_staging_alloc(desc->device, sizeof *o->asks, (void **)&o->asks));
    atomic_init(o->asks, 0);
    o->read = desc->noise ? 0 : o->map.length - 1;
    TR_TRY_OUT(tr_device_staging_alloc(desc->device,
                                       (size_t)(o->map.length - o->read) * sizeof *o->results,
                                       (void **)&o->results));
    TR_TRY_OUT(tr_device_staging_alloc(desc->device, sizeof *o->spoil, (void **)&o->spoil));
    if (!desc->forward_only) TR_TRY_OUT(prepare_training(o, &scratch));
    TR_TRY_OUT(tr_noise_create(store, desc->model, desc->mesh, &o->map, &scratch, &o->noise));
    TR_TRY_OUT(tr_calloc((size_t)desc->smaller_count + 1, sizeof *o->finish, &o->finish));
    for (int k = 0; k <= desc->smaller_count; k++)
        TR_TRY_OUT(prepare_finish(o, k > 0 ? desc->smaller[k - 1] : desc->micro_batches, &scratch,
                                  &o->finish[k]));
    o->now = o->finish;
    if (scratch) TR_TRY_OUT(tr_device_alloc(desc->device, TR_MEMORY_DATA, scratch, &o->scratch));
out:
    if (status != TR_OK) tr_optimizer_destroy(o);
    else *out = o;
    return status;
}

void tr_optimizer_destroy(tr_optimizer *o) {
    if (!o) return;
    for (int i = 0; o->tie && i < o->desc.store->slots; i++) tr_op_release(o->tie[i]);
    tr_sums_destroy(o->sums);
    tr_norms_destroy(o->norms);
    tr_updates_destroy(o->updates);
    tr_hosted_destroy(o->hosted);
    tr_directions_destroy(o->directions);
    tr_noise_destroy(o->noise);
    for (int k = 0; o->finish && k <= o->desc.smaller_count; k++) tr_op_release(o->finish[k].op);
    free(o->finish);
    tr_device_free(o->desc.device, o->vector);
    tr_device_free(o->desc.device, o->scratch);
    tr_device_staging_free(o->desc.device, (void *)o->asks);
    tr_device_staging_free(o->desc.device, o->results);
    tr_device_staging_free(o->desc.device, o->spoil);
    tr_step_end_vector_free(&o->map);
    free(o->tie);
    free(o);
}

/* Gradients need no clearing: every program runs W of every stage and micro-batch, and the first W
 * of a stage writes every element of its gradients, also where no token counts (tr_layer_io.adds).
 * The gaps between gradients, which sums and steps take along, are never written: memory is zeroed
 * when it is allocated. Those in the arena have any contents, and steps do not read them. */
tr_status tr_optimizer_begin(tr_optimizer *o, int micro_batches) {
    for (int k = 0; k <= o->desc.smaller_count; k++)
        if (o->finish[k].micro_batches == micro_batches) o->now = &o->finish[k];
    tr_noise_begin(o->noise);
    return tr_stream_zero(tr_device_compute(o->desc.device), o->vector,
                          (size_t)o->map.length * sizeof(double));
}

tr_status tr_optimizer_spoil(tr_optimizer *o) {
    *o->spoil = NAN;
    return tr_stream_copy(tr_device_compute(o->desc.device),
                          o->vector + 2 * o->map.losses + o->map.norms - 1, o->spoil,
                          sizeof *o->spoil);
}

double *tr_optimizer_loss(tr_optimizer *o, int micro_batches) {
    int64_t stride;
    return o->vector + tr_step_end_losses(&o->map, o->desc.mesh, micro_batches, &stride);
}

int64_t tr_optimizer_loss_stride(const tr_optimizer *o) {
    int64_t stride;
    (void)tr_step_end_losses(&o->map, o->desc.mesh, o->desc.micro_batches, &stride);
    return stride;
}

const double *tr_optimizer_losses(const tr_optimizer *o) {
    return o->vector;
}

_Atomic double *tr_optimizer_stop_word(tr_optimizer *o) {
    return o->asks;
}

tr_status tr_optimizer_first_gradients(tr_optimizer *o, int stage, bool in_forward) {
    return tr_noise_take_part(o->noise, tr_device_compute(o->desc.device), o->vector, stage, -1,
                              in_forward, o->scratch);
}

tr_status tr_optimizer_start(tr_optimizer *o, int stage, int bucket) {
    tr_stream *stream = tr_device_compute(o->desc.device);
    /* The sum replaces the gradients. With one micro-batch it starts before the first W ends. */
    TR_TRY(tr_noise_take_part(o->noise, stream, o->vector, stage, bucket, false, o->scratch));
    return tr_sums_start(o->sums, stream, stage, bucket);
}

tr_status tr_optimizer_wait(tr_optimizer *o, int stage, int bucket) {
    return tr_sums_wait(o->sums, tr_device_compute(o->desc.device), stage, bucket);
}

/* Returns this rank's portion of the slot's gradient. */
static tr_tensor portion_of(const tr_store *store, const tr_store_slot *slot) {
    return tr_tensor_vector(slot->grad, store->grad_dtype, slot->portion.extent);
}

/* Sums tied gradients: the portions that this rank steps, which are the same of all uses. Both
 * kinds of tie add use 1 to use 0, so the bits do not depend on the uses' ranks. */
static tr_status sum_ties(tr_optimizer *o, tr_stream *stream) {
    tr_store *store = o->desc.store;
    for (int i = 0; i < store->slots; i++) {
        tr_store_slot *slot = &store->slot[i];
        const tr_tensor own = slot->param->frozen ? (tr_tensor){0} : portion_of(store, slot);
        if (slot->tie)
            TR_TRY(tr_group_all_reduce(slot->tie, stream, own.data, slot->portion.extent,
                                       store->grad_dtype, TR_REDUCE_SUM));
        if (!o->tie[i]) continue;
        const tr_tensor first = portion_of(store, &store->slot[slot->shares]);
        tr_op_args args = {.t = {[TR_ADD_A] = first, [TR_ADD_B] = own, [TR_ADD_Y] = first},
                           .scratch = o->scratch};
        TR_TRY(tr_op_run(o->tie[i], stream, &args));
    }
    return TR_OK;
}

static tr_status update_parameters(tr_optimizer *o, tr_stream *stream) {
    if (o->hosted) TR_TRY(tr_hosted_run(o->hosted, stream, o->desc.state, o->scratch));
    else TR_TRY(tr_updates_run(o->updates, o->directions, stream, o->desc.state, o->scratch));
    o->desc.store->outdated = o->desc.store->gathers != NULL;
    return TR_OK;
}

tr_status tr_optimizer_finish(tr_optimizer *o, bool update) {
    tr_stream *stream = tr_device_compute(o->desc.device);
    if (update) {
        TR_TRY(tr_noise_take_whole(o->noise, stream, o->vector, o->scratch));
        TR_TRY(sum_ties(o, stream));
        TR_TRY(tr_norms_take(o->norms, 0, stream, o->vector, o->scratch));
    }
    /* In stream order, so that a request applies to this step until its end runs. */
    TR_TRY(tr_stream_copy(stream, o->vector + o->map.length - 1, (const void *)o->asks,
                          sizeof *o->vector));
    const finish_op *end = o->now;
    double *first = o->vector + end->first;
    TR_TRY(tr_group_all_reduce(o->desc.world, stream, first, o->map.length - end->first, TR_F64,
                               TR_REDUCE_SUM));
    const double *norms = o->vector + 2 * o->map.losses;
    tr_op_args args = {
        .t = {[TR_STEP_FINISH_LOSSES] = tr_tensor_matrix(first, TR_F64, end->losses, 2),
              [TR_STEP_FINISH_NORMS] = tr_tensor_vector(norms, TR_F64, o->map.norms),
              [TR_STEP_FINISH_STATE] =
                  tr_tensor_vector(o->desc.state, TR_U8, sizeof *o->desc.state)},
        .scratch = o->scratch,
        .state = o->desc.state};
    TR_TRY(tr_op_run(end->op, stream, &args));
    return update ? update_parameters(o, stream) : TR_OK;
}

tr_status tr_optimizer_read(tr_optimizer *o) {
    return tr_stream_copy(tr_device_compute(o->desc.device), o->results, o->vector + o->read,
                          (size_t)(o->map.length - o->read) * sizeof *o->results);
}

bool tr_optimizer_stop_requested(const tr_optimizer *o) {
    return o->results[o->map.length - 1 - o->read] > 0;
}

tr_noise_estimate tr_optimizer_noise(const tr_optimizer *o, double loss_scale) {
    if (!o->noise) return (tr_noise_estimate){NAN, NAN};
    return tr_noise_of(&o->map, o->now->losses, o->results, loss_scale);
}
