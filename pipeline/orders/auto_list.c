/* List scheduling: ranks choose in the order of time, each the best action it could start. */
#include "base/memory.h"
#include "pipeline/orders/auto_impl.h"

#include <math.h>
#include <stdlib.h>

typedef struct progress {
    int forward, input, weight; /* next micro-batch */
} progress;

typedef struct list_rank {
    double now; /* its last action's end */
    double idle;
    int whole, kept; /* pairs held before, and after, their I */
    int placed;
    int late_first, late_count; /* in its part of `late` */
    tr_action_type last;        /* F or I */
} list_rank;

typedef struct lister {
    const tr_auto_shape *s;
    tr_auto_rule rule;
    list_rank *rank;         /* [ranks] */
    progress *at;            /* [ranks][chunks] */
    int *late;               /* [ranks][chunks * m]: chunks whose I has run, in that order */
    double *forward, *input; /* [stages * m]: arrival of what F and I need; INFINITY: unknown */
    double *wake;            /* [leaves]: when a rank chooses next, INFINITY: not known */
    int *tree, leaves;       /* [2 leaves]: ranks, the earliest in node 1 */
    int *order;
    const int *from; /* F and I have the order of this one; NULL: by rule */
    int *next;       /* [ranks]: place in `from` */
} lister;

/* --- ranks by time ---------------------------------------------------------------------------- */

/* The tree's node k has the earliest of nodes 2k and 2k + 1, of equal ones the lower rank; its
 * leaves are the ranks. No branch depends on the times: they are not to be foreseen. */
static void set_wake(lister *x, int rank, double time) {
    const double *wake = x->wake;
    x->wake[rank] = time;
    for (int k = (x->leaves + rank) / 2; k > 0; k /= 2) {
        const int *of = &x->tree[2 * k];
        x->tree[k] = of[wake[of[1]] < wake[of[0]]];
    }
}

/* An input of `rank` arrives at `time`. */
static void notify(lister *x, int rank, double time) {
    if (time < x->rank[rank].now) time = x->rank[rank].now;
    if (time < x->wake[rank]) set_wake(x, rank, time);
}

/* --- choosing --------------------------------------------------------------------------------- */

typedef struct choice {
    int chunk; /* -1: none */
    double key, arrival;
} choice;

static void offer(choice *best, int chunk, double key, double arrival) {
    if (best->chunk >= 0 && !(key < best->key)) return;
    *best = (choice){.chunk = chunk, .key = key, .arrival = arrival};
}

/* Chunks of the oldest `reserve` micro-batches before `k` whose F have still to run on the rank:
 * their memory stays free, so that the oldest can always go on and no cap blocks the order. */
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
    if (x->s->mw <= x->s->mb) return tr_auto_fits(x->s, whole, r->kept);
    return tr_auto_fits(x->s, 0, whole + r->kept);
}

typedef struct options {
    choice forward, input;
    bool blocked; /* an F is there, and has no room */
    double next;  /* the earliest arrival of others */
} options;

