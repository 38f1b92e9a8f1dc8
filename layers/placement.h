/* The placement of layers, and so of parameters, on ranks. The store, the planner and checkpoints
 * visit a rank's parameters with these functions, in one order. */
#pragma once

#include "layers/model.h"

/* Stage s has layers first[s] to first[s+1]-1, and belongs to pipeline rank owner[s]. Known on
 * every rank. */
typedef struct tr_placement {
    int stages;
    const int *first; /* [stages + 1] */
    const int *owner; /* [stages] */
} tr_placement;

/* Returns the stage of a layer. */
int tr_placement_stage(const tr_placement *placement, int layer);

/* Calls visit for every parameter of pipeline rank pp_rank, in registry order. shares: its other
 * use is on the same rank, and this one has no value and state of its own. Stops at the first
 * failure. */
typedef tr_status (*tr_placement_visit_fn)(void *context, int stage, tr_param *param, bool shares);
tr_status tr_placement_visit(const tr_placement *placement, const tr_model *model, int pp_rank,
                             tr_placement_visit_fn visit, void *context);

/* Returns true when use 0 of this (tied) parameter is also on pipeline rank pp_rank, which has this
 * use, so that they share value and state. */
bool tr_placement_shares(const tr_placement *placement, const tr_model *model, int pp_rank,
                         const tr_param *param);

/* Returns the bucket of its stage's gradients to which a parameter of the stage belongs. */
int tr_placement_bucket(const tr_placement *placement, const tr_model *model, int stage,
                        const tr_param *param);

/* A tied parameter with uses on two pipeline ranks, this rank's and another. */
typedef struct tr_tie {
    const tr_param *param; /* the use on this rank */
    tr_mesh_part ranks;
} tr_tie;

/* Calls visit for the ties of trained parameters of the rank mesh->index, in registry order of use
 * 0, so that all members of a tie visit their ties in the same order. */
typedef tr_status (*tr_tie_visit_fn)(void *context, const tr_tie *tie);
tr_status tr_placement_visit_ties(const tr_placement *placement, const tr_model *model,
                                  const tr_mesh *mesh, tr_tie_visit_fn visit, void *context);
