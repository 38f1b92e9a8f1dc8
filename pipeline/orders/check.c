#include "pipeline/orders/check.h"

#include "base/memory.h"
#include "pipeline/walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bits of the actions that have run for a stage and micro-batch. SENT and TAKEN of gradients are
 * two bits higher. */
enum { DONE_F = 1, DONE_I = 2, DONE_W = 4, SENT = 8, TAKEN = 16, GRADIENT_SHIFT = 2 };

static unsigned bits_of(tr_action a) {
    int shift = a.gradient ? GRADIENT_SHIFT : 0;
    switch (a.type) {
    case TR_ACTION_F: return DONE_F;
    case TR_ACTION_I: return DONE_I;
    case TR_ACTION_W: return DONE_W;
    case TR_ACTION_B: return DONE_I | DONE_W;
    case TR_ACTION_SEND: return (unsigned)SENT << shift;
    case TR_ACTION_RECV: return (unsigned)TAKEN << shift;
    default: return 0;
    }
}

typedef struct check {
    const tr_schedule *s;
    tr_graph graph;
    unsigned char *done; /* [stages * micro_batches] */
    unsigned *want;      /* [stages]: bits that each micro-batch must have at the end */
    bool *reduced;       /* [stages] */
    /* Used for an order with transfers, in which messages are numbered on the channel of their pair
     * of ranks. */
    int *number[2];    /* F and I: [edges * micro_batches], edges in the order of their senders */
    int *sent, *taken; /* [ranks * ranks], from * ranks + to */
    int rank, at;      /* the action being checked, as in the report */
} check;

static unsigned char *done_of(const check *c, int stage, int micro_batch) {
    return &c->done[(size_t)stage * (size_t)c->s->micro_batches + (size_t)micro_batch];
}

static tr_status fail_at(const tr_schedule *s, int rank, int at, const char *problem) {
    char text[32];
    tr_action_print(s->action[rank][at], text, sizeof text);
    return TR_FAIL(TR_ERR_CONFIG, "rank %d: %s %s", rank, text, problem);
}

tr_status tr_schedule_check_action(const tr_schedule *s, int rank, int at) {
    tr_action a = s->action[rank][at];
    bool whole = !tr_action_computes(a) && !tr_action_transfers(a);
    bool backward = a.type == TR_ACTION_REDUCE ||
                    (tr_action_transfers(a) ? a.gradient : a.type < TR_ACTION_RECV && a.type);
    bool of_order = (unsigned)a.type < (unsigned)TR_ACTION_TYPES && !tr_action_is_added(a) &&
                    !(s->forward_only && backward);
    bool has_stage = a.stage >= 0 && a.stage < s->stages;
    bool has_micro_batch = whole || (a.micro_batch >= 0 && a.micro_batch < s->micro_batches);
    if (of_order && has_stage && has_micro_batch && s->rank_of[a.stage] == rank) return TR_OK;
    char text[32];
    tr_action_print(a, text, sizeof text);
    if (!has_stage)
        return TR_FAIL(TR_ERR_CONFIG,
                       "rank %d, action %s: stage %d does not exist, stages are 0 to %d", rank,
                       text, a.stage, s->stages - 1);
    if (!has_micro_batch)
        return TR_FAIL(
            TR_ERR_CONFIG,
            "rank %d, action %s: micro-batch %d does not exist, micro-batches are 0 to %d", rank,
            text, a.micro_batch, s->micro_batches - 1);
    if (!of_order)
        return TR_FAIL(TR_ERR_CONFIG, "rank %d, action %s: not an action of a %s schedule", rank,
                       text, s->forward_only ? "forward-only" : "training");
    return TR_FAIL(
        TR_ERR_CONFIG,
        "action %s is on rank %d, but stage %d belongs to rank %d: a stage has one owner", text,
        rank, a.stage, s->rank_of[a.stage]);
}

/* Checks an OVERLAP_F_B cell, which joins the F and the I or B of two different micro-batches or
 * stages. */
static tr_status check_pair(const tr_schedule *s, int rank, int at) {
    tr_action a = s->action[rank][at], b = {0};
    char text[32], next[32] = "nothing";
    tr_action_print(a, text, sizeof text);
    bool good = at + 1 < s->count[rank];
    if (good) {
        b = s->action[rank][at + 1];
        tr_action_print(b, next, sizeof next);
        tr_action_type other = a.type == TR_ACTION_F ? b.type : a.type;
        good = (a.type == TR_ACTION_F) != (b.type == TR_ACTION_F) && !b.overlap &&
               (other == TR_ACTION_I || other == TR_ACTION_B) &&
               (a.stage != b.stage || a.micro_batch != b.micro_batch);
    }
    if (good) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "rank %d: %s cannot overlap with %s: OVERLAP_F_B joins one F and one I or B "
                   "that do not need each other",
                   rank, text, next);
}