static options look(const lister *x, int rank, double t) {
    const tr_auto_shape *s = x->s;
    const list_rank *r = &x->rank[rank];
    const progress *at = &x->at[(size_t)rank * (size_t)s->chunks];
    options o = {.forward.chunk = -1, .input.chunk = -1, .next = INFINITY};
    double soon = t + x->rule.patience;
    int m = s->micro_batches, oldest = m;
    for (int q = 0; q < s->chunks; q++)
        if (at[q].weight < oldest) oldest = at[q].weight;
    for (int q = 0; q < s->chunks; q++) {
        size_t row = (size_t)tr_auto_stage(s, rank, q) * (size_t)m;
        int k = at[q].input;
        if (k < at[q].forward) {
            double arrival = x->input[row + (size_t)k];
            if (arrival <= soon)
                offer(&o.input, q, k - x->rule.input_depth * (s->chunks - 1 - q), arrival);
            else if (arrival < o.next) o.next = arrival;
        }
        k = at[q].forward;
        if (k == m || (q == 0 && k - oldest >= x->rule.admit)) continue;
        double arrival = x->forward[row + (size_t)k];
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

static void start(lister *x, int rank, tr_action_type type, int chunk, double t) {
    const tr_auto_shape *s = x->s;
    list_rank *r = &x->rank[rank];
    progress *at = &x->at[(size_t)rank * (size_t)s->chunks + (size_t)chunk];
    int stage = tr_auto_stage(s, rank, chunk), m = s->micro_batches, k;
    size_t row = (size_t)stage * (size_t)m;
    r->idle += t - r->now;
    if (type == TR_ACTION_F) {
        k = at->forward++;
        r->now = t + s->cost[TR_ACTION_F][stage];
        r->whole++;
        if (stage + 1 < s->stages) {
            double arrival = r->now + tr_auto_hop(s, stage);
            x->forward[row + (size_t)(m + k)] = arrival;
            notify(x, tr_auto_rank(s, stage + 1), arrival);
        } else {
            x->input[row + (size_t)k] = r->now;
        }
    } else if (type == TR_ACTION_I) {
        k = at->input++;
        r->now = t + s->cost[TR_ACTION_I][stage];
        r->whole--;
        r->kept++;
        x->late[(size_t)rank * (size_t)(s->chunks * m) +
                (size_t)(r->late_first + r->late_count++)] = chunk;
        if (stage > 0) {
            double arrival = r->now + tr_auto_hop(s, stage - 1);
            x->input[row - (size_t)m + (size_t)k] = arrival;
            notify(x, tr_auto_rank(s, stage - 1), arrival);
        }
    } else {
        k = at->weight++;
        r->now = t + s->cost[TR_ACTION_W][stage];
        r->kept--;
        r->late_first++;
        r->late_count--;
    }
    if (type != TR_ACTION_W) r->last = type;
    x->order[(size_t)rank * (size_t)tr_auto_row(s) + (size_t)r->placed++] =
        tr_auto_action(s, type, stage, k);
}

/* One choice of the rank at time t. */
static void step(lister *x, int rank, double t) {
    list_rank *r = &x->rank[rank];
    options o = look(x, rank, t);
    bool forward = o.forward.chunk >= 0, input = o.input.chunk >= 0;
    bool turn = x->rule.first == TR_AUTO_FORWARDS ||
                (x->rule.first == TR_AUTO_TURNS && r->last == TR_ACTION_I);
    tr_action_type type = TR_ACTION_W;
    if (r->late_count > x->rule.late) type = TR_ACTION_W;
    else if (turn && forward) type = TR_ACTION_F;
    else if (turn && o.blocked && r->late_count) type = TR_ACTION_W;
    else if (input) type = TR_ACTION_I;
    else if (forward) type = TR_ACTION_F;
    if (type == TR_ACTION_W && !r->late_count) {
        set_wake(x, rank, o.next);
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
    set_wake(x, rank, r->now);
}

/* The same with F and I in the order of another: they wait for their turn. */
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
        arrival = forward ? x->forward[pair] : x->input[pair];
        room = !forward || tr_auto_fits(s, r->whole + 1, r->kept);
        if (!forward && s->mw > s->mb) room = tr_auto_fits(s, r->whole - 1, r->kept + 1);
    }
    bool waits = arrival > t + x->rule.gap * s->w && arrival > t;
    if (r->late_count && (r->late_count > x->rule.late || waits || !room)) {
        start(x, rank, TR_ACTION_W,
              x->late[(size_t)rank * (size_t)(s->chunks * m) + (size_t)r->late_first], t);
    } else if (arrival < INFINITY && room) {
        ++*next;
        start(x, rank, forward ? TR_ACTION_F : TR_ACTION_I, chunk, fmax(t, arrival));
    } else {
        set_wake(x, rank, INFINITY);
        return;
    }
    set_wake(x, rank, r->now);
}

static tr_status open_list(lister *x) {
    const tr_auto_shape *s = x->s;
    size_t ranks = (size_t)s->ranks, m = (size_t)s->micro_batches;
    size_t pairs = (size_t)s->stages * m;
    TR_TRY(tr_calloc(ranks, sizeof *x->rank, &x->rank));
    TR_TRY(tr_calloc((size_t)s->stages, sizeof *x->at, &x->at));
    TR_TRY(tr_calloc(pairs, sizeof *x->late, &x->late));
    TR_TRY(tr_calloc(pairs, sizeof *x->forward, &x->forward));
    TR_TRY(tr_calloc(pairs, sizeof *x->input, &x->input));
    for (x->leaves = 1; x->leaves < s->ranks;) x->leaves *= 2;
    TR_TRY(tr_calloc((size_t)x->leaves, sizeof *x->wake, &x->wake));
    TR_TRY(tr_calloc(2 * (size_t)x->leaves, sizeof *x->tree, &x->tree));
    TR_TRY(tr_calloc(ranks, sizeof *x->next, &x->next));
    for (size_t n = 0; n < pairs; n++) {
        x->forward[n] = n < m ? 0 : INFINITY; /* stage 0 reads its own data */
        x->input[n] = INFINITY;
    }
    for (int r = 0; r < s->ranks; r++) x->rank[r].last = TR_ACTION_I;
    for (int k = 0; k < x->leaves; k++) {
        x->wake[k] = k < s->ranks ? 0 : INFINITY;
        x->tree[x->leaves + k] = k;
    }
    for (int k = x->leaves - 1; k > 0; k--) x->tree[k] = x->tree[2 * k]; /* all equal: the lowest */
    return TR_OK;
}

static void close_list(lister *x) {
    free(x->next);
    free(x->tree);
    free(x->wake);
    free(x->input);
    free(x->forward);
    free(x->late);
    free(x->at);
    free(x->rank);
}

static tr_status run_list(lister *x, double limit, double *makespan, int64_t *steps) {
    tr_status status = TR_OK;
    const tr_auto_shape *s = x->s;
    int row = tr_auto_row(s);
    *makespan = INFINITY;
    TR_TRY_OUT(open_list(x));
    for (;;) {
        int rank = x->tree[1];
        double time = x->wake[rank];
        list_rank *r = &x->rank[rank];
        if (time > 1e300) break;
        if (r->placed == row) {
            set_wake(x, rank, INFINITY);
            continue;
        }
        if (x->from && r->placed < row - x->rule.tail - x->rule.slope * rank)
            step_after(x, rank, time);
        else step(x, rank, time);
        (*steps)++;
        if (r->idle + s->work[rank] >= limit) goto out;
    }
    double end = 0;
    for (int r = 0; r < s->ranks; r++) {
        if (x->rank[r].placed != row) goto out;
        end = fmax(end, x->rank[r].now);
    }
    *makespan = end;
out:
    close_list(x);
    return status;
}

tr_status tr_auto_list(const tr_auto_shape *s, const tr_auto_rule *rule, const int *from,
                       double limit, int *order, double *makespan, int64_t *steps) {
    lister x = {.s = s, .rule = *rule, .order = order, .from = from};
    return run_list(&x, limit, makespan, steps);
}
