/* Time and memory of an order itself, before it is lowered: for searches and for orders of tens of
 * millions of actions. */
#pragma once

#include "layers/stage.h"
#include "pipeline/orders/bubble.h"
#include "pipeline/orders/generate.h"

typedef struct tr_estimate_options {
    /* Costs of stages and edges; NULL: the chain 0 -> 1 -> ..., where each of a rank's v stages
     * takes 1/v of `share`. */
    const tr_stage_table *table;
    tr_stage_cost share; /* as in tr_schedule_request */
    double latency;      /* of a transfer */
    bool times;          /* keep start, done_f and done_i */
} tr_estimate_options;

typedef struct tr_estimate {
    int ranks, stages, micro_batches;
    double makespan;
    double longest_span;
    tr_rank_time *time;  /* [ranks] */
    double *peak;        /* [ranks]: in the unit of m_b */
    tr_stage_cost *cost; /* [stages]: the times that were used */
    double latency;
    /* NULL unless asked for: */
    double **start; /* [ranks][count] of each action */
    double *done_f,
        *done_i; /* [stages * micro_batches]: when the message of F, and of I or B, leaves */
} tr_estimate;

/* Executes the order: an action starts when its rank is free and its inputs have arrived; inputs
 * from another rank arrive `latency` after they left. Transfers take no compute time and do not
 * delay each other. A pair of OVERLAP_F_B starts when the inputs of both have arrived, runs back to
 * back, and sends at its end. Takes O(actions) time, 16 bytes a (stage, micro-batch), and 8 more an
 * action with `times`.
 *
 * tr_simulate's times of the lowered order are never earlier. They are equal as long as no message
 * waits for an earlier one on its channel or for a landing buffer, which is always true without
 * latency; a forward-only order in which ranks keep pace (tr_lower) has the same end.
 *
 * Memory: a (stage, micro-batch) counts its stage's m_b from the start of its F to the end of its
 * I, then m_w to the end of its W; with B m_b to the end of B; forward-only: during F.
 *
 * Transfers and reductions of a list take no time. Fails with TR_ERR_CONFIG on an id out of range,
 * an action on a rank that does not own its stage, and an order that blocks. Does not check that
 * each action occurs once (tr_schedule_check does). The caller releases *out with
 * tr_estimate_destroy. */
tr_status tr_estimate_order(const tr_schedule *schedule, const tr_estimate_options *options,
                            tr_estimate **out);
void tr_estimate_destroy(tr_estimate *estimate);

/* Returns the duration of an action in seconds or the costs' unit; B: I + W. */
double tr_estimate_duration(const tr_estimate *estimate, tr_action action);

/* Returns the bubble rate (total - ideal) / total with ideal = m (F + I + W); total is the makespan
 * or the longest span (Zero Bubble, section 5.3). Differences from rounding count as 0. */
double tr_bubble_rate(double total, double ideal);
