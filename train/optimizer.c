#include "train/optimizer.h"

#include "base/memory.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct slot_ops {
    tr_op *tie;   /* adds this shared use's gradient to use 0's */
    tr_op *sumsq; /* NULL if another rank counts the parameter */
} slot_ops;

/* The end of a step with a number of micro-batches. */
typedef struct finish_op {
    int micro_batches;
    int64_t first, losses; /* its part of the vector begins at entry `first` */
    tr_op *op;
} finish_op;

struct tr_optimizer {
    tr_optimizer_desc desc;
    slot_ops *ops;       /* [store->slots] */
    tr_op **step;        /* [store->runs] */
    int64_t *ticket;     /* [store->spans]: of their sums */
    tr_moments *moments; /* NULL: states are in FP32, and `step` steps them */
    tr_pace *pace;       /* NULL: `step` does all */
    tr_noise *noise;     /* NULL: not measured */
    finish_op *finish;   /* [1 + desc.smaller_count]: the whole batch's, then those of `smaller` */
    finish_op *now;      /* of the step in progress */
    double *vector;      /* device: losses, norms, stop */
    tr_step_end_vector map; /* of its entries */
    _Atomic double *asks;   /* staging: not 0 once this rank asks to stop */
    double *sums;           /* staging: the vector after its sum, from entry `read` on */
    int64_t read;
    double *spoil; /* staging */
    void *scratch;
};

static tr_status prepare(tr_device *device, const tr_op_desc *desc, size_t *scratch, tr_op **out) {
    TR_TRY(tr_op_prepare(&(tr_op_context){.device = device}, desc, out));
    if ((*out)->scratch_bytes > *scratch) *scratch = (*out)->scratch_bytes;
    return TR_OK;
}

/* Prepares a parameter's operators. shares: this use's gradient is added to use 0's on the same
 * rank. */
static tr_status prepare_param(tr_device *device, const tr_param *param, bool counted, bool shares,
                               size_t *scratch, slot_ops *ops) {
    tr_op_desc desc;
    if (!tr_step_end_param_op(param, counted, shares, &desc)) return TR_OK;
    return prepare(device, &desc, scratch, shares ? &ops->tie : &ops->sumsq);
}

static tr_status prepare_update(tr_device *device, const tr_optim_config *config, tr_dtype dtype,
                                const tr_run *run, size_t *scratch, tr_op **out) {
    tr_optim_config own = *config;
    own.kind = run->optimizer;
    const tr_op_desc desc = tr_optim_update(&own, run->count, dtype, run->decay, run->lr_scale);
    return prepare(device, &desc, scratch, out);
}

static tr_status prepare_finish(tr_optimizer *o, int micro_batches, size_t *scratch,
                                finish_op *out) {
    const tr_mesh *mesh = o->desc.mesh;
    *out = (finish_op){.micro_batches = micro_batches,
                       .first = tr_step_end_first(&o->map, mesh, micro_batches),
                       .losses = tr_step_end_count(&o->map, mesh, micro_batches)};
    const tr_op_desc desc = tr_step_end_finish_op(&o->map, out->losses);
    return prepare(o->desc.device, &desc, scratch, &out->op);
}

