#include "train/snapshot.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The data rank that writes the next `bytes`: the one with the fewest so far, lowest first. */
static int pick_writer(size_t *load, int ranks, size_t bytes) {
    int best = 0;
    for (int d = 1; d < ranks; d++)
        if (load[d] < load[best]) best = d;
    load[best] += bytes;
    return best;
}

static void fill(tr_ckpt_tensor *tensor, tr_device *device, const char *group,
                 const tr_param *param, const tr_global *global, float *local, bool write) {
    (void)snprintf(tensor->name, sizeof tensor->name, "%s/%.*s", group, TR_NAME_SIZE - 12,
                   global->name);
    tensor->rank = global->rank;
    memcpy(tensor->shape, global->shape, sizeof tensor->shape);
    tensor->boxes = global->boxes;
    tensor->box = global->box;
    tensor->local = local;
    tensor->device = device;
    tensor->count = param->count;
    tensor->write = write;
}

/* Tensors of all parameters with a value of their own. */
static size_t count_tensors(const tr_store *store) {
    size_t count = 0;
    for (int i = 0; i < store->slots; i++)
        if (store->slot[i].shares < 0) count += (size_t)store->slot[i].param->tensors;
    return count;
}

tr_status tr_snapshot_tensors(const tr_store *store, const tr_mesh *mesh, tr_ckpt_tensor **out,
                              int *count) {
    static const char *const group[3] = {"weights", "adam_m", "adam_v"};
    int data_ranks = mesh->degree[TR_AXIS_DP];
    tr_ckpt_tensor *tensors;
    size_t *load;
    TR_TRY(tr_calloc((size_t)data_ranks, sizeof *load, &load));
    tr_status status = tr_calloc(3 * count_tensors(store), sizeof *tensors, &tensors);
    if (status != TR_OK) {
        free(load);
        return status;
    }
    *count = 0;
    for (int i = 0; i < store->slots; i++) {
        const tr_slot *slot = &store->slot[i];
        if (slot->shares >= 0) continue; /* the same memory as use 0's */
        bool split = slot->param->copies[TR_AXIS_TP] == 1;
        bool mine = slot->counted && (split || mesh->index[TR_AXIS_TP] == 0);
        float *local[3] = {slot->master, slot->m, slot->v};
        for (int k = 0; k < 3 && local[k]; k++) {
            int writer = pick_writer(load, data_ranks, (size_t)slot->param->count * sizeof(float));
            for (int t = 0; t < slot->param->tensors; t++)
                fill(&tensors[(*count)++], store->device, group[k], slot->param,
                     &slot->param->tensor[t], local[k], mine && writer == mesh->index[TR_AXIS_DP]);
        }
    }
    free(load);
    *out = tensors;
    return TR_OK;
}
