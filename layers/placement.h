/* Which layers live where, and so which parameters: the store, the planner and checkpoints walk a
 * rank's parameters by these functions, in one order. */
#pragma once

#include "layers/model.h"

/* Layers first[s] to first[s+1]-1 make stage s, and stage s lives on pipeline rank owner[s]. Known
 * on every rank. */
typedef struct tr_placement {
    int stages;
    const int *first; /* [stages + 1] */
    const int *owner; /* [stages] */
} tr_placement;

/* Calls visit for every parameter that lives on pipeline rank pp_rank, in registry order. shares:
 * its other use lives there too, and this one has no value and state of its own. Stops at the first
 * failure. */
typedef tr_status (*tr_placement_visit_fn)(void *context, int stage, tr_param *param, bool shares);
tr_status tr_placement_visit(const tr_placement *placement, const tr_model *model, int pp_rank,
                             tr_placement_visit_fn visit, void *context);

/* A tied parameter with uses on two pipeline ranks, one of which is mesh->index's. */
typedef struct tr_tie {
    const char *name;
    int use; /* the one on this rank */
    tr_mesh_part ranks;
} tr_tie;

/* Calls visit for the ties of the rank mesh->index, in registry order of use 0, so that all members
 * of a tie meet their ties in one order. */
typedef tr_status (*tr_tie_visit_fn)(void *context, const tr_tie *tie);
tr_status tr_placement_visit_ties(const tr_placement *placement, const tr_model *model,
                                  const tr_mesh *mesh, tr_tie_visit_fn visit, void *context);
