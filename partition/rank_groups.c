#include "partition/rank_groups.h"

#include "base/memory.h"
#include "layers/param_layout.h"
#include "partition/param_memory.h"

#include <stdlib.h>
#include <string.h>

typedef tr_status (*visit_fn)(void *context, const tr_mesh_part *part);

typedef struct visiting {
    const tr_mesh *mesh;
    bool owners;  /* they gather what each of them has */
    bool gathers; /* the data ranks also divide values, of frozen parameters, too */
    visit_fn visit;
    void *context;
} visiting;

static tr_status visit_param(void *context, int stage, tr_param *param, bool shares) {
    (void)stage, (void)shares;
    const visiting *v = context;
    tr_param_layout layout;
    if (param->frozen && !v->gathers) return TR_OK;
    TR_TRY(tr_param_layout_make(param, v->mesh, &layout));
    if (!param->frozen) TR_TRY(v->visit(v->context, &layout.sum));
    if (!param->frozen) TR_TRY(v->visit(v->context, &layout.across));
    return v->owners ? v->visit(v->context, &layout.owners) : TR_OK;
}

static tr_status visit_tie(void *context, const tr_tie *tie) {
    const visiting *v = context;
    return v->visit(v->context, &tie->ranks);
}

/* Calls visit for the parts of the mesh that are groups of the rank; again for every parameter that
 * has a part. */
static tr_status visit_groups(const tr_model *model, const tr_placement *placement,
                              const tr_mesh *mesh, int zero, bool forward_only, visit_fn visit,
                              void *context) {
    tr_mesh_part all = tr_mesh_self(mesh), line = all;
    for (tr_axis axis = 0; axis < TR_AXIS_COUNT; axis++) TR_TRY(tr_mesh_widen(mesh, axis, 0, &all));
    TR_TRY(tr_mesh_widen(mesh, TR_AXIS_TP, 0, &line));
    TR_TRY(visit(context, &all));
    TR_TRY(visit(context, &line));
    if (forward_only) return TR_OK;
    const bool owners = tr_memory_divided(mesh, zero) || tr_memory_factored(mesh);
    visiting v = {mesh, owners, tr_memory_gathers(mesh, zero), visit, context};
    TR_TRY(tr_placement_visit(placement, model, mesh->index[TR_AXIS_PP], visit_param, &v));
    return tr_placement_visit_ties(placement, model, mesh, visit_tie, &v);
}

/* --- opening ---------------------------------------------------------------------------------- */

static tr_status open_part(void *context, const tr_mesh_part *part) {
    tr_group *group;
    return tr_mesh_groups_get(context, part, &group);
}

tr_status tr_rank_groups_open(tr_mesh_groups *groups, const tr_mesh *mesh, const tr_model *model,
                              const tr_placement *placement, int zero, bool forward_only) {
    return visit_groups(model, placement, mesh, zero, forward_only, open_part, groups);
}

/* --- counting --------------------------------------------------------------------------------- */

typedef struct counting {
    tr_own_sums own;
    tr_mesh_part *part; /* [count]: seen so far */
    size_t count, capacity, bytes;
} counting;

static tr_status count_part(void *context, const tr_mesh_part *part) {
    counting *c = context;
    for (size_t i = 0; i < c->count; i++)
        if (memcmp(&c->part[i], part, sizeof *part) == 0) return TR_OK;
    TR_TRY(tr_grow(&c->part, &c->capacity, c->count + 1, sizeof *c->part));
    c->part[c->count++] = *part;
    c->bytes += tr_mesh_groups_bytes(tr_mesh_part_size(part), c->own);
    return TR_OK;
}

tr_status tr_rank_groups_bytes(const tr_model *model, const tr_placement *placement,
                               const tr_mesh *mesh, int zero, bool forward_only, tr_own_sums own,
                               size_t *bytes) {
    counting c = {.own = own};
    *bytes = 0;
    if (!own.ordered && !own.bf16) return TR_OK; /* no group takes any */
    tr_status status = visit_groups(model, placement, mesh, zero, forward_only, count_part, &c);
    *bytes = c.bytes;
    free(c.part);
    return status;
}
