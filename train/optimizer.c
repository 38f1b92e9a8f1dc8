#include "train/optimizer.h"

#include "base/memory.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct slot_ops {
    tr_op *tie;   /* adds this shared use's gradient to use 0's */
    tr_op *sumsq; /* NULL where another rank counts the parameter */
} slot_ops;

struct tr_optimizer {
    tr_optimizer_desc desc;
    slot_ops *ops; /* [store->slots] */
    tr_op **step;  /* [store->runs] */
    tr_op *finish;
    double *vector;      /* device: losses, norms, stop */
    int64_t *norm_entry; /* [parameters of the model]: entry of a parameter's first part */
    /* Staging: not 0 once this rank asks to stop; the sum over the ranks, read back. */
    _Atomic double *asks;
    double *asked;
    double *spoil; /* staging */
    int64_t losses, norms, length;
    void *scratch;
};

static tr_status prepare(tr_device *device, const tr_op_desc *desc, size_t *scratch, tr_op **out) {
    TR_TRY(tr_op_prepare(device, desc, out));
    if ((*out)->scratch_bytes > *scratch) *scratch = (*out)->scratch_bytes;
    return TR_OK;
}

/* What a parameter's operators depend on, beside itself. shares: this use's gradient goes to use 0
 * on the same rank. */
static tr_status prepare_param(tr_device *device, const tr_param *param, bool counted, bool shares,
                               size_t *scratch, slot_ops *ops) {
    int64_t count = param->count;
    if (shares) {
        tr_op_desc add = {.kind = TR_OP_ADD, .rows = {.rows = 1, .width = count, .dtype = TR_F32}};
        return prepare(device, &add, scratch, &ops->tie);
    }
    if (!counted) return TR_OK;
    tr_op_desc square = {.kind = TR_OP_SUMSQ, .sumsq = {.count = count}};
    return prepare(device, &square, scratch, &ops->sumsq);
}

static tr_status prepare_step(tr_device *device, const tr_adamw_config *adamw, tr_dtype dtype,
                              const tr_run *run, size_t *scratch, tr_op **out) {
    tr_op_desc step = {.kind = TR_OP_ADAMW,
                       .adamw = {.count = run->count,
                                 .beta1 = adamw->beta1,
                                 .beta2 = adamw->beta2,
                                 .eps = adamw->eps,
                                 .weight_decay = run->decay ? adamw->weight_decay : 0,
                                 .dtype = dtype}};
    return prepare(device, &step, scratch, out);
}

static void release(slot_ops *ops) {
    tr_op_release(ops->tie);
    tr_op_release(ops->sumsq);
}

/* The lengths of the shared vector, and where the norms of each parameter are in it: one for each
 * of its parts, in registry order. */
static tr_status size_vector(tr_optimizer *o, const tr_mesh *mesh, int micro_batches,
                             const tr_model *model) {
    int64_t norms = 0;
    TR_TRY(tr_calloc((size_t)model->params_count, sizeof *o->norm_entry, &o->norm_entry));
    for (int i = 0; i < model->count; i++)
        for (int k = 0; k < model->layers[i]->params_count; k++) {
            const tr_param *param = &model->layers[i]->params[k];
            tr_param_layout layout;
            TR_TRY(tr_param_layout_make(param, mesh, &layout));
            o->norm_entry[param->index] = norms;
            norms += layout.parts;
        }
    o->losses = (int64_t)mesh->degree[TR_AXIS_DP] * micro_batches;
    o->norms = norms + 1; /* the last one spoils */
    o->length = 2 * o->losses + o->norms + 1;
    return TR_OK;
}

/* With room behind it for the losses that do not count. */
static size_t vector_bytes(const tr_optimizer *o) {
    return (size_t)(o->length + 2) * sizeof(double);
}

static tr_status prepare_finish(tr_optimizer *o, tr_device *device, size_t *scratch) {
    tr_op_desc finish = {.kind = TR_OP_STEP_FINISH,
                         .step_finish = {.losses = o->losses, .norms = o->norms}};
    return prepare(device, &finish, scratch, &o->finish);
}

typedef struct measure {
    tr_device *device;
    const tr_mesh *mesh;
    size_t scratch;
    tr_run all;
} measure;

static tr_status measure_param(void *context, int stage, tr_param *param, bool shares) {
    (void)stage;
    measure *sum = context;
    slot_ops ops = {0};
    tr_param_layout layout;
    TR_TRY(tr_param_layout_make(param, sum->mesh, &layout));
    if (!shares) sum->all.count += param->count;
    tr_status status =
        prepare_param(sum->device, param, layout.counted, shares, &sum->scratch, &ops);
    release(&ops);
    return status;
}

