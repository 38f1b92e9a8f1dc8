/* Tensors that flow: outputs of layers, which other layers read, and inputs of a step, which the
 * caller provides. A name and a shape; the memory comes later. */
#pragma once

#include "device/tensor.h"

#include <stdbool.h>
#include <stdint.h>

enum { TR_FLOW_RANK = TR_TENSOR_RANK, TR_FLOW_NAME = 32 };

/* One micro-batch of it on one tensor rank: (batch, seq, width), or a part, such as a slice of the
 * sequence. Dense and row-major. */
typedef struct tr_flow {
    char name[TR_FLOW_NAME];
    tr_dtype dtype;
    int rank;
    int64_t shape[TR_FLOW_RANK];
} tr_flow;

/* A flow of the given name, type and shape[rank]. */
tr_flow tr_flow_make(const char *name, tr_dtype dtype, int rank, const int64_t *shape);
/* The flow in memory. */
tr_tensor tr_flow_tensor(const tr_flow *flow, const void *data);
/* Sets *bytes; false when they overflow a size. */
bool tr_flow_bytes(const tr_flow *flow, size_t *bytes);
/* Whether both have the same type and shape. */
bool tr_flow_same(const tr_flow *a, const tr_flow *b);
