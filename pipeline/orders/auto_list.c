/* List scheduling: in the order of time each rank chooses the best action that it can start. */
#include "base/memory.h"
#include "base/philox.h"
#include "pipeline/orders/auto_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- when ranks look at their work again ------------------------------------------------------ */

/* A queue of times, the earliest first, of equal times the lower rank. It is a tournament tree:
 * node k has the earlier of nodes 2k and 2k + 1; the leaves are the ranks. No branch depends on the
 * times, because processors could not predict it. */
typedef struct wake_queue {
    int leaves;
    double *time; /* [leaves]: INFINITY: not known */
    int *tree;    /* [2 leaves] */
} wake_queue;

/* Makes a queue with all ranks at time 0. The caller frees both arrays. */
static tr_status wake_open(wake_queue *w, int ranks) {
    for (w->leaves = 2; w->leaves < ranks;) w->leaves *= 2;
    TR_TRY(tr_calloc((size_t)w->leaves, sizeof *w->time, &w->time));
    TR_TRY(tr_calloc(2 * (size_t)w->leaves, sizeof *w->tree, &w->tree));
    for (int k = 0; k < w->leaves; k++) {
        w->time[k] = k < ranks ? 0 : INFINITY;
        w->tree[w->leaves + k] = k;
    }
    for (int k = w->leaves - 1; k > 0; k--)
        w->tree[k] = w->tree[2 * k]; /* all equal: the lowest rank */
    return TR_OK;
}

static int first_awake(const wake_queue *wake) {
    return wake->tree[1];
}

static void set_wake(wake_queue *wake, int rank, double time) {
    const double *at = wake->time;
    wake->time[rank] = time;
    for (int k = (wake->leaves + rank) / 2; k > 0; k /= 2) {
        const int *of = &wake->tree[2 * k];
        wake->tree[k] = of[at[of[1]] < at[of[0]]];
    }
}

/* --- an order in progress --------------------------------------------------------------------- */

typedef struct progress {
    int forward, input, weight; /* next micro-batch */
} progress;

typedef struct list_rank {
    double now;   /* its last action's end */
    double begin; /* what its end is counted from: 0, or the start of its first action */
    double idle;
    int whole, kept; /* pairs held before, and after, their I */
    int placed;
    int late_first, late_count; /* in its part of `late` */
    tr_action_type last;        /* F or I */
} list_rank;

typedef struct lister {
    const tr_auto_shape *s;
    tr_auto_rule rule;
    list_rank *rank;    /* [ranks] */
    progress *at;       /* [ranks][chunks] */
    int *late;          /* [ranks][chunks * m]: chunks in the order of their I */
    double *end[2];     /* F and I: [stages * m], when they ended; INFINITY: not yet */
    double *arrival[2]; /* [stages * m]: of what F and I need; INFINITY: unknown */
    wake_queue wake;    /* when a rank chooses next */
    int *order;
    const int *from; /* F and I have the order of this one; NULL: by rule */
    int *next;       /* [ranks]: place in `from` */
} lister;

/* --- choosing --------------------------------------------------------------------------------- */

typedef struct choice {
    int chunk; /* -1: none */
    double key, arrival;
} choice;

static void offer(choice *best, int chunk, double key, double arrival) {
    if (best->chunk >= 0 && !(key < best->key)) return;
    *best = (choice){.chunk = chunk, .key = key, .arrival = arrival};
}

/* Counts the F of the oldest `reserve` micro-batches before `k` that the rank has not run. Their
 * memory stays free, so that the oldest micro-batch can always continue and the cap does not block
 * the order. */
static int reserved(const lister *x, const progress *at, int k) {
    int chunks = x->s->chunks, oldest = at[chunks - 1].forward, count = 0;
    int end = oldest + x->rule.reserve < k ? oldest + x->rule.reserve : k;
    for (int q = 0; q < chunks; q++) {
        int from = at[q].forward > oldest ? at[q].forward : oldest;
        if (end > from) count += end - from;
    }
    return count;
}

static bool has_room(const lister *x, const list_rank *r, const progress *at, int chunk) {
    int k = at[chunk].forward;
    int whole = r->whole + 1 + reserved(x, at, k);
    if (x->s->mean.m_w <= x->s->mean.m_b) return tr_auto_fits(x->s, whole, r->kept);
    return tr_auto_fits(x->s, 0, whole + r->kept);
}

