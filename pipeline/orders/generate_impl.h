/* Private to the generators: the functions of the schedules, and functions that several of them
 * use. */
#pragma once

#include "pipeline/orders/generate.h"

/* Each fills an empty schedule of request->ranks * request->chunks stages, placed in a loop (stage
 * s on rank s % ranks) or, where the list says so, in a V (stages s and 2 * ranks - 1 - s on rank
 * s). Fields of the request have their defaults, except cap, which may be 0. */
tr_status tr_generate_1f1b(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_bfs(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_forward(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_zb_h1(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_zb_h2(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_zb_capped(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_zbv(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_v_capped(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_dualpipev(tr_schedule *s, const tr_schedule_request *request);

/* Makes the order of a schedule other than auto. */
tr_status tr_generate_order(const tr_schedule_request *request, tr_schedule **out);

/* Gets line `index` of the list of schedules; chunks 0: any number. Returns false after the end. */
bool tr_generate_get(int index, const char **name, int *chunks);

/* Returns the most micro-batches that a rank holds by the schedule's definition; INFINITY: it has
 * no such limit. */
double tr_generate_most_held(const char *name, int ranks);

/* Copies the request with defaults for costs and memory, and checks its sizes. */
tr_status tr_generate_complete(const tr_schedule_request *request, tr_schedule_request *out);

/* Appends the action to the order of the stage's rank. */
tr_status tr_generate_add(tr_schedule *s, int stage, tr_action_type type, int micro_batch);

/* Repairs an order that has every action, each W after its I, so that it runs to its end: when all
 * ranks wait for each other, a rank that can runs its next I or B, else its next F. Does not change
 * an order that runs. table: the edges; NULL for the chain. */
tr_status tr_generate_repair(tr_schedule *s, const tr_stage_table *table);
