/* Actions: what a rank does in a step, one after the other. Orders, listings, programs, recordings
 * and drawings are made of them. */
#pragma once

#include "base/status.h"
#include "layers/stage.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum tr_action_type {
    TR_ACTION_F,         /* forward */
    TR_ACTION_I,         /* input gradient */
    TR_ACTION_W,         /* weight gradient */
    TR_ACTION_B,         /* I and W together */
    TR_ACTION_RECV,      /* takes what F (I) of the stage needs from other ranks */
    TR_ACTION_SEND,      /* sends what F (I) of the stage made to other ranks */
    TR_ACTION_WAIT_SENT, /* the buffer of a SEND may be written after this */
    TR_ACTION_REDUCE,    /* the stage's weight gradients are complete: they may be summed */
    TR_ACTION_FINISH,    /* the end of a step: norm, optimizer */
    TR_ACTION_UNSHARD,   /* of files: the stage's parameters become whole; they always are here */
    TR_ACTION_RESHARD,   /* of files: and are cut again */
    TR_ACTION_TYPES,
    TR_COMPUTE_TYPES = TR_ACTION_RECV /* F, I, W and B: what takes time of a rank */
} tr_action_type;

typedef struct tr_action {
    int stage; /* FINISH: -1 */
    tr_action_type type;
    int micro_batch; /* REDUCE, FINISH, UNSHARD, RESHARD: -1 */
    /* F, I, B: this action and the next of the rank form one cell OVERLAP_F_B: an F and an I or B
     * that start when the inputs of both have arrived and run back to back; what they send leaves
     * when both have ended. False for the second of the pair. */
    bool overlap;
    bool gradient; /* RECV, SEND, WAIT_SENT: of what I passes on, not F */
} tr_action;

/* True for F, I, W and B. */
static inline bool tr_action_computes(tr_action a) {
    return (unsigned)a.type < (unsigned)TR_COMPUTE_TYPES;
}

/* True for RECV, SEND and WAIT_SENT. */
static inline bool tr_action_transfers(tr_action a) {
    return a.type >= TR_ACTION_RECV && a.type <= TR_ACTION_WAIT_SENT;
}

/* "F", "SEND_B", "REDUCE_GRAD": the name in PyTorch's files. */
const char *tr_action_name(tr_action_type type, bool gradient);

/* "3F12", "3SEND_B12", "3REDUCE_GRAD", "FINISH" into text (32 bytes hold any). */
void tr_action_print(tr_action action, char *text, size_t size);

/* Which stages feed which, by stage. */
typedef struct tr_graph {
    int stages, edges;
    /* [stages + 1] and [edges]: the stages that stage s reads are list[0][first[0][s]] up to, not
     * including, list[0][first[0][s + 1]]; those that read it, the same of list[1]. */
    int *first[2], *list[2];
} tr_graph;

/* The graph of a table's edges; of the chain 0 -> 1 -> ... where table is NULL. TR_ERR_CONFIG for a
 * table of another number of stages and for an edge that does not lead to a later stage.
 * Release with tr_graph_close. */
tr_status tr_graph_open(const tr_stage_table *table, int stages, tr_graph *out);
void tr_graph_close(tr_graph *graph);

/* The k-th stage whose output the stage reads; or, `after`, that reads its output; -1: no more. */
static inline int tr_graph_get(const tr_graph *g, bool after, int stage, int k) {
    int at = g->first[after][stage] + k;
    return at < g->first[after][stage + 1] ? g->list[after][at] : -1;
}

/* The number, 0 to edges - 1, of the message from F of one stage to F of another; `gradient`: from
 * I to I, numbered apart. */
static inline int tr_graph_edge(const tr_graph *g, bool gradient, int from, int to) {
    int edge = g->first[!gradient][from];
    while (g->list[!gradient][edge] != to) edge++;
    return edge;
}

/* The index-th action that must have run before action a, of any order; false past the last.
 * F: F of the stages that it reads. I, B: its own F, and I (or B) of the stages that read it.
 * W: its I. SEND: its F or I. Other actions need none. */
static inline bool tr_action_need(const tr_graph *g, tr_action a, int index, tr_action *need) {
    *need = (tr_action){.stage = a.stage, .type = TR_ACTION_F, .micro_batch = a.micro_batch};
    switch (a.type) {
    case TR_ACTION_F: need->stage = tr_graph_get(g, false, a.stage, index); break;
    case TR_ACTION_I:
    case TR_ACTION_B:
        if (index == 0) return true;
        need->type = TR_ACTION_I;
        need->stage = tr_graph_get(g, true, a.stage, index - 1);
        break;
    case TR_ACTION_W: need->type = TR_ACTION_I; return index == 0;
    case TR_ACTION_SEND:
        if (a.gradient) need->type = TR_ACTION_I;
        return index == 0;
    default: return false;
    }
    return need->stage >= 0;
}
