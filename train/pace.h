/* The steps of optimizers that step each tensor by itself (partition/optim_row.h). UPDATE's place
 * is taken by DIRECTION, which leaves the directions in the gradients' memory. Adafactor divides
 * the matrices by the roots of their second moments (partition/adafactor.h). Then the tensor ranks
 * sum the squared norms of their parts of each tensor, in FP64 blocks of 4096 elements; muon
 * makes its directions orthogonal (partition/muon.h); and each rank steps its parts along them.
 * Copies of tied parameters compute the same, and so do data ranks, unless they divide updates:
 * then one data rank steps a tensor, or each a part of it. */
#pragma once

#include "partition/step_end.h"
#include "train/store.h"

typedef struct tr_pace tr_pace;

/* Makes the steps of the store's parameters; *out is NULL for an optimizer that does not step by
 * tensor. tensor: the group of this rank's tensor ranks. *scratch becomes at least the bytes that
 * tr_pace_run needs. */
tr_status tr_pace_create(const tr_store *store, const tr_optim_config *config, const tr_mesh *mesh,
                         tr_group *tensor, size_t *scratch, tr_pace **out);
void tr_pace_destroy(tr_pace *steps);
/* Steps all parameters along the directions in their gradients' memory, unless the state says to
 * skip. Collective over the tensor ranks, and over the data ranks that divide updates. */
tr_status tr_pace_run(tr_pace *steps, tr_stream *stream, tr_step_state *state, void *scratch);
