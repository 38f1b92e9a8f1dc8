#include "train/room.h"

#include "partition/run_plan.h"

#include <stdlib.h>
#include <string.h>

/* Sets *memory to the least of all ranks. */
static tr_status take_least(tr_world *world, size_t *memory) {
    const int ranks = tr_world_size(world);
    size_t *all;
    TR_TRY(tr_world_calloc(world, (size_t)ranks, sizeof *all, &all));
    const tr_status status = tr_world_gather_all(world, memory, all, sizeof *memory);
    for (int r = 0; r < ranks && status == TR_OK; r++)
        if (all[r] < *memory) *memory = all[r];
    free(all);
    return status;
}

/* Plans the run in this memory. Leaves room[] as it is when no cut is nearer. */
static tr_status plan_room(const tr_config *c, const tr_device_options *options, size_t memory,
                           double *room) {
    tr_device *device;
    tr_run_plan *plan = NULL;
    TR_TRY(tr_device_open(c->device.name, options, &device));
    const tr_status status = tr_run_plan_make_within(c, device, memory, &plan);
    if (status == TR_OK && plan->room)
        memcpy(room, plan->room, (size_t)c->parallel.pp * sizeof *room);
    tr_run_plan_destroy(plan);
    tr_device_close(device);
    return status;
}

tr_status tr_room_agree(tr_world *world, const tr_config *c, const tr_device_options *device,
                        size_t memory, double **room) {
    const size_t ranks = (size_t)c->parallel.pp;
    double *mine;
    *room = NULL;
    TR_TRY(take_least(world, &memory));
    TR_TRY(tr_world_calloc(world, ranks, sizeof *mine, &mine));
    tr_status status = TR_OK;
    if (tr_world_rank(world) == 0) status = plan_room(c, device, memory, mine);
    TR_TRY_OUT(tr_world_agree(world, status));
    TR_TRY_OUT(tr_world_broadcast(world, 0, mine, ranks * sizeof *mine));
    if (mine[0] > 0) *room = mine;
out:
    if (!*room) free(mine);
    return status;
}
