#include "pipeline/action.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>

const char *tr_action_name(tr_action_type type, bool gradient) {
    static const char *const names[TR_ACTION_TYPES][2] = {
        [TR_ACTION_F] = {"F", "F"},
        [TR_ACTION_I] = {"I", "I"},
        [TR_ACTION_W] = {"W", "W"},
        [TR_ACTION_B] = {"B", "B"},
        [TR_ACTION_RECV] = {"RECV_F", "RECV_B"},
        [TR_ACTION_SEND] = {"SEND_F", "SEND_B"},
        [TR_ACTION_WAIT_SENT] = {"WAIT_SENT_F", "WAIT_SENT_B"},
        [TR_ACTION_REDUCE] = {"REDUCE_GRAD", "REDUCE_GRAD"},
        [TR_ACTION_REDUCE_START] = {"REDUCE_START", "REDUCE_START"},
        [TR_ACTION_REDUCE_WAIT] = {"REDUCE_WAIT", "REDUCE_WAIT"},
        [TR_ACTION_GATHER_START] = {"GATHER_START", "GATHER_START"},
        [TR_ACTION_GATHER_WAIT] = {"GATHER_WAIT", "GATHER_WAIT"},
        [TR_ACTION_OFFLOAD] = {"OFFLOAD", "OFFLOAD"},
        [TR_ACTION_OFFLOAD_WAIT] = {"OFFLOAD_WAIT", "OFFLOAD_WAIT"},
        [TR_ACTION_FETCH] = {"FETCH", "FETCH"},
        [TR_ACTION_FETCH_WAIT] = {"FETCH_WAIT", "FETCH_WAIT"},
        [TR_ACTION_FINISH] = {"FINISH", "FINISH"},
        [TR_ACTION_UNSHARD] = {"UNSHARD", "UNSHARD"},
        [TR_ACTION_RESHARD] = {"RESHARD", "RESHARD"}};
    return (unsigned)type < (unsigned)TR_ACTION_TYPES ? names[type][gradient] : "?";
}

void tr_action_print(tr_action a, char *text, size_t size) {
    const char *name = tr_action_name(a.type, a.gradient);
    if (tr_action_computes(a) || tr_action_transfers(a) || tr_action_reduces(a) ||
        tr_action_gathers(a) || tr_action_offloads(a))
        (void)snprintf(text, size, "%d%s%d", a.stage, name, a.micro_batch);
    else if (a.type == TR_ACTION_FINISH) (void)snprintf(text, size, "%s", name);
    else (void)snprintf(text, size, "%d%s", a.stage, name);
}

/* Removes repetitions: a stage that another reads by several edges is listed once. */
static void drop_repeated(int stages, int *first, int *list) {
    for (int s = 0, begin = 0, used = 0; s < stages; s++) {
        int end = first[s + 1], from = used;
        for (int k = begin; k < end; k++) {
            bool known = false;
            for (int n = from; n < used; n++) known = known || list[n] == list[k];
            if (!known) list[used++] = list[k];
        }
        begin = end;
        first[s + 1] = used;
    }
}

/* Fills list[after] and first[after] from the edges, which stay in their order. */
static tr_status list_edges(const tr_edge *edge, bool after, tr_graph *g) {
    int *first;
    TR_TRY(tr_calloc((size_t)g->stages + 2, sizeof *first, &g->first[after]));
    TR_TRY(tr_calloc((size_t)g->edges, sizeof *g->list[after], &g->list[after]));
    /* Counts are stored two places ahead, because filling moves each start by one. */
    first = g->first[after] + 1;
    for (int e = 0; e < g->edges; e++) first[(after ? edge[e].from : edge[e].to) + 1]++;
    for (int s = 1; s <= g->stages; s++) first[s] += first[s - 1];
    for (int e = 0; e < g->edges; e++) {
        int *at = &first[after ? edge[e].from : edge[e].to];
        g->list[after][(*at)++] = after ? edge[e].to : edge[e].from;
    }
    drop_repeated(g->stages, g->first[after], g->list[after]);
    return TR_OK;
}

tr_status tr_graph_open(const tr_stage_table *table, int stages, tr_graph *out) {
    tr_status status = TR_OK;
    tr_edge *chain = NULL;
    tr_graph g = {.stages = stages, .edges = table ? table->edges : stages - 1};
    if (table && table->stages != stages)
        return TR_FAIL(TR_ERR_CONFIG, "the schedule has %d stages, but the model has %d", stages,
                       table->stages);
    TR_TRY_OUT(tr_calloc((size_t)stages, sizeof *chain, &chain));
    for (int s = 0; s < stages; s++) chain[s] = (tr_edge){.from = s, .to = s + 1};
    const tr_edge *edge = table ? table->edge : chain;
    for (int e = 0; e < g.edges; e++) {
        int from = edge[e].from, to = edge[e].to;
        if (from >= 0 && from < to && to < stages) continue;
        status = TR_FAIL(
            TR_ERR_CONFIG,
            "edge %d leads from stage %d to stage %d of %d, but it must lead to a later stage", e,
            from, to, stages);
        goto out;
    }
    TR_TRY_OUT(list_edges(edge, false, &g));
    TR_TRY_OUT(list_edges(edge, true, &g));
    *out = g;
    g = (tr_graph){0};
out:
    tr_graph_close(&g);
    free(chain);
    return status;
}

void tr_graph_close(tr_graph *g) {
    for (int after = 0; after < 2; after++) {
        free(g->first[after]);
        free(g->list[after]);
    }
}
