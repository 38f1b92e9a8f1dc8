/* Causal attention as plans of cuDNN's backend interface: the composite graphs of matrix products,
 * point-wise operations and reductions that its fused attention engines recognise. A plan is built
 * for the GPU of a handle, or for a described one; the latter cannot run, but tests everything else
 * on a machine without a GPU. Private to device/cuda and its test. */
#pragma once

#include "base/status.h"
#include "device/op.h"

#include "device/cuda/libraries.h"

/* Strides, in elements, of sequence, head and position; elements of a head are contiguous. */
typedef struct tr_attention_strides {
    int64_t sequence, head, position;
} tr_attention_strides;

/* heads query heads share kv_heads keys and values (a multiple: grouped queries). `backward`
 * selects one of the two graphs; deterministic changes the backward one; masked: tokens see none
 * before their FIRST. */
typedef struct tr_attention_shape {
    int64_t batch, seq, heads, kv_heads, head_size;
    tr_attention_strides q, kv, y; /* q and dq; k, v, dk and dv; y and dy */
    float scale;
    tr_dtype dtype;
    bool masked, backward, deterministic;
    int config; /* the heuristic's configuration of this number, from 1 on; 0: the first for which a
                   plan can be finished */
} tr_attention_shape;

/* The tensors of a plan; cuDNN's unique ids are these numbers from 1 on.
 * LSE and ROW_SUM are f32[batch, heads, seq], DQ_SUM f32[batch, heads, seq, head_size], FIRST
 * i32[batch, seq]. */
typedef enum tr_attention_tensor {
    TR_ATTENTION_Q,
    TR_ATTENTION_K,
    TR_ATTENTION_V,
    TR_ATTENTION_O,     /* y: forward writes it, backward reads it */
    TR_ATTENTION_STATS, /* the LSE, likewise */
    TR_ATTENTION_DO,
    TR_ATTENTION_DQ,
    TR_ATTENTION_DK,
    TR_ATTENTION_DV,
    TR_ATTENTION_ROW_SUM, /* backward: scratch */
    TR_ATTENTION_DQ_SUM,  /* backward, not deterministic: scratch */
    TR_ATTENTION_FIRST,   /* masked: the first token that each token sees */
    TR_ATTENTION_TENSORS,
    TR_ATTENTION_SCALE = TR_ATTENTION_TENSORS, /* scalars, which the plan holds */
    TR_ATTENTION_MASKED,                       /* -infinity */
    TR_ATTENTION_ONE,
    TR_ATTENTION_IDS
} tr_attention_tensor;

enum { TR_ATTENTION_CONFIGS = 8 }; /* of a graph that are looked at */

/* A finished plan. Compiling it takes 0.2 to 1 s. */
typedef struct tr_attention_graph {
    tr_attention_shape shape;
    cudnnBackendDescriptor_t plan;
    int config;                           /* number of the configuration chosen, from 1 on */
    int configs;                          /* that the heuristic proposes */
    int64_t engine[TR_ATTENTION_CONFIGS]; /* cuDNN's number of the engine of each */
    size_t workspace_bytes, row_sum_bytes, dq_sum_bytes, first_bytes;
    float scalars[TR_ATTENTION_IDS - TR_ATTENTION_SCALE];
    cudnnBackendDescriptor_t *parts; /* all descriptors of the plan, in order */
    size_t part_count, part_capacity;
} tr_attention_graph;

/* Returns the shape of ATTENTION or ATTENTION_DGRAD. */
tr_attention_shape tr_cudnn_attention_packed(const tr_attention_desc *desc, bool backward,
                                             bool deterministic);

/* Returns true when cuDNN's engines are used for a shape: bf16 heads of 64, 96 or 128, and at least
 * 64 tokens. */
bool tr_cudnn_attention_takes(const tr_attention_shape *shape);

/* Builds the plan in *out. handle: of the GPU that will run it; or NULL, with `described`, the JSON
 * of a CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR. *out is NULL, with TR_OK, when cuDNN's engines are not
 * used for the shape or the library refuses it. Fails with TR_ERR_DEVICE when the library fails or
 * is too old. The caller releases *out with tr_cudnn_attention_release (NULL is allowed). */
tr_status tr_cudnn_attention_build(cudnnHandle_t handle, const char *described,
                                   const tr_attention_shape *shape, tr_attention_graph **out);
void tr_cudnn_attention_release(tr_attention_graph *graph);

/* Enqueues the plan on the handle's stream. Does not read tensors that the plan does not have. */
tr_status tr_cudnn_attention_run(const tr_attention_graph *graph, cudnnHandle_t handle,
                                 void *const tensors[TR_ATTENTION_TENSORS], void *workspace);