static bool is_remote(const check *c, int stage, int other) {
    return c->s->rank_of[stage] != c->s->rank_of[other];
}

/* Fills want. With transfers it has their bits for each direction in which the stage has a
 * neighbour on another rank. */
static void list_wants(check *c) {
    unsigned gradients = c->s->forward_only ? 0 : 1;
    for (int s = 0; s < c->s->stages; s++) {
        c->want[s] = gradients ? DONE_F | DONE_I | DONE_W : DONE_F;
        for (int after = 0; after < 2 && c->s->listed; after++)
            for (int k = 0, t; (t = tr_graph_get(&c->graph, after, s, k)) >= 0; k++) {
                if (!is_remote(c, s, t)) continue;
                unsigned forward = after ? SENT : TAKEN, back = after ? TAKEN : SENT;
                c->want[s] |= forward | gradients * back << GRADIENT_SHIFT;
            }
    }
}

/* Returns the place of the stage's first action for the micro-batch with one of the bits; -1: there
 * is none. */
static int find_action(const tr_schedule *s, int stage, int micro_batch, unsigned bits) {
    int rank = s->rank_of[stage];
    for (int k = 0; k < s->count[rank]; k++) {
        tr_action a = s->action[rank][k];
        if (a.stage == stage && a.micro_batch == micro_batch && (bits_of(a) & bits)) return k;
    }
    return -1;
}

/* Fails with the missing transfer, and names the action that needs it. */
static tr_status fail_transfer(check *c, int stage, int micro_batch, unsigned missing) {
    tr_action a = {.stage = stage, .type = TR_ACTION_SEND, .micro_batch = micro_batch};
    a.gradient = !(missing & (SENT | TAKEN));
    if (!(missing & bits_of(a))) a.type = TR_ACTION_RECV;
    c->rank = c->s->rank_of[stage];
    c->at = find_action(c->s, stage, micro_batch, a.gradient ? DONE_I : DONE_F);
    char text[32], problem[64];
    tr_action_print(a, text, sizeof text);
    (void)snprintf(problem, sizeof problem, "lacks its %s", text);
    return fail_at(c->s, c->rank, c->at, problem);
}

/* Checks that no action is missing. Reports incomplete micro-batches first, which are typical of
 * typing errors. */
static tr_status check_none_missing(check *c) {
    const tr_schedule *s = c->s;
    for (int whole = 0; whole < 2; whole++)
        for (int stage = 0; stage < s->stages; stage++)
            for (int k = 0; k < s->micro_batches; k++) {
                unsigned done = *done_of(c, stage, k), missing = c->want[stage] & ~done;
                if (!missing || (!done && !whole)) continue;
                if (!(missing & (DONE_F | DONE_I | DONE_W)))
                    return fail_transfer(c, stage, k, missing);
                c->rank = s->rank_of[stage];
                c->at = find_action(s, stage, k, ~0u);
                return TR_FAIL(TR_ERR_CONFIG,
                               "the schedule has no %s of stage %d, micro-batch %d (they are 0 to "
                               "%d)",
                               missing & DONE_F   ? "F"
                               : missing & DONE_I ? "I or B"
                                                  : "W or B",
                               stage, k, s->micro_batches - 1);
            }
    return TR_OK;
}

/* Checks that every action is in range, on its rank and present once. */
static tr_status check_complete(check *c) {
    const tr_schedule *s = c->s;
    for (int r = 0; r < s->ranks; r++)
        for (int k = 0; k < s->count[r]; k++) {
            tr_action a = s->action[r][k];
            c->rank = r;
            c->at = k;
            TR_TRY(tr_schedule_check_action(s, r, k));
            if (a.overlap) TR_TRY(check_pair(s, r, k));
            if (a.type == TR_ACTION_REDUCE) {
                if (c->reduced[a.stage]) return fail_at(s, r, k, "occurs twice");
                c->reduced[a.stage] = true;
            }
            if (!tr_action_computes(a) && !tr_action_transfers(a)) continue;
            unsigned char *done = done_of(c, a.stage, a.micro_batch);
            if (bits_of(a) & ~c->want[a.stage])
                return fail_at(s, r, k, "has no stage on another rank at its other end");
            if (*done & bits_of(a))
                return fail_at(s, r, k,
                               bits_of(a) & DONE_W
                                   ? "occurs twice: B is I and W together (in PyTorch's old form B "
                                     "was the input gradient, which is now I)"
                                   : "occurs twice");
            *done = (unsigned char)(*done | bits_of(a));
        }
    return check_none_missing(c);
}

