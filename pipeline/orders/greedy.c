#include "pipeline/orders/greedy.h"

#include "base/memory.h"
#include "pipeline/orders/wake.h"

#include <math.h>
#include <stdlib.h>

typedef struct greedy_rank {
    double free; /* end of the last action */
    double held; /* of its stages' parts; before its I a micro-batch counts with its maximum */
    int late;    /* I without their W */
    int ahead;   /* most F of the first stage without their I or B */
    bool forward_last, backward_seen;
} greedy_rank;

typedef struct greedy {
    tr_schedule *s;
    const tr_greedy_rules *rules;
    tr_graph graph;
    int chunks;
    double most, m_w, cost[TR_COMPUTE_TYPES]; /* of one stage; most: before or after its I */
    int *stage;                  /* [ranks * chunks], of each rank in ascending order */
    int *next[TR_COMPUTE_TYPES]; /* F, I or B, W: [stages], next micro-batch */
    double *done_f, *done_i;     /* [stages * micro_batches]: end of those that started */
    greedy_rank *rank;
    tr_wake wake; /* when each rank looks again */
} greedy;

/* --- one rank's choice ------------------------------------------------------------------------ */

static double done(const greedy *g, const double *times, int stage, int k) {
    return times[(size_t)stage * (size_t)g->s->micro_batches + (size_t)k];
}

static double transfer(const greedy *g, int from, int to) {
    return g->s->rank_of[from] == g->s->rank_of[to] ? 0 : g->rules->costs.c;
}

/* Returns when the inputs of the stage's next action of a type arrive; INFINITY: not known. */
static double arrival_of(const greedy *g, int stage, tr_action_type type) {
    tr_action need, a = {.stage = stage, .type = type, .micro_batch = g->next[type][stage]};
    double arrival = 0;
    if (a.micro_batch == g->s->micro_batches) return INFINITY;
    for (int n = 0; tr_action_need(&g->graph, a, n, &need); n++) {
        if (g->next[need.type][need.stage] <= need.micro_batch) return INFINITY;
        const double *times = need.type == TR_ACTION_F ? g->done_f : g->done_i;
        arrival = fmax(arrival, done(g, times, need.stage, need.micro_batch) +
                                    transfer(g, need.stage, stage));
    }
    return arrival;
}

/* Returns true when the rank has room for the next F of the chunk, and for one more input of every
 * chunk that has not run that micro-batch yet, so that the oldest micro-batch can always
 * continue. */
static bool has_room(const greedy *g, int r, int chunk) {
    const int *stage = &g->stage[r * g->chunks], *next = g->next[TR_ACTION_F];
    int inputs = 1, first = stage[0];
    if (!chunk && next[first] - g->next[TR_ACTION_I][first] >= g->rank[r].ahead) return false;
    for (int c = 0; c < g->chunks; c++)
        inputs += c != chunk && next[stage[c]] <= next[stage[chunk]];
    double cap = g->rules->memory.cap;
    return cap <= 0 || g->rank[r].held + inputs * g->most <= cap * (1 + 1e-12);
}

typedef struct option {
    tr_action action;
    double arrival;
    double rank; /* lower is better */
} option;

static double preference(const greedy *g, const greedy_rank *rank, tr_action a) {
    double stages = g->s->stages, m = g->s->micro_batches;
    bool forward = a.type == TR_ACTION_F;
    bool second = g->rules->first == TR_GREEDY_TURNS ? forward == rank->forward_last : forward;
    double depth = forward ? stages - 1 - a.stage : a.stage;
    double within = g->rules->first == TR_GREEDY_OLDEST ? a.micro_batch * stages + depth : depth;
    return (second ? stages * m : 0) + within;
}

/* Lists all F and I with known inputs in options[2 * chunks]. */
static int list_options(const greedy *g, int r, option *options) {
    int n = 0;
    for (int c = 0; c < g->chunks; c++) {
        int stage = g->stage[r * g->chunks + c];
        double f = arrival_of(g, stage, TR_ACTION_F), i = arrival_of(g, stage, TR_ACTION_I);
        if (f < INFINITY && has_room(g, r, c)) {
            tr_action a = {
                .stage = stage, .type = TR_ACTION_F, .micro_batch = g->next[TR_ACTION_F][stage]};
            options[n++] = (option){a, f, preference(g, &g->rank[r], a)};
        }
        if (i < INFINITY) {
            tr_action a = {.stage = stage,
                           .type = g->rules->whole ? TR_ACTION_B : TR_ACTION_I,
                           .micro_batch = g->next[TR_ACTION_I][stage]};
            options[n++] = (option){a, i, preference(g, &g->rank[r], a)};
        }
    }
    return n;
}

