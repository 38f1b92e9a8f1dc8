/* The mesh: an ordered list of named axes with degrees, the last one innermost (fastest). Layers
 * and parameters name axes, never positions. Today: pp, dp, tp. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

typedef enum tr_axis { TR_AXIS_PP, TR_AXIS_DP, TR_AXIS_TP, TR_AXIS_COUNT } tr_axis;
#define TR_AXIS_BIT(axis) (1u << (axis))

typedef struct tr_mesh {
    int degree[TR_AXIS_COUNT];
    int index[TR_AXIS_COUNT]; /* of this rank */
} tr_mesh;

const char *tr_axis_name(tr_axis axis);
/* This rank's place. TR_ERR_CONFIG, with the sizes that would do, when the product of the degrees
 * is not `size`. */
tr_status tr_mesh_make(int pp, int dp, int tp, int rank, int size, tr_mesh *out);
/* World rank at the given coordinates. */
int tr_mesh_rank(const tr_mesh *mesh, const int index[TR_AXIS_COUNT]);
/* World ranks along `axis` through this rank, in index order, in ranks[degree[axis]]. */
void tr_mesh_line(const tr_mesh *mesh, tr_axis axis, int *ranks);
