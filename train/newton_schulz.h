/* Makes the directions of muon's matrices orthogonal (partition/muon.h), in their memory. Tensor
 * ranks that hold parts of a matrix sum its product with itself in each step. Then two matrices
 * take turns, so that one's sum travels while the other's step is computed. Each matrix has the
 * bits that it has alone. */
#pragma once

#include "train/store.h"

typedef struct tr_newton_schulz tr_newton_schulz;

/* Makes an empty list of matrices. tensor: the group of this rank's tensor ranks; NULL: a single
 * one. */
tr_status tr_newton_schulz_create(const tr_store *store, tr_group *tensor, tr_newton_schulz **out);
void tr_newton_schulz_destroy(tr_newton_schulz *matrices);
/* Adds the matrix of a slot, and prepares its step. norms: device, as of tr_directions_norms.
 * *scratch becomes at least the bytes that tr_newton_schulz_run needs. */
tr_status tr_newton_schulz_add(tr_newton_schulz *matrices, int slot, const double *norms,
                               size_t *scratch);
/* Allocates the memory that the added matrices need: tr_muon_room_bytes. */
tr_status tr_newton_schulz_alloc(tr_newton_schulz *matrices);
/* Makes the directions of a lap's matrices orthogonal, when their norms are complete. Collective
 * over the tensor ranks, which have added the same matrices in the same order. */
tr_status tr_newton_schulz_run(tr_newton_schulz *matrices, int lap, tr_stream *stream,
                               void *scratch);
