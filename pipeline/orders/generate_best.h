/* The best of several orders under a memory cap. */
#pragma once

#include "pipeline/orders/greedy.h"

typedef struct tr_best {
    tr_schedule *s; /* empty, or the best order so far */
    const tr_schedule_request *request;
    double cap; /* of a rank, in the unit of request->memory */
    bool span;  /* compares the longest span, then the makespan; else first the makespan */
    bool found;
    double first, second; /* of the best order */
} tr_best;

/* Swaps the order into best->s if it is better and no rank holds more than the cap; `order` then
 * has the previous one. Fails when the order does not run. */
tr_status tr_best_offer(tr_best *best, tr_schedule *order);

/* Offers the order of the rules; sets *better when it was taken. */
tr_status tr_best_play(tr_best *best, const tr_greedy_rules *rules, bool *better);

/* Offers the orders for n values of a field of the rules, which `set` sets, and leaves the rules at
 * the best value. */
tr_status tr_best_sweep(tr_best *best, tr_greedy_rules *rules, int n,
                        void (*set)(tr_greedy_rules *rules, int k));

/* Returns the smaller of the schedule's own cap, in micro-batches, and the request's. A micro-batch
 * takes m_b, or m_w if that is more; whole backwards keep no m_w. */
double tr_best_cap(const tr_schedule_request *request, double micro_batches, bool whole);

/* Fails with TR_ERR_CONFIG when no order was within the cap. */
tr_status tr_best_end(const tr_best *best);
