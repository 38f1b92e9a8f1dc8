/* The cut of a list of layers into contiguous stages. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

/* What layers need of the stages' room: need[stages][n], of layer k in stage s, and
 * room[stages]. */
typedef struct tr_cut_room {
    const double *need, *room;
} tr_cut_room;

/* Cuts n layers of the given costs (>= 0, any unit; embedding and head are layers like others) into
 * `stages` runs, and minimises the cost of the largest stage (exactly). Of equal cuts it takes the
 * one with the smallest sum of squares of the stages' costs, and of those the one with fewer layers
 * in earlier stages, which hold the most micro-batches.
 *
 * block[n]: which layers are transformer blocks, of which every stage gets at least one; NULL:
 * every stage needs at least one layer of any kind. first[stages + 1]: stage k has layers first[k]
 * to first[k+1] - 1. Fails with TR_ERR_CONFIG, naming parallel.pp and model.layers, when there are
 * fewer than stages.
 *
 * room: takes the best of the cuts in which no stage needs more than its room, and sets *found to
 * false, and leaves first[] as it is, when there is none; NULL: of all cuts. */
tr_status tr_cut_balanced(const double *cost, const bool *block, int n, int stages,
                          const tr_cut_room *room, int *first, bool *found);