/* Returns the most F of a rank's first chunk that may be without their I. */
static double ahead_of(const lister *x, int rank) {
    const double *ahead = x->rule.ahead;
    int last = x->s->ranks - 1;
    return fmax(1, floor(ahead[0] + (last ? (ahead[1] - ahead[0]) * rank / last : 0)));
}

typedef struct options {
    choice forward, input;
    bool blocked; /* an F could start but has no room */
    double next;  /* the earliest arrival of others */
    double last;  /* the earliest of the last micro-batch's, with or without room; INFINITY: none */
} options;

static options look(const lister *x, int rank, double t) {
    const tr_auto_shape *s = x->s;
    const list_rank *r = &x->rank[rank];
    const progress *at = &x->at[(size_t)rank * (size_t)s->chunks];
    options o = {.forward.chunk = -1, .input.chunk = -1, .next = INFINITY, .last = INFINITY};
    bool warm = x->rule.warm_up > 0 && at[s->chunks - 1].input == 0;
    double soon = t + (warm ? x->rule.warm_up : x->rule.patience);
    int m = s->micro_batches, oldest = m;
    for (int q = 0; q < s->chunks; q++)
        if (at[q].weight < oldest) oldest = at[q].weight;
    for (int q = 0; q < s->chunks; q++) {
        size_t row = (size_t)tr_auto_stage(s, rank, q) * (size_t)m;
        int k = at[q].input;
        if (k < at[q].forward) {
            double arrival = x->arrival[true][row + (size_t)k];
            if (arrival <= soon)
                offer(&o.input, q, k - x->rule.input_depth * (s->chunks - 1 - q), arrival);
            else if (arrival < o.next) o.next = arrival;
            if (k == m - 1 && arrival > soon &&
                tr_graph_get(&s->graph, false, tr_auto_stage(s, rank, q), 0) >= 0)
                o.last = fmin(o.last, arrival);
        }
        k = at[q].forward;
        if (k == m || (q == 0 && k - oldest >= x->rule.admit)) continue;
        if (q == 0 && x->rule.ahead[0] > 0 && k - at[q].input >= ahead_of(x, rank)) continue;
        double arrival = x->arrival[false][row + (size_t)k];
        if (k == m - 1 && arrival > soon) o.last = fmin(o.last, arrival);
        if (arrival >= o.next && arrival > soon) continue;
        if (!has_room(x, r, at, q)) {
            if (arrival <= t) o.blocked = true;
        } else if (arrival <= soon) {
            offer(&o.forward, q, k - x->rule.forward_depth * q, arrival);
        } else {
            o.next = arrival;
        }
    }
    return o;
}

/* --- running ---------------------------------------------------------------------------------- */

/* Records when the inputs of a stage's F (`input`: I) arrive, once the last of the stages that it
 * reads (that read it) has sent, and wakes the rank then. */
static void receive(lister *x, bool input, int stage, int k) {
    const tr_auto_shape *s = x->s;
    size_t m = (size_t)s->micro_batches;
    double arrival = 0, *wake = &x->wake.time[s->rank_of[stage]];
    for (int n = 0, other; (other = tr_graph_get(&s->graph, input, stage, n)) >= 0; n++)
        arrival = fmax(arrival, x->end[input][(size_t)other * m + (size_t)k] +
                                    tr_auto_latency(s, other, stage));
    x->arrival[input][(size_t)stage * m + (size_t)k] = arrival;
    arrival = fmax(arrival, x->rank[s->rank_of[stage]].now);
    if (arrival < *wake) set_wake(&x->wake, s->rank_of[stage], arrival);
}

