/* Actions: the units of work of a rank in a step. Orders, listings, programs, recordings and
 * drawings consist of them. */
#pragma once

#include "base/status.h"
#include "layers/stage.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum tr_action_type {
    TR_ACTION_F,            /* forward */
    TR_ACTION_I,            /* input gradient */
    TR_ACTION_W,            /* weight gradient */
    TR_ACTION_B,            /* I and W together */
    TR_ACTION_RECV,         /* receives the inputs of the stage's F (I) from other ranks */
    TR_ACTION_SEND,         /* sends the outputs of the stage's F (I) to other ranks */
    TR_ACTION_WAIT_SENT,    /* waits until the buffer of a SEND may be written */
    TR_ACTION_REDUCE,       /* only in orders: starts to sum the stage's weight gradients */
    TR_ACTION_REDUCE_START, /* starts to sum a bucket of them, which is complete */
    TR_ACTION_REDUCE_WAIT,  /* waits for that sum */
    TR_ACTION_GATHER_START, /* starts to gather the values of a bucket's parameters */
    TR_ACTION_GATHER_WAIT,  /* waits for that gather */
    TR_ACTION_OFFLOAD,      /* starts to copy what F has kept to the host's memory */
    TR_ACTION_OFFLOAD_WAIT, /* waits until its place may be overwritten */
    TR_ACTION_FETCH,        /* starts to copy it back, to another place */
    TR_ACTION_FETCH_WAIT,   /* waits until it is there */
    TR_ACTION_FINISH,       /* the end of a step: norm, optimizer */
    TR_ACTION_UNSHARD,      /* only in files: gathers the stage's parameters; no effect here */
    TR_ACTION_RESHARD,      /* only in files: shards them again; no effect here */
    TR_ACTION_TYPES,
    TR_COMPUTE_TYPES = TR_ACTION_RECV /* F, I, W and B, which take compute time */
} tr_action_type;

typedef struct tr_action {
    int stage; /* FINISH: -1 */
    tr_action_type type;
    /* REDUCE_START, REDUCE_WAIT, GATHER_START, GATHER_WAIT: the bucket. REDUCE, FINISH, UNSHARD,
     * RESHARD: -1 */
    int micro_batch;
    /* F, I, B: this action and the rank's next one form a cell OVERLAP_F_B: an F and an I or B.
     * They start when the inputs of both have arrived, run back to back, and send when both have
     * ended. False for the second of the pair. */
    bool overlap;
    bool gradient; /* RECV, SEND, WAIT_SENT: a gradient (of I), not an activation (of F) */
} tr_action;

/* Returns true for F, I, W and B. */
static inline bool tr_action_computes(tr_action a) {
    return (unsigned)a.type < (unsigned)TR_COMPUTE_TYPES;
}

/* Returns true for RECV, SEND and WAIT_SENT. */
static inline bool tr_action_transfers(tr_action a) {
    return a.type >= TR_ACTION_RECV && a.type <= TR_ACTION_WAIT_SENT;
}

/* Returns true for REDUCE_START and REDUCE_WAIT. */
static inline bool tr_action_reduces(tr_action a) {
    return a.type == TR_ACTION_REDUCE_START || a.type == TR_ACTION_REDUCE_WAIT;
}

/* Returns true for GATHER_START and GATHER_WAIT. */
static inline bool tr_action_gathers(tr_action a) {
    return a.type == TR_ACTION_GATHER_START || a.type == TR_ACTION_GATHER_WAIT;
}

/* Returns true for OFFLOAD, FETCH and their waits. */
static inline bool tr_action_offloads(tr_action a) {
    return a.type >= TR_ACTION_OFFLOAD && a.type <= TR_ACTION_FETCH_WAIT;
}

/* Returns true for the actions that lowering adds, which no order has. */
static inline bool tr_action_is_added(tr_action a) {
    return a.type == TR_ACTION_WAIT_SENT || a.type == TR_ACTION_FINISH || tr_action_reduces(a) ||
           tr_action_gathers(a) || tr_action_offloads(a);
}

/* Returns the name in PyTorch's files: "F", "SEND_B", "REDUCE_GRAD". */
const char *tr_action_name(tr_action_type type, bool gradient);

/* Writes "3F12", "3SEND_B12", "3REDUCE_GRAD", "FINISH" to text; 32 bytes are enough. */
void tr_action_print(tr_action action, char *text, size_t size);

/* The stages that each stage reads, and those that read it. */
typedef struct tr_graph {
    int stages, edges;
    /* [stages + 1] and [edges]: stage s reads the stages list[0][first[0][s]] .. list[0][first[0][s
     * + 1] - 1]; list[1] has in the same way the stages that read it. */
    int *first[2], *list[2];
} tr_graph;

/* Makes the graph of a table's edges, or of the chain 0 -> 1 -> ... when table is NULL. Fails with
 * TR_ERR_CONFIG when the table has another number of stages or an edge does not lead to a later
 * stage. The caller releases it with tr_graph_close. */
tr_status tr_graph_open(const tr_stage_table *table, int stages, tr_graph *out);
void tr_graph_close(tr_graph *graph);

/* Returns the k-th stage that the stage reads; `after`: the k-th that reads it. -1: there are no
 * more. */
static inline int tr_graph_get(const tr_graph *g, bool after, int stage, int k) {
    int at = g->first[after][stage] + k;
    return at < g->first[after][stage + 1] ? g->list[after][at] : -1;
}

/* Returns the number, 0 to edges - 1, of the message from F of one stage to F of another;
 * `gradient`: from I to I, numbered separately. */
static inline int tr_graph_edge(const tr_graph *g, bool gradient, int from, int to) {
    int edge = g->first[!gradient][from];
    while (g->list[!gradient][edge] != to) edge++;
    return edge;
}

/* Finds the index-th action that must run before action a in any order; returns false after the
 * last one. F needs F of the stages that it reads; I and B need their own F, and I (or B) of the
 * stages that read theirs; W needs its I; SEND needs its F or I. Other actions need none. */
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
