/* Local search: single actions move within their rank's order, and only what starts later than the
 * move is evaluated again. */
#include "base/memory.h"
#include "base/philox.h"
#include "pipeline/orders/auto_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What an action waits for besides the action before it on its rank. */
typedef struct need {
    double duration, hop; /* hop: latency of the input */
    int input;            /* action; -1: none, or one of the same rank that is always before it */
    int wakes;            /* rank that waits for its result; -1: none */
} need;

typedef struct improver {
    const tr_auto_shape *s;
    int row, actions;
    need *need;        /* [actions] */
    int *order, *best; /* [ranks][row] */
    int *whole, *kept; /* [ranks][row]: held while the action runs, I and W before it, F with it */
    double *busy;      /* [ranks][row]: work of the rank before the action */
    double *end;       /* [actions]: of `order` */
    double *trial;     /* [actions]: of the order after a move; -1: not yet run */
    int *next;         /* [ranks] */
    int *queue;        /* [ranks] */
    bool *queued;      /* [ranks] */
    int *place;        /* [actions]: in its row */
    int *critical;     /* [actions]: at most one longest path's actions that wait for their rank */
    int criticals;
    uint64_t seed, drawn;
    int64_t steps;
} improver;

static uint64_t draw(improver *x) {
    return tr_mix64(x->seed + 0x9E3779B97F4A7C15u * ++x->drawn);
}

/* --- evaluation ------------------------------------------------------------------------------- */

static double input_time(const improver *x, const double *end, int action) {
    const need *n = &x->need[action];
    return n->input < 0 ? 0 : end[n->input] < 0 ? -1 : end[n->input] + n->hop;
}

/* Runs every rank on from next[rank]. The makespan; INFINITY when the order blocks or cannot end
 * before `limit`. */
static double run(improver *x, double limit) {
    const tr_auto_shape *s = x->s;
    int first = 0, count = s->ranks, left = 0;
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
            double ready = input_time(x, x->trial, order[at]);
            if (ready < 0) break;
            now = (ready > now ? ready : now) + n->duration;
            x->trial[order[at]] = now;
            if (n->wakes >= 0 && !x->queued[n->wakes]) {
                x->queued[n->wakes] = true;
                int slot = first + count++;
                x->queue[slot < s->ranks ? slot : slot - s->ranks] = n->wakes;
            }
        }
        x->steps += at - x->next[r];
        left -= at - x->next[r];
        x->next[r] = at;
        if (now > makespan) makespan = now;
        double rest =
            at < x->row ? s->work[r] - x->busy[(size_t)r * (size_t)x->row + (size_t)at] : 0;
        if (now + rest > limit * (1 + 1e-12)) return INFINITY;
    }
    return left ? INFINITY : makespan;
}

/* The first place of a row whose action ends at `time` or later. */
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

/* True when b may not come before a, both of one rank: one stage's actions of a type ascend, and I
 * follows its F, W its I. */
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
    int whole = 0, kept = 0;
    double busy = 0;
    tr_action_type type;
    int stage;
    /* An action holds what it needs while it runs, and gives it back at its end. */
    for (int at = from > 0 ? from - 1 : 0; at < to; at++) {
        split(x, x->order[base + (size_t)at], &type, &stage);
        if (at < from) {
            whole = x->whole[base + (size_t)at];
            kept = x->kept[base + (size_t)at];
            busy = x->busy[base + (size_t)at];
        } else {
            whole += type == TR_ACTION_F;
            x->whole[base + (size_t)at] = whole;
            x->kept[base + (size_t)at] = kept;
            x->busy[base + (size_t)at] = busy;
        }
        busy += x->need[x->order[base + (size_t)at]].duration;
        whole -= type == TR_ACTION_I;
        kept += (type == TR_ACTION_I) - (type == TR_ACTION_W);
    }
}

/* True when the rank stays under the cap at places from ... to - 1. */
static bool fits(const improver *x, int rank, int from, int to) {
    size_t base = (size_t)rank * (size_t)x->row;
    for (size_t at = base + (size_t)from; at < base + (size_t)to; at++) {
        tr_action_type type;
        int stage;
        split(x, x->order[at], &type, &stage);
        bool input = type == TR_ACTION_I;
        if (!tr_auto_fits(x->s, x->whole[at] - input, x->kept[at] + input)) return false;
        if (!tr_auto_fits(x->s, x->whole[at], x->kept[at])) return false;
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

/* How far the action may go towards `to`. */
static int reach(const improver *x, const int *row, int from, int to) {
    int at = from;
    while (at > to && !follows(x, row[at - 1], row[from])) at--;
    while (at < to && !follows(x, row[from], row[at + 1])) at++;
    return at;
}

/* --- the longest path ------------------------------------------------------------------------- */

/* Notes the actions of a longest path that start when the one before them on their rank ends: only
 * moves around them can shorten it. */
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
        int rank = tr_auto_rank(s, stage), at = x->place[action];
        const int *order = x->order + (size_t)rank * (size_t)x->row;
        double before = at ? x->end[order[at - 1]] : 0;
        double ready = input_time(x, x->end, action);
        if (at > 0 && before >= ready) {
            x->critical[x->criticals++] = action;
            action = order[at - 1];
        } else {
            action = x->need[action].input;
        }
    }
}

/* --- search ----------------------------------------------------------------------------------- */