/* --- running ---------------------------------------------------------------------------------- */

static bool lacks(const check *c, tr_action need) {
    return !(*done_of(c, need.stage, need.micro_batch) & bits_of(need));
}

/* Returns true when a must wait; *need is the action that it waits for. In an order with transfers
 * an action needs its RECV instead of other ranks' actions, and the RECV needs the SENDs. */
static bool is_blocked(const check *c, tr_action a, tr_action *need) {
    for (int n = 0; tr_action_need(&c->graph, a, n, need); n++) {
        if (c->s->listed && is_remote(c, a.stage, need->stage))
            *need = (tr_action){.stage = a.stage,
                                .type = TR_ACTION_RECV,
                                .micro_batch = a.micro_batch,
                                .gradient = a.type != TR_ACTION_F};
        if (lacks(c, *need)) return true;
    }
    if (a.type == TR_ACTION_RECV)
        for (int k = 0, t; (t = tr_graph_get(&c->graph, a.gradient, a.stage, k)) >= 0; k++) {
            *need = a;
            need->type = TR_ACTION_SEND;
            need->stage = t;
            if (is_remote(c, a.stage, t) && lacks(c, *need)) return true;
        }
    for (int k = 0; a.type == TR_ACTION_REDUCE && k < c->s->micro_batches; k++) {
        *need = (tr_action){.stage = a.stage, .type = TR_ACTION_W, .micro_batch = k};
        if (lacks(c, *need)) return true;
    }
    return false;
}

/* Returns true when the action at a place, or one of the pair that starts there, must wait. */
static bool is_cell_blocked(const check *c, const tr_action *at, tr_action *need) {
    return is_blocked(c, at[0], need) || (at[0].overlap && is_blocked(c, at[1], need));
}

/* Numbers the messages of a SEND, or finds those of a RECV. Each channel is first in, first out: a
 * RECV also takes earlier messages, and is too late when its own were taken already. */
static tr_status pass_messages(check *c, int rank, int at) {
    const tr_schedule *s = c->s;
    tr_action a = s->action[rank][at];
    bool send = a.type == TR_ACTION_SEND, took = send;
    for (int k = 0, t; (t = tr_graph_get(&c->graph, a.gradient == !send, a.stage, k)) >= 0; k++) {
        if (!is_remote(c, a.stage, t)) continue;
        int from = send ? a.stage : t, to = send ? t : a.stage;
        size_t edge = (size_t)tr_graph_edge(&c->graph, a.gradient, from, to);
        int *number =
            &c->number[a.gradient][edge * (size_t)s->micro_batches + (size_t)a.micro_batch];
        size_t channel = (size_t)s->rank_of[from] * (size_t)s->ranks + (size_t)s->rank_of[to];
        if (send) *number = c->sent[channel]++;
        else if (*number >= c->taken[channel]) {
            c->taken[channel] = *number + 1;
            took = true;
        }
    }
    if (took) return TR_OK;
    c->rank = rank;
    c->at = at;
    return fail_at(s, rank, at,
                   "comes too late: messages of a channel are taken in the order in which they are "
                   "sent");
}

static tr_status step(void *context, int rank, int at, int *done) {
    check *c = context;
    const tr_action *a = &c->s->action[rank][at];
    tr_action need;
    if (is_cell_blocked(c, a, &need)) return TR_OK;
    *done = a->overlap ? 2 : 1;
    for (int k = 0; k < *done; k++) {
        if (!tr_action_computes(a[k]) && !tr_action_transfers(a[k])) continue;
        unsigned char *bits = done_of(c, a[k].stage, a[k].micro_batch);
        *bits = (unsigned char)(*bits | bits_of(a[k]));
        if (tr_action_transfers(a[k])) TR_TRY(pass_messages(c, rank, at + k));
    }
    return TR_OK;
}

/* Writes the action at a place, or the pair that starts there, as in a file. */
static void print_cell(const tr_action *at, char *text, size_t size) {
    char first[24], second[24];
    tr_action_print(at[0], first, sizeof first);
    if (at[0].overlap) tr_action_print(at[1], second, sizeof second);
    if (at[0].overlap) (void)snprintf(text, size, "(%s;%s)OVERLAP_F_B", first, second);
    else (void)snprintf(text, size, "%s", first);
}

