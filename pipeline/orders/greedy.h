/* Orders made by playing the step: at every moment each rank takes the best action that it can. */
#pragma once

#include "pipeline/orders/generate.h"

/* Which action a rank prefers of those that could start. */
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
    /* A rank waits for a preferred action that is known to become ready before this part of the
     * other one would be over, and meanwhile takes a W that fits: before the rank's first I, later,
     * and in front of a W. */
    double first_patience, patience, weight_patience;
    int late;   /* most W that wait on a rank while others can start; < 0: any number */
    bool guard; /* no W delays the way back of the last micro-batch */
    /* Most F of a rank's first stage that wait for their I (B): on the first rank, on the last, and
     * in a line between them; at least 1. Both 0: any number. */
    double ahead_first, ahead_last;
} tr_greedy_rules;

/* Fills an empty schedule; actions of a kind ascend in every stage. Ends always: the F of a stage
 * leaves room for one input of each stage of its rank where that micro-batch has not been, so the
 * oldest micro-batch can go on.
 * Source of the idea: the heuristic of Qi et al. 2023, section 3.1, which plays ranks in turn; here
 * all advance by time. O(actions log ranks). TR_ERR_CONFIG when cap is below one micro-batch. */
tr_status tr_greedy_fill(tr_schedule *s, const tr_greedy_rules *rules);
