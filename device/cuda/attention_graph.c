#include "device/cuda/attention_graph.h"
#include "base/memory.h"
#include "device/elementwise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t descriptor;

/* Tensors from here on are virtual. */
enum { FIRST_VIRTUAL = TR_ATTENTION_IDS };
enum { MAX_OPS = 32, RANK = 4 };

/* Dimensions {batch, heads, rows, columns} and strides. */
typedef struct dims {
    int64_t size[RANK], stride[RANK];
} dims;

/* A graph under construction. After a failure all functions do nothing, so the code of a graph
 * reads like its formulas, and the status is checked once. */
typedef struct builder {
    tr_attention_graph *graph;
    tr_status status;
    bool refused; /* the library reported that it has no such engine */
    descriptor ops[MAX_OPS];
    int64_t op_count, next_virtual;
} builder;

/* --- descriptors ------------------------------------------------------------------------------ */

/* Returns true when the library does not support the request; other failures come from the machine
 * or the installation. */
static bool refuses(cudnnStatus_t status) {
    switch (status) {
    case CUDNN_STATUS_NOT_SUPPORTED:
    case CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN:
    case CUDNN_STATUS_NOT_SUPPORTED_SHAPE:
    case CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE:
    case CUDNN_STATUS_NOT_SUPPORTED_LAYOUT:
    case CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH:
    case CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT:
    case CUDNN_STATUS_NOT_SUPPORTED_PADDING: return true;
    default: return false;
    }
}

