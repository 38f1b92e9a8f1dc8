#include "pipeline/orders/check.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DONE_F = 1, DONE_I = 2, DONE_W = 4 };

static const unsigned done_bits[TR_ACTION_TYPES] = {[TR_ACTION_F] = DONE_F,
                                                    [TR_ACTION_I] = DONE_I,
                                                    [TR_ACTION_W] = DONE_W,
                                                    [TR_ACTION_B] = DONE_I | DONE_W};

typedef struct check {
    const tr_schedule *s;
    const tr_edge *edge;
    int edges;
    unsigned char *done; /* [stages * micro_batches] of DONE bits */
    int *next;           /* [ranks]: index of the first action not executed */
    int rank, at;        /* of what is being judged, as in the report */
} check;

static unsigned char *done_of(const check *c, int stage, int micro_batch) {
    return &c->done[(size_t)stage * (size_t)c->s->micro_batches + (size_t)micro_batch];
}

static tr_status check_ids(const tr_schedule *s, int rank, tr_action a) {
    char text[32];
    tr_action_print(a, text, sizeof text);
    if (a.stage < 0 || a.stage >= s->stages)
        return TR_FAIL(TR_ERR_CONFIG,
                       "rank %d, action %s: there is no stage %d, stages are 0 to %d", rank, text,
                       a.stage, s->stages - 1);
    if (a.micro_batch < 0 || a.micro_batch >= s->micro_batches)
        return TR_FAIL(TR_ERR_CONFIG,
                       "rank %d, action %s: there is no micro-batch %d, they are 0 to %d", rank,
                       text, a.micro_batch, s->micro_batches - 1);
    if ((unsigned)a.type >= TR_ACTION_TYPES || (s->forward_only && a.type != TR_ACTION_F))
        return TR_FAIL(TR_ERR_CONFIG, "rank %d, action %s: not an action of a %s schedule", rank,
                       text, s->forward_only ? "forward-only" : "training");
    if (s->rank_of[a.stage] != rank)
        return TR_FAIL(
            TR_ERR_CONFIG,
            "action %s stands on rank %d, but stage %d lives on rank %d: a stage has one "
            "owner",
            text, rank, a.stage, s->rank_of[a.stage]);
    return TR_OK;
}

/* An OVERLAP_F_B cell joins the F and the I or B of two different micro-batches or stages. */
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

/* Where the stage's first action for the micro-batch stands on its rank; -1: nowhere. */
static int find_action(const tr_schedule *s, int stage, int micro_batch) {
    int rank = s->rank_of[stage];
    for (int k = 0; k < s->count[rank]; k++)
        if (s->action[rank][k].stage == stage && s->action[rank][k].micro_batch == micro_batch)
            return k;
    return -1;
}

