/* Time and memory of an order itself, before it is lowered: for searches and for orders of tens of
 * millions of actions. */
#pragma once

#include "layers/stage.h"
#include "pipeline/orders/bubble.h"
#include "pipeline/orders/generate.h"

typedef struct tr_estimate_options {
    /* Costs of stages and edges; NULL: the chain 0 -> 1 -> ..., where each of a rank's v stages
     * takes 1/v of costs.f, i and w. */
    const tr_stage_table *table;
    tr_schedule_costs costs;   /* f, i, w all 0: 1, 1, 1; c: latency of a transfer, always used */
    tr_schedule_memory memory; /* m_b and m_w both 0: 1, 0; cap is not judged */
    bool times;                /* keep start, done_f and done_i */
} tr_estimate_options;

typedef struct tr_estimate {
    int ranks, stages, micro_batches;
    double makespan;
    double longest_span;
    tr_rank_time *time;  /* [ranks] */
    double *peak;        /* [ranks]: in the unit of memory.m_b */
    tr_stage_cost *cost; /* [stages]: the times that were used */
    double latency;
    /* NULL unless asked for: */
    double **start;          /* [ranks][count] of each action */
    double *done_f, *done_i; /* [stages * micro_batches]: when what F, and I or B, sends leaves */
} tr_estimate;

/* Executes the order: an action starts when its rank is free and its inputs have arrived, `c` after
 * they left when they come from another rank; transfers take no time of a rank and do not delay one
 * another. A pair of OVERLAP_F_B starts when the inputs of both have arrived, runs back to back,
 * and what it sends leaves at its end. Time O(actions), memory 16 bytes a (stage, micro-batch), 8
 * more an action with `times`.
 *
 * tr_simulate's times of the lowered order are never earlier, and equal as long as no message waits
 * for one before it on its channel or for a landing buffer: always at c = 0.
 *
 * Memory: a (stage, micro-batch) counts m_b / v from the start of its F to the end of its I, then
 * m_w / v to the end of its W; with B m_b / v to the end of B; forward-only: during F. v: stages on
 * that rank.
 *
 * Transfers and reductions of a list take no time. TR_ERR_CONFIG for an id out of range, an action
 * on a rank that does not own its stage and an order that blocks; that each action is there once is
 * tr_schedule_check's. Release with tr_estimate_destroy. */
tr_status tr_estimate_order(const tr_schedule *schedule, const tr_estimate_options *options,
                            tr_estimate **out);
void tr_estimate_destroy(tr_estimate *estimate);

/* Seconds (or the costs' unit) of an action; B: I + W. */
double tr_estimate_duration(const tr_estimate *estimate, tr_action action);

/* (total - ideal) / total, ideal = m (F + I + W): the rate of a bubble; total is the makespan or
 * the longest span (Zero Bubble, section 5.3). 0 for differences that are rounding. */
double tr_bubble_rate(double total, double ideal);
