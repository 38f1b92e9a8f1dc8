/* The groups of a mesh's ranks. Each is opened once. */
#pragma once

#include "comm/comm.h"
#include "comm/mesh.h"

typedef struct tr_mesh_groups tr_mesh_groups;

/* Makes an empty set for memory of `device`. The world, which has the mesh's ranks, and the device
 * must outlive it. Not collective. */
tr_status tr_mesh_groups_create(tr_world *world, tr_device *device, const tr_mesh *mesh,
                                tr_mesh_groups **out);
/* Returns the bytes of device memory (TR_MEMORY_TRANSFERS) of a group of `size` ranks. own: as of
 * tr_world_own_sums. */
size_t tr_mesh_groups_bytes(int size, tr_own_sums own);
/* Closes the groups. */
void tr_mesh_groups_destroy(tr_mesh_groups *groups);
/* Returns the group over `part`, which must contain this rank; it is valid as long as the set. The
 * first call opens it together with its other ranks, so ranks that share several groups must open
 * them in the same order. */
tr_status tr_mesh_groups_get(tr_mesh_groups *groups, const tr_mesh_part *part, tr_group **out);
