#include "pipeline/orders/estimate.h"

#include "base/memory.h"
#include "pipeline/orders/check.h"
#include "pipeline/walk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct estimated_rank {
    int chunks; /* v, its stages */
    double now, held;
} estimated_rank;

typedef struct estimator {
    const tr_schedule *s;
    tr_estimate *e;
    tr_graph graph;
    tr_walk walk;
    estimated_rank *rank; /* [ranks] */
} estimator;

static size_t cell_of(const estimator *x, int stage, int micro_batch) {
    return (size_t)stage * (size_t)x->s->micro_batches + (size_t)micro_batch;
}

double tr_estimate_duration(const tr_estimate *e, tr_action a) {
    const tr_stage_cost *c = &e->cost[a.stage];
    switch (a.type) {
    case TR_ACTION_F: return c->f;
    case TR_ACTION_I: return c->i;
    case TR_ACTION_W: return c->w;
    default: return c->i + c->w;
    }
}

double tr_bubble_rate(double total, double ideal) {
    double rate = total > 0 ? (total - ideal) / total : 0;
    return fabs(rate) < 1e-12 ? 0 : rate;
}

/* Raises *at to the arrival of the action's inputs. Returns false, and sets *need, when one has not
 * run yet. */
static bool has_inputs(const estimator *x, tr_action a, int rank, double *at, tr_action *need) {
    for (int n = 0; tr_action_need(&x->graph, a, n, need); n++) {
        const double *done = need->type == TR_ACTION_F ? x->e->done_f : x->e->done_i;
        double t = done[cell_of(x, need->stage, need->micro_batch)];
        if (t < 0) return false;
        if (x->s->rank_of[need->stage] != rank) t += x->e->latency;
        if (t > *at) *at = t;
    }
    return true;
}

static void hold(estimator *x, int rank, double more) {
    x->rank[rank].held += more;
    x->e->peak[rank] = fmax(x->e->peak[rank], x->rank[rank].held);
}

/* Records that the action's outputs leave at `end`. */
static void finish(estimator *x, tr_action a, int rank, double end) {
    size_t cell = cell_of(x, a.stage, a.micro_batch);
    const tr_stage_cost *cost = &x->e->cost[a.stage];
    switch (a.type) {
    case TR_ACTION_F:
        x->e->done_f[cell] = end;
        if (x->s->forward_only) hold(x, rank, -cost->m_b);
        return;
    case TR_ACTION_W: hold(x, rank, -cost->m_w); return;
    default:
        x->e->done_i[cell] = end;
        hold(x, rank, (a.type == TR_ACTION_I ? cost->m_w : 0) - cost->m_b);
    }
}

/* Executes the rank's next cell, an action or a pair, if it can run. */
static tr_status step(void *context, int rank, int at, int *done) {
    estimator *x = context;
    const tr_schedule *s = x->s;
    const tr_action *cell = &s->action[rank][at];
    int actions = cell->overlap && at + 1 < s->count[rank] ? 2 : 1;
    double t = x->rank[rank].now;
    tr_rank_time *time = &x->e->time[rank];
    tr_action need;
    if (x->e->start) x->e->start[rank][at] = t;
    if (!tr_action_computes(*cell)) {
        *done = 1;
        return TR_OK;
    }
    for (int k = 0; k < actions; k++)
        if (!has_inputs(x, cell[k], rank, &t, &need)) return TR_OK;
    if (time->first < 0) time->first = t;
    for (int k = 0; k < actions; k++) {
        double duration = tr_estimate_duration(x->e, cell[k]);
        if (x->e->start) x->e->start[rank][at + k] = t;
        if (cell[k].type == TR_ACTION_F) hold(x, rank, x->e->cost[cell[k].stage].m_b);
        time->busy += duration;
        t += duration;
    }
    for (int k = 0; k < actions; k++) finish(x, cell[k], rank, t);
    x->rank[rank].now = time->last = t;
    *done = actions;
    return TR_OK;
}

static int blocked(const void *context, int rank, int at, char *item, char *text) {
    const estimator *x = context;
    const tr_action *cell = &x->s->action[rank][at];
    double t = 0;
    tr_action need;
    if (has_inputs(x, cell[0], rank, &t, &need)) (void)has_inputs(x, cell[1], rank, &t, &need);
    tr_action_print(*cell, item, TR_WALK_TEXT);
    tr_action_print(need, text, TR_WALK_TEXT);
    return x->s->rank_of[need.stage];
}

