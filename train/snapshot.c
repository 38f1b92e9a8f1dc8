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

/* Lists the parameter's tensors in one kind of memory. */
static void fill_all(const tr_store *store, const tr_store_slot *slot, const char *group,
                     void *local, tr_dtype dtype, bool write, tr_ckpt_tensor *tensor) {
    for (int t = 0; t < slot->param->tensors; t++)
        fill(&tensor[t], store->device, group, slot->param, &slot->param->tensor[t], local, dtype,
             write);
}

tr_status tr_snapshot_tensors(const tr_store *store, const tr_mesh *mesh, tr_ckpt_tensor **out,
                              int *count) {
    enum { KINDS = 1 + TR_OPTIM_STATES };
    tr_ckpt_tensor *tensors;
    int64_t *load;
    TR_TRY(tr_calloc((size_t)mesh->degree[TR_AXIS_DP], sizeof *load, &load));
    tr_status status = tr_calloc(KINDS * count_tensors(store), sizeof *tensors, &tensors);
    if (status != TR_OK) {
        free(load);
        return status;
    }
    *count = 0;
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        if (slot->shares >= 0) continue; /* the same memory as use 0's */
        const tr_optim_row *row = tr_optim_row_of(slot->optimizer);
        tr_dtype dtype;
        void *local[KINDS] = {tr_store_slot_saved(store, slot, &dtype)};
        for (int k = 1; k < KINDS; k++) local[k] = slot->state[k - 1];
        int64_t size = part_size(slot->param, &slot->layout);
        for (int k = 0; k < KINDS && local[k]; k++) {
            bool write = tr_param_layout_takes_turn(&slot->layout, mesh, size, load);
            fill_all(store, slot, k ? row->state[k - 1] : "weights", local[k], dtype, write,
                     &tensors[*count]);
            *count += slot->param->tensors;
        }
    }
    free(load);
    *out = tensors;
    return TR_OK;
}
