#include "pipeline/orders/generate_best.h"

#include "base/memory.h"
#include "pipeline/orders/estimate.h"

#include <math.h>
#include <stdlib.h>

static void swap_orders(tr_schedule *a, tr_schedule *b) {
    tr_action **action = a->action;
    size_t *capacity = a->capacity;
    int *count = a->count;
    a->action = b->action;
    a->capacity = b->capacity;
    a->count = b->count;
    b->action = action;
    b->capacity = capacity;
    b->count = count;
}

/* Relative differences below this are rounding. */
static const double rounding = 1e-9;

static bool is_better(const tr_best *best, double first, double second) {
    if (!best->found) return true;
    double same = rounding * (first + second);
    if (first < best->first - same) return true;
    return first <= best->first + same && second < best->second - same;
}

tr_status tr_best_offer(tr_best *best, tr_schedule *order) {
    tr_estimate_options options = {.table = best->request->table,
                                   .costs = best->request->costs,
                                   .memory = best->request->memory};
    tr_estimate *estimate = NULL;
    TR_TRY(tr_estimate_order(order, &options, &estimate));
    double peak = 0;
    for (int r = 0; r < estimate->ranks; r++)
        if (estimate->peak[r] > peak) peak = estimate->peak[r];
    double first = best->span ? estimate->longest_span : estimate->makespan;
    double second = best->span ? estimate->makespan : estimate->longest_span;
    tr_estimate_destroy(estimate);
    if (peak > best->cap * (1 + rounding) || !is_better(best, first, second)) return TR_OK;
    swap_orders(best->s, order);
    best->found = true;
    best->first = first;
    best->second = second;
    return TR_OK;
}

tr_status tr_best_play(tr_best *best, const tr_greedy_rules *rules, bool *better) {
    tr_schedule *order = NULL;
    const tr_schedule *s = best->s;
    double first = best->first, second = best->second;
    bool found = best->found;
    TR_TRY(tr_schedule_create(s->name, s->ranks, s->stages, s->micro_batches, s->rank_of, &order));
    tr_status status = tr_greedy_fill(order, rules);
    if (status == TR_OK) status = tr_best_offer(best, order);
    tr_schedule_destroy(order);
    *better = best->found && (!found || best->first < first || best->second < second);
    return status;
}

tr_status tr_best_sweep(tr_best *best, tr_greedy_rules *rules, int n,
                        void (*set)(tr_greedy_rules *rules, int k)) {
    tr_greedy_rules kept = *rules;
    for (int k = 0; k < n; k++) {
        bool better = false;
        set(rules, k);
        TR_TRY(tr_best_play(best, rules, &better));
        if (better) kept = *rules;
    }
    *rules = kept;
    return TR_OK;
}

double tr_best_cap(const tr_schedule_request *request, double micro_batches, bool whole) {
    const tr_schedule_memory *m = &request->memory;
    double own = micro_batches * (whole ? m->m_b : fmax(m->m_b, m->m_w));
    return m->cap > 0 && m->cap < own ? m->cap : own;
}

tr_status tr_best_end(const tr_best *best) {
    if (best->found) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "schedule %s has no order that holds at most %g on a rank: raise the cap",
                   best->s->name, best->cap);
}
