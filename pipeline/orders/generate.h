/* Orders from generators: one line each in the list of pipeline/orders/generate.c. */
#pragma once

#include "pipeline/orders/schedule.h"

/* Times of one micro-batch through one rank's whole share: each of its v stages takes 1/v of f, i
 * and w. c is the latency of one transfer between ranks. Any unit; all 0: 1, 1, 1, 0. */
typedef struct tr_schedule_costs {
    double f, i, w, c;
} tr_schedule_costs;

/* Memory of one micro-batch on one rank's whole share: mb from the start of its F to the end of its
 * I, of which mw stays to the end of its W; each of the v stages holds 1/v. cap: the most a rank
 * may hold, 0: no cap. */
typedef struct tr_schedule_memory {
    double mb, mw, cap;
} tr_schedule_memory;

typedef struct tr_schedule_request {
    const char *name;
    int ranks, micro_batches;
    int chunks; /* v, stages per rank; 0: what the schedule is defined with, else 1 */
    int group;  /* micro-batch group of interleaved schedules; 0: ranks */
    tr_schedule_costs costs;
    tr_schedule_memory memory;
    /* For auto, which chooses the placement: the most stages a rank where chunks is 0 (0: 4); and
     * what each stage takes of a model cut into so many, in the unit of costs (NULL: all alike). */
    int most_chunks;
    tr_status (*stage_costs)(void *context, int stages, double *f, double *i, double *w);
    void *context;
} tr_schedule_request;

/* Makes the order. Any ranks >= 1, micro_batches >= 1 and, where the schedule has a choice, chunks
 * >= 1 are accepted; W ascends in every stage. TR_ERR_CONFIG with the known names for an unknown
 * one, and for a number of chunks that the schedule does not have. */
tr_status tr_schedule_make(const tr_schedule_request *request, tr_schedule **out);
