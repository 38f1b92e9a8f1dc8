/* A layer: a table of functions and a description.
 *
 * forward (F), grad_input (I) and grad_weight (W) are separate. Between them a layer keeps buffers
 * per micro-batch in blocks by lifetime: F..I, F..W, I..W, and scratch of one action; the planner's
 * bytes are sums over these. The caller owns all memory. A layer knows no schedule: I of a
 * micro-batch comes after its F, W after its I, and nothing else is promised. */
#pragma once

#include "comm/comm.h"
#include "device/op.h"
#include "layers/lifetime.h"
#include "layers/param.h"

enum { TR_LAYER_PIECES = 24 }; /* of a layer at most */

/* How a layer is used: fixed before prepare. */
typedef struct tr_layer_env {
    tr_device *device;
    /* This rank's tensor group, also when it is of one; NULL: prepared for its bytes, never run. */
    tr_group *tp;
    int64_t batch,
        seq;        /* of one micro-batch; decode: batch rows of one token, seq = cache length */
    tr_dtype dtype; /* storage */
    bool decode;
} tr_layer_env;

/* One micro-batch's tensors and memory. Fields a call does not use may be NULL. */
typedef struct tr_layer_io {
    tr_stream *stream;
    tr_step_state *state; /* device memory */
    int64_t sample;       /* offset of the micro-batch's first sample from the step's first */
    const void *x;        /* input (batch, seq, width); F, and I and W when input_life keeps it */
    void *y;              /* F: output (batch, seq, width) */
    const void *dy;       /* I: gradient of the output; may be overwritten by the layer: no */
    void *dx;             /* I: gradient of the input; differs from dy */
    /* This layer's pieces of each block, and its scratch, aligned to TR_ALIGN. */
    char *block[TR_LIFE_SCRATCH][TR_LAYER_PIECES];
    char *scratch;
    const int32_t *tokens; /* (batch, seq) i32 on the device: layers with takes_tokens */
    const int32_t *labels; /* (batch, seq) i32, -1 = does not count: layers with makes_loss */
    double *loss;          /* f64[2] on the device, as XENT_LOSS writes it */
    void *cache;           /* decode: this layer's key/value cache */
    float *logits;         /* decode: f32[batch, vocab] of the layer with makes_loss */
} tr_layer_io;

typedef struct tr_layer tr_layer;

typedef struct tr_layer_ops {
    const char *kind;
    /* Makes the operator plans; sets layer->bytes[TR_LIFE_SCRATCH]. Params have no storage yet. */
    tr_status (*prepare)(tr_layer *layer, const tr_layer_env *env);
    tr_status (*forward)(tr_layer *layer, const tr_layer_io *io);
    tr_status (*grad_input)(tr_layer *layer, const tr_layer_io *io);
    tr_status (*grad_weight)(tr_layer *layer, const tr_layer_io *io);
    /* One token a row through a layer prepared with env->decode. */
    tr_status (*decode)(tr_layer *layer, const tr_layer_io *io);
    void (*destroy)(tr_layer *layer);
} tr_layer_ops;

/* Every layer starts with this. Everything but scratch is known before prepare, on every rank, from
 * the model's description and micro-batch shape alone. */
struct tr_layer {
    const tr_layer_ops *ops;
    char name[TR_NAME_SIZE];
    int index; /* in the model */
    tr_param *params;
    int params_count;
    bool takes_tokens;      /* first layer: x is not used */
    bool makes_loss;        /* last layer: y and dy are not used */
    tr_lifetime input_life; /* TR_LIFE_FI or TR_LIFE_FW: how long x must stay */
    size_t bytes[TR_LIFE_COUNT];
    /* What the blocks are made of, tensor by tensor: pieces need not adjoin. `bytes` sums them. */
    int pieces; /* of the block that has most of them; at least one */
    size_t piece[TR_LAYER_PIECES][TR_LIFE_SCRATCH];
    size_t cache_bytes; /* decode: key/value cache of env->batch rows and env->seq positions */
    double flops_f, flops_i, flops_w;      /* of one micro-batch on one tensor rank */
    double reduce_bytes_f, reduce_bytes_i; /* all-reduced over tp */
};
