/* The cut of a model's layers into the stages of a schedule. */
#pragma once

#include "layers/model.h"
#include "partition/optim_row.h"
#include "pipeline/orders/schedule.h"

/* Cuts a model into stages so that the largest has the least FLOPs; first[stages + 1] as in
 * tr_cut_balanced. */
tr_status tr_cut_model(const tr_model *model, int stages, int *first);

/* What a rank of a cut needs: values, gradients and the optimizer's state of its parameters, and
 * the peak of its activations before they are placed. */
typedef struct tr_cut_memory {
    tr_optim_memory optimizer;
    const tr_mesh *divided; /* and zero: of tr_memory_of_params */
    int zero;
    const double *room; /* [ranks]: the most that ranks may need; NULL: as below */
} tr_cut_memory;

/* Cuts a model into the schedule's stages and minimises the step's time as tr_estimate_order
 * measures it, with FLOPs for seconds, among the cuts in which no rank needs more than its room;
 * without room, more than the fullest rank of tr_cut_model. When it finds no such cut, it minimises
 * what ranks need beyond their room. Tries the cuts that balance F, I and W with different weights,
 * and moves boundaries of the best by a layer until no move helps or a fixed number of actions is
 * estimated. The result depends only on the arguments, so all ranks have the same cut. Fails like
 * tr_cut_balanced. */
tr_status tr_cut_for_schedule(const tr_model *model, const tr_schedule *schedule,
                              const tr_cut_memory *memory, int *first);

/* Computes what each rank of a cut needs, to need[ranks], and the step's time. */
tr_status tr_cut_measure(const tr_model *model, const tr_schedule *schedule,
                         const tr_cut_memory *memory, const int *first, double *time, double *need);
