/* The directions of optimizers that step each tensor by itself (partition/optim_row.h), between
 * DIRECTION and DESCEND (train/updates.h). Adafactor divides the matrices by the roots of their
 * second moments (partition/adafactor.h). Then the tensor ranks sum the squared norms of their
 * parts of each tensor, in FP64 blocks of 4096 elements, and muon makes its directions orthogonal
 * (partition/muon.h). Copies of tied parameters compute the same, and so do data ranks, unless they
 * divide updates: then one data rank steps a tensor, or each a part of it.
 *
 * The device does all of it, also when the host steps (train/hosted.h), because it has the products
 * and the groups. */
#pragma once

#include "partition/step_end.h"
#include "train/store.h"

typedef struct tr_directions tr_directions;

/* Prepares the directions of the store's parameters; *out is NULL for an optimizer that does not
 * step by tensor. tensor: the group of this rank's tensor ranks. *scratch becomes at least the
 * bytes that tr_directions_complete needs. */
tr_status tr_directions_create(const tr_store *store, const tr_optim_config *config,
                               const tr_mesh *mesh, tr_group *tensor, size_t *scratch,
                               tr_directions **out);
void tr_directions_destroy(tr_directions *directions);
/* Completes the directions of a lap, and takes the norms. Collective over the tensor ranks, and
 * over the data ranks that divide updates. directions may be NULL. */
tr_status tr_directions_complete(tr_directions *directions, int lap, tr_stream *stream,
                                 tr_step_state *state, void *scratch);
/* Returns true when DIRECTION of a slot would only multiply gradients by gradient_factor: then
 * adafactor's FACTOR does that, and no DIRECTION runs. On the host DIRECTION always runs. */
bool tr_directions_scales(const tr_store *store, const tr_optim_config *config, int slot);
/* Returns the slot's norms, in device memory, as DESCEND takes them. */
const double *tr_directions_norms(const tr_directions *directions, int slot);
/* Returns those of a lap's slots, one after the other. *count is 0 in a lap without directions, on
 * all ranks for which tr_directions_complete is collective, and when `directions` is NULL. */
const double *tr_directions_lap_norms(const tr_directions *directions, int lap, int64_t *count);
