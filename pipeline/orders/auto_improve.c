/* Local search: moves single actions within their rank's order, and evaluates only the actions that
 * start later than the move. */
#include "base/memory.h"
#include "pipeline/orders/auto_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The inputs of an action from other ranks, and the ranks that wait for it: entries of `input` and
 * `wakes`. I's own F and W's I precede it on the same rank. */
typedef struct need {
    double duration;
    int first_input, inputs, first_wake, wakes;
} need;

/* An input: its action's number minus that of the waiting action, and its latency. */
typedef struct arc {
    int distance;
    double latency;
} arc;

/* What a rank has when an action starts: pairs held while the action runs, I and W before it, F
 * with it; and the work done before. */
typedef struct load {
    int whole, kept;
    double busy;
} load;

typedef struct improver {
    const tr_auto_shape *s;
    int row, actions;
    need *need;    /* [actions] */
    arc *input;    /* [2 edges]: of F, and of I, of each stage in turn */
    int *wakes;    /* [2 edges]: ranks, in the same order of the sender */
    int *order;    /* [ranks][row] */
    load *load;    /* [ranks][row] */
    double *end;   /* [actions]: of `order` */
    double *trial; /* [actions]: of the order after a move; -1: not yet run */
    int *next;     /* [ranks] */
    int *queue;    /* [ranks] */
    bool *queued;  /* [ranks] */
    int *place;    /* [actions]: in its row */
    int *critical; /* [actions]: at most one longest path's actions that wait for their rank */
    int criticals;
    tr_auto_draws draws;
    int64_t steps;
} improver;

/* --- evaluation ------------------------------------------------------------------------------- */

/* Returns when the action's last input arrives; -1: one has not been computed yet. *last: that
 * input, -1: none. */
static double input_time(const improver *x, const double *end, int action, int *last) {
    const need *n = &x->need[action];
    double time = 0;
    *last = -1;
    for (int k = n->first_input; k < n->first_input + n->inputs; k++) {
        int other = action + x->input[k].distance;
        if (end[other] < 0) return -1;
        double arrival = end[other] + x->input[k].latency;
        if (*last >= 0 && arrival <= time) continue;
        time = arrival;
        *last = other;
    }
    return time;
}

static void wake(improver *x, int rank, int first, int *count) {
    if (x->queued[rank]) return;
    x->queued[rank] = true;
    int slot = first + (*count)++;
    x->queue[slot < x->s->ranks ? slot : slot - x->s->ranks] = rank;
}

/* Runs every rank from next[rank] on. Returns the makespan; INFINITY when the order blocks or
 * cannot end before `limit`. */
static double run(improver *x, double limit) {
    const tr_auto_shape *s = x->s;
    int first = 0, count = s->ranks, left = 0, input;
    double makespan = 0;
    for (int r = 0; r < s->ranks; r++) {
        x->queue[r] = r;
        x->queued[r] = true;
        left += x->row - x->next[r];
    }
    while (count > 0) {
        int r = x->queue[first];
        if (++first == s->ranks) first = 0;
        count--;
        x->queued[r] = false;
        const int *order = x->order + (size_t)r * (size_t)x->row;
        int at = x->next[r];
        double now = at ? x->trial[order[at - 1]] : 0;
        for (; at < x->row; at++) {
            const need *n = &x->need[order[at]];
            double ready = input_time(x, x->trial, order[at], &input);
            if (ready < 0) break;
            now = (ready > now ? ready : now) + n->duration;
            x->trial[order[at]] = now;
            for (int k = n->first_wake; k < n->first_wake + n->wakes; k++)
                wake(x, x->wakes[k], first, &count);
        }
        x->steps += at - x->next[r];
        left -= at - x->next[r];
        x->next[r] = at;
        if (now > makespan) makespan = now;
        double rest =
            at < x->row ? s->work[r] - x->load[(size_t)r * (size_t)x->row + (size_t)at].busy : 0;
        if (now + rest > limit * (1 + 1e-12)) return INFINITY;
    }
    return left ? INFINITY : makespan;
}

