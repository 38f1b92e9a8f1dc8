/* The owners of tensors that cannot be cut. When data ranks divide the updates (parallel.zero),
 * muon's matrices and all of adafactor's tensors each belong to one data rank, because their steps
 * need all elements of a tensor. */
#pragma once

#include "layers/placement.h"
#include "partition/optim_row.h"

/* Chooses the owner of each trained parameter that the optimizer steps whole (tr_param.owner), so
 * that on every pipeline rank each data rank owns about the same number of elements. Tied
 * parameters come first, because all their uses have one owner; then the others, the largest first,
 * each to the data rank that owns least so far (Graham 1969: the fullest owns at most the mean and
 * one tensor). A function of the layout alone, the same on all ranks. mesh: its data ranks divide
 * the updates; NULL: does nothing. */
tr_status tr_owners_choose(const tr_model *model, const tr_placement *placement,
                           const tr_mesh *mesh, tr_optim_kind optimizer);
