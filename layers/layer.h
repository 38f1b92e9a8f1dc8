/* A layer: a table of functions and a description.
 *
 * A layer lists its outputs, the outputs of earlier layers that it reads, and the step inputs that
 * it asks for by name. No layer is special because of its place in the model.
 *
 * forward (F), grad_input (I) and grad_weight (W) are separate. Between them a layer keeps buffers
 * per micro-batch in blocks by lifetime: F..I, F..W, I..W, and scratch of one action; the planner's
 * bytes are sums over these and the inputs' lifetimes. The caller owns all memory. A layer does not
 * depend on the schedule: I of a micro-batch comes after its F, and W after its I; no other order
 * is guaranteed. If I and W need no data from later layers, the layer's F may contain them; then
 * its W are summed in the order of F. */
#pragma once

#include "comm/comm.h"
#include "device/op.h"
#include "layers/flow.h"
#include "layers/lifetime.h"
#include "layers/param.h"

enum {
    TR_LAYER_FLOWS = 4, /* the most outputs, inputs and step inputs of a layer, each */
    TR_LAYER_SUMS = 16  /* the most descriptions of sums over the tensor ranks */
};

enum { TR_LAYER_BEFORE = -1 };
/* An output of an earlier layer that a layer reads. */
typedef struct tr_layer_input {
    int layer;        /* index in the model, or TR_LAYER_BEFORE; a skip names an earlier one */
    int output;       /* index of that layer's output */
    tr_lifetime life; /* TR_LIFE_FI or TR_LIFE_FW: how long the layer reads it */
    bool f_writes_dx; /* F sets the input's gradient, which then lives from F on; I does not */
} tr_layer_input;

/* The actions that make a sum. A layer without backward runs only F. */
typedef enum tr_layer_sum_when {
    TR_LAYER_SUM_F,
    TR_LAYER_SUM_I,      /* I and B */
    TR_LAYER_SUM_W,      /* W and B */
    TR_LAYER_SUM_W_APART /* W, and not B, which has what it needs from I */
} tr_layer_sum_when;

/* Sums over the tensor ranks that a layer makes of one micro-batch, each of the same bytes. */
typedef struct tr_layer_sum {
    int count;
    size_t bytes; /* of each */
    tr_layer_sum_when when;
    bool half;    /* half of a sum: it is scattered to the ranks, or they gather parts */
    double hides; /* FLOPs of other work of B during each; 0: later work waits for it at once */
} tr_layer_sum;

/* Step inputs that training data can provide. The first dimension of a step input is the sample. */
#define TR_STEP_INPUT_TOKENS "tokens" /* i32(batch, seq) */
#define TR_STEP_INPUT_LABELS "labels" /* i32(batch, seq); -1: the position does not count */
/* i32(batch, seq): the position in its sequence where a token's document starts */
#define TR_STEP_INPUT_DOCUMENT_STARTS "document_starts"

/* The environment in which a layer runs. */
typedef struct tr_layer_env {
    tr_op_context context; /* of its operators */
    /* This rank's tensor group, also when it has one rank. NULL: the layer is only prepared for its
     * bytes, and does not run. */
    tr_group *tp;
} tr_layer_env;

struct tr_layer_op;
struct tr_layer_io;

/* Called before (begins) and after each operator of a layer. */
typedef struct tr_layer_probe {
    tr_status (*call)(void *context, const struct tr_layer_op *op, const struct tr_layer_io *io,
                      const tr_op_args *args, bool begins);
    void *context;
} tr_layer_probe;