/* Finds the W to run: of the stage with the most waiting W. */
static bool find_weight(const greedy *g, int r, tr_action *w) {
    int most = 0;
    for (int c = g->chunks - 1; c >= 0; c--) {
        int stage = g->stage[r * g->chunks + c];
        int waiting = g->next[TR_ACTION_I][stage] - g->next[TR_ACTION_W][stage];
        if (waiting <= most) continue;
        most = waiting;
        *w = (tr_action){
            .stage = stage, .type = TR_ACTION_W, .micro_batch = g->next[TR_ACTION_W][stage]};
    }
    return most > 0;
}

/* Returns true when another action waits for this action's output. */
static bool is_awaited(const greedy *g, tr_action a) {
    return a.type == TR_ACTION_F || tr_graph_get(&g->graph, false, a.stage, 0) >= 0;
}

/* Returns when a preferred action becomes ready for which the rank should wait instead of starting
 * `ready` (NULL: a W); INFINITY: there is none. */
static double next_preferred(const greedy *g, int r, const option *options, int n,
                             const option *ready, double now) {
    const greedy_rank *rank = &g->rank[r];
    double soon = INFINITY, length = g->cost[ready ? ready->action.type : TR_ACTION_W];
    double patience = !ready                ? g->rules->weight_patience
                      : rank->backward_seen ? g->rules->patience
                                            : g->rules->first_patience;
    for (int k = 0; k < n; k++) {
        const option *o = &options[k];
        if (o->arrival <= now || (ready && o->rank >= ready->rank)) continue;
        if (!ready && !is_awaited(g, o->action)) continue;
        bool last = !ready && g->rules->guard && o->action.micro_batch == g->s->micro_batches - 1;
        if (o->arrival < now + (last ? 1 : patience) * length) soon = fmin(soon, o->arrival);
    }
    return soon;
}

/* Chooses the rank's action at `now`. Returns false when it starts none; then *wake is when to look
 * again. */
static bool choose(const greedy *g, int r, option *options, double now, tr_action *chosen,
                   double *wake) {
    const greedy_rank *rank = &g->rank[r];
    const option *ready = NULL;
    int n = list_options(g, r, options);
    tr_action weight;
    bool has_weight = !g->rules->whole && find_weight(g, r, &weight);
    *wake = INFINITY;
    for (int k = 0; k < n; k++) {
        if (options[k].arrival > now) *wake = fmin(*wake, options[k].arrival);
        else if (!ready || options[k].rank < ready->rank) ready = &options[k];
    }
    if (has_weight && g->rules->late >= 0 && rank->late > g->rules->late) {
        *chosen = weight;
        return true;
    }
    double soon = next_preferred(g, r, options, n, ready, now);
    if (soon < INFINITY && (ready || has_weight)) {
        if (has_weight && now + g->cost[TR_ACTION_W] <= soon) {
            *chosen = weight;
            return true;
        }
        *wake = soon;
        return false;
    }
    if (!ready && !has_weight) return false;
    *chosen = ready ? ready->action : weight;
    return true;
}

/* --- playing ---------------------------------------------------------------------------------- */

/* Wakes the ranks of the stages that read the action's output when it arrives. */
static void tell(greedy *g, tr_action a, double end) {
    bool after = a.type == TR_ACTION_F;
    for (int k = 0, to; (to = tr_graph_get(&g->graph, after, a.stage, k)) >= 0; k++) {
        int rank = g->s->rank_of[to];
        double arrival = fmax(end + transfer(g, a.stage, to), g->rank[rank].free);
        if (arrival < g->wake.time[rank]) tr_wake_set(&g->wake, rank, arrival);
    }
}

static tr_status execute(greedy *g, int r, tr_action a, double now) {
    greedy_rank *rank = &g->rank[r];
    double end = now + g->cost[a.type];
    size_t at = (size_t)a.stage * (size_t)g->s->micro_batches + (size_t)a.micro_batch;
    TR_TRY(tr_schedule_add(g->s, r, a));
    rank->free = end;
    tr_wake_set(&g->wake, r, end);
    if (a.type == TR_ACTION_F) {
        g->done_f[at] = end;
        g->next[TR_ACTION_F][a.stage]++;
        rank->held += g->most;
        rank->forward_last = true;
        tell(g, a, end);
    } else if (a.type == TR_ACTION_W) {
        g->next[TR_ACTION_W][a.stage]++;
        rank->held -= g->m_w;
        rank->late--;
    } else {
        bool whole = a.type == TR_ACTION_B;
        g->done_i[at] = end;
        g->next[TR_ACTION_I][a.stage]++;
        rank->held -= whole ? g->most : g->most - g->m_w;
        rank->late += !whole;
        rank->forward_last = false;
        rank->backward_seen = true;
        tell(g, a, end);
    }
    return TR_OK;
}

