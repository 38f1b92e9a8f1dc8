/* Placements of the stages, and lower bounds for orders on them. */
#include "base/memory.h"
#include "pipeline/orders/auto.h"
#include "pipeline/orders/auto_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the time of the stage's I; `whole`: of I and W, after which its output is sent. */
static double input_of(const tr_auto_shape *s, int stage, bool whole) {
    return s->cost[TR_ACTION_I][stage] + (whole ? s->cost[TR_ACTION_W][stage] : 0);
}

/* Computes when the first micro-batch reaches the F and I of every stage without any delay. */
static void follow_first(tr_auto_shape *s, double *down, double *back[2]) {
    for (int stage = 0; stage < s->stages; stage++)
        for (int k = 0, from; (from = tr_graph_get(&s->graph, false, stage, k)) >= 0; k++)
            down[stage] = fmax(down[stage], down[from] + s->cost[TR_ACTION_F][from] +
                                                tr_auto_latency(s, from, stage));
    for (int whole = 0; whole < 2; whole++)
        for (int stage = s->stages - 1; stage >= 0; stage--) {
            double *at = &back[whole][stage];
            *at = down[stage] + s->cost[TR_ACTION_F][stage];
            for (int k = 0, from; (from = tr_graph_get(&s->graph, true, stage, k)) >= 0; k++)
                *at = fmax(*at, back[whole][from] + input_of(s, from, whole) +
                                    tr_auto_latency(s, from, stage));
        }
    s->down = down;
    s->back[0] = back[0];
    s->back[1] = back[1];
}

/* The first micro-batch goes down and back up, and W of the stage where it ends follows. A rank is
 * idle before its first F, and again before its first I once it has run as many F as the cap
 * allows. */
double tr_auto_shape_bound(const tr_auto_shape *s, double cap, bool whole) {
    double bound = 0, slots = floor(cap / s->mean.m_b * (1 + 1e-12));
    double pairs = (double)((int64_t)s->chunks * s->micro_batches);
    for (int k = 0; k < s->stages; k++) {
        double end = s->back[whole][k] + s->cost[TR_ACTION_I][k] + s->cost[TR_ACTION_W][k];
        if (tr_graph_get(&s->graph, false, k, 0) < 0) bound = fmax(bound, end);
    }
    for (int r = 0; r < s->ranks; r++) {
        double first_f = INFINITY, first_i = INFINITY, longest = 0;
        for (int q = 0; q < s->chunks; q++) {
            int stage = tr_auto_stage(s, r, q);
            first_f = fmin(first_f, s->down[stage]);
            first_i = fmin(first_i, s->back[whole][stage]);
            longest = fmax(longest, s->cost[TR_ACTION_F][stage]);
        }
        bound = fmax(bound, s->work[r] + fmax(first_f, first_i - fmin(slots, pairs) * longest));
    }
    return bound;
}

/* Sets the costs of the stages and their edges: the caller's, or equal parts and the chain. */
static tr_status describe(const tr_schedule_request *q, tr_auto_shape *s, double *cost[3]) {
    const tr_stage_table *t = q->table && q->table->stages == s->stages ? q->table : NULL;
    tr_stage_table made = {0};
    if (q->describe) {
        TR_TRY(q->describe(q->context, s->stages, &made));
        t = &made;
    }
    for (int k = 0; k < s->stages; k++) {
        const tr_stage_cost *stage = t ? &t->cost[k] : &s->mean;
        cost[TR_ACTION_F][k] = stage->f;
        cost[TR_ACTION_I][k] = stage->i;
        cost[TR_ACTION_W][k] = stage->w;
    }
    tr_status status = tr_graph_open(t, s->stages, &s->graph);
    tr_stage_table_free(&made);
    return status;
}

