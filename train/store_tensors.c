#include "train/store_tensors.h"

#include "base/memory.h"
#include "partition/adafactor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(tr_ckpt_tensor *tensor, tr_device *device, const char *group,
                 const tr_param *param, const tr_global *global, void *local, tr_dtype dtype,
                 bool write) {
    (void)snprintf(tensor->name, sizeof tensor->name, "%s/%.*s", group,
                   TR_NAME_SIZE - TR_NAME_GROUP, global->name);
    tensor->rank = global->rank;
    memcpy(tensor->shape, global->shape, sizeof tensor->shape);
    tensor->boxes = global->boxes;
    tensor->box = global->box;
    tensor->local = local;
    tensor->dtype = dtype;
    tensor->device = device;
    tensor->count = param->count;
    tensor->write = write;
}

/* Counts the tensors of all parameters with their own value. */
static size_t count_tensors(const tr_store *store) {
    size_t count = 0;
    for (int i = 0; i < store->slots; i++)
        if (store->slot[i].shares < 0) count += (size_t)store->slot[i].param->tensors;
    return count;
}

/* A list of tensors, and memory for the boxes that it cuts. */
typedef struct listing {
    const tr_store *store;
    tr_ckpt_tensor *tensor;
    int count;
    tr_box *box;
} listing;

/* Opens a list for `kinds` tensors of each parameter's, in one allocation with the boxes. */
static tr_status open_list(const tr_store *store, int kinds, listing *out) {
    const size_t tensors = (size_t)kinds * count_tensors(store);
    size_t boxes = 0;
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        const bool cuts = slot->owners || slot->optimizer == TR_OPTIM_ADAFACTOR;
        for (int t = 0; t < slot->param->tensors && cuts; t++)
            boxes += (size_t)(kinds * slot->param->tensor[t].boxes) * TR_BOX_CUTS;
    }
    *out = (listing){.store = store};
    TR_TRY(tr_calloc(1, tensors * sizeof *out->tensor + boxes * sizeof *out->box, &out->tensor));
    out->box = (tr_box *)(void *)(out->tensor + tensors);
    return TR_OK;
}

/* Makes the tensor name only the elements in `held`, which are at its `local`. */
static void cut(listing *l, const tr_range *held, tr_ckpt_tensor *tensor) {
    const tr_box *whole = tensor->box;
    const int boxes = tensor->boxes;
    tensor->box = l->box;
    tensor->boxes = 0;
    tensor->count = held->extent;
    for (int b = 0; b < boxes; b++) {
        const int cuts = tr_box_cut(&whole[b], tensor->rank, *held, l->box);
        l->box += cuts;
        tensor->boxes += cuts;
    }
}

/* Adds the parameter's tensors in one kind of memory, which has its elements in `held`. */
static void add(listing *l, const tr_store_slot *slot, const char *group, void *local,
                const tr_range *held, tr_dtype dtype, tr_code8 code, bool write) {
    const tr_param *param = slot->param;
    for (int t = 0; t < param->tensors; t++) {
        tr_ckpt_tensor *tensor = &l->tensor[l->count];
        fill(tensor, l->store->device, group, param, &param->tensor[t], local, dtype, write);
        tensor->code = code;
        if (held->extent < param->count) cut(l, held, tensor);
        l->count += tensor->boxes > 0;
    }
}

/* Makes the tensor name only what a state has that holds a number for each row of a matrix (axis
 * 0), or for each column (axis 1): the axis, in the matrix' boxes along it, each once. */
