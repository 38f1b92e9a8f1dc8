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

/* Plans with these modes. */
static tr_status plan_modes(tr_config *c, tr_device *device, const uint8_t *mode,
                            tr_run_plan **out) {
    TR_TRY(tr_recompute_print(mode, c->model.layers, c->model.recompute));
    return tr_run_plan_make(c, device, out);
}

/* Raises the modes of ranks that do not fit, each of all its stages, until all fit or have the last
 * mode. Returns the last plan. */
static tr_status raise_ranks(tr_config *c, tr_device *device, uint8_t *mode, tr_run_plan **out) {
    for (bool raised = true; raised;) {
        tr_run_plan *plan;
        TR_TRY(plan_modes(c, device, mode, &plan));
        raised = false;
        for (int pp = 0; pp < c->parallel.pp; pp++)
            if (is_too_full(plan, pp)) raised |= raise(plan->layout, pp, c->model.layers, mode);
        if (raised) tr_run_plan_destroy(plan);
        else *out = plan;
    }
    return TR_OK;
}

/* How many of a rank's last stages may have a lower mode: `fits` may, `refused` may not. The search
 * ends when they are neighbours. */
typedef struct relief {
    int fits, refused;
} relief;

typedef struct search {
    tr_config *c;
    tr_device *device;
    const tr_layout *l; /* of `mode` */
    uint8_t *mode;      /* [blocks]: each rank raised as a whole */
    uint8_t *lowered;   /* [blocks]: tried */
    relief *of;         /* [pipeline ranks] */
} search;

static int middle(const relief *r) {
    return r->fits + (r->refused - r->fits) / 2;
}

static bool is_open(const relief *r) {
    return r->refused - r->fits > 1;
}

/* Begins with all stages of the ranks that were raised; returns false when no rank has several. */
static bool count_raised(const search *x) {
    bool open = false;
    for (int s = 0; s < x->l->placement.stages; s++) {
        relief *r = &x->of[x->l->owner[s]];
        r->refused += x->mode[s > 0 ? x->l->first[s] - 1 : 0] > 0;
        open |= is_open(r);
    }
    return open;
}

/* Tries modes that are one lower on the last stages of a rank, of which it tries `stages`. */
static void lower_last(const search *x, int pp_rank, int stages) {
    for (int s = x->l->placement.stages - 1; s >= 0; s--) {
        if (x->l->owner[s] != pp_rank) continue;
        const bool lower = stages-- > 0;
        for (int64_t b = x->l->first[s] - 1; b < x->l->first[s + 1] - 1; b++)
            if (b >= 0 && b < x->c->model.layers)
                x->lowered[b] = (uint8_t)(x->mode[b] - (lower && x->mode[b] > 0));
    }
}

/* Finds for each rank, by halving, how many of its last stages need not have been raised with the
 * others. Sets *fits to true when the modes that were found, in lowered[], fit together. */
static tr_status lower_stages(const search *x, bool *fits) {
    for (bool open = true; open;) {
        tr_run_plan *plan;
        open = false;
        for (int pp = 0; pp < x->c->parallel.pp; pp++) {
            open |= is_open(&x->of[pp]);
            lower_last(x, pp, middle(&x->of[pp]));
        }
        TR_TRY(plan_modes(x->c, x->device, x->lowered, &plan));
        *fits = tr_run_plan_fits_device(plan);
        for (int pp = 0; pp < x->c->parallel.pp; pp++) {
            relief *r = &x->of[pp];
            const int tried = middle(r);
            if (!is_open(r)) continue;
            if (is_too_full(plan, pp)) r->refused = tried;
            else r->fits = tried;
        }
        tr_run_plan_destroy(plan);
    }
    return TR_OK;
}

/* Lowers the modes of stages that were raised with others of their rank, where the ranks still fit.
 */
static tr_status lower_raised(tr_config *c, tr_device *device, const tr_layout *l, uint8_t *mode) {
    tr_status status = TR_OK;
    search x = {.c = c, .device = device, .l = l, .mode = mode};
    bool fits = false;
    TR_TRY_OUT(tr_calloc((size_t)c->parallel.pp, sizeof *x.of, &x.of));
    TR_TRY_OUT(tr_calloc((size_t)c->model.layers, 1, &x.lowered));
    if (count_raised(&x)) TR_TRY_OUT(lower_stages(&x, &fits));
    TR_TRY_OUT(tr_recompute_print(fits ? x.lowered : mode, c->model.layers, c->model.recompute));
out:
    free(x.of);
    free(x.lowered);
    return status;
}

tr_status tr_request_recompute(tr_config *c, tr_device *device) {
    uint8_t *mode = NULL;
    tr_run_plan *plan = NULL;
    tr_status status = TR_OK;
    if (strcmp(c->model.recompute, TR_RECOMPUTE_AUTO) != 0) return TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)c->model.layers, 1, &mode));
    TR_TRY_OUT(raise_ranks(c, device, mode, &plan));
    if (tr_run_plan_fits_device(plan)) TR_TRY_OUT(lower_raised(c, device, plan->layout, mode));
out:
    tr_run_plan_destroy(plan);
    free(mode);
    return status;
}