static int blocked(const void *context, int rank, int at, char *item, char *text) {
    const check *c = context;
    const tr_action *a = &c->s->action[rank][at];
    tr_action need = {0};
    char action[32];
    (void)is_cell_blocked(c, a, &need);
    print_cell(a, item, TR_WALK_TEXT);
    tr_action_print(need, action, sizeof action);
    (void)snprintf(text, TR_WALK_TEXT, "%s%s", action, need.type == TR_ACTION_I ? " (or B)" : "");
    return c->s->rank_of[need.stage];
}

static tr_status check_runs(check *c) {
    const tr_schedule *s = c->s;
    char name[64];
    tr_walk walk = {.name = name, .context = c, .step = step, .blocked = blocked};
    tr_status status = TR_OK;
    (void)snprintf(name, sizeof name, "schedule %s", s->name);
    memset(c->done, 0, (size_t)s->stages * (size_t)s->micro_batches);
    TR_TRY_OUT(tr_walk_open(&walk, s->ranks, s->count));
    int stuck = -1;
    status = tr_walk_run(&walk, &stuck);
    if (stuck >= 0) {
        c->rank = stuck;
        c->at = walk.next[stuck];
    }
out:
    tr_walk_close(&walk);
    return status;
}

/* Returns true for an action that may add to weight gradients. */
static bool adds_to_sums(const tr_schedule *s, tr_action a) {
    if (a.type == TR_ACTION_F) return a.stage == s->stages - 1 && !s->forward_only;
    return bits_of(a) & DONE_W;
}

/* Fills the report's part about the order of sums; last[2][stages] is scratch: of F, and of W or
 * B. */
static void note_order_of_sums(const tr_schedule *s, int *last, tr_schedule_report *report) {
    *report = (tr_schedule_report){.sums_ascending = true, .rank = -1, .at = -1};
    for (int k = 0; k < 2 * s->stages; k++) last[k] = -1;
    for (int r = 0; r < s->ranks; r++)
        for (int k = 0; k < s->count[r]; k++) {
            tr_action a = s->action[r][k];
            bool forward = a.type == TR_ACTION_F;
            if (!adds_to_sums(s, a)) continue;
            int *before = &last[(forward ? 0 : s->stages) + a.stage];
            if (a.micro_batch < *before && report->sums_ascending) {
                report->sums_ascending = false;
                (void)snprintf(report->note, sizeof report->note,
                               "schedule %s adds the weight gradients of stage %d%s in another "
                               "order (micro-batch %d after %d): its sums may differ in the last "
                               "bits from those of other schedules",
                               s->name, a.stage, forward ? " (its F computes the head's)" : "",
                               a.micro_batch, *before);
            }
            *before = a.micro_batch;
        }
}

tr_status tr_schedule_check(const tr_schedule *s, const tr_stage_table *table,
                            tr_schedule_report *report) {
    tr_status status = TR_OK;
    int *last = NULL;
    check c = {.s = s, .rank = -1, .at = -1};
    size_t stages = (size_t)s->stages, micro_batches = (size_t)s->micro_batches;
    size_t channels = s->listed ? (size_t)s->ranks * (size_t)s->ranks : 0;
    if (report) *report = (tr_schedule_report){.rank = -1, .at = -1};
    TR_TRY_OUT(tr_graph_open(table, s->stages, &c.graph));
    size_t messages = s->listed ? (size_t)c.graph.edges * micro_batches : 0;
    TR_TRY_OUT(tr_calloc(stages * micro_batches, 1, &c.done));
    TR_TRY_OUT(tr_calloc(stages, sizeof *c.want, &c.want));
    TR_TRY_OUT(tr_calloc(stages, sizeof *c.reduced, &c.reduced));
    TR_TRY_OUT(tr_calloc(2 * stages, sizeof *last, &last));
    for (int k = 0; k < 2; k++) TR_TRY_OUT(tr_calloc(messages, sizeof(int), &c.number[k]));
    TR_TRY_OUT(tr_calloc(channels, sizeof *c.sent, &c.sent));
    TR_TRY_OUT(tr_calloc(channels, sizeof *c.taken, &c.taken));
    list_wants(&c);
    TR_TRY_OUT(check_complete(&c));
    TR_TRY_OUT(check_runs(&c));
    if (report) note_order_of_sums(s, last, report);
out:
    if (report && status == TR_ERR_CONFIG) {
        report->rank = c.rank;
        report->at = c.at;
    }
    free(c.taken);
    free(c.sent);
    free(c.number[1]);
    free(c.number[0]);
    free(last);
    free(c.reduced);
    free(c.want);
    free(c.done);
    tr_graph_close(&c.graph);
    return status;
}