/* One micro-batch's tensors and memory. Pointers that a call does not use may be NULL. */
typedef struct tr_layer_io {
    const tr_layer_probe *probe; /* NULL: none */
    int micro_batch;
    tr_stream *stream;
    tr_step_state *state; /* device memory */
    int64_t sample;       /* offset of the micro-batch's first sample from the step's first */
    bool forward_only;    /* no I and W follow this F, so an F that contains them leaves them out */
    /* W, or an F that contains it: adds to gradients of parameters. Else it writes every element,
     * whatever is there, as the first one of a step does. */
    bool adds;
    /* By index, in the shapes of the layer's description; absent if a call does not use them. */
    tr_tensor x[TR_LAYER_FLOWS]; /* F, and I and W while they live: inputs */
    tr_tensor y[TR_LAYER_FLOWS]; /* F: outputs */
    /* I, and W of an output with w_reads_dy: gradients of the outputs; the layer must not modify
     * them. */
    tr_tensor dy[TR_LAYER_FLOWS];
    /* I, or F of an input with f_writes_dx: gradients of the inputs, to be set; never one of dy. */
    tr_tensor dx[TR_LAYER_FLOWS];
    tr_tensor step[TR_LAYER_FLOWS]; /* step inputs, on the device */
    /* This layer's pieces, and its scratch, aligned to TR_ALIGN. */
    char *const *piece;
    char *backward; /* B: memory of the pieces I..W, adjacent; else NULL */
    char *unkept;   /* F: memory of the tensors that I or W builds again; else NULL */
    char *scratch;
    /* F, on the device, as XENT_LOSS writes it, by one layer of the model: f64[2] of all sequences,
     * or with forward_only f64[batch][2], of each. */
    double *loss;
    void *cache;  /* decode: this layer's key/value cache */
    void *logits; /* decode: [batch, vocab] in tr_dtype_acc(dtype), by one layer of the model */
} tr_layer_io;

typedef struct tr_layer tr_layer;

typedef struct tr_layer_ops {
    const char *kind;
    /* Prepares the operators; sets layer->bytes[TR_LIFE_SCRATCH]. Parameters have no memory yet. */
    tr_status (*prepare)(tr_layer *layer, const tr_layer_env *env);
    tr_status (*forward)(tr_layer *layer, const tr_layer_io *io);
    tr_status (*grad_input)(tr_layer *layer, const tr_layer_io *io);
    tr_status (*grad_weight)(tr_layer *layer, const tr_layer_io *io);
    /* I and then W, with the bits of the two, in an order that hides sums over the tensor ranks
     * behind W. NULL: the two one after the other. */
    tr_status (*backward)(tr_layer *layer, const tr_layer_io *io);
    /* Runs the tokens that every row feeds through a layer that was made for decoding. */
    tr_status (*decode)(tr_layer *layer, const tr_layer_io *io);
    void (*destroy)(tr_layer *layer);
} tr_layer_ops;

/* Every layer starts with this. Everything except scratch is known before prepare, on every rank,
 * and depends only on the model's description and the micro-batch shape. */
struct tr_layer {
    const tr_layer_ops *ops;
    char name[TR_NAME_SIZE];
    int index; /* in the model */
    tr_param *params;
    int params_count;
    /* The flows. A gradient has the shape and type of its tensor. */
    int inputs, outputs, step_inputs;
    tr_layer_input input[TR_LAYER_FLOWS];
    tr_flow output[TR_LAYER_FLOWS], step_input[TR_LAYER_FLOWS];
    bool no_backward; /* nothing in it, or in a layer before it, is trained: I and W do not run */
    bool w_reads_dy[TR_LAYER_FLOWS]; /* by output: its gradient is kept to the end of W */
    size_t bytes[TR_LIFE_COUNT];
    size_t unkept; /* bytes of the tensors that F makes and does not keep: I or W builds them again,
                      in I..W or scratch */
    /* The tensors of the blocks, without the inputs. `bytes` has their sums. */
    int pieces;
    tr_piece *piece;
    size_t piece_capacity;
    tr_status described; /* not TR_OK: no memory for pieces, or too many step inputs or sums */
    int sums;
    tr_layer_sum sum[TR_LAYER_SUMS];  /* of a training step, also with one tensor rank */
    size_t cache_bytes;               /* decode: key/value cache of all rows and positions */
    double flops_f, flops_i, flops_w; /* of one micro-batch on one tensor rank */
};

/* Returns true for a block, a layer that has inputs and outputs; the embedding and the head are
 * not. Every stage has a block. */
static inline bool tr_layer_is_block(const tr_layer *layer) {
    return layer->inputs > 0 && layer->outputs > 0;
}

/* Returns true when F writes the gradients of the layer's parameters, as it does an input's. */
static inline bool tr_layer_writes_in_forward(const tr_layer *layer) {
    for (int i = 0; i < layer->inputs; i++)
        if (layer->input[i].f_writes_dx) return true;
    return false;
}