tr_status tr_auto_shape_open(const tr_schedule_request *q, int chunks, bool wave, bool whole,
                             tr_auto_shape *s) {
    size_t stages = (size_t)chunks * (size_t)q->ranks;
    double *at;
    *s = (tr_auto_shape){.ranks = q->ranks,
                         .chunks = chunks,
                         .stages = chunks * q->ranks,
                         .micro_batches = q->micro_batches,
                         .wave = wave,
                         .whole = whole,
                         .mean = tr_share_stage(&q->share, chunks),
                         .latency = q->latency,
                         .cap = q->cap > 0 ? q->cap * (1 + 1e-12) : INFINITY};
    if (whole) s->mean.m_w = 0;
    TR_TRY(tr_calloc(stages, sizeof *s->rank_of, &s->rank_of));
    TR_TRY(tr_calloc(6 * stages + (size_t)q->ranks, sizeof *at, &at));
    s->doubles = at;
    double *cost[3] = {at, at + stages, at + 2 * stages}, *work = at + 6 * stages;
    for (int r = 0; r < s->ranks; r++)
        for (int k = 0; k < chunks; k++) s->rank_of[tr_auto_stage(s, r, k)] = r;
    TR_TRY(describe(q, s, cost));
    for (int k = 0; k < s->stages && whole; k++) {
        cost[TR_ACTION_I][k] += cost[TR_ACTION_W][k];
        cost[TR_ACTION_W][k] = 0;
    }
    for (int type = TR_ACTION_F; type <= TR_ACTION_W; type++) {
        s->cost[type] = cost[type];
        for (int k = 0; k < s->stages; k++) work[s->rank_of[k]] += s->micro_batches * cost[type][k];
    }
    if (!q->describe && !q->table) /* the exact sum, without rounding */
        for (int r = 0; r < s->ranks; r++)
            work[r] = q->micro_batches * (q->share.f + q->share.i + q->share.w);
    s->work = work;
    for (int r = 0; r < s->ranks; r++) s->most_work = fmax(s->most_work, work[r]);
    follow_first(s, at + 3 * stages, (double *[]){at + 4 * stages, at + 5 * stages});
    s->bound = tr_auto_shape_bound(s, s->cap, false);
    return TR_OK;
}

void tr_auto_shape_close(tr_auto_shape *s) {
    tr_graph_close(&s->graph);
    free(s->rank_of);
    free(s->doubles);
}

static bool same_graph(const tr_graph *a, const tr_graph *b) {
    const size_t stages = (size_t)a->stages, edges = (size_t)a->edges;
    if (a->stages != b->stages || a->edges != b->edges) return false;
    for (int k = 0; k < 2; k++)
        if (memcmp(a->first[k], b->first[k], (stages + 1) * sizeof *a->first[k]) != 0 ||
            memcmp(a->list[k], b->list[k], edges * sizeof *a->list[k]) != 0)
            return false;
    return true;
}

/* rank_of follows from ranks, chunks and wave. */
bool tr_auto_shape_equal(const tr_auto_shape *a, const tr_auto_shape *b) {
    const size_t doubles = 6 * (size_t)a->stages + (size_t)a->ranks;
    return a->ranks == b->ranks && a->chunks == b->chunks && a->wave == b->wave &&
           a->micro_batches == b->micro_batches && a->whole == b->whole && a->span == b->span &&
           a->mean.f == b->mean.f && a->mean.i == b->mean.i && a->mean.w == b->mean.w &&
           a->mean.m_b == b->mean.m_b && a->mean.m_w == b->mean.m_w && a->latency == b->latency &&
           a->cap == b->cap && a->bound == b->bound && same_graph(&a->graph, &b->graph) &&
           memcmp(a->doubles, b->doubles, doubles * sizeof *a->doubles) == 0;
}

double tr_auto_bound(int ranks, int micro_batches, double chunks, const tr_stage_cost *share,
                     double latency) {
    double whole = share->f + share->i + share->w;
    double fill = micro_batches * whole + (ranks - 1) * (share->f / chunks + latency);
    double path = ranks * (share->f + share->i) + 2 * (ranks - 1) * latency + share->w / chunks;
    return fmax(fill, path);
}
