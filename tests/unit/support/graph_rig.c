#include "support/graph_rig.h"

#include "device/cuda/launch.h"
#include "support/op_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RIG_IDS = 128, RIG_RANK = 4, RIG_GRAPHS = 128 };

/* The memory of a tensor, by its unique id; the rig allocates and frees that of virtual tensors. */
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
typedef struct rig_setting {
    cudnnBackendDescriptor_t descriptor;
    cudnnBackendAttributeName_t name;
    size_t bytes;
    char value[TR_ATTENTION_IDS * sizeof(void *)];
} rig_setting;

enum { RIG_TOLD = 4096 };

#define RIG_GET(descriptor, name, variable)                                                        \
    rig_get((descriptor), (name), sizeof(variable), &(variable))

/* Calls body(at) for each index of a tensor of these sizes. */
#define RIG_FOR(at, of) for (int64_t at[RIG_RANK] = {0}; at[0] < (of)[0]; rig_next(at, of))

cudnnHandle_t const rig_handle = (cudnnHandle_t) & (char){0};

cudaStream_t rig_stream;
int64_t rig_executions;

const char *rig_described;
static const tr_attention_graph *rig_graphs[RIG_GRAPHS]; /* built: the newest last */
static int rig_graph_count;

static rig_setting rig_book[RIG_TOLD];

static int rig_entries;

static size_t rig_size_of(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_CHAR:
    case CUDNN_TYPE_BOOLEAN: return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4;
    }
}

/* The library's own functions. */
static __typeof__(tr_cudnnBackendSetAttribute) rig_library_set;

static __typeof__(tr_cudnnBackendDestroyDescriptor) rig_library_destroy;

static cudnnStatus_t rig_set_attribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values) {
    size_t bytes = (size_t)count * rig_size_of(type);
    if (bytes <= sizeof rig_book->value) {
        assert_true(rig_entries < RIG_TOLD);
        rig_setting *told = &rig_book[rig_entries++];
        *told = (rig_setting){descriptor, name, bytes, {0}};
        memcpy(told->value, values, bytes);
    }
    return rig_library_set(descriptor, name, type, count, values);
}

/* Forgets the descriptor's attributes, because another one may get its address. */
static cudnnStatus_t rig_destroy_descriptor(cudnnBackendDescriptor_t descriptor) {
    int kept = 0;
    for (int i = 0; i < rig_entries; i++)
        if (rig_book[i].descriptor != descriptor) rig_book[kept++] = rig_book[i];
    rig_entries = kept;
    return rig_library_destroy(descriptor);
}

static const rig_setting *rig_find(cudnnBackendDescriptor_t descriptor,
                                   cudnnBackendAttributeName_t name) {
    for (int i = 0; i < rig_entries; i++)
        if (rig_book[i].descriptor == descriptor && rig_book[i].name == name) return &rig_book[i];
    return NULL;
}

/* Reads an attribute as it was set; false when the descriptor has none. */
static bool rig_get(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                    size_t bytes, void *value) {
    const rig_setting *told = rig_find(descriptor, name);
    memset(value, 0, bytes);
    if (!told) return false;
    assert_int_equal(told->bytes, bytes);
    memcpy(value, told->value, bytes);
    return true;
}

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

/* Returns the offset in t of element `at` of a tensor with sizes `of`: dimensions of size 1 in t
 * are broadcast, and a smaller dimension of t serves several indices in a row. */
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

/* Gives the output the same memory with other sizes and strides. */
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
    default: fail_msg("the rig does not implement point-wise mode %d", (int)mode);
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

/* Returns true when a tensor of the graph has this id. */
static bool rig_has(const tr_attention_graph *graph, int64_t id) {
    for (size_t i = 0; i < graph->part_count; i++) {
        int64_t own;
        if (RIG_GET(graph->parts[i], CUDNN_ATTR_TENSOR_UNIQUE_ID, own) && own == id) return true;
    }
    return false;
}

/* Reads from a variant pack the memory of the graph's tensors, which must be exactly those that it
 * has. */
static void rig_unpack(const tr_attention_graph *graph, cudnnBackendDescriptor_t pack,
                       rig_memory memory[RIG_IDS]) {
    const rig_setting *ids = rig_find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const rig_setting *pointers = rig_find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    assert_true(ids && pointers && ids->bytes == pointers->bytes);
    for (size_t i = 0; i < ids->bytes / 8; i++) {
        int64_t id;
        void *data;
        memcpy(&id, ids->value + 8 * i, 8);
        memcpy(&data, pointers->value + 8 * i, 8);
        assert_true(id > 0 && id <= TR_ATTENTION_IDS && rig_has(graph, id));
        assert_non_null(data);
        bool f32 = id - 1 == TR_ATTENTION_STATS || id - 1 >= TR_ATTENTION_ROW_SUM;
        tr_dtype dtype = f32 ? TR_F32 : TR_BF16;
        if (id - 1 == TR_ATTENTION_FIRST) dtype = TR_I32;
        memory[id] = (rig_memory){data, dtype, false};
    }
}

