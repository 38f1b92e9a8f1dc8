/* A timeline of all ranks' actions, planned by a simulation or measured; the input of drawings. */
#pragma once

#include "pipeline/orders/bubble.h"
#include "pipeline/orders/estimate.h"
#include "pipeline/program/simulate.h"

#include <stdint.h>

/* The streams of a rank. Bars of one track do not overlap. */
typedef enum tr_track {
    TR_TRACK_COMPUTE,
    TR_TRACK_REDUCE, /* sums of gradients and gathers of values */
    TR_TRACK_OUT,    /* copies to the host's memory */
    TR_TRACK_BACK,   /* and from it */
    TR_TRACK_SEND,   /* to bar.peer */
    TR_TRACK_RECV    /* from bar.peer */
} tr_track;

/* One action in a drawing. */
typedef struct tr_bar {
    int rank;
    tr_track track;
    tr_action action;
    int peer, message; /* SEND, RECV: the other rank, number on the channel; else -1 */
    int step;          /* from 0 */
    double start, end;
} tr_bar;

/* Returns the number of the bar's track on its rank, of which there are tr_bar_tracks: the compute
 * stream, collectives, copies, and then two for each rank. */
static inline int tr_bar_track(const tr_bar *bar) {
    return bar->track < TR_TRACK_SEND ? (int)bar->track : 2 * bar->peer + (int)bar->track;
}
static inline int tr_bar_tracks(int ranks) {
    return 2 * ranks + (int)TR_TRACK_SEND;
}

/* Returns true for a wait for a reduction, a gather or a copy. */
static inline bool tr_bar_waits(const tr_bar *bar) {
    const tr_action_type type = bar->action.type;
    return type == TR_ACTION_REDUCE_WAIT || type == TR_ACTION_GATHER_WAIT ||
           type == TR_ACTION_OFFLOAD_WAIT || type == TR_ACTION_FETCH_WAIT;
}

/* Returns true for a wait for a reduction or a gather. */
static inline bool tr_bar_awaits_ranks(const tr_bar *bar) {
    return bar->action.type == TR_ACTION_REDUCE_WAIT || bar->action.type == TR_ACTION_GATHER_WAIT;
}

/* The pipeline's part of a step: from the start of its first action to the end of its last one, or
 * of its last wait for a reduction, on any rank, without the optimizer and the time between steps.
 * An action begins with its first wait for a gather. */
typedef struct tr_timeline_step {
    double begin, end;
} tr_timeline_step;

typedef struct tr_timeline {
    char title[96];
    int ranks, stages, micro_batches;
    double seconds;     /* of one time unit; 0: the unit is not seconds */
    double makespan;    /* the last end of an action */
    double span;        /* the sum of all steps' lengths, of which busy and idle are shares */
    tr_rank_time *time; /* [ranks]: sums over the steps; without first and last */
    int64_t first_step; /* the number of step 0 in its run; 0: not numbered */
    int steps;
    tr_timeline_step *step; /* [steps] */
    size_t count, capacity;
    tr_bar *bar;
} tr_timeline;

/* Creates a timeline without bars, with the beginning of the title, in which '?' stands for what is
 * not UTF-8. seconds: of one unit of its times; 0: the unit is not seconds. The caller releases
 * *out with tr_timeline_destroy. */
tr_status tr_timeline_create(const char *title, int ranks, int stages, int micro_batches,
                             double seconds, tr_timeline **out);
void tr_timeline_destroy(tr_timeline *timeline);

/* Appends a bar. Bars of one track must come in the order of their ends; tr_timeline_finish
 * shortens a bar that begins before the previous one ends. */
tr_status tr_timeline_add(tr_timeline *timeline, tr_bar bar);

/* Fills makespan, span, time and the steps from the bars. The last step ends at `least` when that
 * is more. */
tr_status tr_timeline_finish(tr_timeline *timeline, double least);

/* Makes the timeline of an order that was estimated with `times` and that table (NULL: the chain):
 * its actions, each SEND from when it leaves to its arrival, and each RECV from when its rank is
 * free to the arrival (length 0 if the message arrived before). */
tr_status tr_timeline_of_estimate(const char *title, const tr_schedule *schedule,
                                  const tr_stage_table *table, const tr_estimate *estimate,
                                  tr_timeline **out);

/* Makes the timeline of simulated programs. seconds: of one unit of the costs; 0: the unit is not
 * seconds. */
tr_status tr_timeline_of_simulation(const char *title, const tr_program_set *set,
                                    const tr_simulation *simulation, double seconds,
                                    tr_timeline **out);
