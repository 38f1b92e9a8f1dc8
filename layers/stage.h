/* A stage: what the schedule engine knows of a run of layers. It knows no layer.
 *
 * Per micro-batch a stage keeps blocks of memory by lifetime (F..I, F..W, I..W), cut into pieces,
 * and, per action, scratch. Tensors between stages travel over edges, any number between any two
 * stages. Costs and bytes of every stage are known on every rank; the functions exist where the
 * stage lives. */
#pragma once

#include "base/status.h"
#include "layers/flow.h"
#include "layers/lifetime.h"

#include <stddef.h>

typedef struct tr_stage tr_stage;
struct tr_stream;

/* An edge: one tensor from one stage's F to another's F; its gradient travels back from I to I.
 * Messages between two stages go in the order of the list of edges. The tensor has a place of its
 * own on the receiving stage, from its arrival to the end of `life`: it is received straight into
 * it. */
typedef struct tr_edge {
    int from, to; /* stages */
    tr_flow tensor;
    size_t bytes;     /* of the tensor and of its gradient */
    tr_lifetime life; /* TR_LIFE_FI or TR_LIFE_FW: how long the receiving stage reads it */
    /* The gradient lives from I of the receiving stage, or with the first from its F, until it is
     * sent; and on the other stage to the end of I, or with the second of W. */
    bool f_writes_gradient, w_reads_gradient;
} tr_edge;

/* What planning needs of a stage. */
typedef struct tr_stage_cost {
    double f, i, w; /* seconds, or any unit, of one micro-batch */
    /* Without the tensors that edges bring. Scratch: the largest action's; 0 where it is not known.
     */
    size_t bytes[TR_LIFE_COUNT];
    size_t backward_iw; /* I..W bytes while B runs: of one layer, and gradients between layers */
    /* Pieces that the blocks are cut into, each placed by itself, as small ones fill the room that
     * others leave; `bytes` sums them. 0: each block is one piece. */
    int pieces;
    tr_piece *piece; /* [pieces]: the table's */
} tr_stage_cost;

static inline int tr_stage_pieces(const tr_stage_cost *cost) {
    return cost->pieces ? cost->pieces : TR_LIFE_SCRATCH;
}

static inline tr_piece tr_stage_piece(const tr_stage_cost *cost, int k) {
    if (cost->pieces) return cost->piece[k];
    return (tr_piece){.life = (tr_lifetime)k, .bytes = cost->bytes[k]};
}

typedef struct tr_stage_table {
    int stages;
    tr_stage_cost *cost; /* [stages] */
    int edges;
    tr_edge *edge;   /* [edges] */
    tr_piece *piece; /* of all stages, to be freed; NULL: blocks are not cut */
} tr_stage_table;

/* Bytes of a micro-batch on a stage by lifetime: its blocks' and those of the tensors and gradients
 * that edges bring. */
static inline void tr_stage_table_bytes(const tr_stage_table *table, int stage,
                                        size_t bytes[TR_LIFE_COUNT]) {
    for (int life = 0; life < TR_LIFE_COUNT; life++) bytes[life] = table->cost[stage].bytes[life];
    for (int e = 0; e < table->edges; e++) {
        const tr_edge *edge = &table->edge[e];
        if (edge->to == stage) bytes[edge->life] += edge->bytes;
        if (edge->to == stage && edge->f_writes_gradient) bytes[TR_LIFE_FI] += edge->bytes;
        if (edge->from == stage && edge->w_reads_gradient) bytes[TR_LIFE_IW] += edge->bytes;
    }
}

/* One action's memory. Edge tensors by edge index: entries of edges that do not touch the stage, or
 * whose tensor is not alive, are NULL. */
typedef struct tr_stage_io {
    struct tr_stream *stream;
    int micro_batch;
    bool forward_only;  /* the program has no I and W */
    bool adds;          /* F: another F of the stage came before in this step; W, B: a W or B did */
    char *const *piece; /* where each piece lies, aligned to TR_ALIGN; NULL: not alive */
    char *backward;     /* B: one place of backward_iw bytes instead of the pieces I..W */
    char *scratch;
    void *const *in;   /* while they live: tensors of incoming edges */
    void *const *out;  /* F: where tensors of outgoing edges are written */
    void *const *dout; /* I, B, and W with w_reads_gradient: gradients of outgoing edges */
    void *const *din;  /* I, B, and F with f_writes_gradient: where those of incoming edges go */
} tr_stage_io;

typedef struct tr_stage_ops {
    tr_status (*forward)(tr_stage *stage, const tr_stage_io *io);
    tr_status (*grad_input)(tr_stage *stage, const tr_stage_io *io);
    tr_status (*grad_weight)(tr_stage *stage, const tr_stage_io *io);
    /* I and W together, layer by layer: same bits, I..W memory of one layer. */
    tr_status (*backward)(tr_stage *stage, const tr_stage_io *io);
    void (*destroy)(tr_stage *stage);
} tr_stage_ops;

/* Every stage starts with this. */
struct tr_stage {
    const tr_stage_ops *ops;
    int index;
};
