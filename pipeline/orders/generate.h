/* Orders from generators: one line each in the list of pipeline/orders/generate.c. */
#pragma once

#include "pipeline/orders/schedule.h"

/* Times of one micro-batch through one rank's whole share: each of its v stages takes 1/v of f, i
 * and w. c is the latency of one transfer between ranks. Any unit; all 0: 1, 1, 1, 0. */
typedef struct tr_schedule_costs {
    double f, i, w, c;
} tr_schedule_costs;

/* Memory of one micro-batch on one rank's whole share: m_b from the start of its F to the end of
 * its I, of which m_w stays to the end of its W; each of the v stages holds 1/v. cap: the most a
 * rank may hold, 0: no cap. */
typedef struct tr_schedule_memory {
    double m_b, m_w, cap;
} tr_schedule_memory;

typedef struct tr_schedule_request {
    const char *name;
    int ranks, micro_batches;
    int chunks; /* v, stages per rank; 0: what the schedule is defined with, else 1 */
    int group;  /* micro-batch group of interleaved schedules; 0: ranks */
    const tr_stage_table *table; /* costs and edges of the stages; NULL: alike, in a chain */
    tr_schedule_costs costs;
    tr_schedule_memory memory;
    /* For auto, which chooses the placement: the most stages a rank where chunks is 0 (0: 4); and
     * what each stage takes of a model cut into so many, in the unit of costs, and the edges
     * between them (tr_graph_open). NULL: those of table where that has as many stages; else all
     * alike, in a chain. */
    int most_chunks;
    tr_status (*describe_stages)(void *context, int stages, double *f, double *i, double *w,
                                 tr_graph *graph);
    void *context;
} tr_schedule_request;

/* Returns the name of schedule 0, 1, ...; NULL after the last one. *trains (may be NULL): false
 * when it has no backward. */
const char *tr_schedule_name(int index, bool *trains);

/* The forward-only schedule of micro_batches on the stages and ranks of `like`: validation next to
 * a training schedule. table: the edges; NULL for the chain. */
tr_status tr_schedule_forward_of(const tr_schedule *like, const tr_stage_table *table,
                                 int micro_batches, tr_schedule **out);
