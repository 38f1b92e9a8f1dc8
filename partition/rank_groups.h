/* The groups of a rank. The engine opens them in this order, and the plan counts their memory. */
#pragma once

#include "comm/mesh_groups.h"
#include "layers/placement.h"

/* Opens the groups of the rank mesh->index: the world, its tensor ranks, and for training those
 * that sum the gradients of its parameters, those that divide the updates or values (parallel.zero)
 * or the sums (parallel.dp 2x4), and those of tied parameters with uses on other pipeline ranks.
 * Ranks that share groups open them in one order. Collective over the world. */
tr_status tr_rank_groups_open(tr_mesh_groups *groups, const tr_mesh *mesh, const tr_model *model,
                              const tr_placement *placement, int zero, bool forward_only);
/* Computes the bytes that they take (tr_mesh_groups_bytes). */
tr_status tr_rank_groups_bytes(const tr_model *model, const tr_placement *placement,
                               const tr_mesh *mesh, int zero, bool forward_only, tr_own_sums own,
                               size_t *bytes);
