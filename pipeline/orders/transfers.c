#include "pipeline/orders/transfers.h"

#include "base/memory.h"
#include "pipeline/orders/check.h"
#include "pipeline/walk.h"

#include <stdlib.h>

typedef struct lister {
    const tr_schedule *s;
    tr_schedule *out;
    tr_graph graph;
    unsigned char *listed; /* [stages * micro_batches]: 1 F, 2 I or B */
} lister;

static unsigned char bit_of(tr_action a) {
    return a.type == TR_ACTION_F ? 1 : a.type == TR_ACTION_W ? 0 : 2;
}

static unsigned char *listed_of(const lister *l, int stage, int micro_batch) {
    return &l->listed[(size_t)stage * (size_t)l->s->micro_batches + (size_t)micro_batch];
}

static bool is_ready(const lister *l, tr_action a) {
    tr_action need;
    for (int n = 0; tr_action_need(&l->graph, a, n, &need); n++)
        if (!(*listed_of(l, need.stage, need.micro_batch) & bit_of(need))) return false;
    return true;
}

/* Lists the SEND of an action, and the RECV of each stage that now has all inputs sent. */
static tr_status list_transfers(const lister *l, tr_action a) {
    const int *rank_of = l->s->rank_of;
    bool forward = a.type == TR_ACTION_F, sent = false;
    if (a.type == TR_ACTION_W) return TR_OK;
    tr_action send = {.stage = a.stage,
                      .type = TR_ACTION_SEND,
                      .micro_batch = a.micro_batch,
                      .gradient = !forward};
    for (int k = 0, t; (t = tr_graph_get(&l->graph, forward, a.stage, k)) >= 0; k++) {
        if (rank_of[t] == rank_of[a.stage]) continue;
        if (!sent) TR_TRY(tr_schedule_add(l->out, rank_of[a.stage], send));
        sent = true;
        bool complete = true;
        for (int n = 0, other; (other = tr_graph_get(&l->graph, !forward, t, n)) >= 0; n++)
            complete = complete && (rank_of[other] == rank_of[t] ||
                                    *listed_of(l, other, a.micro_batch) & bit_of(a));
        tr_action recv = send;
        recv.type = TR_ACTION_RECV;
        recv.stage = t;
        if (complete) TR_TRY(tr_schedule_add(l->out, rank_of[t], recv));
    }
    return TR_OK;
}

static bool is_split_backward(const tr_action *a, int left) {
    return left > 1 && a[0].type == TR_ACTION_I && a[1].type == TR_ACTION_W &&
           a[0].stage == a[1].stage && a[0].micro_batch == a[1].micro_batch;
}

static tr_status step(void *context, int rank, int at, int *done) {
    const lister *l = context;
    const tr_action *row = &l->s->action[rank][at];
    tr_action cell[2] = {row[0]};
    int actions = row[0].overlap ? 2 : 1;
    if (actions == 2) cell[1] = row[1];
    for (int k = 0; k < actions; k++)
        if (!is_ready(l, cell[k])) return TR_OK;
    *done = actions;
    if (is_split_backward(row, l->s->count[rank] - at) && !row[0].overlap) {
        cell[0].type = TR_ACTION_B;
        *done = 2;
    }
    for (int k = 0; k < actions; k++) {
        unsigned char *listed = listed_of(l, cell[k].stage, cell[k].micro_batch);
        *listed |= bit_of(cell[k]);
        TR_TRY(tr_schedule_add(l->out, rank, cell[k]));
    }
    for (int k = 0; k < actions; k++) TR_TRY(list_transfers(l, cell[k]));
    return TR_OK;
}

tr_status tr_schedule_list_transfers(const tr_schedule *s, const tr_stage_table *table,
                                     tr_schedule **out) {
    tr_status status = TR_OK;
    lister l = {.s = s};
    tr_walk walk = {.name = s->name, .context = &l, .step = step};
    if (s->listed) return TR_FAIL(TR_ERR_CONFIG, "schedule %s already has its transfers", s->name);
    TR_TRY_OUT(tr_schedule_check(s, table, NULL));
    TR_TRY_OUT(tr_graph_open(table, s->stages, &l.graph));
    TR_TRY_OUT(
        tr_schedule_create(s->name, s->ranks, s->stages, s->micro_batches, s->rank_of, &l.out));
    TR_TRY_OUT(tr_calloc((size_t)s->stages * (size_t)s->micro_batches, 1, &l.listed));
    TR_TRY_OUT(tr_walk_open(&walk, s->ranks, s->count));
    bool ended;
    TR_TRY_OUT(tr_walk_advance(&walk, &ended));
    l.out->forward_only = s->forward_only;
    l.out->listed = true;
    *out = l.out;
    l.out = NULL;
out:
    tr_walk_close(&walk);
    free(l.listed);
    tr_schedule_destroy(l.out);
    tr_graph_close(&l.graph);
    return status;
}
