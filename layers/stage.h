/* A stage: the pipeline's view of consecutive layers. pipeline/ does not depend on layers.
 *
 * Per micro-batch a stage keeps blocks of memory by lifetime (F..I, F..W, I..W), cut into pieces,
 * and, per action, scratch. Tensors between stages travel over edges, any number between any two
 * stages. Costs and bytes of every stage are known on every rank; the functions exist on the
 * stage's rank. */
#pragma once

#include "base/status.h"
#include "layers/flow.h"
#include "layers/lifetime.h"

#include <stddef.h>

typedef struct tr_stage tr_stage;
struct tr_stream;

/* An edge: one tensor from one stage's F to another's F; its gradient travels back from I to I.
 * Messages between two stages go in the order of the list of edges. On the receiving stage the
 * tensor has its own place from its arrival to the end of `life`, and is received directly into
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

/* A part of a stage's weight gradients that is reduced at once, and of its parameters' values that
 * is gathered at once: those of one layer. Buckets are numbered in the order in which W and B
 * complete them: the last layer's is bucket 0. */
typedef struct tr_bucket {
    size_t bytes; /* that this rank reduces with other ranks; 0: none */
    double w, b;  /* complete after this share of the time of the stage's last W; of its last B */
    double f;     /* F reads its parameters from this share of its time on */
    /* Bytes of its gradients if they are in the arena, from the first action that writes them until
     * their sum has been waited for; 0: they have memory of their own. */
    size_t arena;
    bool in_forward; /* F writes them, too */
    /* Bytes of its parameters' values if data ranks divide them: actions of the stage find them in
     * the arena, where they were gathered; 0: each rank has them in memory of their own. */
    size_t values;
    /* Bytes of its parameters' values that data ranks have updated in portions at the end of the
     * last step: each rank gathers the other ranks' portions to memory of its own from the start of
     * the next step on, and the first F of the stage waits for them when it comes to this layer; 0:
     * none. Not together with `values`. */
    size_t updated;
    /* The link's part of a gather: the bytes that it would take if all data ranks sent as much as
     * the one that sends most. */
    size_t gathered;
} tr_bucket;

/* What one micro-batch takes on a stage. Orders are made, estimated and simulated with its times
 * and its memory as two numbers; lowering places the buffers. */
typedef struct tr_stage_cost {
    double f, i, w; /* seconds, or any unit */
    double m_b;     /* bytes, or any unit: from the start of F to the end of I */
    double m_w;     /* in the same unit: from then to the end of W */
    /* Without the tensors of edges. Scratch: the largest action's; 0 if not known. */
    size_t bytes[TR_LIFE_COUNT];
    size_t backward_iw; /* I..W bytes while B runs: of one layer, and gradients between layers */
    size_t unkept;      /* bytes while F runs: of one layer's tensors that I or W builds again */
    /* The blocks' pieces, which are placed separately, because small pieces fill gaps; `bytes` has
     * their sums. */
    int pieces;
    tr_piece *piece;   /* [pieces]: owned by the table */
    bool offload;      /* the pieces F..I and F..W go to the host's memory between F and I */
    int buckets;       /* 0: one, of all gradients, which the last W or B completes at its end */
    tr_bucket *bucket; /* [buckets]: owned by the table */
} tr_stage_cost;

typedef struct tr_stage_table {
    int stages;
    tr_stage_cost *cost; /* [stages] */
    int edges;
    tr_edge *edge;     /* [edges] */
    size_t message;    /* bytes of the largest other message between ranks with an edge */
    tr_piece *piece;   /* of all stages */
    tr_bucket *bucket; /* of all stages; NULL: not known */
} tr_stage_table;

void tr_stage_table_free(tr_stage_table *table);

/* One action's memory. Edge tensors are indexed by edge; entries are NULL for edges of other
 * stages, and for tensors that are not alive. */
typedef struct tr_stage_io {
    struct tr_stream *stream;
    int micro_batch;
    bool forward_only;  /* the program has no I and W */
    bool adds;          /* F: another F of the stage came before in this step; W, B: a W or B did */
    char *const *piece; /* address of each piece, aligned to TR_ALIGN; NULL: not alive */
    char *backward;     /* B: one place of backward_iw bytes instead of the pieces I..W */
    char *unkept;       /* F: one place of `unkept` bytes; else NULL */
    char *scratch;
    /* W, B: called when the stage's gradients of a bucket and all before it are written, in stream
     * order; NULL: not asked for. A stage need not call it. */
    tr_status (*complete)(void *context, int bucket);
    void *complete_context;
    /* The stage calls it before it reads the parameters of a bucket; NULL: not asked for. A stage
     * that does not call it finds them complete only in its next action. */
    tr_status (*need)(void *context, int bucket);
    void *need_context;
    void *const *in;   /* while they live: tensors of incoming edges */
    void *const *out;  /* F: where tensors of outgoing edges are written */
    void *const *dout; /* I, B, and W with w_reads_gradient: gradients of outgoing edges */
    void *const *din;  /* I, B, and F with f_writes_gradient: where those of incoming edges go */
} tr_stage_io;

typedef struct tr_stage_ops {
    tr_status (*forward)(tr_stage *stage, const tr_stage_io *io);
    tr_status (*grad_input)(tr_stage *stage, const tr_stage_io *io);
    tr_status (*grad_weight)(tr_stage *stage, const tr_stage_io *io);
    /* I and W together, layer by layer: same bits. I..W takes backward_iw bytes instead of the
     * pieces. */
    tr_status (*backward)(tr_stage *stage, const tr_stage_io *io);
    void (*destroy)(tr_stage *stage);
} tr_stage_ops;

/* Every stage begins with this. */
struct tr_stage {
    const tr_stage_ops *ops;
    int index;
};
