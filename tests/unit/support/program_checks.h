/* Checks of lowered programs: that values are gathered, and activations offloaded, where lower.h
 * says so. */
#pragma once

#include "pipeline/program/lower.h"

/* Fails unless each action finds all values of its stage, gathered and waited for, at a place that
 * begins with its gather and ends with an action of the stage, and the values of two stages at most
 * are alive at one time unless the rank runs two stages in turns, as a pair. */
void expect_gathers(const tr_stage_table *t, const tr_program *p);

/* Fails unless the program begins with one gather of each bucket with updated values, but in
 * validation, where it has none. Each is waited for once, within the first F of its stage. */
void expect_updated(const tr_schedule *schedule, const tr_stage_table *t, const tr_program *p);

/* Fails unless exactly the micro-batches of stages that offload go out that have a place to free
 * for an action, in order, hidden behind an action each way. Returns how many do. */
int expect_offloads(const tr_stage_table *t, const tr_program *p);