/* Returns the first place of a row with an action that ends at `time` or later. */
static int place_at(const improver *x, int rank, double time) {
    const int *order = x->order + (size_t)rank * (size_t)x->row;
    int low = 0, high = x->row;
    while (low < high) {
        int middle = (low + high) / 2;
        if (x->end[order[middle]] < time) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* --- moves ------------------------------------------------------------------------------------ */

static void split(const improver *x, int action, tr_action_type *type, int *stage) {
    int row = action / x->s->micro_batches;
    *type = (tr_action_type)(row / x->s->stages);
    *stage = row % x->s->stages;
}

/* Returns true when b must follow a on the same rank: actions of one stage and type ascend, I
 * follows its F, and W its I. */
static bool follows(const improver *x, int a, int b) {
    int m = x->s->micro_batches;
    tr_action_type ta, tb;
    int sa, sb;
    split(x, a, &ta, &sa);
    split(x, b, &tb, &sb);
    if (sa != sb) return false;
    return ta == tb || (a % m == b % m && ta < tb);
}

static void count_held(improver *x, int rank, int from, int to) {
    size_t base = (size_t)rank * (size_t)x->row;
    load now = {0};
    tr_action_type type;
    int stage;
    /* An action holds its memory while it runs, and frees it at its end. */
    for (int at = from > 0 ? from - 1 : 0; at < to; at++) {
        split(x, x->order[base + (size_t)at], &type, &stage);
        if (at < from) {
            now = x->load[base + (size_t)at];
        } else {
            now.whole += type == TR_ACTION_F;
            x->load[base + (size_t)at] = now;
        }
        now.busy += x->need[x->order[base + (size_t)at]].duration;
        now.whole -= type == TR_ACTION_I;
        now.kept += (type == TR_ACTION_I) - (type == TR_ACTION_W);
    }
}

/* Returns true when the rank stays under the cap at places from ... to - 1. */
static bool fits(const improver *x, int rank, int from, int to) {
    size_t base = (size_t)rank * (size_t)x->row;
    for (size_t at = base + (size_t)from; at < base + (size_t)to; at++) {
        tr_action_type type;
        int stage;
        split(x, x->order[at], &type, &stage);
        bool input = type == TR_ACTION_I;
        const load *l = &x->load[at];
        if (!tr_auto_fits(x->s, l->whole - input, l->kept + input)) return false;
        if (!tr_auto_fits(x->s, l->whole, l->kept)) return false;
    }
    return true;
}

/* Moves the action at `from` to `to` (both in the rank's row) and the ones between by one. */
static void shift(int *row, int from, int to) {
    int action = row[from];
    if (to < from) memmove(row + to + 1, row + to, (size_t)(from - to) * sizeof *row);
    else memmove(row + from, row + from + 1, (size_t)(to - from) * sizeof *row);
    row[to] = action;
}

/* Returns how far the action may move towards `to`. */
static int reach(const improver *x, const int *row, int from, int to) {
    int at = from;
    while (at > to && !follows(x, row[at - 1], row[from])) at--;
    while (at < to && !follows(x, row[from], row[at + 1])) at++;
    return at;
}

/* --- the longest path ------------------------------------------------------------------------- */

/* Finds the actions of a longest path that start when the previous action on their rank ends,
 * because only moves next to them can shorten the path. */
static void find_critical(improver *x) {
    const tr_auto_shape *s = x->s;
    x->criticals = 0;
    int action = -1;
    for (int r = 0; r < s->ranks; r++) {
        const int *order = x->order + (size_t)r * (size_t)x->row;
        for (int at = 0; at < x->row; at++) x->place[order[at]] = at;
        if (action < 0 || x->end[order[x->row - 1]] > x->end[action]) action = order[x->row - 1];
    }
    while (action >= 0) {
        tr_action_type type;
        int stage;
        split(x, action, &type, &stage);
        int rank = s->rank_of[stage], at = x->place[action];
        const int *order = x->order + (size_t)rank * (size_t)x->row;
        double before = at ? x->end[order[at - 1]] : 0;
        int input;
        double ready = input_time(x, x->end, action, &input);
        if (at > 0 && before >= ready) {
            x->critical[x->criticals++] = action;
            action = order[at - 1];
        } else {
            action = input;
        }
    }
}

/* --- search ----------------------------------------------------------------------------------- */

/* Returns the value to minimise: the makespan plus a small multiple of the ranks' mean end. */
static double energy(const improver *x, const double *end, double makespan) {
    double sum = 0;
    for (int r = 0; r < x->s->ranks; r++)
        sum += end[x->order[(size_t)r * (size_t)x->row + (size_t)x->row - 1]];
    return makespan + 0.02 * sum / x->s->ranks;
}

typedef struct move {
    int rank, from, to;
} move;

/* Proposes a random move next to the longest path, or, one in eight, anywhere. */
static bool propose(improver *x, move *out) {
    uint64_t random = tr_auto_random(&x->draws);
    int action;
    if (x->criticals && random % 8) action = x->critical[(random >> 8) % (uint64_t)x->criticals];
    else action = (int)((random >> 8) % (uint64_t)x->actions);
    tr_action_type type;
    int stage;
    split(x, action, &type, &stage);
    int rank = x->s->rank_of[stage], at = x->place[action];
    const int *row = x->order + (size_t)rank * (size_t)x->row;
    random = tr_auto_random(&x->draws);
    int widest = 4 * x->s->chunks;
    int distance = 1 + (int)((random >> 8) % (uint64_t)((random >> 4) % 2 ? widest : 3));
    move v = {.rank = rank, .from = at};
    if (random % 3 == 0 && at > 0) v.from = at - 1;
    v.to = v.from < at ? v.from + distance : v.from - distance;
    if (random % 16 == 1) v.to = v.from + distance;
    if (v.to < 0) v.to = 0;
    if (v.to >= x->row) v.to = x->row - 1;
    v.to = reach(x, row, v.from, v.to);
    *out = v;
    return v.to != v.from;
}

/* Makes the move if the energy is then at most `accept`; otherwise changes nothing. */
static bool attempt(improver *x, move v, double accept, double *value, double *makespan) {
    const tr_auto_shape *s = x->s;
    size_t base = (size_t)v.rank * (size_t)x->row;
    int low = v.from < v.to ? v.from : v.to, high = (v.from > v.to ? v.from : v.to) + 1;
    double time = low ? x->end[x->order[base + (size_t)low - 1]] : 0;
    for (int r = 0; r < s->ranks; r++) {
        x->next[r] = place_at(x, r, time);
        if (r == v.rank) x->next[r] = low;
    }
    shift(x->order + base, v.from, v.to);
    count_held(x, v.rank, low, high);
    bool taken = fits(x, v.rank, low, high);
    if (taken) {
        memcpy(x->trial, x->end, (size_t)x->actions * sizeof *x->trial);
        for (int r = 0; r < s->ranks; r++)
            for (int at = x->next[r]; at < x->row; at++)
                x->trial[x->order[(size_t)r * (size_t)x->row + (size_t)at]] = -1;
        double end = run(x, accept);
        taken = end < INFINITY;
        if (taken) {
            /* Ranks that ended before the move. */
            for (int r = 0; r < s->ranks; r++)
                end =
                    fmax(end, x->trial[x->order[(size_t)r * (size_t)x->row + (size_t)x->row - 1]]);
            double reached = energy(x, x->trial, end);
            taken = reached <= accept;
            if (taken) {
                *value = reached;
                *makespan = end;
            }
        }
    }
    if (taken) {
        double *other = x->end;
        x->end = x->trial;
        x->trial = other;
        return true;
    }
    shift(x->order + base, v.to, v.from);
    count_held(x, v.rank, low, high);
    return false;
}

/* Makes moves, and writes each order that is better than all before to `order`. */
static void search(improver *x, int64_t limit, int *order, double *makespan) {
    const tr_auto_shape *s = x->s;
    for (int r = 0; r < s->ranks; r++) count_held(x, r, 0, x->row);
    for (int n = 0; n < x->actions; n++) x->trial[n] = -1;
    double now = run(x, INFINITY), best = now;
    *makespan = best;
    if (!(now < INFINITY)) return;
    memcpy(x->end, x->trial, (size_t)x->actions * sizeof *x->end);
    double value = energy(x, x->end, now);
    find_critical(x);
    double mean = (s->mean.f + s->mean.i + s->mean.w) / 3;
    while (x->steps < limit && best > s->bound * (1 + 1e-12)) {
        x->steps += 16; /* a proposal's overhead */
        move v;
        if (!propose(x, &v)) continue;
        double heat = 0.05 * mean * (1 - (double)x->steps / (double)limit);
        double u = tr_auto_draw(&x->draws) + 0x1p-53;
        if (!attempt(x, v, value - heat * log(u), &value, &now)) continue;
        find_critical(x);
        if (now >= best) continue;
        best = now;
        memcpy(order, x->order, (size_t)x->actions * sizeof *order);
    }
    *makespan = best;
}

static void fill_needs(improver *x) {
    const tr_auto_shape *s = x->s;
    int m = s->micro_batches, inputs = 0, wakes = 0, other;
    for (tr_action_type type = TR_ACTION_F; type <= TR_ACTION_W; type++)
        for (int stage = 0; stage < s->stages; stage++) {
            need n = {.duration = s->cost[type][stage], .first_input = inputs, .first_wake = wakes};
            bool back = type == TR_ACTION_I, edges = type != TR_ACTION_W;
            for (int k = 0; edges && (other = tr_graph_get(&s->graph, back, stage, k)) >= 0; k++)
                x->input[inputs++] = (arc){.distance = (other - stage) * m,
                                           .latency = tr_auto_latency(s, other, stage)};
            for (int k = 0; edges && (other = tr_graph_get(&s->graph, !back, stage, k)) >= 0; k++)
                x->wakes[wakes++] = s->rank_of[other];
            n.inputs = inputs - n.first_input;
            n.wakes = wakes - n.first_wake;
            for (int k = 0; k < m; k++) x->need[tr_auto_action(s, type, stage, k)] = n;
        }
}

static tr_status open_improver(improver *x, const int *order) {
    size_t actions = (size_t)x->actions, ranks = (size_t)x->s->ranks;
    size_t edges = 2 * (size_t)x->s->graph.edges;
    TR_TRY(tr_calloc(edges, sizeof *x->input, &x->input));
    TR_TRY(tr_calloc(edges, sizeof *x->wakes, &x->wakes));
    TR_TRY(tr_calloc(actions, sizeof *x->need, &x->need));
    TR_TRY(tr_calloc(actions, sizeof *x->order, &x->order));
    TR_TRY(tr_calloc(actions, sizeof *x->load, &x->load));
    TR_TRY(tr_calloc(actions, sizeof *x->end, &x->end));
    TR_TRY(tr_calloc(actions, sizeof *x->trial, &x->trial));
    TR_TRY(tr_calloc(actions, sizeof *x->place, &x->place));
    TR_TRY(tr_calloc(actions, sizeof *x->critical, &x->critical));
    TR_TRY(tr_calloc(ranks, sizeof *x->next, &x->next));
    TR_TRY(tr_calloc(ranks, sizeof *x->queue, &x->queue));
    TR_TRY(tr_calloc(ranks, sizeof *x->queued, &x->queued));
    memcpy(x->order, order, actions * sizeof *order);
    fill_needs(x);
    return TR_OK;
}

static void close_improver(improver *x) {
    free(x->queued);
    free(x->queue);
    free(x->next);
    free(x->critical);
    free(x->place);
    free(x->trial);
    free(x->end);
    free(x->load);
    free(x->order);
    free(x->need);
    free(x->wakes);
    free(x->input);
}

tr_status tr_auto_improve(const tr_auto_shape *s, uint64_t seed, int64_t steps, int *order,
                          double *makespan) {
    tr_status status = TR_OK;
    improver x = {.s = s, .row = tr_auto_row(s), .draws.seed = seed};
    x.actions = x.row * s->ranks;
    TR_TRY_OUT(open_improver(&x, order));
    search(&x, steps, order, makespan);
out:
    close_improver(&x);
    return status;
}
