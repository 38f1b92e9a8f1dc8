/* The best of several orders under a memory cap. */
#pragma once

#include "pipeline/orders/greedy.h"

typedef struct tr_best {
    tr_schedule *s; /* empty, or the best order so far */
    const tr_schedule_request *request;
    double cap; /* of a rank, in the unit of request->memory */
    bool span;  /* judged by the longest span, then the makespan; else the other way round */
    bool found;
    double first, second; /* of the best order */
} tr_best;

/* Takes the order into best->s when it is better and no rank holds more than the cap; `order` keeps
 * what was there. An order that does not run is an error. */
tr_status tr_best_offer(tr_best *best, tr_schedule *order);

/* Offers the order of the rules; *better tells whether it was taken. */
tr_status tr_best_play(tr_best *best, const tr_greedy_rules *rules, bool *better);

/* Offers the order of each of n values of one field of the rules in turn, set by `set`, and leaves
 * the rules at the best of them all. */
tr_status tr_best_sweep(tr_best *best, tr_greedy_rules *rules, int n,
                        void (*set)(tr_greedy_rules *rules, int k));

/* The smaller of a schedule's own cap, so many micro-batches, and the request's. A micro-batch
 * takes m_b, or m_w when that is more; whole backwards keep no m_w. */
double tr_best_cap(const tr_schedule_request *request, double micro_batches, bool whole);

/* TR_ERR_CONFIG when no order kept to the cap. */
tr_status tr_best_end(const tr_best *best);
