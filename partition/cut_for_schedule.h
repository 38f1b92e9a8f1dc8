/* The cut of a model's layers into the stages of a schedule. */
#pragma once

#include "layers/model.h"
#include "partition/optim_row.h"
#include "pipeline/orders/schedule.h"

/* Cuts a model into stages so that the largest has the least FLOPs; first[stages + 1] as in
 * tr_cut_balanced. */
tr_status tr_cut_model(const tr_model *model, int stages, int *first);

/* Cuts a model into the schedule's stages and minimises the step's time as tr_estimate_order
 * measures it, with FLOPs for seconds; no rank may need more memory than the fullest rank of
 * tr_cut_model. Tries the cuts that balance F, I and W with different weights, and moves boundaries
 * of the best by a layer until no move helps or a fixed number of actions is estimated. The result
 * depends only on the arguments, so all ranks have the same cut. Fails like tr_cut_balanced. */
tr_status tr_cut_for_schedule(const tr_model *model, const tr_schedule *schedule,
                              tr_optim_memory optimizer, int *first);
