/* Tensors that flow between layers: outputs of layers, and inputs of a step, which the caller
 * provides. A flow has a name, type and shape, but no memory. */
#pragma once

#include "device/tensor.h"

#include <stdbool.h>
#include <stdint.h>

enum { TR_FLOW_RANK = TR_TENSOR_RANK, TR_FLOW_NAME = 32 };

/* The shape of one micro-batch on one tensor rank: (batch, seq, width), or a part, such as a slice
 * of the sequence. Dense and row-major. */
typedef struct tr_flow {
    char name[TR_FLOW_NAME];
    tr_dtype dtype;
    int rank;
    int64_t shape[TR_FLOW_RANK];
} tr_flow;

/* Makes a flow of the given name, type and shape[rank]. */
tr_flow tr_flow_make(const char *name, tr_dtype dtype, int rank, const int64_t *shape);
/* Returns the flow's tensor at `data`. */
tr_tensor tr_flow_tensor(const tr_flow *flow, const void *data);
/* Sets *bytes; returns false when they overflow size_t. */
bool tr_flow_bytes(const tr_flow *flow, size_t *bytes);
/* Returns true when both have the same type and shape. */
bool tr_flow_same(const tr_flow *a, const tr_flow *b);
