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

/* Plans with these modes and the fastest cut. */
static tr_status plan_modes(tr_config *c, tr_device *device, const uint8_t *mode,
                            tr_run_plan **out) {
    TR_TRY(tr_recompute_print(mode, c->model.layers, c->model.recompute));
    return tr_run_plan_make_fastest(c, device, out);
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

/* How many of a rank's last raised stages may have a lower mode: `fits` may, `refused` may not. The
 * search ends when they are neighbours. */
typedef struct relief {
    int fits, refused;
} relief;

/* A search for stages that need not have been raised with the others of their rank. */
typedef struct search {
    tr_config *c;
    tr_device *device;
    const tr_layout *l; /* of `mode` */
    uint8_t *mode;      /* [blocks]: where the search begins */
    uint8_t *lowered;   /* [blocks]: tried */
    uint8_t *found;     /* [blocks]: the last that fit */
    relief *of;         /* [pipeline ranks] */
} search;

static int middle(const relief *r) {
    return r->fits + (r->refused - r->fits) / 2;
}

static bool is_open(const relief *r) {
    return r->refused - r->fits > 1;
}

/* Tries modes that are `by` lower on a stage, where they are not none; returns true when the stage
 * was raised. */
static bool lower_stage(const search *x, int stage, int by) {
    bool raised = false;
    for (int64_t b = x->l->first[stage] - 1; b < x->l->first[stage + 1] - 1; b++) {
        if (b < 0 || b >= x->c->model.layers) continue;
        raised |= x->mode[b] > 0;
        x->lowered[b] = (uint8_t)(x->mode[b] > 0 ? x->mode[b] - by : 0);
    }
    return raised;
}

/* Begins with all stages of the ranks that were raised; returns false when no rank has several. */
static bool count_raised(const search *x) {
    bool open = false;
    for (int s = 0; s < x->l->placement.stages; s++) {
        relief *r = &x->of[x->l->owner[s]];
        r->refused += lower_stage(x, s, 0);
        open |= is_open(r);
    }
    return open;
}

/* Tries lower modes on as many of each rank's last raised stages as the search has come to; returns
 * false when it is at its end. */
static bool lower_last(const search *x) {
    bool open = false;
    for (int pp = 0; pp < x->c->parallel.pp; pp++) {
        int stages = middle(&x->of[pp]);
        open |= is_open(&x->of[pp]);
        for (int s = x->l->placement.stages - 1; s >= 0; s--)
            if (x->l->owner[s] == pp) stages -= lower_stage(x, s, stages > 0);
    }
    return open;
}

/* Finds for each rank, by halving, how many of its last stages need not have been raised. Leaves in
 * found[] the lowest modes that fit together, and their plan in *better; NULL: none but mode[]. */
static tr_status halve(const search *x, tr_run_plan **better) {
    const size_t blocks = (size_t)x->c->model.layers;
    *better = NULL;
    memcpy(x->found, x->mode, blocks);
    for (bool open = count_raised(x); open;) {
        tr_run_plan *plan;
        open = lower_last(x);
        if (!memcmp(x->lowered, x->found, blocks)) break;
        TR_TRY(plan_modes(x->c, x->device, x->lowered, &plan));
        for (int pp = 0; pp < x->c->parallel.pp; pp++) {
            relief *r = &x->of[pp];
            const int tried = middle(r);
            if (!is_open(r)) continue;
            if (is_too_full(plan, pp)) r->refused = tried;
            else r->fits = tried;
        }
        if (tr_run_plan_fits_device(plan)) {
            memcpy(x->found, x->lowered, blocks);
            tr_run_plan_destroy(*better);
            *better = plan;
        } else tr_run_plan_destroy(plan);
    }
    return TR_OK;
}

/* Lowers one rank alone in its last stage that has a mode, which halving may have refused because
 * another rank, lowered at the same time, moved the cut. Leaves in found[] the modes and in *better
 * the plan of the first change that fits; NULL: none. */
static tr_status lower_one(const search *x, tr_run_plan **better) {
    const size_t blocks = (size_t)x->c->model.layers;
    *better = NULL;
    for (int pp = 0; pp < x->c->parallel.pp && x->l->placement.stages > x->c->parallel.pp; pp++) {
        memcpy(x->lowered, x->mode, blocks);
        int s = x->l->placement.stages - 1;
        while (s >= 0 && (x->l->owner[s] != pp || !lower_stage(x, s, 1))) s--;
        if (s < 0) continue;
        TR_TRY(plan_modes(x->c, x->device, x->lowered, better));
        if (tr_run_plan_fits_device(*better)) {
            memcpy(x->found, x->lowered, blocks);
            return TR_OK;
        }
        tr_run_plan_destroy(*better);
        *better = NULL;
    }
    return TR_OK;
}

/* Lowers the modes of stages that were raised with others of their rank, where all ranks still fit.
 * Since the cut follows the modes, the search goes on with the stages that were found. */
static tr_status lower_raised(tr_config *c, tr_device *device, uint8_t *mode, tr_run_plan **plan) {
    tr_status status = TR_OK;
    const size_t blocks = (size_t)c->model.layers;
    search x = {.c = c, .device = device, .mode = mode};
    TR_TRY_OUT(tr_calloc((size_t)c->parallel.pp, sizeof *x.of, &x.of));
    TR_TRY_OUT(tr_calloc(blocks, 1, &x.lowered));
    TR_TRY_OUT(tr_calloc(blocks, 1, &x.found));
    for (bool lower = true; lower;) {
        tr_run_plan *better;
        x.l = (*plan)->layout;
        memset(x.of, 0, (size_t)c->parallel.pp * sizeof *x.of);
        status = halve(&x, &better);
        if (status == TR_OK && !better) status = lower_one(&x, &better);
        lower = status == TR_OK && better;
        if (!better) continue;
        tr_run_plan_destroy(*plan);
        *plan = better;
        memcpy(mode, x.found, blocks);
    }
    if (status == TR_OK) status = tr_recompute_print(mode, c->model.layers, c->model.recompute);
out:
    free(x.of);
    free(x.lowered);
    free(x.found);
    return status;
}

/* Recomputes nothing, if that fits with another cut, and `plan` does not fit or is no faster. */
static tr_status cut_instead(tr_config *c, tr_device *device, const tr_run_plan *plan) {
    char modes[sizeof c->model.recompute];
    tr_run_plan *other;
    memcpy(modes, c->model.recompute, sizeof modes);
    (void)strcpy(c->model.recompute, tr_recompute_name(TR_RECOMPUTE_NONE));
    TR_TRY(tr_run_plan_make(c, device, &other));
    const bool slower =
        tr_run_plan_fits_device(plan) && other->time->makespan > plan->time->makespan;
    if (!tr_run_plan_fits_device(other) || slower) memcpy(c->model.recompute, modes, sizeof modes);
    tr_run_plan_destroy(other);
    return TR_OK;
}

tr_status tr_request_recompute(tr_config *c, tr_device *device) {
    uint8_t *mode = NULL;
    tr_run_plan *plan = NULL;
    tr_status status = TR_OK;
    if (strcmp(c->model.recompute, TR_RECOMPUTE_AUTO) != 0) return TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)c->model.layers, 1, &mode));
    TR_TRY_OUT(raise_ranks(c, device, mode, &plan));
    if (tr_run_plan_fits_device(plan)) TR_TRY_OUT(lower_raised(c, device, mode, &plan));
    if (strcmp(c->model.recompute, tr_recompute_name(TR_RECOMPUTE_NONE)) != 0 && c->parallel.pp > 1)
        TR_TRY_OUT(cut_instead(c, device, plan));
out:
    tr_run_plan_destroy(plan);
    free(mode);
    return status;
}