static tr_status failure(cudnnStatus_t status, const char *what, int line) {
    char words[1024] = "";
    cudnnGetLastErrorString(words, sizeof words);
    return tr_fail_at(__FILE__, line, TR_ERR_DEVICE, "cuDNN: %s failed: %s (%s)", what,
                      cudnnGetErrorString(status), words);
}
#define DNN(b, expr)                                                                               \
    do {                                                                                           \
        if ((b)->status != TR_OK) break;                                                           \
        cudnnStatus_t dnn_ = (expr);                                                               \
        if (dnn_ == CUDNN_STATUS_SUCCESS) break;                                                   \
        (b)->status = failure(dnn_, #expr, __LINE__);                                              \
        (b)->refused = refuses(dnn_);                                                              \
    } while (0)

/* Makes a descriptor, which belongs to the graph at once. */
static descriptor make(builder *b, cudnnBackendDescriptorType_t type) {
    tr_attention_graph *g = b->graph;
    descriptor made = NULL;
    if (b->status == TR_OK)
        b->status = tr_grow(&g->parts, &g->part_capacity, g->part_count + 1, sizeof *g->parts);
    DNN(b, cudnnBackendCreateDescriptor(type, &made));
    if (made) g->parts[g->part_count++] = made;
    return made;
}

static void set(builder *b, descriptor d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    DNN(b, cudnnBackendSetAttribute(d, name, type, count, values));
}
static void set_part(builder *b, descriptor d, cudnnBackendAttributeName_t name, descriptor part) {
    set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}
static void set_type(builder *b, descriptor d, cudnnBackendAttributeName_t name,
                     cudnnDataType_t type) {
    set(b, d, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}
static void set_int(builder *b, descriptor d, cudnnBackendAttributeName_t name, int64_t value) {
    set(b, d, name, CUDNN_TYPE_INT64, 1, &value);
}
static void finalize(builder *b, descriptor d) {
    DNN(b, cudnnBackendFinalize(d));
}

/* --- tensors ---------------------------------------------------------------------------------- */

static dims dense(int64_t a, int64_t b, int64_t c, int64_t d) {
    return (dims){{a, b, c, d}, {b * c * d, c * d, d, 1}};
}
static dims strided(const tr_attention_shape *s, int64_t heads, tr_attention_strides by) {
    return (dims){{s->batch, heads, s->seq, s->head_size}, {by.sequence, by.head, by.position, 1}};
}
static dims transposed(dims d) {
    return (dims){{d.size[0], d.size[1], d.size[3], d.size[2]},
                  {d.stride[0], d.stride[1], d.stride[3], d.stride[2]}};
}

static descriptor tensor(builder *b, dims d, cudnnDataType_t type, int64_t id) {
    descriptor t = make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    bool is_virtual = id >= FIRST_VIRTUAL;
    bool by_value = id >= TR_ATTENTION_SCALE && !is_virtual;
    set_type(b, t, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set(b, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, RANK, d.size);
    set(b, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, RANK, d.stride);
    set_int(b, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1 + id);
    set_int(b, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);
    set(b, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(b, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(b, t);
    return t;
}
/* Makes a value inside the graph, without memory. */
static descriptor value(builder *b, dims d, cudnnDataType_t type) {
    return tensor(b, d, type, b->next_virtual++);
}
static descriptor scalar(builder *b, int64_t id) {
    return tensor(b, dense(1, 1, 1, 1), CUDNN_DATA_FLOAT, id);
}

/* --- operations ------------------------------------------------------------------------------- */

static void add_op(builder *b, descriptor op) {
    finalize(b, op);
    if (b->status == TR_OK && b->op_count == MAX_OPS)
        b->status = TR_FAIL(TR_ERR_INTERNAL, "an attention graph has more than %d operations",
                            (int)MAX_OPS);
    if (b->status == TR_OK) b->ops[b->op_count++] = op;
}

/* c = x y, per batch and head; fewer heads of y are shared. */
static void product(builder *b, descriptor x, descriptor y, descriptor c) {
    descriptor how = make(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_type(b, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finalize(b, how);
    descriptor op = make(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_part(b, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    set_part(b, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y);
    set_part(b, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_part(b, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    add_op(b, op);
}

/* y = mode(x, other, mask), computed in `math`; other and mask may be NULL, axis -1 for none. */
static void pointwise(builder *b, cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis,
                      descriptor x, descriptor other, descriptor mask, descriptor y) {
    descriptor how = make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(b, how, CUDNN_ATTR_POINTWISE_MATH_PREC, math);
    if (axis >= 0) set_int(b, how, CUDNN_ATTR_POINTWISE_AXIS, axis);
    finalize(b, how);
    descriptor op = make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_part(b, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_part(b, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (other) set_part(b, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other);
    if (mask) set_part(b, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, mask);
    set_part(b, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(b, op);
}
/* Makes a new FP32 value of x and other (or NULL). */
static descriptor compute(builder *b, dims d, cudnnPointwiseMode_t mode, descriptor x,
                          descriptor other) {
    descriptor y = value(b, d, CUDNN_DATA_FLOAT);
    pointwise(b, mode, CUDNN_DATA_FLOAT, -1, x, other, NULL, y);
    return y;
}

/* y = x reduced over the dimensions that y lacks. */
static void reduce(builder *b, cudnnReduceTensorOp_t by, descriptor x, descriptor y) {
    descriptor how = make(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &by);
    set_type(b, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    finalize(b, how);
    descriptor op = make(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_part(b, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_part(b, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_part(b, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    add_op(b, op);
}

/* x with other dimensions or strides: how the engines' patterns spell a transposition. */
static descriptor reshaped(builder *b, descriptor x, dims d, cudnnDataType_t type) {
    descriptor y = value(b, d, type);
    descriptor op = make(b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_part(b, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_part(b, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(b, op);
    return y;
}

/* scores where a >= b, -infinity elsewhere. */
static descriptor where(builder *b, dims square, descriptor scores, descriptor a,
                        descriptor other) {
    descriptor seen = value(b, square, CUDNN_DATA_BOOLEAN);
    descriptor masked = value(b, square, CUDNN_DATA_FLOAT);
    pointwise(b, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, a, other, NULL, seen);
    pointwise(b, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, scores,
              scalar(b, TR_ATTENTION_MASKED), seen, masked);
    return masked;
}

static descriptor index_of(builder *b, dims square, descriptor scores, int64_t axis) {
    descriptor index = value(b, square, CUDNN_DATA_INT32);
    pointwise(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis, scores, NULL, NULL, index);
    return index;
}

/* scores where query >= key, and key >= FIRST of the query, -infinity elsewhere: two selections,
 * because the engines do not support a conjunction. */
static descriptor visible(builder *b, dims square, descriptor scores) {
    const tr_attention_shape *s = &b->graph->shape;
    descriptor query = index_of(b, square, scores, 2), key = index_of(b, square, scores, 3);
    descriptor causal = where(b, square, scores, query, key);
    if (!s->masked) return causal;
    descriptor first =
        tensor(b, dense(s->batch, 1, s->seq, 1), CUDNN_DATA_INT32, TR_ATTENTION_FIRST);
    return where(b, square, causal, index_of(b, square, causal, 3), first);
}

/* --- the two graphs --------------------------------------------------------------------------- */

static const cudnnDataType_t F32 = CUDNN_DATA_FLOAT, BF16 = CUDNN_DATA_BFLOAT16;

/* O = softmax(mask(scale Q K')) V, STATS = log-sum-exp of the rows. */
static void build_forward(builder *b) {
    const tr_attention_shape *s = &b->graph->shape;
    dims q = strided(s, s->heads, s->q), kv = strided(s, s->kv_heads, s->kv);
    dims square = dense(s->batch, s->heads, s->seq, s->seq);
    dims row = dense(s->batch, s->heads, s->seq, 1);
    descriptor dot = value(b, square, F32);
    product(b, tensor(b, q, BF16, TR_ATTENTION_Q), tensor(b, transposed(kv), BF16, TR_ATTENTION_K),
            dot);
    descriptor scaled = compute(b, square, CUDNN_POINTWISE_MUL, dot, scalar(b, TR_ATTENTION_SCALE));
    descriptor scores = visible(b, square, scaled);
    descriptor largest = value(b, row, F32), sum = value(b, row, F32);
    reduce(b, CUDNN_REDUCE_TENSOR_MAX, scores, largest);
    descriptor shifted = compute(b, square, CUDNN_POINTWISE_SUB, scores, largest);
    descriptor weights = compute(b, square, CUDNN_POINTWISE_EXP, shifted, NULL);
    reduce(b, CUDNN_REDUCE_TENSOR_ADD, weights, sum);
    descriptor log_sum = compute(b, row, CUDNN_POINTWISE_LOG, sum, NULL);
    pointwise(b, CUDNN_POINTWISE_ADD, F32, -1, largest, log_sum, NULL,
              tensor(b, row, F32, TR_ATTENTION_STATS));
    descriptor p = value(b, square, BF16);
    pointwise(b, CUDNN_POINTWISE_DIV, F32, -1, weights, sum, NULL, p);
    product(b, p, tensor(b, kv, BF16, TR_ATTENTION_V),
            tensor(b, strided(s, s->heads, s->y), BF16, TR_ATTENTION_O));
}

/* gradient[batch, kv_heads, seq, head_size] = weights' x; query heads that share a key are
 * added. */
static void shared_product(builder *b, descriptor weights, descriptor x, int64_t id) {
    const tr_attention_shape *s = &b->graph->shape;
    descriptor gradient = tensor(b, strided(s, s->kv_heads, s->kv), BF16, id);
    if (s->heads == s->kv_heads) {
        product(b, weights, x, gradient);
        return;
    }
    descriptor each = value(b, dense(s->batch, s->heads, s->seq, s->head_size), BF16);
    product(b, weights, x, each);
    reduce(b, CUDNN_REDUCE_TENSOR_ADD, each, gradient);
}

/* Dao et al. 2022, algorithm 4: P from the scores and STATS; dV = P' dO; dS = P (dO V' - rowsum(dO
 * O)) scale; dK = dS' Q; dQ = dS K, in one product when deterministic, else as an FP32 sum that
 * several blocks add to. */
static void build_backward(builder *b) {
    const tr_attention_shape *s = &b->graph->shape;
    dims y = strided(s, s->heads, s->y), kv = strided(s, s->kv_heads, s->kv);
    dims square = dense(s->batch, s->heads, s->seq, s->seq);
    dims row = dense(s->batch, s->heads, s->seq, 1);
    descriptor q = tensor(b, strided(s, s->heads, s->q), BF16, TR_ATTENTION_Q);
    descriptor k = tensor(b, transposed(kv), BF16, TR_ATTENTION_K);
    descriptor d_o = tensor(b, y, BF16, TR_ATTENTION_DO);

    dims by_position = {
        {s->batch, s->heads, s->seq, s->head_size},
        {s->heads * s->seq * s->head_size, s->seq * s->head_size, s->heads * s->head_size, 1}};
    descriptor both =
        compute(b, by_position, CUDNN_POINTWISE_MUL, d_o, tensor(b, y, BF16, TR_ATTENTION_O));
    descriptor summed = value(b, row, F32);
    descriptor row_sum = tensor(b, row, F32, TR_ATTENTION_ROW_SUM);
    reduce(b, CUDNN_REDUCE_TENSOR_ADD, both, summed);
    pointwise(b, CUDNN_POINTWISE_MUL, F32, -1, summed, scalar(b, TR_ATTENTION_ONE), NULL, row_sum);

    descriptor scale = scalar(b, TR_ATTENTION_SCALE), dot = value(b, square, F32);
    product(b, q, k, dot);
    descriptor scaled = compute(b, square, CUDNN_POINTWISE_MUL, dot, scale);
    descriptor shifted =
        compute(b, square, CUDNN_POINTWISE_SUB, scaled, tensor(b, row, F32, TR_ATTENTION_STATS));
    descriptor p = compute(b, square, CUDNN_POINTWISE_EXP, visible(b, square, shifted), NULL);
    shared_product(b, reshaped(b, p, transposed(square), BF16), d_o, TR_ATTENTION_DV);

    descriptor dp = value(b, square, F32), ds = value(b, square, BF16);
    product(b, d_o, tensor(b, transposed(kv), BF16, TR_ATTENTION_V), dp);
    descriptor centred = compute(b, square, CUDNN_POINTWISE_SUB, dp, row_sum);
    descriptor weighted = compute(b, square, CUDNN_POINTWISE_MUL, centred, p);
    pointwise(b, CUDNN_POINTWISE_MUL, F32, -1, weighted, scale, NULL, ds);
    shared_product(b, reshaped(b, ds, transposed(square), BF16), q, TR_ATTENTION_DK);

    descriptor dq = tensor(b, strided(s, s->heads, s->q), BF16, TR_ATTENTION_DQ);
    descriptor keys = reshaped(b, k, kv, BF16);
    if (s->deterministic) {
        product(b, ds, keys, dq);
        return;
    }
    descriptor sum =
        tensor(b, dense(s->batch, s->heads, s->seq, s->head_size), F32, TR_ATTENTION_DQ_SUM);
    product(b, ds, keys, sum);
    pointwise(b, CUDNN_POINTWISE_IDENTITY, F32, -1, sum, NULL, NULL, dq);
}

/* --- the choice of an engine ------------------------------------------------------------------ */

/* Returns false for an engine that may give different results from run to run. */
static bool is_deterministic(builder *b, descriptor engine) {
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0;
    DNN(b, cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                    CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                    &count, notes));
    for (int64_t i = 0; i < count; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
    return true;
}

/* Returns the engine of a configuration, and its number. */
static descriptor engine_of(builder *b, descriptor config, int64_t *number) {
    int64_t count = 0;
    descriptor engine = make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    DNN(b, cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine));
    DNN(b, cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                    &count, number));
    return engine;
}

/* Finishes the plan of one engine configuration, which compiles its kernels. The graph has no plan
 * when the engine cannot be used, which can happen although the library listed it. Sets *failed for
 * a failure that is not a refusal, with the library's message as the error. */
static void try_config(builder *b, cudnnHandle_t handle, descriptor described, descriptor config,
                       descriptor engine, tr_status *failed) {
    tr_attention_graph *g = b->graph;
    int64_t count = 0, bytes = 0;
    if (g->shape.deterministic && !is_deterministic(b, engine)) return;
    descriptor plan = make(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_part(b, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (handle) set(b, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    else set_part(b, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, described);
    if (b->status != TR_OK) return;
    cudnnStatus_t status = cudnnBackendFinalize(plan);
    if (refuses(status)) return;
    if (status != CUDNN_STATUS_SUCCESS) {
        *failed = failure(status, "a plan of attention", __LINE__);
        return;
    }
    DNN(b, cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                    CUDNN_TYPE_INT64, 1, &count, &bytes));
    g->plan = plan;
    g->workspace_bytes = (size_t)bytes;
}

/* Chooses the configuration that the shape asks for: without a number the first, in the heuristic's
 * order, for which a plan can be finished. */
static void choose(builder *b, cudnnHandle_t handle, descriptor described, descriptor graph) {
    descriptor heuristic = make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    set_part(b, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(b, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (described) set_part(b, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, described);
    finalize(b, heuristic);
    tr_attention_graph *g = b->graph;
    descriptor configs[TR_ATTENTION_CONFIGS];
    int64_t count = 0;
    for (int i = 0; i < TR_ATTENTION_CONFIGS; i++)
        configs[i] = make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    DNN(b, cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, TR_ATTENTION_CONFIGS, &count,
                                    configs));
    tr_status failed = TR_OK;
    for (int i = 0; i < count && i < TR_ATTENTION_CONFIGS && b->status == TR_OK; i++) {
        descriptor engine = engine_of(b, configs[i], &g->engine[g->configs++]);
        if (g->plan || (g->shape.config && g->shape.config != i + 1)) continue;
        try_config(b, handle, described, configs[i], engine, &failed);
        g->config = i + 1;
    }
    if (b->status != TR_OK || g->plan) return;
    b->status = failed;
    b->refused = failed == TR_OK;
}

static descriptor describe_device(builder *b, const char *json) {
    descriptor described = make(b, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(b, described, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
        (int64_t)strlen(json), json);
    finalize(b, described);
    return described;
}

/* --- interface -------------------------------------------------------------------------------- */

tr_attention_shape tr_cudnn_attention_packed(const tr_attention_desc *d, bool backward,
                                             bool deterministic) {
    const int64_t row = tr_attention_row(d), width = d->heads * d->head_size;
    const tr_attention_strides packed = {
        .sequence = d->seq * row, .head = d->head_size, .position = row};
    return (tr_attention_shape){
        .batch = d->batch,
        .seq = d->seq,
        .heads = d->heads,
        .kv_heads = d->kv_heads,
        .head_size = d->head_size,
        .q = packed,
        .kv = packed,
        .y = {.sequence = d->seq * width, .head = d->head_size, .position = width},
        .scale = tr_attention_scale(d),
        .dtype = d->dtype,
        .masked = d->documents || (d->window > 0 && d->window < d->seq),
        .backward = backward,
        .deterministic = deterministic};
}

/* cuDNN also makes plans for every multiple of 8 and for 2 tokens. Only these shapes are in common
 * use; the results of the rest have not been checked on a GPU. */
bool tr_cudnn_attention_takes(const tr_attention_shape *s) {
    const bool size = s->head_size == 64 || s->head_size == 96 || s->head_size == 128;
    return s->dtype == TR_BF16 && size && s->seq >= 64;
}

tr_status tr_cudnn_attention_build(cudnnHandle_t handle, const char *described,
                                   const tr_attention_shape *shape, tr_attention_graph **out) {
    enum {
        OLDEST = 91600
    }; /* earlier versions gave wrong gradients for sequences that are not a multiple of 128 */
    *out = NULL;
    if (!tr_cudnn_attention_takes(shape)) return TR_OK;
    if (cudnnGetVersion() < OLDEST)
        return TR_FAIL(TR_ERR_DEVICE,
                       "cuDNN %zu is too old for attention: install 9.16.0 (%d) or later",
                       cudnnGetVersion(), (int)OLDEST);
    tr_attention_graph *g;
    TR_TRY(tr_calloc(1, sizeof *g, &g));
    g->shape = *shape;
    g->scalars[0] = shape->scale;
    g->scalars[TR_ATTENTION_MASKED - TR_ATTENTION_SCALE] = -INFINITY;
    g->scalars[TR_ATTENTION_ONE - TR_ATTENTION_SCALE] = 1;
    size_t rows = (size_t)(shape->batch * shape->heads * shape->seq);
    if (shape->masked) g->first_bytes = (size_t)(shape->batch * shape->seq) * sizeof(int32_t);
    if (shape->backward) g->row_sum_bytes = rows * sizeof(float);
    if (shape->backward && !shape->deterministic)
        g->dq_sum_bytes = rows * (size_t)shape->head_size * sizeof(float);

    builder b = {.graph = g, .next_virtual = FIRST_VIRTUAL};
    descriptor device = handle ? NULL : describe_device(&b, described);
    if (shape->backward) build_backward(&b);
    else build_forward(&b);
    descriptor graph = make(&b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (handle) set(&b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(&b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b.op_count, b.ops);
    finalize(&b, graph);
    choose(&b, handle, device, graph);
    if (b.status == TR_OK && !b.refused) {
        *out = g;
        return TR_OK;
    }
    tr_cudnn_attention_release(g);
    if (!b.refused) TR_TRY(b.status);
    tr_error_clear();
    return TR_OK;
}

void tr_cudnn_attention_release(tr_attention_graph *graph) {
    if (!graph) return;
    while (graph->part_count > 0)
        (void)cudnnBackendDestroyDescriptor(graph->parts[--graph->part_count]);
    free(graph->parts);
    free(graph);
}

tr_status tr_cudnn_attention_run(const tr_attention_graph *graph, cudnnHandle_t handle,
                                 void *const tensors[TR_ATTENTION_TENSORS], void *workspace) {
    const tr_attention_shape *s = &graph->shape;
    void *pointers[TR_ATTENTION_IDS];
    int64_t ids[TR_ATTENTION_IDS], count = 0;
    for (int64_t id = 0; id < TR_ATTENTION_IDS; id++) {
        bool backward =
            (id > TR_ATTENTION_STATS && id < TR_ATTENTION_FIRST) || id == TR_ATTENTION_ONE;
        if (backward && !s->backward) continue;
        if (id == TR_ATTENTION_DQ_SUM && s->deterministic) continue;
        if (id == TR_ATTENTION_FIRST && !s->masked) continue;
        pointers[count] = id < TR_ATTENTION_SCALE
                              ? tensors[id]
                              : (void *)&graph->scalars[id - TR_ATTENTION_SCALE];
        ids[count++] = 1 + id;
    }
    descriptor pack = NULL;
    cudnnStatus_t status =
        cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                          CUDNN_TYPE_VOID_PTR, count, pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                          CUDNN_TYPE_INT64, count, ids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                          CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendExecute(handle, graph->plan, pack);
    tr_status result =
        status == CUDNN_STATUS_SUCCESS ? TR_OK : failure(status, "attention", __LINE__);
    if (pack) (void)cudnnBackendDestroyDescriptor(pack);
    return result;
}
