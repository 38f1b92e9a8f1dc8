/* The sums over tensor ranks in a step: activations in F, input gradients in I or B; and with
 * sequence parallelism the gathers of rows. */
#pragma once

#include "layers/placement.h"
#include "pipeline/program/simulate.h"

typedef struct tr_sum_times {
    int64_t count;
    double bytes;           /* of the tensors that are summed */
    double moving, exposed; /* time of the sums, and of waiting for them; in the link's unit */
} tr_sum_times;

/* Adds up the sums that a pipeline rank's program makes with the model's layers, each over `link`,
 * in FLOPs. A sum is exposed, because the next work needs its result, except the part of it that B
 * hides behind other work of its own. A scatter or gather takes half the time of a sum. */
tr_sum_times tr_sum_times_of(const tr_model *model, const tr_placement *placement,
                             const tr_program *program, tr_link link);
