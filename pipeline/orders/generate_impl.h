/* Private to the generators: one function per schedule, and what several of them use. */
#pragma once

#include "pipeline/orders/generate.h"

/* Each fills an empty schedule of request->ranks * request->chunks stages, placed in a loop (stage
 * s on rank s % ranks) or, where the list says so, in a V (stages s and 2 * ranks - 1 - s on rank
 * s). Fields of the request that the caller left at 0 have their defaults, but memory.cap. */
tr_status tr_generate_gpipe(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_1f1b(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_interleaved(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_bfs(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_forward(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_zb_h1(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_zb_h2(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_zb_1p(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_zb_2p(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_interleaved_zb(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_zbv(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_v_half(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_v_min(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_1f1b_v(tr_schedule *s, const tr_schedule_request *request);
tr_status tr_generate_dualpipev(tr_schedule *s, const tr_schedule_request *request);

/* The order of a schedule other than auto. */
tr_status tr_generate_order(const tr_schedule_request *request, tr_schedule **out);

/* The index-th line of the list of schedules; chunks 0: any number. False past its end. */
bool tr_generate_get(int index, const char **name, int *chunks);
/* The request with defaults for costs and memory that it leaves out; its sizes are judged. */
tr_status tr_generate_complete(const tr_schedule_request *request, tr_schedule_request *out);

/* Appends the action to the order of the stage's rank. */
tr_status tr_generate_add(tr_schedule *s, int stage, tr_action_type type, int micro_batch);

/* The micro-batches of a looped schedule are taken in groups: a rank runs a group's F of its first
 * chunk, then of its second, and so on; B from the last chunk to the first. */
typedef struct tr_loop {
    int ranks, chunks, micro_batches;
    int groups;
    int *first; /* [groups + 1]: first micro-batch of each group */
    int largest;
} tr_loop;

/* Groups of request->group micro-batches, 0: as even as they come with at least `ranks` in each. A
 * last group of fewer than `ranks` would make the first rank wait for the last at every turn: it
 * joins the group before it where that has `ranks`. Release with tr_loop_close. */
tr_status tr_loop_open(const tr_schedule_request *request, tr_loop *out);
void tr_loop_close(tr_loop *loop);
/* The k-th forward (backward) of `rank`, k < chunks * micro_batches. */
tr_action tr_loop_forward(const tr_loop *loop, int rank, int k);
tr_action tr_loop_backward(const tr_loop *loop, int rank, int k, tr_action_type type);

/* Makes an order that has every action, W behind its I, run to its end: where all ranks wait for
 * each other, one that can goes on with its next I or B, else its next F. An order that runs stays
 * as it is. table: the edges; NULL for the chain. */
tr_status tr_generate_repair(tr_schedule *s, const tr_stage_table *table);