static void project(listing *l, const tr_global *global, const tr_adafactor *m, int axis,
                    tr_ckpt_tensor *tensor) {
    tensor->rank = 1;
    for (int d = 0; d < TR_PARAM_RANK; d++) tensor->shape[d] = d ? 1 : global->shape[axis];
    tensor->count = axis == 0 ? m->rows : m->cols;
    tensor->box = l->box;
    tensor->boxes = 0;
    for (int b = 0; b < global->boxes; b++) {
        const tr_box *from = &global->box[b];
        int j = 0;
        while (j < tensor->boxes && tensor->box[j].offset[0] != from->offset[axis]) j++;
        if (j < tensor->boxes) continue;
        *l->box++ = (tr_box){.offset = {from->offset[axis]},
                             .extent = {from->extent[axis], 1, 1, 1},
                             .local_offset = axis == 0 ? from->local_offset / m->cols
                                                       : from->local_offset % m->cols,
                             .local_stride = {1}};
        tensor->boxes++;
    }
}

/* Adds Adafactor's states of a matrix. */
static tr_status add_factors(listing *l, const tr_store_slot *slot, const tr_written *saved) {
    tr_adafactor m;
    TR_TRY(tr_adafactor_make(slot->param, &slot->layout, &m));
    for (int k = 0; k < TR_OPTIM_STATES; k++) {
        tr_ckpt_tensor *tensor = &l->tensor[l->count++];
        fill(tensor, l->store->device, tr_optim_row_of(slot->optimizer)->state[k], slot->param,
             &slot->param->tensor[0], slot->state[k], l->store->acc, saved->state[k]);
        project(l, &slot->param->tensor[0], &m, k, tensor);
    }
    return TR_OK;
}

/* Adds a slot's weights and states. */
static tr_status add_slot(listing *l, const tr_store_slot *slot, const tr_holding *holding,
                          int64_t *load) {
    const tr_store *store = l->store;
    const bool factors = slot->optimizer == TR_OPTIM_ADAFACTOR && slot->state[0];
    const tr_optim_row *row = tr_optim_row_of(slot->optimizer);
    tr_written saved;
    tr_dtype dtype;
    tr_range held;
    void *weights = tr_store_slot_saved(store, slot, &dtype, &held);
    TR_TRY(tr_written_make(holding, slot->param, &slot->layout, slot->optimizer, load, &saved));
    if (weights) add(l, slot, "weights", weights, &held, dtype, TR_CODE8_SIGNED, saved.weights);
    if (factors) return add_factors(l, slot, &saved);
    for (int k = 0; k < TR_OPTIM_STATES && slot->state[k]; k++)
        add(l, slot, row->state[k], slot->state[k], &slot->portion, store->state_dtype,
            row->code[k], saved.state[k]);
    return TR_OK;
}

tr_status tr_store_list_tensors(const tr_store *store, const tr_mesh *mesh, tr_ckpt_tensor **out,
                                int *count) {
    const tr_holding holding = tr_store_holding(store, mesh);
    listing l;
    int64_t *load;
    TR_TRY(tr_calloc((size_t)mesh->degree[TR_AXIS_DP], sizeof *load, &load));
    tr_status status = open_list(store, 1 + TR_OPTIM_STATES, &l);
    for (int i = 0; i < store->slots && status == TR_OK; i++)
        if (store->slot[i].shares < 0) /* otherwise it has the same memory as use 0 */
            status = add_slot(&l, &store->slot[i], &holding, load);
    free(load);
    *out = l.tensor;
    *count = l.count;
    return status;
}

tr_status tr_store_list_replicas(const tr_store *store, tr_ckpt_tensor **out, int *count) {
    const tr_holding holding = tr_store_holding(store, &store->mesh);
    listing l;
    TR_TRY(open_list(store, 1, &l));
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        tr_dtype dtype;
        tr_range held;
        void *saved = tr_store_slot_saved(store, slot, &dtype, &held);
        if (slot->shares >= 0) continue;
        if (tr_holding_divides_saved(&holding, slot->param)) {
            held = store->divides_values ? slot->portion : (tr_range){.extent = slot->param->count};
            saved = store->divides_values ? slot->value : slot->param->value;
            dtype = store->dtype;
        }
        if (saved) add(&l, slot, "weights", saved, &held, dtype, TR_CODE8_SIGNED, false);
    }
    *out = l.tensor;
    *count = l.count;
    return TR_OK;
}
