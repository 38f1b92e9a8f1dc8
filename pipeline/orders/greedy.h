/* Makes orders by playing a step: at every moment each rank starts the best action that it can. */
#pragma once

#include "pipeline/orders/generate.h"

/* Which action a rank prefers among those that can start. */
typedef enum tr_greedy_first {
    TR_GREEDY_BACKWARD, /* I before F; of each kind, the stage nearest its end */
    TR_GREEDY_OLDEST,   /* I before F; of each kind, the lowest micro-batch */
    TR_GREEDY_TURNS,    /* F and I in turn; then as BACKWARD */
    TR_GREEDY_FIRSTS
} tr_greedy_first;

typedef struct tr_greedy_rules {
    const tr_stage_table *table; /* the edges; NULL: the chain */
    tr_schedule_costs costs;     /* of a rank's whole share, as in a request */
    tr_schedule_memory memory;   /* cap: at least m_b and m_w, 0: none */
    bool whole;                  /* B instead of I and W */
    tr_greedy_first first;
    /* A rank waits for a preferred action if that becomes ready before this part of the other
     * action would have run, and runs a W meanwhile if it fits. The values are for before the
     * rank's first I, for later, and for a choice between an action and a W. */
    double first_patience, patience, weight_patience;
    int late;   /* most W that wait on a rank while others can start; < 0: any number */
    bool guard; /* no W delays the last micro-batch's I */
    /* Most F of a rank's first stage that wait for their I (B): on the first rank, on the last, and
     * in a line between them; at least 1. Both 0: any number. */
    double ahead_first, ahead_last;
} tr_greedy_rules;

/* Fills an empty schedule; actions of a kind ascend in every stage. Always ends: an F leaves room
 * for one input of each stage of its rank that has not run that micro-batch, so the oldest
 * micro-batch can continue. The idea is the heuristic of Qi et al. 2023, section 3.1, which plays
 * ranks in turn; here all advance by time. O(actions log ranks). Fails with TR_ERR_CONFIG when cap
 * is below one micro-batch. */
tr_status tr_greedy_fill(tr_schedule *s, const tr_greedy_rules *rules);
