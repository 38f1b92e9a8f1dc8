/* Carries out a cuDNN operation graph on the host, in double precision with the roundings of its
 * BF16 tensors. This program's cudnnBackendSetAttribute writes down what the library is told, and
 * hands it on; what was told is then computed. Knows matrix products, reductions, reshapes and the
 * point-wise modes of attention. */
#pragma once

#include "device/cuda/attention_graph.h"
#include "support/op_cases.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RIG_IDS = 128, RIG_RANK = 4 };

/* Memory of a tensor by its unique id; that of virtual tensors is made and freed by the rig. */
typedef struct rig_memory {
    void *data;
    tr_dtype dtype;
    bool own;
} rig_memory;

typedef struct rig_tensor {
    int64_t id, size[RIG_RANK], stride[RIG_RANK];
    cudnnDataType_t type;
} rig_tensor;

/* One attribute as it was set. */
typedef struct rig_told {
    cudnnBackendDescriptor_t descriptor;
    cudnnBackendAttributeName_t name;
    size_t bytes;
    char value[RIG_RANK * sizeof(int64_t)];
} rig_told;

enum { RIG_TOLD = 4096 };
static rig_told rig_book[RIG_TOLD];
static int rig_entries;

/* Forgets all descriptors: their addresses are used again. */
static void rig_forget(void) {
    rig_entries = 0;
}

static size_t rig_size_of(cudnnBackendAttributeType_t type) {
    if (type == CUDNN_TYPE_BOOLEAN) return 1;
    return type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? 8 : 4;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values) {
    static cudnnStatus_t (*library)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                    cudnnBackendAttributeType_t, int64_t, const void *);
    if (!library) *(void **)&library = dlsym(RTLD_NEXT, "cudnnBackendSetAttribute");
    assert_non_null(library);
    size_t bytes = (size_t)count * rig_size_of(type);
    if (rig_entries < RIG_TOLD && bytes <= sizeof rig_book->value) {
        rig_told *told = &rig_book[rig_entries++];
        *told = (rig_told){descriptor, name, bytes, {0}};
        memcpy(told->value, values, bytes);
    }
    return library(descriptor, name, type, count, values);
}

/* What the library was told; false when the descriptor has no such attribute. */
static bool rig_get(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                    size_t bytes, void *value) {
    memset(value, 0, bytes);
    for (int i = 0; i < rig_entries; i++) {
        if (rig_book[i].descriptor != descriptor || rig_book[i].name != name) continue;
        assert_int_equal(rig_book[i].bytes, bytes);
        memcpy(value, rig_book[i].value, bytes);
        return true;
    }
    return false;
}
#define RIG_GET(descriptor, name, variable)                                                        \
    rig_get((descriptor), (name), sizeof(variable), &(variable))

static bool rig_tensor_of(cudnnBackendDescriptor_t op, cudnnBackendAttributeName_t name,
                          rig_tensor *out) {
    cudnnBackendDescriptor_t t;
    if (!RIG_GET(op, name, t)) return false;
    assert_true(RIG_GET(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, out->id));
    assert_true(RIG_GET(t, CUDNN_ATTR_TENSOR_DIMENSIONS, out->size));
    assert_true(RIG_GET(t, CUDNN_ATTR_TENSOR_STRIDES, out->stride));
    assert_true(RIG_GET(t, CUDNN_ATTR_TENSOR_DATA_TYPE, out->type));
    assert_true(out->id > 0 && out->id < RIG_IDS);
    return true;
}

/* Where element `at` of a tensor of sizes `of` lies in t: one of size 1 is used for all, and one of
 * several in a row when t has fewer. */
static int64_t rig_offset(const rig_tensor *t, const int64_t *of, const int64_t *at) {
    int64_t offset = 0;
    for (int i = 0; i < RIG_RANK; i++) offset += at[i] * t->size[i] / of[i] * t->stride[i];
    return offset;
}

static double rig_load(const rig_memory *memory, const rig_tensor *t, const int64_t *of,
                       const int64_t *at) {
    assert_non_null(memory[t->id].data);
    return tr_element(memory[t->id].data, memory[t->id].dtype, rig_offset(t, of, at));
}

static void rig_store(rig_memory *memory, const rig_tensor *t, const int64_t *of, const int64_t *at,
                      double value) {
    rig_memory *m = &memory[t->id];
    if (!m->data) {
        int64_t count = 1;
        for (int i = 0; i < RIG_RANK; i++) count += (t->size[i] - 1) * t->stride[i];
        *m = (rig_memory){calloc((size_t)count, sizeof(double)), TR_F64, true};
        assert_non_null(m->data);
    }
    if (t->type == CUDNN_DATA_BFLOAT16) value = tr_bf16_to_f32(tr_f32_to_bf16((float)value));
    tr_element_set(m->data, m->dtype, rig_offset(t, of, at), value);
}

/* Calls body(at) for each index of a tensor of these sizes. */
#define RIG_FOR(at, of) for (int64_t at[RIG_RANK] = {0}; at[0] < (of)[0]; rig_next(at, of))
static void rig_next(int64_t *at, const int64_t *of) {
    for (int i = RIG_RANK - 1; i >= 0; i--) {
        if (++at[i] < of[i] || i == 0) return;
        at[i] = 0;
    }
}

