#include "pipeline/orders/estimate.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct estimator {
    const tr_schedule *s;
    tr_estimate *e;
    const tr_edge *edge;
    int *in_first, *in; /* edges that enter stage k: in[in_first[k]] ... in[in_first[k + 1] - 1] */
    int *out_first, *out; /* and that leave it */
    tr_edge *chain;
    tr_schedule_memory memory;
    int *share;          /* [ranks]: v, its stages */
    int *next;           /* [ranks] */
    double *now;         /* [ranks] */
    int *whole, *kept;   /* [ranks]: pairs that hold mb and mw */
    int *queue, head, n; /* [ranks]: ring of the ranks that may go on */
    bool *queued;        /* [ranks] */
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

/* Lists the edges of every stage; `entering`: by their end, else by their start. */
static tr_status list_edges(const estimator *x, int edges, bool entering, int **first, int **list) {
    size_t stages = (size_t)x->s->stages;
    TR_TRY(tr_calloc(stages + 2, sizeof **first, first));
    TR_TRY(tr_calloc((size_t)edges, sizeof **list, list));
    /* Counts two places ahead: filling moves them one back, to where each list starts. */
    int *at = *first + 1;
    for (int k = 0; k < edges; k++) {
        int stage = entering ? x->edge[k].to : x->edge[k].from;
        if (stage < 0 || stage >= x->s->stages)
            return TR_FAIL(TR_ERR_CONFIG, "edge %d touches stage %d of %d", k, stage, x->s->stages);
        at[stage + 1]++;
    }
    for (size_t k = 1; k <= stages; k++) at[k] += at[k - 1];
    for (int k = 0; k < edges; k++) (*list)[at[entering ? x->edge[k].to : x->edge[k].from]++] = k;
    return TR_OK;
}

static void wake(estimator *x, int rank) {
    if (x->queued[rank]) return;
    x->queued[rank] = true;
    x->queue[(x->head + x->n++) % x->s->ranks] = rank;
}

static bool needs(const estimator *x, const double *done, int stage, int micro_batch, int rank,
                  double *at) {
    double t = done[cell_of(x, stage, micro_batch)];
    if (t < 0) return false;
    if (x->s->rank_of[stage] != rank) t += x->e->latency;
    if (t > *at) *at = t;
    return true;
}

/* Raises *at to the arrival of the action's inputs; false when one has no time yet. */
static bool has_inputs(const estimator *x, tr_action a, int rank, double *at) {
    const tr_estimate *e = x->e;
    if (a.type == TR_ACTION_W) return needs(x, e->done_i, a.stage, a.micro_batch, rank, at);
    if (a.type == TR_ACTION_F) {
        for (int k = x->in_first[a.stage]; k < x->in_first[a.stage + 1]; k++)
            if (!needs(x, e->done_f, x->edge[x->in[k]].from, a.micro_batch, rank, at)) return false;
        return true;
    }
    if (!needs(x, e->done_f, a.stage, a.micro_batch, rank, at)) return false;
    for (int k = x->out_first[a.stage]; k < x->out_first[a.stage + 1]; k++)
        if (!needs(x, e->done_i, x->edge[x->out[k]].to, a.micro_batch, rank, at)) return false;
    return true;
}

static void note_peak(const estimator *x, int rank) {
    double held = ((double)x->whole[rank] * x->memory.mb + (double)x->kept[rank] * x->memory.mw) /
                  x->share[rank];
    if (held > x->e->peak[rank]) x->e->peak[rank] = held;
}

/* The action's outputs leave at `end`. */
static void finish(estimator *x, tr_action a, int rank, double end) {
    size_t cell = cell_of(x, a.stage, a.micro_batch);
    if (a.type == TR_ACTION_W) {
        x->kept[rank]--;
        return;
    }
    if (a.type == TR_ACTION_F) {
        x->e->done_f[cell] = end;
        for (int k = x->out_first[a.stage]; k < x->out_first[a.stage + 1]; k++)
            wake(x, x->s->rank_of[x->edge[x->out[k]].to]);
        if (x->s->forward_only) x->whole[rank]--;
        return;
    }
    x->e->done_i[cell] = end;
    for (int k = x->in_first[a.stage]; k < x->in_first[a.stage + 1]; k++)
        wake(x, x->s->rank_of[x->edge[x->in[k]].from]);
    x->whole[rank]--;
    if (a.type == TR_ACTION_I) {
        x->kept[rank]++;
        note_peak(x, rank);
    }
}

/* Executes the rank's next cell, an action or a pair, when it can. */
static bool execute(estimator *x, int rank) {
    const tr_schedule *s = x->s;
    int at = x->next[rank];
    const tr_action *cell = &s->action[rank][at];
    int actions = cell->overlap && at + 1 < s->count[rank] ? 2 : 1;
    double t = x->now[rank];
    for (int k = 0; k < actions; k++)
        if (!has_inputs(x, cell[k], rank, &t)) return false;
    tr_rank_time *time = &x->e->time[rank];
    if (at == 0) time->first = t;
    for (int k = 0; k < actions; k++) {
        double duration = tr_estimate_duration(x->e, cell[k]);
        if (x->e->start) x->e->start[rank][at + k] = t;
        if (cell[k].type == TR_ACTION_F) x->whole[rank]++;
        time->busy += duration;
        t += duration;
    }
    note_peak(x, rank);
    for (int k = 0; k < actions; k++) finish(x, cell[k], rank, t);
    x->now[rank] = time->last = t;
    x->next[rank] = at + actions;
    return true;
}