/* Micro-batches of which a part is there come first: a typing error makes one. */
static tr_status check_none_missing(check *c) {
    const tr_schedule *s = c->s;
    unsigned want = s->forward_only ? DONE_F : DONE_F | DONE_I | DONE_W;
    for (int whole = 0; whole < 2; whole++)
        for (int stage = 0; stage < s->stages; stage++)
            for (int k = 0; k < s->micro_batches; k++) {
                unsigned done = *done_of(c, stage, k), missing = want & ~done;
                if (!missing || (!done && !whole)) continue;
                c->rank = s->rank_of[stage];
                c->at = find_action(s, stage, k);
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

/* Every action in range, on its rank and once; none missing. Leaves `done` full. */
static tr_status check_complete(check *c) {
    const tr_schedule *s = c->s;
    char text[32];
    for (int r = 0; r < s->ranks; r++) {
        for (int k = 0; k < s->count[r]; k++) {
            tr_action a = s->action[r][k];
            c->rank = r;
            c->at = k;
            TR_TRY(check_ids(s, r, a));
            if (a.overlap) TR_TRY(check_pair(s, r, k));
            unsigned char *done = done_of(c, a.stage, a.micro_batch);
            if (*done & done_bits[a.type]) {
                tr_action_print(a, text, sizeof text);
                return TR_FAIL(TR_ERR_CONFIG, "rank %d: %s is done twice", r, text);
            }
            *done = (unsigned char)(*done | done_bits[a.type]);
        }
    }
    return check_none_missing(c);
}

static bool lacks(const check *c, int stage, int micro_batch, unsigned bit, tr_action_type type,
                  tr_action *need) {
    if (*done_of(c, stage, micro_batch) & bit) return false;
    *need = (tr_action){.stage = stage, .type = type, .micro_batch = micro_batch};
    return true;
}

/* True when action a must wait; *need is what it waits for. */
static bool is_blocked(const check *c, tr_action a, tr_action *need) {
    if (a.type == TR_ACTION_W) return lacks(c, a.stage, a.micro_batch, DONE_I, TR_ACTION_I, need);
    bool forward = a.type == TR_ACTION_F;
    if (!forward && lacks(c, a.stage, a.micro_batch, DONE_F, TR_ACTION_F, need)) return true;
    for (int e = 0; e < c->edges; e++) {
        const tr_edge *edge = &c->edge[e];
        if (forward && edge->to == a.stage &&
            lacks(c, edge->from, a.micro_batch, DONE_F, TR_ACTION_F, need))
            return true;
        if (!forward && edge->from == a.stage &&
            lacks(c, edge->to, a.micro_batch, DONE_I, TR_ACTION_I, need))
            return true;
    }
    return false;
}

/* True when the rank's next action, or one of the pair that starts there, must wait. */
static bool is_rank_blocked(const check *c, int rank, tr_action *need) {
    const tr_action *at = &c->s->action[rank][c->next[rank]];
    return is_blocked(c, at[0], need) || (at[0].overlap && is_blocked(c, at[1], need));
}

/* All ranks are blocked or at their end: follows the waits from rank to rank to the cycle and names
 * it. */
static tr_status fail_deadlock(check *c, int rank) {
    const tr_schedule *s = c->s;
    tr_action need = {0};
    /* After as many steps as there are ranks, the walk is on the cycle. */
    for (int k = 0; k < s->ranks; k++) {
        (void)is_rank_blocked(c, rank, &need);
        rank = s->rank_of[need.stage];
    }
    char text[768] = "";
    size_t used = 0;
    int first = rank;
    c->rank = rank;
    c->at = c->next[rank];
    do {
        tr_action at = s->action[rank][c->next[rank]];
        (void)is_rank_blocked(c, rank, &need);
        char at_text[32], need_text[32];
        tr_action_print(at, at_text, sizeof at_text);
        tr_action_print(need, need_text, sizeof need_text);
        int n = snprintf(text + used, sizeof text - used, "%srank %d at %s waits for %s%s",
                         used ? "; " : "", rank, at_text, need_text,
                         need.type == TR_ACTION_I ? " (or B)" : "");
        if (n > 0) used += (size_t)n;
        rank = s->rank_of[need.stage];
    } while (rank != first && used < sizeof text);
    return TR_FAIL(TR_ERR_CONFIG, "schedule %s cannot run to its end: %s%s", s->name, text,
                   used < sizeof text ? ", which comes later there" : " ...");
}

static void execute(check *c, tr_action a) {
    unsigned char *done = done_of(c, a.stage, a.micro_batch);
    *done = (unsigned char)(*done | done_bits[a.type]);
}

static tr_status check_runs(check *c) {
    const tr_schedule *s = c->s;
    memset(c->done, 0, (size_t)s->stages * (size_t)s->micro_batches);
    bool progress = true;
    while (progress) {
        progress = false;
        for (int r = 0; r < s->ranks; r++) {
            tr_action need;
            while (c->next[r] < s->count[r] && !is_rank_blocked(c, r, &need)) {
                execute(c, s->action[r][c->next[r]++]);
                if (s->action[r][c->next[r] - 1].overlap) execute(c, s->action[r][c->next[r]++]);
                progress = true;
            }
        }
    }
    for (int r = 0; r < s->ranks; r++)
        if (c->next[r] < s->count[r]) return fail_deadlock(c, r);
    return TR_OK;
}

/* Fills the report; `last` is scratch of [stages]. */
static void note_w_order(const tr_schedule *s, int *last, tr_schedule_report *report) {
    *report = (tr_schedule_report){.w_ascending = true, .rank = -1, .at = -1};
    for (int k = 0; k < s->stages; k++) last[k] = -1;
    for (int r = 0; r < s->ranks; r++)
        for (int k = 0; k < s->count[r]; k++) {
            tr_action a = s->action[r][k];
            if (!(done_bits[a.type] & DONE_W)) continue;
            if (a.micro_batch < last[a.stage] && report->w_ascending) {
                report->w_ascending = false;
                (void)snprintf(
                    report->note, sizeof report->note,
                    "schedule %s adds the weight gradients of stage %d in another order "
                    "(micro-batch %d after %d): its sums may differ in the last bits from "
                    "those of other schedules",
                    s->name, a.stage, a.micro_batch, last[a.stage]);
            }
            last[a.stage] = a.micro_batch;
        }
}

tr_status tr_schedule_check(const tr_schedule *s, const tr_stage_table *table,
                            tr_schedule_report *report) {
    tr_status status = TR_OK;
    tr_edge *chain = NULL;
    int *last = NULL;
    check c = {.s = s, .rank = -1, .at = -1};
    if (report) *report = (tr_schedule_report){.rank = -1, .at = -1};
    if (table && table->stages != s->stages)
        return TR_FAIL(TR_ERR_CONFIG, "a schedule of %d stages does not go with a model of %d",
                       s->stages, table->stages);
    TR_TRY_OUT(tr_calloc((size_t)s->stages, sizeof *chain, &chain));
    TR_TRY_OUT(tr_calloc((size_t)s->stages * (size_t)s->micro_batches, 1, &c.done));
    TR_TRY_OUT(tr_calloc((size_t)s->ranks, sizeof *c.next, &c.next));
    TR_TRY_OUT(tr_calloc((size_t)s->stages, sizeof *last, &last));
    for (int e = 0; e + 1 < s->stages; e++) chain[e] = (tr_edge){.from = e, .to = e + 1};
    c.edge = table ? table->edge : chain;
    c.edges = table ? table->edges : s->stages - 1;
    for (int e = 0; e < c.edges; e++)
        if (c.edge[e].from < 0 || c.edge[e].from >= s->stages || c.edge[e].to < 0 ||
            c.edge[e].to >= s->stages || c.edge[e].from == c.edge[e].to) {
            status = TR_FAIL(TR_ERR_CONFIG, "edge %d leads from stage %d to stage %d of %d", e,
                             c.edge[e].from, c.edge[e].to, s->stages);
            goto out;
        }
    TR_TRY_OUT(check_complete(&c));
    TR_TRY_OUT(check_runs(&c));
    if (report) note_w_order(s, last, report);
out:
    if (report && status == TR_ERR_CONFIG) {
        report->rank = c.rank;
        report->at = c.at;
    }
    free(last);
    free(c.next);
    free(c.done);
    free(chain);
    return status;
}