static void release(slot_ops *ops) {
    tr_op_release(ops->tie);
    tr_op_release(ops->sumsq);
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
    TR_TRY_OUT(tr_device_staging_alloc(
        desc->device, (size_t)(o->map.length - o->read) * sizeof *o->sums, (void **)&o->sums));
    TR_TRY_OUT(tr_device_staging_alloc(desc->device, sizeof *o->spoil, (void **)&o->spoil));
    TR_TRY_OUT(tr_calloc((size_t)store->slots, sizeof *o->ops, &o->ops));
    TR_TRY_OUT(tr_calloc((size_t)store->runs + 1, sizeof *o->step, &o->step));
    TR_TRY_OUT(tr_calloc((size_t)store->spans, sizeof *o->ticket, &o->ticket));
    for (int i = 0; i < store->slots && !desc->forward_only; i++) {
        const tr_store_slot *slot = &store->slot[i];
        TR_TRY_OUT(prepare_param(desc->device, slot->param, slot->layout.counted, slot->shares >= 0,
                                 &scratch, &o->ops[i]));
    }
    if (!desc->forward_only)
        TR_TRY_OUT(tr_moments_create(store, &desc->config, &scratch, &o->moments));
    for (int i = 0; i < store->runs && !desc->forward_only && !o->moments; i++)
        TR_TRY_OUT(prepare_update(desc->device, &desc->config, store->dtype, &store->run[i],
                                  &scratch, &o->step[i]));
    if (!desc->forward_only)
        TR_TRY_OUT(
            tr_pace_create(store, &desc->config, desc->mesh, desc->tensor, &scratch, &o->pace));
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
    for (int i = 0; o->ops && i < o->desc.store->slots; i++) release(&o->ops[i]);
    for (int i = 0; o->step && i < o->desc.store->runs; i++) tr_op_release(o->step[i]);
    tr_moments_destroy(o->moments);
    tr_pace_destroy(o->pace);
    tr_noise_destroy(o->noise);
    for (int k = 0; o->finish && k <= o->desc.smaller_count; k++) tr_op_release(o->finish[k].op);
    free(o->finish);
    if (o->vector) tr_device_free(o->desc.device, o->vector);
    if (o->scratch) tr_device_free(o->desc.device, o->scratch);
    tr_device_staging_free(o->desc.device, (void *)o->asks);
    tr_device_staging_free(o->desc.device, o->sums);
    tr_device_staging_free(o->desc.device, o->spoil);
    tr_step_end_vector_free(&o->map);
    free(o->ops);
    free(o->step);
    free(o->ticket);
    free(o);
}

/* Gradients need no clearing: every program runs W of every stage and micro-batch, and the first W
 * of a stage writes every element of its gradients, also where no token counts (tr_layer_io.adds).
 * The gaps between gradients, which sums and steps take along, are never written: memory is zeroed
 * when it is allocated. */
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

tr_status tr_optimizer_first_gradients(tr_optimizer *o, int local_stage, bool in_forward) {
    return tr_noise_take_part(o->noise, tr_device_compute(o->desc.device), o->vector, local_stage,
                              -1, in_forward, o->scratch);
}

tr_status tr_optimizer_start(tr_optimizer *o, int local_stage, int bucket) {
    tr_stream *stream = tr_device_compute(o->desc.device);
    /* The sum replaces the gradients. With one micro-batch it starts before the first W ends. */
    TR_TRY(tr_noise_take_part(o->noise, stream, o->vector, local_stage, bucket, false, o->scratch));
    for (int i = 0; i < o->desc.store->spans; i++) {
        const tr_span *span = &o->desc.store->span[i];
        if (span->stage != local_stage || span->bucket != bucket) continue;
        TR_TRY(tr_group_start(span->sum, stream, span->data, span->count, o->desc.store->acc,
                              TR_REDUCE_SUM, &o->ticket[i]));
    }
    return TR_OK;
}

tr_status tr_optimizer_wait(tr_optimizer *o, int local_stage, int bucket) {
    tr_stream *stream = tr_device_compute(o->desc.device);
    for (int i = 0; i < o->desc.store->spans; i++) {
        const tr_span *span = &o->desc.store->span[i];
        if (span->stage != local_stage || span->bucket != bucket) continue;
        TR_TRY(tr_group_wait(span->sum, stream, o->ticket[i]));
    }
    return TR_OK;
}

/* Sums tied gradients. Both kinds of tie add use 1 to use 0, so the bits do not depend on the uses'
 * ranks. */