static void start(lister *x, int rank, tr_action_type type, int chunk, double t) {
    const tr_auto_shape *s = x->s;
    list_rank *r = &x->rank[rank];
    progress *at = &x->at[(size_t)rank * (size_t)s->chunks + (size_t)chunk];
    int stage = tr_auto_stage(s, rank, chunk), m = s->micro_batches, k;
    size_t row = (size_t)stage * (size_t)m;
    if (s->span && !r->placed) r->begin = t;
    else r->idle += t - r->now;
    r->now = t + s->cost[type][stage];
    if (type == TR_ACTION_W) {
        k = at->weight++;
        r->kept--;
        r->late_first++;
        r->late_count--;
    } else {
        bool input = type == TR_ACTION_I;
        k = input ? at->input++ : at->forward++;
        r->whole += input ? -1 : 1;
        r->last = type;
        if (input) {
            r->kept++;
            x->late[(size_t)rank * (size_t)(s->chunks * m) +
                    (size_t)(r->late_first + r->late_count++)] = chunk;
        }
        x->end[input][row + (size_t)k] = r->now;
        int next = tr_graph_get(&s->graph, !input, stage, 0);
        if (next < 0 && !input) x->arrival[true][row + (size_t)k] = r->now;
        for (int n = 0; (next = tr_graph_get(&s->graph, !input, stage, n)) >= 0; n++)
            receive(x, input, next, k);
    }
    x->order[(size_t)rank * (size_t)tr_auto_row(s) + (size_t)r->placed++] =
        tr_auto_action(s, type, stage, k);
}

/* Makes one choice of the rank at time t. */
static void step(lister *x, int rank, double t) {
    list_rank *r = &x->rank[rank];
    options o = look(x, rank, t);
    bool forward = o.forward.chunk >= 0, input = o.input.chunk >= 0;
    /* After the front of another order an I may lack room until a W has run. */
    bool full =
        input && x->s->mean.m_w > x->s->mean.m_b && !tr_auto_fits(x->s, r->whole - 1, r->kept + 1);
    bool turn = x->rule.first == TR_AUTO_FORWARDS ||
                (x->rule.first == TR_AUTO_TURNS && r->last == TR_ACTION_I);
    tr_action_type type = TR_ACTION_W;
    if (r->late_count > x->rule.late) type = TR_ACTION_W;
    else if (turn && forward) type = TR_ACTION_F;
    else if (turn && o.blocked && r->late_count) type = TR_ACTION_W;
    else if (input && !full) type = TR_ACTION_I;
    else if (forward) type = TR_ACTION_F;
    bool guarded = x->rule.guard && !full && o.last < t + x->s->mean.w;
    if (type == TR_ACTION_W && (!r->late_count || guarded)) {
        set_wake(&x->wake, rank, o.next);
        return;
    }
    if (type == TR_ACTION_W) {
        int chunk = x->late[(size_t)rank * (size_t)(x->s->chunks * x->s->micro_batches) +
                            (size_t)r->late_first];
        start(x, rank, type, chunk, t);
    } else {
        const choice *c = type == TR_ACTION_F ? &o.forward : &o.input;
        start(x, rank, type, c->chunk, fmax(t, c->arrival));
    }
    set_wake(&x->wake, rank, r->now);
}

/* Makes one choice with F and I in the order of another schedule: each waits for its turn. */
static void step_after(lister *x, int rank, double t) {
    const tr_auto_shape *s = x->s;
    list_rank *r = &x->rank[rank];
    int row = tr_auto_row(s), m = s->micro_batches, weights = 2 * s->stages * m;
    const int *from = x->from + (size_t)rank * (size_t)row;
    int *next = &x->next[rank];
    while (*next < row && from[*next] >= weights) ++*next;
    double arrival = INFINITY;
    bool room = true, forward = false;
    int chunk = 0;
    if (*next < row) {
        int pair = from[*next] % (s->stages * m);
        forward = from[*next] < s->stages * m;
        chunk = pair / m / s->ranks;
        arrival = x->arrival[!forward][pair];
        room = !forward || tr_auto_fits(s, r->whole + 1, r->kept);
        if (!forward && s->mean.m_w > s->mean.m_b)
            room = tr_auto_fits(s, r->whole - 1, r->kept + 1);
    }
    bool waits = arrival > t + x->rule.gap * s->mean.w && arrival > t;
    if (r->late_count && (r->late_count > x->rule.late || waits || !room)) {
        start(x, rank, TR_ACTION_W,
              x->late[(size_t)rank * (size_t)(s->chunks * m) + (size_t)r->late_first], t);
    } else if (arrival < INFINITY && room) {
        ++*next;
        start(x, rank, forward ? TR_ACTION_F : TR_ACTION_I, chunk, fmax(t, arrival));
    } else {
        set_wake(&x->wake, rank, INFINITY);
        return;
    }
    set_wake(&x->wake, rank, r->now);
}

