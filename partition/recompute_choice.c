#include "partition/recompute_choice.h"

#include "base/memory.h"
#include "partition/run_plan.h"

#include <stdlib.h>
#include <string.h>

/* Returns true when some rank of this pipeline index does not fit. */
static bool is_too_full(const tr_run_plan *p, int pp_rank) {
    const tr_mesh *mesh = &p->layout->desc.mesh;
    const int line = mesh->degree[TR_AXIS_DP] * mesh->degree[TR_AXIS_TP];
    for (int r = pp_rank * line; r < (pp_rank + 1) * line; r++)
        if (p->memory[r].total > p->limit) return true;
    return false;
}

/* Gives the next mode to those of the pipeline rank's blocks that have the lowest one; returns
 * false when all have the last one. Block b is layer b + 1, after the embedding. */
static bool raise(const tr_layout *l, int pp_rank, int64_t blocks, uint8_t *mode) {
    uint8_t lowest = TR_RECOMPUTE_FULL;
    for (int turn = 0; turn < 2; turn++)
        for (int s = 0; s < l->placement.stages; s++) {
            if (l->owner[s] != pp_rank) continue;
            for (int64_t b = l->first[s] - 1; b < l->first[s + 1] - 1; b++) {
                if (b < 0 || b >= blocks) continue;
                if (turn == 0 && mode[b] < lowest) lowest = mode[b];
                if (turn == 1 && mode[b] == lowest && lowest < TR_RECOMPUTE_FULL) mode[b]++;
            }
        }
    return lowest < TR_RECOMPUTE_FULL;
}

/* Plans with these modes, and raises those of ranks that do not fit. */
static tr_status improve(tr_config *c, tr_device *device, uint8_t *mode, bool *raised) {
    tr_run_plan *plan;
    *raised = false;
    TR_TRY(tr_recompute_print(mode, c->model.layers, c->model.recompute));
    TR_TRY(tr_run_plan_make(c, device, &plan));
    for (int pp = 0; pp < c->parallel.pp; pp++)
        if (is_too_full(plan, pp)) *raised |= raise(plan->layout, pp, c->model.layers, mode);
    tr_run_plan_destroy(plan);
    return TR_OK;
}

tr_status tr_request_recompute(tr_config *c, tr_device *device) {
    uint8_t *mode;
    bool raised = true;
    if (strcmp(c->model.recompute, TR_RECOMPUTE_AUTO) != 0) return TR_OK;
    TR_TRY(tr_calloc((size_t)c->model.layers, 1, &mode));
    tr_status status = TR_OK;
    while (raised && status == TR_OK) status = improve(c, device, mode, &raised);
    free(mode);
    return status;
}