/* Fails unless the row sums follow the workspace, and the sums of dQ the row sums, without
 * overlap. */
static void rig_check_scratch(const tr_attention_graph *graph, cudnnBackendDescriptor_t pack,
                              const rig_memory memory[RIG_IDS]) {
    char *workspace;
    assert_true(RIG_GET(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace));
    if (!graph->row_sum_bytes) return;
    const char *row_sum = memory[1 + TR_ATTENTION_ROW_SUM].data;
    assert_true(row_sum >= workspace + graph->workspace_bytes);
    if (graph->dq_sum_bytes)
        assert_true((char *)memory[1 + TR_ATTENTION_DQ_SUM].data >= row_sum + graph->row_sum_bytes);
}

/* Executes the graph's operations in their order. */
static cudnnStatus_t rig_execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                 cudnnBackendDescriptor_t pack) {
    rig_memory memory[RIG_IDS] = {{0}};
    int operations = 0, which = rig_graph_count - 1;
    while (which >= 0 && rig_graphs[which]->plan != plan) which--;
    assert_true(which >= 0);
    assert_ptr_equal(handle, rig_handle);
    const tr_attention_graph *graph = rig_graphs[which];
    rig_unpack(graph, pack, memory);
    rig_check_scratch(graph, pack, memory);
    for (size_t i = 0; i < graph->part_count; i++) {
        cudnnBackendDescriptor_t part = graph->parts[i];
        operations += rig_product(part, memory) || rig_reduction(part, memory) ||
                      rig_reshape(part, memory) || rig_pointwise(part, memory);
    }
    assert_true(operations >= 14);
    for (int i = 0; i < RIG_IDS; i++)
        if (memory[i].own) free(memory[i].data);
    rig_executions++;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t rig_get_stream(cudnnHandle_t handle, cudaStream_t *stream) {
    assert_ptr_equal(handle, rig_handle);
    *stream = rig_stream;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t rig_set_stream(cudnnHandle_t handle, cudaStream_t stream) {
    assert_ptr_equal(handle, rig_handle);
    rig_stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

void rig_enter(void) {
    if (tr_cuda_open_libraries() != TR_OK) fail_msg("%s", tr_error_message());
    rig_library_set = tr_cudnnBackendSetAttribute;
    rig_library_destroy = tr_cudnnBackendDestroyDescriptor;
    tr_cudnnBackendSetAttribute = rig_set_attribute;
    tr_cudnnBackendDestroyDescriptor = rig_destroy_descriptor;
    tr_cudnnBackendExecute = rig_execute;
    tr_cudnnGetStream = rig_get_stream;
    tr_cudnnSetStream = rig_set_stream;
}

/* The linker sends the calls of the function here, and those of __real_ to it. */
tr_status __real_tr_cudnn_attention_build(cudnnHandle_t handle, const char *described,
                                          const tr_attention_shape *shape,
                                          tr_attention_graph **out);
tr_status __wrap_tr_cudnn_attention_build(cudnnHandle_t handle, const char *described,
                                          const tr_attention_shape *shape,
                                          tr_attention_graph **out);
tr_status __wrap_tr_cudnn_attention_build(cudnnHandle_t handle, const char *described,
                                          const tr_attention_shape *shape,
                                          tr_attention_graph **out) {
    bool here = handle == rig_handle;
    tr_status status = __real_tr_cudnn_attention_build(
        here ? NULL : handle, here ? rig_described : described, shape, out);
    if (status != TR_OK) return status;
    assert_true(rig_graph_count < RIG_GRAPHS);
    rig_graphs[rig_graph_count++] = *out;
    return TR_OK;
}

cudaError_t __wrap_tr_cuda_launch_attention_first(cudaStream_t stream, const tr_attention_desc *d,
                                                  const int32_t *starts, int32_t *first);
cudaError_t __wrap_tr_cuda_launch_attention_first(cudaStream_t stream, const tr_attention_desc *d,
                                                  const int32_t *starts, int32_t *first) {
    assert_ptr_equal(stream, rig_stream);
    for (int64_t i = 0; i < d->batch * d->seq; i++)
        first[i] = (int32_t)tr_attention_first(d, i % d->seq, starts ? starts[i] : 0);
    return cudaSuccess;
}