static tr_status open_list(lister *x) {
    const tr_auto_shape *s = x->s;
    size_t ranks = (size_t)s->ranks, m = (size_t)s->micro_batches;
    size_t pairs = (size_t)s->stages * m;
    TR_TRY(tr_calloc(ranks, sizeof *x->rank, &x->rank));
    TR_TRY(tr_calloc((size_t)s->stages, sizeof *x->at, &x->at));
    TR_TRY(tr_calloc(pairs, sizeof *x->late, &x->late));
    for (int input = 0; input < 2; input++) {
        TR_TRY(tr_calloc(pairs, sizeof(double), &x->arrival[input]));
        TR_TRY(tr_calloc(pairs, sizeof(double), &x->end[input]));
    }
    TR_TRY(wake_open(&x->wake, s->ranks));
    TR_TRY(tr_calloc(ranks, sizeof *x->next, &x->next));
    for (size_t n = 0; n < pairs; n++) {
        bool first = tr_graph_get(&s->graph, false, (int)(n / m), 0) < 0; /* it reads only data */
        x->arrival[0][n] = first ? 0 : INFINITY;
        x->arrival[1][n] = x->end[0][n] = x->end[1][n] = INFINITY;
    }
    for (int r = 0; r < s->ranks; r++) x->rank[r].last = TR_ACTION_I;
    return TR_OK;
}

static void close_list(lister *x) {
    free(x->next);
    free(x->wake.tree);
    free(x->wake.time);
    for (int input = 0; input < 2; input++) {
        free(x->end[input]);
        free(x->arrival[input]);
    }
    free(x->late);
    free(x->at);
    free(x->rank);
}

tr_status tr_auto_list(const tr_auto_shape *s, const tr_auto_rule *rule, const int *from,
                       double limit, int *order, double *makespan, int64_t *steps) {
    tr_status status = TR_OK;
    lister x = {.s = s, .rule = *rule, .order = order, .from = from};
    int row = tr_auto_row(s);
    *makespan = INFINITY;
    TR_TRY_OUT(open_list(&x));
    for (;;) {
        int rank = first_awake(&x.wake);
        double time = x.wake.time[rank];
        list_rank *r = &x.rank[rank];
        if (time > 1e300) break;
        if (r->placed == row) {
            set_wake(&x.wake, rank, INFINITY);
            continue;
        }
        if (from && r->placed < row - rule->tail - rule->slope * rank) step_after(&x, rank, time);
        else step(&x, rank, time);
        (*steps)++;
        if (r->idle + s->work[rank] >= limit) goto out;
    }
    double end = 0;
    for (int r = 0; r < s->ranks; r++) {
        if (x.rank[r].placed != row) goto out;
        end = fmax(end, x.rank[r].now - x.rank[r].begin);
    }
    *makespan = end;
out:
    close_list(&x);
    return status;
}

/* --- rules ------------------------------------------------------------------------------------ */

tr_auto_rule tr_auto_first_rule(const tr_auto_shape *s) {
    enum { UNLIMITED = 1 << 30 };
    return (tr_auto_rule){.first = TR_AUTO_TURNS,
                          .reserve = 1,
                          .admit = 2 * s->ranks,
                          .late = s->whole ? 0 : UNLIMITED};
}

uint64_t tr_auto_random(tr_auto_draws *x) {
    return tr_mix64(x->seed + 0x9E3779B97F4A7C15u * ++x->drawn);
}

double tr_auto_draw(tr_auto_draws *x) {
    return (double)(tr_auto_random(x) >> 11) * 0x1p-53;
}

static double pick(tr_auto_draws *x, const double *of, int count) {
    return of[(int)(tr_auto_draw(x) * count)];
}

/* Draws how many F of a rank's first chunk may wait. On the first rank a micro-batch waits long
 * between its F down and its I back up, and hardly between its F up and its I down; on the last
 * rank both waits are equal. So of the inputs that fit, all except a few may be of the first chunk
 * on the first rank, and half on the last. */