tr_status tr_optimizer_measure(tr_device *device, const tr_model *model,
                               const tr_placement *placement, const tr_mesh *mesh, tr_dtype dtype,
                               int micro_batches, size_t *bytes) {
    tr_status status = TR_OK;
    measure sum = {.device = device, .mesh = mesh};
    tr_optimizer o = {0};
    tr_op *step;
    TR_TRY_OUT(size_vector(&o, mesh, micro_batches, model));
    TR_TRY_OUT(tr_store_visit(model, placement, mesh->index[TR_AXIS_PP], measure_param, &sum));
    /* No part of a step takes more than all at once. */
    TR_TRY_OUT(prepare_step(device, &(tr_adamw_config){0}, dtype, &sum.all, &sum.scratch, &step));
    tr_op_release(step);
    TR_TRY_OUT(prepare_finish(&o, device, &sum.scratch));
    tr_op_release(o.finish);
    *bytes = tr_align_up(vector_bytes(&o)) + tr_align_up(sum.scratch);
out:
    free(o.norm_entry);
    return status;
}

tr_status tr_optimizer_create(const tr_optimizer_desc *desc, tr_optimizer **out) {
    tr_status status = TR_OK;
    tr_optimizer *o = NULL;
    size_t scratch = 0;
    const tr_store *store = desc->store;
    TR_TRY(tr_calloc(1, sizeof *o, &o));
    o->desc = *desc;
    TR_TRY_OUT(size_vector(o, desc->mesh, desc->micro_batches, desc->model));
    TR_TRY_OUT(tr_device_alloc(desc->device, TR_MEMORY_DATA, vector_bytes(o), (void **)&o->vector));
    TR_TRY_OUT(tr_device_staging_alloc(desc->device, sizeof *o->asks, (void **)&o->asks));
    atomic_init(o->asks, 0);
    TR_TRY_OUT(tr_device_staging_alloc(desc->device, sizeof *o->asked, (void **)&o->asked));
    TR_TRY_OUT(tr_device_staging_alloc(desc->device, sizeof *o->spoil, (void **)&o->spoil));
    TR_TRY_OUT(tr_calloc((size_t)store->slots, sizeof *o->ops, &o->ops));
    TR_TRY_OUT(tr_calloc((size_t)store->runs + 1, sizeof *o->step, &o->step));
    for (int i = 0; i < store->slots; i++) {
        const tr_slot *slot = &store->slot[i];
        TR_TRY_OUT(prepare_param(desc->device, slot->param, slot->layout.counted, slot->shares >= 0,
                                 &scratch, &o->ops[i]));
    }
    for (int i = 0; i < store->runs; i++)
        TR_TRY_OUT(prepare_step(desc->device, &desc->adamw, store->dtype, &store->run[i], &scratch,
                                &o->step[i]));
    TR_TRY_OUT(prepare_finish(o, desc->device, &scratch));
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
    tr_op_release(o->finish);
    if (o->vector) tr_device_free(o->desc.device, o->vector);
    if (o->scratch) tr_device_free(o->desc.device, o->scratch);
    tr_device_staging_free(o->desc.device, (void *)o->asks);
    tr_device_staging_free(o->desc.device, o->asked);
    tr_device_staging_free(o->desc.device, o->spoil);
    free(o->norm_entry);
    free(o->ops);
    free(o->step);
    free(o);
}

tr_status tr_optimizer_begin(tr_optimizer *o) {
    tr_stream *stream = tr_device_compute(o->desc.device);
    TR_TRY(tr_stream_zero(stream, o->desc.store->grads, o->desc.store->grad_bytes));
    return tr_stream_zero(stream, o->vector, (size_t)o->length * sizeof(double));
}

tr_status tr_optimizer_spoil(tr_optimizer *o) {
    *o->spoil = NAN;
    return tr_stream_copy(tr_device_compute(o->desc.device),
                          o->vector + 2 * o->losses + o->norms - 1, o->spoil, sizeof *o->spoil);
}

/* Tensor ranks compute the same losses: rank 0's count, the others' go behind the vector. */
double *tr_optimizer_loss(tr_optimizer *o) {
    const tr_mesh *mesh = o->desc.mesh;
    if (mesh->index[TR_AXIS_TP] != 0) return o->vector + o->length;
    return o->vector + 2 * (int64_t)mesh->index[TR_AXIS_DP] * o->desc.micro_batches;
}