static tr_status open_costs(estimator *x, const tr_estimate_options *options) {
    const tr_schedule *s = x->s;
    tr_stage_cost share = options->share;
    tr_share_complete(&share);
    x->e->latency = options->latency;
    for (int k = 0; k < s->stages; k++) x->rank[s->rank_of[k]].chunks++;
    TR_TRY(tr_calloc((size_t)s->stages, sizeof *x->e->cost, &x->e->cost));
    for (int k = 0; k < s->stages; k++)
        x->e->cost[k] = options->table ? options->table->cost[k]
                                       : tr_share_stage(&share, x->rank[s->rank_of[k]].chunks);
    return TR_OK;
}

static tr_status open_result(estimator *x, bool times) {
    const tr_schedule *s = x->s;
    size_t ranks = (size_t)s->ranks, cells = (size_t)s->stages * (size_t)s->micro_batches;
    TR_TRY(tr_calloc(1, sizeof *x->e, &x->e));
    tr_estimate *e = x->e;
    *e = (tr_estimate){.ranks = s->ranks, .stages = s->stages, .micro_batches = s->micro_batches};
    TR_TRY(tr_calloc(ranks, sizeof *e->time, &e->time));
    for (size_t r = 0; r < ranks; r++) e->time[r].first = -1; /* no action yet */
    TR_TRY(tr_calloc(ranks, sizeof *e->peak, &e->peak));
    TR_TRY(tr_calloc(cells, sizeof *e->done_f, &e->done_f));
    TR_TRY(tr_calloc(cells, sizeof *e->done_i, &e->done_i));
    for (size_t k = 0; k < cells; k++) e->done_f[k] = e->done_i[k] = -1;
    if (!times) return TR_OK;
    TR_TRY(tr_calloc(ranks, sizeof *e->start, &e->start));
    for (size_t r = 0; r < ranks; r++)
        TR_TRY(tr_calloc((size_t)s->count[r], sizeof(double), &e->start[r]));
    return TR_OK;
}

static void estimator_close(estimator *x) {
    tr_graph_close(&x->graph);
    tr_walk_close(&x->walk);
    free(x->rank);
    tr_estimate_destroy(x->e);
}

tr_status tr_estimate_order(const tr_schedule *s, const tr_estimate_options *options,
                            tr_estimate **out) {
    tr_status status = TR_OK;
    char name[64];
    estimator x = {.s = s};
    x.walk = (tr_walk){.name = name, .context = &x, .step = step, .blocked = blocked};
    (void)snprintf(name, sizeof name, "schedule %s", s->name);
    for (int r = 0; r < s->ranks; r++)
        for (int k = 0; k < s->count[r]; k++) TR_TRY_OUT(tr_schedule_check_action(s, r, k));
    TR_TRY_OUT(tr_graph_open(options->table, s->stages, &x.graph));
    TR_TRY_OUT(tr_walk_open(&x.walk, s->ranks, s->count));
    TR_TRY_OUT(tr_calloc((size_t)s->ranks, sizeof *x.rank, &x.rank));
    TR_TRY_OUT(open_result(&x, options->times));
    TR_TRY_OUT(open_costs(&x, options));
    TR_TRY_OUT(tr_walk_run(&x.walk, NULL));
    tr_estimate *e = x.e;
    for (int r = 0; r < s->ranks; r++) e->makespan = fmax(e->makespan, e->time[r].last);
    tr_bubble_split(e->time, s->ranks, e->makespan);
    for (int r = 0; r < s->ranks; r++) e->longest_span = fmax(e->longest_span, e->time[r].span);
    if (!options->times) {
        free(e->done_f);
        free(e->done_i);
        e->done_f = e->done_i = NULL;
    }
    *out = e;
    x.e = NULL;
out:
    estimator_close(&x);
    return status;
}

void tr_estimate_destroy(tr_estimate *e) {
    if (!e) return;
    for (int r = 0; e->start && r < e->ranks; r++) free(e->start[r]);
    free(e->start);
    free(e->done_i);
    free(e->done_f);
    free(e->cost);
    free(e->peak);
    free(e->time);
    free(e);
}