/* How good an order is: the makespan, and a little of the ranks' mean end. */
static double energy(const improver *x, const double *end, double makespan) {
    double sum = 0;
    for (int r = 0; r < x->s->ranks; r++)
        sum += end[x->order[(size_t)r * (size_t)x->row + (size_t)x->row - 1]];
    return makespan + 0.02 * sum / x->s->ranks;
}

typedef struct move {
    int rank, from, to;
} move;

/* A random move around the longest path, or, one in eight, anywhere. */
static bool propose(improver *x, move *out) {
    uint64_t random = draw(x);
    int action;
    if (x->criticals && random % 8) action = x->critical[(random >> 8) % (uint64_t)x->criticals];
    else action = (int)((random >> 8) % (uint64_t)x->actions);
    tr_action_type type;
    int stage;
    split(x, action, &type, &stage);
    int rank = tr_auto_rank(x->s, stage), at = x->place[action];
    const int *row = x->order + (size_t)rank * (size_t)x->row;
    random = draw(x);
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

/* Makes the move when it brings the energy to at most `accept`; else leaves everything. */
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

static void search(improver *x, int64_t limit, double *makespan) {
    const tr_auto_shape *s = x->s;
    for (int r = 0; r < s->ranks; r++) count_held(x, r, 0, x->row);
    for (int n = 0; n < x->actions; n++) x->trial[n] = -1;
    double now = run(x, INFINITY), best = now;
    *makespan = best;
    if (!(now < INFINITY)) return;
    memcpy(x->end, x->trial, (size_t)x->actions * sizeof *x->end);
    double value = energy(x, x->end, now);
    find_critical(x);
    double mean = (s->f + s->i + s->w) / 3;
    while (x->steps < limit && best > s->bound * (1 + 1e-12)) {
        x->steps += 16; /* a proposal's own work */
        move v;
        if (!propose(x, &v)) continue;
        double heat = 0.05 * mean * (1 - (double)x->steps / (double)limit);
        double u = ((double)(draw(x) >> 11) + 1) * 0x1p-53;
        if (!attempt(x, v, value - heat * log(u), &value, &now)) continue;
        find_critical(x);
        if (now >= best) continue;
        best = now;
        memcpy(x->best, x->order, (size_t)x->actions * sizeof *x->best);
    }
    *makespan = best;
}

static void fill_needs(improver *x) {
    const tr_auto_shape *s = x->s;
    int m = s->micro_batches, stages = s->stages;
    for (int stage = 0; stage < stages; stage++) {
        bool last = stage + 1 == stages;
        for (int k = 0; k < m; k++) {
            int f = tr_auto_action(s, TR_ACTION_F, stage, k);
            int i = tr_auto_action(s, TR_ACTION_I, stage, k);
            int w = tr_auto_action(s, TR_ACTION_W, stage, k);
            x->need[f] = (need){.duration = s->cost[TR_ACTION_F][stage],
                                .hop = stage ? tr_auto_hop(s, stage - 1) : 0,
                                .input = stage ? f - m : -1,
                                .wakes = last ? -1 : tr_auto_rank(s, stage + 1)};
            x->need[i] = (need){.duration = s->cost[TR_ACTION_I][stage],
                                .hop = last ? 0 : tr_auto_hop(s, stage),
                                .input = last ? -1 : i + m,
                                .wakes = stage ? tr_auto_rank(s, stage - 1) : -1};
            x->need[w] = (need){.duration = s->cost[TR_ACTION_W][stage], .input = -1, .wakes = -1};
        }
    }
}

static tr_status open_improver(improver *x, const int *order) {
    size_t actions = (size_t)x->actions, ranks = (size_t)x->s->ranks;
    TR_TRY(tr_calloc(actions, sizeof *x->need, &x->need));
    TR_TRY(tr_calloc(actions, sizeof *x->order, &x->order));
    TR_TRY(tr_calloc(actions, sizeof *x->best, &x->best));
    TR_TRY(tr_calloc(actions, sizeof *x->whole, &x->whole));
    TR_TRY(tr_calloc(actions, sizeof *x->kept, &x->kept));
    TR_TRY(tr_calloc(actions, sizeof *x->busy, &x->busy));
    TR_TRY(tr_calloc(actions, sizeof *x->end, &x->end));
    TR_TRY(tr_calloc(actions, sizeof *x->trial, &x->trial));
    TR_TRY(tr_calloc(actions, sizeof *x->place, &x->place));
    TR_TRY(tr_calloc(actions, sizeof *x->critical, &x->critical));
    TR_TRY(tr_calloc(ranks, sizeof *x->next, &x->next));
    TR_TRY(tr_calloc(ranks, sizeof *x->queue, &x->queue));
    TR_TRY(tr_calloc(ranks, sizeof *x->queued, &x->queued));
    memcpy(x->order, order, actions * sizeof *order);
    memcpy(x->best, order, actions * sizeof *order);
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
    free(x->busy);
    free(x->kept);
    free(x->whole);
    free(x->best);
    free(x->order);
    free(x->need);
}

tr_status tr_auto_improve(const tr_auto_shape *s, uint64_t seed, int64_t steps, int *order,
                          double *makespan) {
    tr_status status = TR_OK;
    improver x = {.s = s, .row = tr_auto_row(s), .seed = seed};
    x.actions = x.row * s->ranks;
    TR_TRY_OUT(open_improver(&x, order));
    search(&x, steps, makespan);
    memcpy(order, x.best, (size_t)x.actions * sizeof *order);
out:
    close_improver(&x);
    return status;
}
