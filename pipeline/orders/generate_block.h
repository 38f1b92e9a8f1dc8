/* Periodic orders of a V: one block of a micro-batch's actions, repeated. */
#pragma once

#include "pipeline/orders/generate.h"

/* How long a micro-batch takes from rank to rank: on its way down and up with F, down and up with I
 * or B, in units of an F; and how much it costs to be off that. */
typedef struct tr_generate_block_shape {
    bool whole; /* B instead of I and W */
    int hop[4], weight[4];
} tr_generate_block_shape;

/* Fills an empty schedule in a V (the idea of Qi et al. 2024, sections 3 and 4; the block is found
 * exactly here, as a shortest path). Time is cut in periods of six units, and a period of a rank
 * has the F, I and W, or F and B, of both its stages at fixed places: those that bring the sum of
 * weight * (length - hop)^2 over all steps of a micro-batch to its least. F, I and W are one unit,
 * B two. Then every action moves to the first idle time that its inputs allow, F as far as no rank
 * holds more than cap (0: any amount): that closes gaps of the first and last micro-batches. A rank
 * holds more than the cap only where the block itself does. Time O(ranks + actions), except the
 * search of an idle time. */
tr_status tr_generate_block(tr_schedule *s, const tr_generate_block_shape *shape,
                            const tr_stage_cost *share, double cap);
