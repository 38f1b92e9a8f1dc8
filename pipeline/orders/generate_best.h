/* The best of several orders under a memory cap. */
#pragma once

#include "pipeline/orders/auto_impl.h"

enum { TR_BEST_TRIALS = 6 };

/* The rules that list scheduling found for a shape, and the times of their orders; INFINITY: no
 * order ended. */
typedef struct tr_best_rule {
    tr_auto_shape shape;
    tr_auto_rule rule[TR_BEST_TRIALS];
    double time[TR_BEST_TRIALS];
} tr_best_rule;

/* Rules of all shapes that a caller's requests had: an order of many micro-batches takes the rules
 * of one with few, so a request that follows one with few need not search them again. The owner
 * begins with {0}, and releases it with tr_best_rules_free. */
typedef struct tr_best_rules {
    tr_best_rule *rule;
    size_t count, room;
} tr_best_rules;

void tr_best_rules_free(tr_best_rules *rules);

typedef struct tr_best {
    tr_schedule *s; /* empty, or the best order so far */
    const tr_schedule_request *request;
    bool whole; /* B instead of I and W */
    bool span;  /* compares the longest span, then the makespan; else first the makespan */
    double cap; /* of a rank, in the unit of request->share.m_b */
    bool found;
    double first, second; /* of the best order */
} tr_best;

/* Sets the cap to the smaller of the schedule's own (tr_generate_most_held) and the request's. A
 * micro-batch takes m_b, or m_w if that is more; whole backwards keep no m_w. Fails with
 * TR_ERR_CONFIG when the cap is below one micro-batch. */
tr_status tr_best_open(tr_best *best);

/* Makes an order of the same sizes and places by fill(order, best, how), and keeps it if it is
 * better and no rank holds more than the cap. Fails like `fill`, and when the order does not
 * run. */
tr_status tr_best_try(tr_best *best,
                      tr_status (*fill)(tr_schedule *order, const tr_best *best, const void *how),
                      const void *how);

/* Offers the orders that list scheduling finds for the request's costs. */
tr_status tr_best_list(tr_best *best);

/* Fails with TR_ERR_CONFIG when no order was within the cap. */
tr_status tr_best_end(const tr_best *best);