static tr_status play(greedy *g) {
    size_t left = (size_t)g->s->stages * (size_t)g->s->micro_batches * (g->rules->whole ? 2 : 3);
    option *options = NULL;
    TR_TRY(tr_calloc(2 * (size_t)g->chunks, sizeof *options, &options));
    tr_status status = TR_OK;
    while (left && status == TR_OK) {
        int r = tr_wake_first(&g->wake);
        double now = g->wake.time[r], wake;
        tr_action a;
        if (!(now < INFINITY))
            status = TR_FAIL(TR_ERR_INTERNAL, "schedule %s stops with %zu actions left", g->s->name,
                             left);
        else if (choose(g, r, options, now, &a, &wake)) {
            status = execute(g, r, a, now);
            left--;
        } else {
            tr_wake_set(&g->wake, r, wake);
        }
    }
    free(options);
    return status;
}

static tr_status greedy_open(greedy *g) {
    tr_schedule *s = g->s;
    size_t stages = (size_t)s->stages, cells = stages * (size_t)s->micro_batches;
    TR_TRY(tr_calloc(stages, sizeof *g->stage, &g->stage));
    TR_TRY(tr_calloc((size_t)s->ranks, sizeof *g->rank, &g->rank));
    TR_TRY(tr_graph_open(g->rules->table, s->stages, &g->graph));
    TR_TRY(tr_wake_open(&g->wake, s->ranks));
    TR_TRY(tr_calloc(cells, sizeof *g->done_f, &g->done_f));
    TR_TRY(tr_calloc(cells, sizeof *g->done_i, &g->done_i));
    for (int type = TR_ACTION_F; type <= TR_ACTION_W; type++)
        TR_TRY(tr_calloc(stages, sizeof *g->next[type], &g->next[type]));
    double first = g->rules->ahead_first, last = g->rules->ahead_last;
    for (int r = 0; r < s->ranks; r++) {
        double ahead = first + (s->ranks > 1 ? (last - first) * r / (s->ranks - 1) : 0);
        bool any = (first <= 0 && last <= 0) || ahead > s->micro_batches;
        g->rank[r].ahead = any ? s->micro_batches : ahead < 1 ? 1 : (int)ahead;
    }
    int *filled = NULL; /* how many stages of a rank are listed */
    TR_TRY(tr_calloc((size_t)s->ranks, sizeof *filled, &filled));
    for (int k = 0; k < s->stages; k++)
        g->stage[s->rank_of[k] * g->chunks + filled[s->rank_of[k]]++] = k;
    free(filled);
    return TR_OK;
}

static void greedy_close(greedy *g) {
    for (int type = TR_ACTION_F; type <= TR_ACTION_W; type++) free(g->next[type]);
    free(g->done_i);
    free(g->done_f);
    tr_wake_close(&g->wake);
    tr_graph_close(&g->graph);
    free(g->rank);
    free(g->stage);
}

tr_status tr_greedy_fill(tr_schedule *s, const tr_greedy_rules *rules) {
    tr_status status = TR_OK;
    int chunks = s->stages / s->ranks;
    const tr_schedule_costs *c = &rules->costs;
    const tr_schedule_memory *memory = &rules->memory;
    double most = rules->whole ? memory->m_b : fmax(memory->m_b, memory->m_w);
    if (memory->cap > 0 && memory->cap < most * (1 - 1e-12))
        return TR_FAIL(TR_ERR_CONFIG,
                       "schedule %s: one micro-batch takes %g of memory and a rank may hold %g",
                       s->name, most, memory->cap);
    greedy g = {.s = s,
                .rules = rules,
                .chunks = chunks,
                .most = most / chunks,
                .m_w = memory->m_w / chunks,
                .cost = {[TR_ACTION_F] = c->f / chunks,
                         [TR_ACTION_I] = c->i / chunks,
                         [TR_ACTION_W] = c->w / chunks,
                         [TR_ACTION_B] = (c->i + c->w) / chunks}};
    TR_TRY_OUT(greedy_open(&g));
    TR_TRY_OUT(play(&g));
out:
    greedy_close(&g);
    return status;
}
