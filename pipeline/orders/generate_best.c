#include "pipeline/orders/generate_best.h"

#include "base/memory.h"
#include "pipeline/orders/estimate.h"
#include "pipeline/orders/generate_impl.h"

#include <math.h>
#include <stdlib.h>

/* Actions that list scheduling may place, about 0.2 s of one core. Small orders converge early, so
 * each of their actions is placed at most most_per_action times. If an order has more than
 * most_listed pairs of stage and micro-batch, the search for a rule uses fewer micro-batches, since
 * more of them only repeat the middle of the order. */
static const int64_t list_steps = 3000000, most_per_action = 150, most_listed = 10000;

/* Relative differences below this are rounding. */
static const double rounding = 1e-9;

static bool is_better(const tr_best *best, double first, double second) {
    if (!best->found) return true;
    double same = rounding * (first + second);
    if (first < best->first - same) return true;
    return first <= best->first + same && second < best->second - same;
}

/* Swaps the order into best->s if it is better and no rank holds more than the cap. */
static tr_status offer(tr_best *best, tr_schedule *order) {
    tr_estimate_options options = {.table = best->request->table,
                                   .share = best->request->share,
                                   .latency = best->request->latency};
    tr_estimate *estimate = NULL;
    TR_TRY(tr_estimate_order(order, &options, &estimate));
    double peak = 0;
    for (int r = 0; r < estimate->ranks; r++)
        if (estimate->peak[r] > peak) peak = estimate->peak[r];
    double first = best->span ? estimate->longest_span : estimate->makespan;
    double second = best->span ? estimate->makespan : estimate->longest_span;
    tr_estimate_destroy(estimate);
    if (peak > best->cap * (1 + rounding) || !is_better(best, first, second)) return TR_OK;
    tr_schedule previous = *best->s;
    *best->s = *order;
    *order = previous;
    best->found = true;
    best->first = first;
    best->second = second;
    return TR_OK;
}

tr_status tr_best_try(tr_best *best,
                      tr_status (*fill)(tr_schedule *order, const tr_best *best, const void *how),
                      const void *how) {
    const tr_schedule *s = best->s;
    tr_schedule *order;
    TR_TRY(tr_schedule_create(s->name, s->ranks, s->stages, s->micro_batches, s->rank_of, &order));
    tr_status status = fill(order, best, how);
    if (status == TR_OK) status = offer(best, order);
    tr_schedule_destroy(order);
    return status;
}

/* Describes orders of micro_batches micro-batches. The caller releases the shape with
 * tr_auto_shape_close. */
static tr_status open_shape(const tr_best *best, int micro_batches, tr_auto_shape *shape) {
    const tr_schedule *s = best->s;
    int chunks = s->stages / s->ranks;
    tr_schedule_request request = *best->request;
    request.cap = best->cap;
    request.micro_batches = micro_batches;
    TR_TRY(tr_auto_shape_open(&request, chunks, chunks > 1, best->whole, shape));
    shape->span = best->span;
    if (best->span) shape->bound = shape->most_work;
    return TR_OK;
}

/* Searches rules for the shape with six beginnings. */
static tr_status search_rules(tr_best_rule *found) {
    static const double warm_ups[] = {0.5, 1, 0.25};
    enum { UNLIMITED = 1 << 30 };
    const tr_auto_shape *shape = &found->shape;
    const int64_t actions = (int64_t)shape->ranks * tr_auto_row(shape);
    const int64_t all = most_per_action * actions, steps = all < list_steps ? all : list_steps;
    tr_auto_draws draws = {.seed = 1};
    tr_status status = TR_OK;
    int *order;
    TR_TRY(tr_calloc((size_t)actions, sizeof *order, &order));
    for (int k = 0; k < TR_BEST_TRIALS && status == TR_OK; k++) {
        tr_auto_rule *rule = &found->rule[k];
        *rule = tr_auto_first_rule(shape);
        rule->admit = UNLIMITED;
        rule->first = TR_AUTO_INPUTS;
        if (shape->wave) rule->ahead[0] = rule->ahead[1] = UNLIMITED;
        rule->guard = k % 2;
        rule->warm_up = warm_ups[k / 2] * shape->mean.f;
        status =
            tr_auto_search(shape, &draws, steps / TR_BEST_TRIALS, order, &found->time[k], rule);
    }
    free(order);
    return status;
}

