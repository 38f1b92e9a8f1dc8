/* Orders from generators: one line each in the list of pipeline/orders/generate.c. */
#pragma once

#include "pipeline/orders/schedule.h"

/* Times of one micro-batch on all stages of a rank; each of its v stages takes 1/v of f, i and w. c
 * is the latency of a transfer between ranks. Any unit; all 0: 1, 1, 1, 0. */
typedef struct tr_schedule_costs {
    double f, i, w, c;
} tr_schedule_costs;

/* Memory of one micro-batch on all stages of a rank: m_b from the start of its F to the end of its
 * I, then m_w to the end of its W; each of the v stages holds 1/v. cap: the most that a rank may
 * hold; 0: no cap. */
typedef struct tr_schedule_memory {
    double m_b, m_w, cap;
} tr_schedule_memory;

typedef struct tr_schedule_request {
    const char *name;
    int ranks, micro_batches;
    int chunks;                  /* v, stages per rank; 0: the schedule's own number, or 1 */
    int group;                   /* micro-batch group of interleaved schedules; 0: ranks */
    const tr_stage_table *table; /* costs and edges of the stages; NULL: equal stages in a chain */
    tr_schedule_costs costs;
    tr_schedule_memory memory;
    /* For auto, which chooses the placement: the most stages a rank when chunks is 0 (0: 4); and a
     * function that fills the stages' costs of a model cut into so many, in the unit of costs, and
     * their edges (tr_graph_open). NULL: those of table if it has as many stages, else equal stages
     * in a chain. */
    int most_chunks;
    tr_status (*describe_stages)(void *context, int stages, double *f, double *i, double *w,
                                 tr_graph *graph);
    void *context;
} tr_schedule_request;

/* Returns the name of schedule 0, 1, ...; NULL after the last one. *trains (may be NULL): false
 * when it has no backward. */
const char *tr_schedule_name(int index, bool *trains);

/* Makes the forward-only schedule of micro_batches on the stages and ranks of `like`, for
 * validation. table: the edges; NULL for the chain. */
tr_status tr_schedule_forward_of(const tr_schedule *like, const tr_stage_table *table,
                                 int micro_batches, tr_schedule **out);