static tr_status fail_blocked(const estimator *x) {
    char text[512] = "";
    size_t used = 0;
    for (int r = 0; r < x->s->ranks && used < sizeof text; r++) {
        if (x->next[r] == x->s->count[r]) continue;
        char action[32];
        tr_action_print(x->s->action[r][x->next[r]], action, sizeof action);
        int n = snprintf(text + used, sizeof text - used, "%srank %d at %s", used ? ", " : "", r,
                         action);
        if (n > 0) used += (size_t)n;
    }
    return TR_FAIL(TR_ERR_CONFIG, "schedule %s cannot run to its end, blocked are: %s", x->s->name,
                   text);
}

static tr_status run(estimator *x) {
    for (int r = 0; r < x->s->ranks; r++) wake(x, r);
    while (x->n > 0) {
        int rank = x->queue[x->head];
        x->head = (x->head + 1) % x->s->ranks;
        x->n--;
        /* Cleared after it ran: what it finishes for itself needs no wake. */
        while (x->next[rank] < x->s->count[rank] && execute(x, rank)) {}
        x->queued[rank] = false;
    }
    for (int r = 0; r < x->s->ranks; r++)
        if (x->next[r] < x->s->count[r]) return fail_blocked(x);
    return TR_OK;
}

static tr_status check_ids(const tr_schedule *s) {
    for (int r = 0; r < s->ranks; r++)
        for (int k = 0; k < s->count[r]; k++) {
            tr_action a = s->action[r][k];
            if (a.stage >= 0 && a.stage < s->stages && a.micro_batch >= 0 &&
                a.micro_batch < s->micro_batches && (unsigned)a.type < TR_ACTION_TYPES &&
                s->rank_of[a.stage] == r)
                continue;
            char text[32];
            tr_action_print(a, text, sizeof text);
            return TR_FAIL(TR_ERR_CONFIG,
                           "rank %d, action %s: no stage of that rank or no such micro-batch", r,
                           text);
        }
    return TR_OK;
}

static tr_status open_costs(estimator *x, const tr_estimate_options *options) {
    const tr_schedule *s = x->s;
    tr_schedule_costs c = options->costs;
    if (c.f == 0 && c.i == 0 && c.w == 0) c.f = c.i = c.w = 1;
    x->memory = options->memory;
    if (x->memory.mb == 0 && x->memory.mw == 0) x->memory.mb = 1;
    x->e->latency = c.c;
    for (int k = 0; k < s->stages; k++) x->share[s->rank_of[k]]++;
    TR_TRY(tr_calloc((size_t)s->stages, sizeof *x->e->cost, &x->e->cost));
    for (int k = 0; k < s->stages; k++) {
        int v = x->share[s->rank_of[k]];
        x->e->cost[k] = options->table ? options->table->cost[k]
                                       : (tr_stage_cost){.f = c.f / v, .i = c.i / v, .w = c.w / v};
    }
    return TR_OK;
}

static tr_status open_edges(estimator *x, const tr_stage_table *table) {
    int edges = table ? table->edges : x->s->stages - 1;
    if (table) x->edge = table->edge;
    else {
        TR_TRY(tr_calloc((size_t)edges, sizeof *x->chain, &x->chain));
        for (int k = 0; k < edges; k++) x->chain[k] = (tr_edge){.from = k, .to = k + 1};
        x->edge = x->chain;
    }
    TR_TRY(list_edges(x, edges, true, &x->in_first, &x->in));
    return list_edges(x, edges, false, &x->out_first, &x->out);
}

static tr_status open_result(estimator *x, bool times) {
    const tr_schedule *s = x->s;
    size_t ranks = (size_t)s->ranks, cells = (size_t)s->stages * (size_t)s->micro_batches;
    TR_TRY(tr_calloc(1, sizeof *x->e, &x->e));
    tr_estimate *e = x->e;
    *e = (tr_estimate){.ranks = s->ranks, .stages = s->stages, .micro_batches = s->micro_batches};
    TR_TRY(tr_calloc(ranks, sizeof *e->time, &e->time));
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
    free(x->in_first);
    free(x->in);
    free(x->out_first);
    free(x->out);
    free(x->chain);
    free(x->share);
    free(x->next);
    free(x->now);
    free(x->whole);
    free(x->kept);
    free(x->queue);
    free(x->queued);
    tr_estimate_destroy(x->e);
}

tr_status tr_estimate_order(const tr_schedule *s, const tr_estimate_options *options,
                            tr_estimate **out) {
    tr_status status = TR_OK;
    estimator x = {.s = s};
    size_t ranks = (size_t)s->ranks;
    if (options->table && options->table->stages != s->stages)
        return TR_FAIL(TR_ERR_CONFIG, "a schedule of %d stages does not go with a model of %d",
                       s->stages, options->table->stages);
    TR_TRY_OUT(check_ids(s));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *x.share, &x.share));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *x.next, &x.next));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *x.now, &x.now));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *x.whole, &x.whole));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *x.kept, &x.kept));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *x.queue, &x.queue));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *x.queued, &x.queued));
    TR_TRY_OUT(open_result(&x, options->times));
    TR_TRY_OUT(open_costs(&x, options));
    TR_TRY_OUT(open_edges(&x, options->table));
    TR_TRY_OUT(run(&x));
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
