#include "train/pace.h"

#include "base/memory.h"

#include <stdlib.h>

/* Of a slot; without operators where another one has the parameter, or nothing is trained. */
typedef struct slot_step {
    tr_op *sumsq, *descend;
    double *norms; /* device: [parts][2], of the parameter and of its direction */
    bool counted;  /* this rank computes the norms of its part */
} slot_step;

struct tr_pace {
    const tr_store *store;
    tr_group *tensor; /* NULL: a single tensor rank */
    slot_step *slot;  /* [store->slots] */
    double *norms;    /* device: of all slots */
    int64_t count;
};

static tr_status prepare(const tr_store *store, tr_op_desc desc, size_t *scratch, tr_op **out) {
    TR_TRY(tr_op_prepare(&(tr_op_context){.device = store->device}, &desc, out));
    if ((*out)->scratch_bytes > *scratch) *scratch = (*out)->scratch_bytes;
    return TR_OK;
}

static bool steps_slot(const tr_store_slot *slot) {
    return slot->shares < 0 && !slot->param->frozen;
}

/* Prepares the step of a slot with the norms at `norms`. Data ranks each compute the norms, so only
 * tensor ranks may hold different parts. */
static tr_status prepare_slot(const tr_store *store, const tr_mesh *mesh, int i, double *norms,
                              size_t *scratch, slot_step *out) {
    const tr_store_slot *slot = &store->slot[i];
    const tr_param *param = slot->param;
    const tr_param_layout *layout = &slot->layout;
    if (param->tensors > 1 || layout->replicas.count[TR_AXIS_DP] != mesh->degree[TR_AXIS_DP])
        return TR_FAIL(TR_ERR_INTERNAL, "%s has parts that cannot be stepped as one tensor",
                       tr_param_name(param));
    out->norms = norms;
    out->counted = mesh->index[TR_AXIS_TP] % layout->replicas.count[TR_AXIS_TP] == 0;
    TR_TRY(prepare(store, tr_step_end_sumsq_op(param), scratch, &out->sumsq));
    return prepare(store,
                   tr_optim_descend(param->count, layout->parts, store->dtype, param->lr_scale),
                   scratch, &out->descend);
}

tr_status tr_pace_create(const tr_store *store, const tr_mesh *mesh, tr_group *tensor,
                         size_t *scratch, tr_pace **out) {
    tr_status status = TR_OK;
    tr_pace *s = NULL;
    *out = NULL;
    if (!tr_optim_row_of(store->optimizer)->by_tensor) return TR_OK;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    s->store = store;
    s->tensor = mesh->degree[TR_AXIS_TP] > 1 ? tensor : NULL;
    TR_TRY_OUT(tr_calloc((size_t)store->slots, sizeof *s->slot, &s->slot));
    for (int i = 0; i < store->slots; i++)
        if (steps_slot(&store->slot[i]))
            s->count += tr_step_end_tensor_norms(store->optimizer, &store->slot[i].layout);
    TR_TRY_OUT(tr_device_alloc(store->device, TR_MEMORY_DATA, (size_t)s->count * sizeof(double),
                               (void **)&s->norms));
    double *norms = s->norms;
    for (int i = 0; i < store->slots; i++) {
        if (!steps_slot(&store->slot[i])) continue;
        TR_TRY_OUT(prepare_slot(store, mesh, i, norms, scratch, &s->slot[i]));
        norms += tr_step_end_tensor_norms(store->optimizer, &store->slot[i].layout);
    }
out:
    if (status != TR_OK) tr_pace_destroy(s);
    else *out = s;
    return status;
}

void tr_pace_destroy(tr_pace *s) {
    if (!s) return;
    for (int i = 0; s->slot && i < s->store->slots; i++) {
        tr_op_release(s->slot[i].sumsq);
        tr_op_release(s->slot[i].descend);
    }
    if (s->norms) tr_device_free(s->store->device, s->norms);
    free(s->slot);
    free(s);
}

static tr_tensor master_of(const tr_store *store, const tr_store_slot *slot) {
    return tr_tensor_vector(slot->master, store->acc, slot->param->count);
}

static tr_tensor direction_of(const tr_store *store, const tr_store_slot *slot) {
    return tr_tensor_vector(slot->param->grad, store->acc, slot->param->count);
}

/* Writes the norms of this rank's part of a tensor. */
static tr_status take_norms(const tr_pace *s, int i, tr_stream *stream, void *scratch) {
    const tr_store_slot *slot = &s->store->slot[i];
    const tr_tensor of[2] = {master_of(s->store, slot), direction_of(s->store, slot)};
    for (int k = 0; k < 2; k++) {
        const tr_op_args args = {
            .t = {[TR_SUMSQ_X] = of[k],
                  [TR_SUMSQ_OUT] =
                      tr_tensor_vector(s->slot[i].norms + 2 * slot->layout.part + k, TR_F64, 1)},
            .scratch = scratch};
        TR_TRY(tr_op_run(s->slot[i].sumsq, stream, &args));
    }
    return TR_OK;
}

static tr_status descend(const tr_pace *s, int i, tr_stream *stream, tr_step_state *state,
                         void *scratch) {
    const tr_store_slot *slot = &s->store->slot[i];
    const tr_op_args args = {.t = {[TR_DESCEND_U] = direction_of(s->store, slot),
                                   [TR_DESCEND_NORMS] = tr_tensor_matrix(s->slot[i].norms, TR_F64,
                                                                         slot->layout.parts, 2),
                                   [TR_DESCEND_MASTER] = master_of(s->store, slot),
                                   [TR_DESCEND_VALUE] = tr_tensor_vector(
                                       slot->param->value, s->store->dtype, slot->param->count)},
                             .scratch = scratch,
                             .state = state};
    return tr_op_run(s->slot[i].descend, stream, &args);
}

tr_status tr_pace_run(tr_pace *s, tr_stream *stream, tr_step_state *state, void *scratch) {
    const int slots = s->store->slots;
    /* Each number is written by one tensor rank and is zero elsewhere, so the sum is exact. */
    TR_TRY(tr_stream_zero(stream, s->norms, (size_t)s->count * sizeof(double)));
    for (int i = 0; i < slots; i++)
        if (s->slot[i].counted) TR_TRY(take_norms(s, i, stream, scratch));
    if (s->tensor)
        TR_TRY(tr_group_all_reduce(s->tensor, stream, s->norms, s->count, TR_F64, TR_REDUCE_SUM));
    for (int i = 0; i < slots; i++)
        if (s->slot[i].descend) TR_TRY(descend(s, i, stream, state, scratch));
    return TR_OK;
}
