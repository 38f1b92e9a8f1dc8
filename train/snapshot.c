#include "train/snapshot.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the mean elements of a part of the parameter, the same number on every rank. */
static int64_t part_size(const tr_param *param, const tr_param_layout *layout) {
    int64_t count = 0;
    for (int k = 0; k < param->tensors; k++) count += tr_global_count(&param->tensor[k]);
    return count / layout->parts;
}

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
    for (int i = 0; i < store->slots; i++)
        for (int t = 0; t < store->slot[i].param->tensors && store->slot[i].owners; t++)
            boxes += (size_t)(kinds * store->slot[i].param->tensor[t].boxes) * TR_BOX_CUTS;
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
                const tr_range *held, tr_dtype dtype, bool write) {
    const tr_param *param = slot->param;
    for (int t = 0; t < param->tensors; t++) {
        tr_ckpt_tensor *tensor = &l->tensor[l->count];
        fill(tensor, l->store->device, group, param, &param->tensor[t], local, dtype, write);
        if (held->extent < param->count) cut(l, held, tensor);
        l->count += tensor->boxes > 0;
    }
}

tr_status tr_snapshot_tensors(const tr_store *store, const tr_mesh *mesh, tr_ckpt_tensor **out,
                              int *count) {
    enum { KINDS = 1 + TR_OPTIM_STATES };
    listing l;
    int64_t *load;
    TR_TRY(tr_calloc((size_t)mesh->degree[TR_AXIS_DP], sizeof *load, &load));
    tr_status status = open_list(store, KINDS, &l);
    for (int i = 0; i < store->slots && status == TR_OK; i++) {
        const tr_store_slot *slot = &store->slot[i];
        if (slot->shares >= 0) continue; /* the same memory as use 0's */
        const tr_optim_row *row = tr_optim_row_of(slot->optimizer);
        tr_dtype dtype;
        tr_range held;
        void *local[KINDS] = {tr_store_slot_saved(store, slot, &dtype, &held)};
        for (int k = 1; k < KINDS; k++) local[k] = slot->state[k - 1];
        int64_t size = part_size(slot->param, &slot->layout);
        for (int k = 0; k < KINDS && local[k]; k++) {
            /* Of memory that data ranks have divided, each has elements that no other one has. */
            const bool divided = slot->owners && (k > 0 || store->dtype != store->acc);
            const bool write = divided
                                   ? slot->layout.saves
                                   : tr_param_layout_takes_turn(&slot->layout, mesh, size, load);
            add(&l, slot, k ? row->state[k - 1] : "weights", local[k], k ? &slot->portion : &held,
                k ? store->acc : dtype, write);
        }
    }
    free(load);
    *out = l.tensor;
    *count = l.count;
    return status;
}

tr_status tr_snapshot_copies(const tr_store *store, tr_ckpt_tensor **out, int *count) {
    listing l;
    TR_TRY(open_list(store, 1, &l));
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        tr_dtype dtype;
        tr_range held, all = {.extent = slot->param->count};
        void *local = tr_store_slot_saved(store, slot, &dtype, &held);
        const bool divided = slot->owners && dtype != store->dtype;
        if (slot->shares < 0)
            add(&l, slot, "weights", divided ? slot->param->value : local, &all,
                divided ? store->dtype : dtype, false);
    }
    *out = l.tensor;
    *count = l.count;
    return TR_OK;
}
