/* The schedule `auto`: an order for given costs, latency and memory. */
#pragma once

#include "pipeline/orders/generate.h"

typedef struct tr_auto_report {
    double makespan;
    double bound;       /* tr_auto_bound; with the stages' costs if they are given */
    double shape_bound; /* lower bound of the chosen placement under the cap */
    double gap;         /* makespan / bound - 1 */
    int chunks;         /* stages a rank of the order */
    char from[32];      /* the schedule from which it was improved; "list": made for the costs */
} tr_auto_report;

/* Returns a lower bound of the makespan of loops and waves of at most v stages a rank: max(m (F + I
 * + W) + (p - 1) (F / v + c), p (F + I) + 2 (p - 1) c + W / v): the last rank starts when the first
 * micro-batch reaches it, and the first micro-batch must go down and back up. */
double tr_auto_bound(int ranks, int micro_batches, double chunks, const tr_stage_cost *share,
                     double latency);

/* Searches for the order with the least makespan that respects request->cap, as
 * tr_estimate_order measures both: never worse than an order of tr_schedule_make under the same
 * cap, at the costs of request->describe too. request->chunks stages a rank, in a loop or a
 * wave (a V for two), or as request->rank_of has them; 0: the best of up to four, or most_chunks.
 * bound's v is the largest number of chunks that was allowed.
 *
 * The number of evaluated actions bounds the work, so the order depends only on the request, not on
 * the machine. Ignores request->name; defaults are those of tr_schedule_make. report may be NULL.
 * Fails with TR_ERR_CONFIG when the cap does not hold one micro-batch until its I, and like
 * tr_schedule_check_size. */
tr_status tr_schedule_auto(const tr_schedule_request *request, tr_auto_report *report,
                           tr_schedule **out);