int64_t tr_optimizer_loss_stride(const tr_optimizer *o) {
    return o->desc.mesh->index[TR_AXIS_TP] != 0 ? 0 : 2;
}

_Atomic double *tr_optimizer_stop_word(tr_optimizer *o) {
    return o->asks;
}

tr_status tr_optimizer_reduce(tr_optimizer *o, int local_stage) {
    tr_stream *stream = tr_device_compute(o->desc.device);
    for (int i = 0; i < o->desc.store->spans; i++) {
        const tr_span *span = &o->desc.store->span[i];
        if (span->stage != local_stage) continue;
        TR_TRY(
            tr_group_all_reduce(span->sum, stream, span->data, span->count, TR_F32, TR_REDUCE_SUM));
    }
    return TR_OK;
}

/* Both kinds of tie add use 1 to use 0, so the sum has the same bits wherever the uses live. */
static tr_status sum_ties(tr_optimizer *o, tr_stream *stream) {
    tr_store *store = o->desc.store;
    for (int i = 0; i < store->slots; i++) {
        tr_slot *slot = &store->slot[i];
        if (slot->tie)
            TR_TRY(tr_group_all_reduce(slot->tie, stream, slot->param->grad, slot->param->count,
                                       TR_F32, TR_REDUCE_SUM));
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
    double *norms = o->vector + 2 * o->losses;
    for (int i = 0; i < o->desc.store->slots; i++) {
        const tr_slot *slot = &o->desc.store->slot[i];
        if (!o->ops[i].sumsq) continue;
        double *entry = norms + o->norm_entry[slot->param->index] + slot->layout.part;
        tr_op_args args = {.t = {[TR_SUMSQ_X] = tr_param_grad(slot->param),
                                 [TR_SUMSQ_OUT] = tr_tensor_vector(entry, TR_F64, 1)},
                           .scratch = o->scratch};
        TR_TRY(tr_op_run(o->ops[i].sumsq, stream, &args));
    }
    return TR_OK;
}

static tr_status update_parameters(tr_optimizer *o, tr_stream *stream) {
    for (int i = 0; i < o->desc.store->runs; i++) {
        const tr_run *run = &o->desc.store->run[i];
        const int64_t n = run->count;
        tr_op_args args = {
            .t = {[TR_ADAMW_GRAD] = tr_tensor_vector(run->grad, TR_F32, n),
                  [TR_ADAMW_MASTER] = tr_tensor_vector(run->master, TR_F32, n),
                  [TR_ADAMW_M] = tr_tensor_vector(run->m, TR_F32, n),
                  [TR_ADAMW_V] = tr_tensor_vector(run->v, TR_F32, n),
                  [TR_ADAMW_VALUE] = tr_tensor_vector(run->value, o->desc.store->dtype, n)},
            .scratch = o->scratch,
            .state = o->desc.state};
        TR_TRY(tr_op_run(o->step[i], stream, &args));
    }
    return TR_OK;
}

tr_status tr_optimizer_finish(tr_optimizer *o, bool update) {
    tr_stream *stream = tr_device_compute(o->desc.device);
    if (update) {
        TR_TRY(sum_ties(o, stream));
        TR_TRY(take_norms(o, stream));
    }
    /* In stream order, so that a request counts for this step until its end runs. */
    TR_TRY(tr_stream_copy(stream, o->vector + o->length - 1, (const void *)o->asks,
                          sizeof *o->vector));
    TR_TRY(tr_group_all_reduce(o->desc.world, stream, o->vector, o->length, TR_F64, TR_REDUCE_SUM));
    const double *norms = o->vector + 2 * o->losses;
    tr_op_args args = {
        .t = {[TR_STEP_FINISH_LOSSES] = tr_tensor_matrix(o->vector, TR_F64, o->losses, 2),
              [TR_STEP_FINISH_NORMS] = tr_tensor_vector(norms, TR_F64, o->norms),
              [TR_STEP_FINISH_STATE] =
                  tr_tensor_vector(o->desc.state, TR_U8, sizeof *o->desc.state)},
        .scratch = o->scratch,
        .state = o->desc.state};
    TR_TRY(tr_op_run(o->finish, stream, &args));
    return update ? update_parameters(o, stream) : TR_OK;
}

tr_status tr_optimizer_read_stop(tr_optimizer *o) {
    return tr_stream_copy(tr_device_compute(o->desc.device), o->asked, o->vector + o->length - 1,
                          sizeof *o->asked);
}

bool tr_optimizer_stop_requested(const tr_optimizer *o) {
    return *o->asked > 0;
}
