/* The groups of ranks that work on one mesh. Each is opened once, whoever asks for it. */
#pragma once

#include "comm/comm.h"
#include "comm/mesh.h"

typedef struct tr_mesh_groups tr_mesh_groups;

/* An empty set for memory of `device`. The world, which has the mesh's ranks, and the device
 * outlive it. Not collective. */
tr_status tr_mesh_groups_create(tr_world *world, tr_device *device, const tr_mesh *mesh,
                                tr_mesh_groups **out);
/* Closes the groups. */
void tr_mesh_groups_destroy(tr_mesh_groups *groups);
/* The group over `part`, which this rank belongs to; valid as long as the set. The first call opens
 * it, together with its other ranks: ranks that share several groups open them in one order. */
tr_status tr_mesh_groups_get(tr_mesh_groups *groups, const tr_mesh_part *part, tr_group **out);