static void draw_ahead(tr_auto_draws *x, const tr_auto_shape *s, double ahead[2]) {
    double inputs = s->cap / fmax(s->mean.m_b, s->mean.m_w);
    double more = 0.5 * floor(tr_auto_draw(x) * 8) - 1.5;
    ahead[0] = fmax(1, inputs - floor(tr_auto_draw(x) * 4) + more);
    ahead[1] = fmax(1, inputs / s->chunks + more);
    if (tr_auto_draw(x) < 0.1) ahead[0] = ahead[1] = s->micro_batches;
}

tr_auto_rule tr_auto_perturb(tr_auto_draws *x, const tr_auto_shape *s, tr_auto_rule rule) {
    /* A field's values range from no effect to complete control of the order. */
    static const double depths[] = {0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 16, 1e6};
    static const double waits[] = {0, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2};
    enum { DEPTHS = sizeof depths / sizeof *depths, WAITS = sizeof waits / sizeof *waits };
    int fields = 1 + (int)(tr_auto_draw(x) * 3), p = s->ranks;
    for (int k = 0; k < fields; k++) {
        int field = (int)(tr_auto_draw(x) * (rule.ahead[0] > 0 ? 9 : 7));
        if (field > 6) draw_ahead(x, s, rule.ahead);
        else if (field == 0) rule.first = (unsigned)(tr_auto_draw(x) * 3);
        else if (field == 1) rule.forward_depth = pick(x, depths, DEPTHS);
        else if (field == 2) rule.input_depth = pick(x, depths, DEPTHS);
        else if (field == 3) rule.patience = pick(x, waits, WAITS) * s->mean.f;
        else if (field == 4) rule.reserve = 1 + (int)(tr_auto_draw(x) * p);
        else if (field == 5) rule.admit = p / 2 + 1 + (int)(tr_auto_draw(x) * 2 * p);
        else if (tr_auto_draw(x) < 0.3) rule.late = 3 * s->chunks * s->micro_batches;
        else rule.late = (int)(tr_auto_draw(x) * p * s->chunks);
    }
    if (s->whole) rule.late = 0;
    return rule;
}

tr_status tr_auto_search(const tr_auto_shape *s, tr_auto_draws *draws, int64_t steps, int *order,
                         double *makespan, tr_auto_rule *best) {
    tr_status status = TR_OK;
    size_t actions = (size_t)s->ranks * (size_t)tr_auto_row(s);
    int64_t used = 0;
    int *trial = NULL;
    *makespan = INFINITY;
    TR_TRY(tr_calloc(actions, sizeof *trial, &trial));
    for (tr_auto_rule rule = *best; used < steps && s->bound * (1 + 1e-12) < *makespan;
         rule = tr_auto_perturb(draws, s, *best)) {
        double end;
        TR_TRY_OUT(tr_auto_list(s, &rule, NULL, *makespan, trial, &end, &used));
        used += TR_AUTO_TRIAL_STEPS;
        if (!(end < *makespan)) continue;
        *best = rule;
        *makespan = end;
        memcpy(order, trial, actions * sizeof *order);
    }
out:
    free(trial);
    return status;
}

tr_status tr_auto_schedule(const tr_auto_shape *s, const char *name, const int *order,
                           tr_schedule **out) {
    tr_schedule *schedule;
    tr_status status = TR_OK;
    int row = tr_auto_row(s), m = s->micro_batches;
    TR_TRY(tr_schedule_create(name, s->ranks, s->stages, m, s->rank_of, &schedule));
    for (int r = 0; r < s->ranks; r++)
        for (int n = 0; n < row; n++) {
            int action = order[(size_t)r * (size_t)row + (size_t)n];
            tr_action a = {.stage = action / m % s->stages,
                           .type = (tr_action_type)(action / m / s->stages),
                           .micro_batch = action % m};
            if (s->whole && a.type == TR_ACTION_W) continue;
            if (s->whole && a.type == TR_ACTION_I) a.type = TR_ACTION_B;
            TR_TRY_OUT(tr_schedule_add(schedule, r, a));
        }
    *out = schedule;
    schedule = NULL;
out:
    tr_schedule_destroy(schedule);
    return status;
}