/* Sets *out to the rules for orders of this many micro-batches: those of *rules, or new ones, which
 * are added. */
static tr_status find_rules(const tr_best *best, int micro_batches, tr_best_rules *rules,
                            const tr_best_rule **out) {
    tr_best_rule new = {0};
    tr_status status = open_shape(best, micro_batches, &new.shape);
    size_t at = 0;
    while (at < rules->count && !tr_auto_shape_equal(&rules->rule[at].shape, &new.shape)) at++;
    if (status == TR_OK && at == rules->count) {
        status = tr_grow(&rules->rule, &rules->room, at + 1, sizeof *rules->rule);
        if (status == TR_OK) status = search_rules(&new);
        if (status == TR_OK) {
            rules->rule[rules->count++] = new;
            new.shape = (tr_auto_shape){0};
        }
    }
    tr_auto_shape_close(&new.shape);
    if (status == TR_OK) *out = &rules->rule[at];
    return status;
}

void tr_best_rules_free(tr_best_rules *rules) {
    for (size_t k = 0; k < rules->count; k++) tr_auto_shape_close(&rules->rule[k].shape);
    free(rules->rule);
    *rules = (tr_best_rules){0};
}

tr_status tr_best_list(tr_best *best) {
    tr_status status = TR_OK;
    const tr_schedule *s = best->s;
    int m = s->micro_batches, few = m % s->ranks + 2 * s->ranks;
    if ((int64_t)m * s->stages < most_listed || few > m) few = m;
    int *order = NULL;
    tr_auto_shape shape = {0};
    tr_best_rules own = {0};
    const tr_best_rule *found = NULL;
    int64_t placed = 0;
    double end, least = INFINITY;
    tr_schedule *made = NULL;
    TR_TRY_OUT(find_rules(best, few, best->request->rules ? best->request->rules : &own, &found));
    TR_TRY_OUT(open_shape(best, m, &shape));
    TR_TRY_OUT(tr_calloc((size_t)s->ranks * (size_t)tr_auto_row(&shape), sizeof *order, &order));
    for (int k = 0; k < TR_BEST_TRIALS; k++) {
        const double time = found->time[k];
        if (!(time < INFINITY)) continue;       /* no trial ended */
        if (few < m && time >= least) continue; /* no better rule for a large order */
        TR_TRY_OUT(tr_auto_list(&shape, &found->rule[k], NULL, INFINITY, order, &end, &placed));
        if (!(end < INFINITY)) continue; /* the rest of `order` is an older trial's */
        least = time;
        TR_TRY_OUT(tr_auto_schedule(&shape, s->name, order, &made));
        TR_TRY_OUT(offer(best, made));
        tr_schedule_destroy(made);
        made = NULL;
    }
out:
    tr_schedule_destroy(made);
    free(order);
    tr_auto_shape_close(&shape);
    tr_best_rules_free(&own);
    return status;
}

tr_status tr_best_open(tr_best *best) {
    const tr_stage_cost *share = &best->request->share;
    double one = best->whole ? share->m_b : fmax(share->m_b, share->m_w);
    best->cap = one * tr_generate_most_held(best->s->name, best->s->ranks);
    if (best->request->cap > 0) best->cap = fmin(best->cap, best->request->cap);
    if (best->cap >= one * (1 - 1e-12)) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "schedule %s: one micro-batch takes %g of memory and a rank may hold %g",
                   best->s->name, one, best->cap);
}

tr_status tr_best_end(const tr_best *best) {
    if (best->found) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "schedule %s has no order that holds at most %g on a rank: raise the cap",
                   best->s->name, best->cap);
}
