/* Periodic orders of a V: one block of a micro-batch's actions, repeated. */
#pragma once

#include "pipeline/schedule.h"

/* Fills an empty schedule in a V with the block of least memory (the idea of Qi et al. 2024,
 * section 3; here found exactly, as a shortest path): time is cut in periods of six units, a period
 * of a rank has the F, I and W (whole: F and B) of both its stages at fixed places, and these are
 * chosen on all ranks so that a micro-batch spends least time between its first F and its last I;
 * the time of its way down and up with F, down and up with I counts weight[0] to weight[3]. F, I
 * and W are one unit, B two. */
tr_status tr_block_fill(tr_schedule *s, bool whole, const int *weight);
