#include "layers/flow.h"

#include "base/memory.h"

#include <assert.h>
#include <stdio.h>

tr_flow tr_flow_make(const char *name, tr_dtype dtype, int rank, const int64_t *shape) {
    assert(rank >= 1 && rank <= TR_FLOW_RANK);
    tr_flow flow = {.dtype = dtype, .rank = rank};
    (void)snprintf(flow.name, sizeof flow.name, "%s", name);
    for (int d = 0; d < rank; d++) flow.shape[d] = shape[d];
    return flow;
}

tr_tensor tr_flow_tensor(const tr_flow *flow, const void *data) {
    return tr_tensor_dense(data, flow->dtype, flow->rank, flow->shape);
}

bool tr_flow_bytes(const tr_flow *flow, size_t *bytes) {
    *bytes = tr_dtype_size(flow->dtype);
    for (int d = 0; d < flow->rank; d++)
        if (flow->shape[d] < 0 || !tr_mul_size(*bytes, (size_t)flow->shape[d], bytes)) return false;
    return true;
}

bool tr_flow_same(const tr_flow *a, const tr_flow *b) {
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int d = 0; d < a->rank; d++)
        if (a->shape[d] != b->shape[d]) return false;
    return true;
}
