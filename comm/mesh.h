/* The mesh: an ordered list of named axes with degrees, the last one innermost (fastest). Layers
 * and parameters name axes, never positions. Today: pp, dp, tp. */
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef enum tr_axis { TR_AXIS_PP, TR_AXIS_DP, TR_AXIS_TP, TR_AXIS_COUNT } tr_axis;
#define TR_AXIS_BIT(axis) (1u << (axis))

typedef struct tr_mesh {
    int degree[TR_AXIS_COUNT];
    int index[TR_AXIS_COUNT]; /* of this rank */
    /* Data ranks have two factors (parallel.dp 2x4): runs of `near` neighbours. The ranks of a run
     * divide what data ranks divide, and sum first; then the ranks at one place of all runs sum.
     * 0: all data ranks are one run. */
    int near;
} tr_mesh;

/* Makes the mesh and this rank's place in it. Fails with TR_ERR_CONFIG, and names sizes that fit,
 * when the product of the degrees is not `size`. */
tr_status tr_mesh_make(int pp, int dp, int tp, int rank, int size, tr_mesh *out);
/* Returns how many data ranks are near. */
static inline int tr_mesh_near(const tr_mesh *mesh) {
    return mesh->near > 0 ? mesh->near : mesh->degree[TR_AXIS_DP];
}
/* Returns the world rank at the given indices. */
int tr_mesh_rank(const tr_mesh *mesh, const int index[TR_AXIS_COUNT]);
/* Lists the world ranks along `axis` through this rank, in index order, in ranks[degree[axis]]. */
void tr_mesh_line(const tr_mesh *mesh, tr_axis axis, int *ranks);

/* --- parts of a mesh -------------------------------------------------------------------------- */

/* A part of a mesh: along each axis `count` ranks, `stride` apart, from index `first`. */
typedef struct tr_mesh_part {
    int first[TR_AXIS_COUNT], count[TR_AXIS_COUNT], stride[TR_AXIS_COUNT];
} tr_mesh_part;

/* Returns the part with only this rank. */
tr_mesh_part tr_mesh_self(const tr_mesh *mesh);
/* Widens `part`, which has one rank along `axis`, to the run of `count` neighbours around this
 * rank; runs begin at multiples of their length. 0: all ranks of the axis. Fails with
 * TR_ERR_INTERNAL when `count` does not divide the axis. */
tr_status tr_mesh_widen(const tr_mesh *mesh, tr_axis axis, int count, tr_mesh_part *part);
/* Makes `part`, which has one rank along `axis`, the ranks at this rank's place in runs of `count`
 * neighbours, among runs of `most` neighbours. count divides most, and most the axis. */
void tr_mesh_cross(const tr_mesh *mesh, tr_axis axis, int count, int most, tr_mesh_part *part);
/* Returns the part of two ranks: at indices a and b of `axis`, which must differ, and at this
 * rank's indices of the other axes. */
tr_mesh_part tr_mesh_pair(const tr_mesh *mesh, tr_axis axis, int a, int b);
int tr_mesh_part_size(const tr_mesh_part *part);
/* Lists the world ranks of the part, ascending, in ranks[tr_mesh_part_size]. */
void tr_mesh_part_ranks(const tr_mesh *mesh, const tr_mesh_part *part, int *ranks);
/* Returns this rank's place among them, or -1. */
int tr_mesh_part_place(const tr_mesh *mesh, const tr_mesh_part *part);
/* Returns a number for the group over `part` that no other part has: it counts shapes, and parts of
 * one shape differ in their lowest rank. The part must come from the functions above, and a pair
 * must not be widened. */
int64_t tr_mesh_part_id(const tr_mesh *mesh, const tr_mesh_part *part);