static bool rig_product(cudnnBackendDescriptor_t op, rig_memory *memory) {
    rig_tensor a, b, c;
    if (!rig_tensor_of(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, &a)) return false;
    assert_true(rig_tensor_of(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, &b));
    assert_true(rig_tensor_of(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, &c));
    assert_true(a.size[2] == c.size[2] && b.size[3] == c.size[3] && a.size[3] == b.size[2]);
    RIG_FOR(at, c.size) {
        double sum = 0;
        for (int64_t k = 0; k < a.size[3]; k++) {
            const int64_t of_a[] = {c.size[0], c.size[1], a.size[2], a.size[3]};
            const int64_t of_b[] = {c.size[0], c.size[1], b.size[2], b.size[3]};
            const int64_t at_a[] = {at[0], at[1], at[2], k}, at_b[] = {at[0], at[1], k, at[3]};
            sum += rig_load(memory, &a, of_a, at_a) * rig_load(memory, &b, of_b, at_b);
        }
        rig_store(memory, &c, c.size, at, sum);
    }
    return true;
}

static bool rig_reduction(cudnnBackendDescriptor_t op, rig_memory *memory) {
    rig_tensor x, y;
    cudnnBackendDescriptor_t how;
    cudnnReduceTensorOp_t by;
    if (!rig_tensor_of(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &x)) return false;
    assert_true(rig_tensor_of(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &y));
    assert_true(RIG_GET(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how));
    assert_true(RIG_GET(how, CUDNN_ATTR_REDUCTION_OPERATOR, by));
    bool largest = by == CUDNN_REDUCE_TENSOR_MAX;
    assert_true(largest || by == CUDNN_REDUCE_TENSOR_ADD);
    RIG_FOR(start, y.size) rig_store(memory, &y, y.size, start, largest ? -INFINITY : 0);
    rig_tensor exact = y; /* partial sums are not rounded */
    exact.type = CUDNN_DATA_DOUBLE;
    RIG_FOR(at, x.size) {
        double sum = rig_load(memory, &y, x.size, at), value = rig_load(memory, &x, x.size, at);
        rig_store(memory, &exact, x.size, at, largest ? fmax(sum, value) : sum + value);
    }
    return true;
}

/* The same memory with other sizes and strides. */
static bool rig_reshape(cudnnBackendDescriptor_t op, rig_memory *memory) {
    rig_tensor x, y;
    if (!rig_tensor_of(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &x)) return false;
    assert_true(rig_tensor_of(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &y));
    assert_non_null(memory[x.id].data);
    memory[y.id] = memory[x.id];
    memory[y.id].own = false;
    return true;
}

static double rig_pointwise_value(cudnnPointwiseMode_t mode, double x, double b, double t,
                                  int64_t index) {
    switch (mode) {
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return exp(x);
    case CUDNN_POINTWISE_LOG: return log(x);
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    case CUDNN_POINTWISE_GEN_INDEX: return (double)index;
    default: fail_msg("the rig knows no point-wise mode %d", (int)mode);
    }
    return NAN;
}

static bool rig_pointwise(cudnnBackendDescriptor_t op, rig_memory *memory) {
    rig_tensor x, b, t, y;
    cudnnBackendDescriptor_t how;
    cudnnPointwiseMode_t mode;
    int64_t axis = 0;
    if (!rig_tensor_of(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &x)) return false;
    bool has_b = rig_tensor_of(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &b);
    bool has_t = rig_tensor_of(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, &t);
    assert_true(rig_tensor_of(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &y));
    assert_true(RIG_GET(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how));
    assert_true(RIG_GET(how, CUDNN_ATTR_POINTWISE_MODE, mode));
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        assert_true(RIG_GET(how, CUDNN_ATTR_POINTWISE_AXIS, axis));
    RIG_FOR(at, y.size)
    rig_store(memory, &y, y.size, at,
              rig_pointwise_value(mode, rig_load(memory, &x, y.size, at),
                                  has_b ? rig_load(memory, &b, y.size, at) : 0,
                                  has_t ? rig_load(memory, &t, y.size, at) : 0, at[axis]));
    return true;
}

/* Carries out the graph's operations in their order on `tensors`, whose types are bf16 or, for the
 * statistics and the sums, f32. */
static void rig_run(const tr_attention_graph *graph, void *const tensors[TR_ATTENTION_TENSORS]) {
    rig_memory memory[RIG_IDS] = {{0}};
    int operations = 0;
    for (int i = 0; i < TR_ATTENTION_TENSORS; i++) {
        bool f32 = i == TR_ATTENTION_STATS || i == TR_ATTENTION_ROW_SUM || i == TR_ATTENTION_DQ_SUM;
        memory[1 + i] = (rig_memory){tensors[i], f32 ? TR_F32 : TR_BF16, false};
    }
    for (int i = TR_ATTENTION_SCALE; i < TR_ATTENTION_IDS; i++)
        memory[1 + i] =
            (rig_memory){(void *)&graph->scalars[i - TR_ATTENTION_SCALE], TR_F32, false};
    for (size_t i = 0; i < graph->part_count; i++) {
        cudnnBackendDescriptor_t part = graph->parts[i];
        operations += rig_product(part, memory) || rig_reduction(part, memory) ||
                      rig_reshape(part, memory) || rig_pointwise(part, memory);
    }
    assert_true(operations >= 14);
    for (int i = 0; i < RIG_IDS; i++)
        if (memory[i].own) free(memory[i].data);
}
