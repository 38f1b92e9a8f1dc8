/* The cut of a list of layers into contiguous stages. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

/* Cuts n layers of the given costs (>= 0, any unit; embedding and head are layers like others) into
 * `stages` runs so that the largest stage is as small as any cut makes it (exact). Among those cuts
 * the sum of the stages' squares is smallest; among the cuts equal in that, earlier stages have
 * fewer layers: they hold the most micro-batches.
 *
 * block[n]: which layers are transformer blocks, of which every stage gets at least one; NULL when
 * every stage only needs a layer. first[stages + 1]: stage k has layers first[k] to first[k+1] - 1.
 * TR_ERR_CONFIG, naming parallel.pp and model.layers, when there are fewer than stages. */
tr_status tr_cut_balanced(const double *cost, const bool *block, int n, int stages, int *first);
