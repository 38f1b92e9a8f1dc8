/* The groups of a rank. The engine opens them in this order, and the plan counts their memory. */
#pragma once

#include "comm/mesh_groups.h"
#include "layers/placement.h"

/* Calls visit for the parts of the mesh that are groups of the rank mesh->index: the world,
 * its tensor ranks, and for training those that sum the gradients of its parameters, those that
 * divide the updates or values (parallel.zero) or the sums (parallel.dp 2x4), and those of tied
 * parameters with uses on other pipeline ranks. Names a part again for every parameter. Ranks that
 * share groups see them in one order. Stops at the first failure. */
typedef tr_status (*tr_rank_groups_fn)(void *context, const tr_mesh_part *part);
tr_status tr_rank_groups_visit(const tr_model *model, const tr_placement *placement,
                               const tr_mesh *mesh, int zero, bool forward_only,
                               tr_rank_groups_fn visit, void *context);
/* Opens them. Collective over the world. */
tr_status tr_rank_groups_open(tr_mesh_groups *groups, const tr_mesh *mesh, const tr_model *model,
                              const tr_placement *placement, int zero, bool forward_only);
/* Computes the bytes that they take (tr_mesh_groups_bytes). */
tr_status tr_rank_groups_bytes(const tr_model *model, const tr_placement *placement,
                               const tr_mesh *mesh, int zero, bool forward_only, tr_own_sums own,
                               size_t *bytes);