static tr_status sum_ties(tr_optimizer *o, tr_stream *stream) {
    tr_store *store = o->desc.store;
    for (int i = 0; i < store->slots; i++) {
        tr_store_slot *slot = &store->slot[i];
        if (slot->tie)
            TR_TRY(tr_group_all_reduce(slot->tie, stream, slot->param->grad, slot->param->count,
                                       store->acc, TR_REDUCE_SUM));
        if (!o->ops[i].tie) continue;
        tr_tensor first = tr_param_grad(store->slot[slot->shares].param);
        tr_tensor second = tr_param_grad(slot->param);
        tr_op_args args = {.t = {[TR_ADD_A] = first, [TR_ADD_B] = second, [TR_ADD_Y] = first},
                           .scratch = o->scratch};
        TR_TRY(tr_op_run(o->ops[i].tie, stream, &args));
    }
    return TR_OK;
}

static tr_status take_norms(tr_optimizer *o, tr_stream *stream) {
    double *norms = o->vector + 2 * o->map.losses;
    for (int i = 0; i < o->desc.store->slots; i++) {
        const tr_store_slot *slot = &o->desc.store->slot[i];
        if (!o->ops[i].sumsq) continue;
        double *entry = norms + o->map.norm_entry[slot->param->index] + slot->layout.part;
        tr_op_args args = {.t = {[TR_SUMSQ_X] = tr_param_grad(slot->param),
                                 [TR_SUMSQ_OUT] = tr_tensor_vector(entry, TR_F64, 1)},
                           .scratch = o->scratch};
        TR_TRY(tr_op_run(o->ops[i].sumsq, stream, &args));
    }
    return TR_OK;
}

static tr_status step_runs(tr_optimizer *o, tr_stream *stream) {
    const tr_dtype acc = o->desc.store->acc;
    for (int i = 0; i < o->desc.store->runs; i++) {
        const tr_run *run = &o->desc.store->run[i];
        const int64_t n = run->count;
        tr_op_args args = {
            .t = {[TR_UPDATE_GRAD] = tr_tensor_vector(run->grad, acc, n),
                  [TR_UPDATE_MASTER] = tr_tensor_vector(run->master, acc, n),
                  [TR_UPDATE_M] = tr_tensor_vector(run->state[0], acc, n),
                  [TR_UPDATE_V] = tr_tensor_vector(run->state[1], acc, n),
                  [TR_UPDATE_VALUE] = tr_tensor_vector(run->value, o->desc.store->dtype, n)},
            .scratch = o->scratch,
            .state = o->desc.state};
        if (o->step[i]->desc.kind == TR_OP_DIRECTION) args.t[TR_UPDATE_VALUE] = (tr_tensor){0};
        TR_TRY(tr_op_run(o->step[i], stream, &args));
    }
    return TR_OK;
}

static tr_status update_parameters(tr_optimizer *o, tr_stream *stream) {
    if (o->moments) TR_TRY(tr_moments_run(o->moments, stream, o->desc.state, o->scratch));
    else TR_TRY(step_runs(o, stream));
    if (o->pace) TR_TRY(tr_pace_run(o->pace, stream, o->desc.state, o->scratch));
    return o->desc.store->gathers ? tr_gathers_run(o->desc.store->gathers, stream) : TR_OK;
}

tr_status tr_optimizer_finish(tr_optimizer *o, bool update) {
    tr_stream *stream = tr_device_compute(o->desc.device);
    if (update) {
        TR_TRY(tr_noise_take_whole(o->noise, stream, o->vector, o->scratch));
        TR_TRY(sum_ties(o, stream));
        TR_TRY(take_norms(o, stream));
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
    return tr_stream_copy(tr_device_compute(o->desc.device), o->sums, o->vector + o->read,
                          (size_t)(o->map.length - o->read) * sizeof *o->sums);
}

bool tr_optimizer_stop_requested(const tr_optimizer *o) {
    return o->sums[o->map.length - 1 - o->read] > 0;
}

tr_noise_estimate tr_optimizer_noise(const tr_optimizer *o, double loss_scale) {
    if (!o->noise) return (tr_noise_estimate){NAN, NAN};
    return tr_noise_of(&o->map, o->now->losses, o->sums, loss_scale);
}
