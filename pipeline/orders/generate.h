/* Orders from generators: one line each in the list of pipeline/orders/generate.c. */
#pragma once

#include "pipeline/orders/schedule.h"

typedef struct tr_schedule_request {
    const char *name;
    int ranks, micro_batches;
    int chunks; /* v, stages per rank; 0: the schedule's own number, or 1 */
    int group;  /* micro-batch group of interleaved schedules; 0: ranks */
    /* Costs and edges of the stages; NULL: equal stages in a chain, each with 1/v of `share`. */
    const tr_stage_table *table;
    tr_stage_cost share; /* f, i, w, m_b, m_w of all stages of a rank; see tr_share_complete */
    double latency;      /* of a transfer between ranks, in the unit of share.f */
    double cap;          /* the most that a rank may hold, in the unit of share.m_b; 0: no cap */
    /* For auto, which chooses the placement: the most stages a rank when chunks is 0 (0: 4); and a
     * function that makes the table of a model cut into `stages`, with times in the unit of
     * share. NULL: `table` if it has as many stages, else equal stages in a chain. */
    int most_chunks;
    const int *rank_of; /* for auto: the ranks of all ranks * chunks stages; NULL: any */
    tr_status (*describe)(void *context, int stages, tr_stage_table *out);
    void *context;
    struct tr_best_rules *rules; /* private to the generators; NULL outside */
} tr_schedule_request;

/* Sets what is not given: f, i, w all 0: 1, 1, 1; m_b 0: 1, with m_w 0. */
void tr_share_complete(tr_stage_cost *share);
/* Returns the cost of one of `chunks` equal stages. */
tr_stage_cost tr_share_stage(const tr_stage_cost *share, int chunks);

/* Returns the name of schedule 0, 1, ...; NULL after the last one. *trains (may be NULL): false
 * when it has no backward. */
const char *tr_schedule_name(int index, bool *trains);

/* Returns how many stages a rank has in the schedule of this name; 0: any number, or no schedule
 * has this name. */
int tr_schedule_chunks(const char *name);

/* Returns true when the schedule's definition limits what a rank holds. Its order depends on the
 * costs and the memory of the request. */
bool tr_schedule_is_capped(const char *name);

/* Makes the forward-only schedule of micro_batches on the stages and ranks of `like`, for
 * validation. table: the edges; NULL for the chain. */
tr_status tr_schedule_forward_of(const tr_schedule *like, const tr_stage_table *table,
                                 int micro_batches, tr_schedule **out);
