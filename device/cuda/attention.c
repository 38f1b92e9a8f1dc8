/* ATTENTION and ATTENTION_DGRAD: cuDNN's engines for the shapes that they support
 * (attention_graph.h), the program's own kernels (attention_own.c) for all others. */
#include "base/memory.h"
#include "device/cuda/attention_graph.h"
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cuda_attention {
    tr_op base;
    tr_attention_graph *graph;
} cuda_attention;

static void release_attention(tr_op *base) {
    tr_cudnn_attention_release(((cuda_attention *)base)->graph);
    free(base);
}

/* Runs the plan on a stream, to which the handle stays bound. Scratch has the library's part, then
 * the plan's two sums and the first tokens. */
static tr_status run_graph(tr_op *base, tr_stream *stream, void **tensors, const int32_t *starts,
                           char *scratch) {
    const tr_attention_graph *g = ((cuda_attention *)base)->graph;
    const tr_attention_desc *d = &base->desc.attention;
    cudnnHandle_t dnn = tr_cuda_device_of(base->context.device)->dnn;
    cudaStream_t bound = NULL;
    cudnnStatus_t status = cudnnGetStream(dnn, &bound);
    if (status == CUDNN_STATUS_SUCCESS && bound != tr_cuda_stream_of(stream))
        status = cudnnSetStream(dnn, tr_cuda_stream_of(stream));
    if (status != CUDNN_STATUS_SUCCESS)
        return TR_FAIL(TR_ERR_DEVICE, "cuDNN refused a stream: %s", cudnnGetErrorString(status));
    char *row_sum = scratch + tr_align_up(g->workspace_bytes);
    char *dq_sum = row_sum + tr_align_up(g->row_sum_bytes);
    char *first = dq_sum + tr_align_up(g->dq_sum_bytes);
    tensors[TR_ATTENTION_ROW_SUM] = row_sum;
    tensors[TR_ATTENTION_DQ_SUM] = dq_sum;
    tensors[TR_ATTENTION_FIRST] = first;
    if (g->shape.masked)
        TR_CUDA(tr_cuda_launch_attention_first(
            tr_cuda_stream_of(stream), d, d->documents ? starts : NULL, (int32_t *)(void *)first));
    TR_TRY(tr_cudnn_attention_run(g, dnn, tensors, scratch));
    return TR_OK;
}

/* Finds q, k and v, or their gradients, in one packed tensor. */
static void unpack(const tr_op *op, void *packed, void **q, void **k, void **v) {
    const tr_attention_desc *d = &op->desc.attention;
    const size_t head = (size_t)d->head_size * tr_dtype_size(d->dtype);
    *q = packed;
    *k = (char *)packed + (size_t)d->heads * head;
    *v = (char *)packed + (size_t)(d->heads + d->kv_heads) * head;
}

/* Names a configuration by its place in the heuristic's order and its engine: "2:engine8". Its
 * other choices follow from the place, with one version of cuDNN. */
static void name_plan(const tr_attention_graph *g, int config, char name[TR_PLAN_NAME]) {
    (void)snprintf(name, TR_PLAN_NAME, "%d:engine%lld", config, (long long)g->engine[config - 1]);
}

static tr_status prepare_graph(const tr_op_context *context, const tr_op_desc *desc,
                               const tr_attention_shape *shape, tr_op **out);

static tr_status run_forward_graph(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    void *t[TR_ATTENTION_TENSORS] = {[TR_ATTENTION_O] = args->t[TR_ATTENTION_Y].data,
                                     [TR_ATTENTION_STATS] = args->t[TR_ATTENTION_LSE].data};
    unpack(op, args->t[TR_ATTENTION_QKV].data, &t[TR_ATTENTION_Q], &t[TR_ATTENTION_K],
           &t[TR_ATTENTION_V]);
    TR_TRY(run_graph(op, stream, t, args->t[TR_ATTENTION_STARTS].data, args->scratch));
    return TR_OK;
}

static tr_status run_backward_graph(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    void *t[TR_ATTENTION_TENSORS] = {[TR_ATTENTION_O] = args->t[TR_ATTENTION_DGRAD_Y].data,
                                     [TR_ATTENTION_STATS] = args->t[TR_ATTENTION_DGRAD_LSE].data,
                                     [TR_ATTENTION_DO] = args->t[TR_ATTENTION_DGRAD_DY].data};
    unpack(op, args->t[TR_ATTENTION_DGRAD_QKV].data, &t[TR_ATTENTION_Q], &t[TR_ATTENTION_K],
           &t[TR_ATTENTION_V]);
    unpack(op, args->t[TR_ATTENTION_DGRAD_DQKV].data, &t[TR_ATTENTION_DQ], &t[TR_ATTENTION_DK],
           &t[TR_ATTENTION_DV]);
    TR_TRY(run_graph(op, stream, t, args->t[TR_ATTENTION_DGRAD_STARTS].data, args->scratch));
    return TR_OK;
}

static tr_status list_plans(const tr_op *base, tr_plan_names *names) {
    const tr_attention_graph *g = ((const cuda_attention *)base)->graph;
    char name[TR_PLAN_NAME];
    for (int i = 1; i <= g->configs; i++) {
        name_plan(g, i, name);
        tr_plan_names_add(names, name);
    }
    return TR_OK;
}

static tr_status make_plan(const tr_op *base, const char *name, tr_op **out) {
    const tr_attention_graph *g = ((const cuda_attention *)base)->graph;
    tr_attention_shape shape = g->shape;
    char proposed[TR_PLAN_NAME];
    for (shape.config = 1; shape.config <= g->configs; shape.config++) {
        name_plan(g, shape.config, proposed);
        if (strcmp(name, proposed) == 0)
            return prepare_graph(&base->context, &base->desc, &shape, out);
    }
    return TR_OK;
}

static const tr_op_plans plans = {.list = list_plans, .make = make_plan};

/* Prepares cuDNN's operator; *out stays NULL when it has none. */
static tr_status prepare_graph(const tr_op_context *context, const tr_op_desc *desc,
                               const tr_attention_shape *shape, tr_op **out) {
    tr_attention_graph *g;
    tr_op *base;
    TR_TRY(tr_cudnn_attention_build(tr_cuda_device_of(context->device)->dnn, NULL, shape, &g));
    if (!g) return TR_OK;
    tr_status status =
        tr_cuda_op_create(context, desc, sizeof(cuda_attention), 0,
                          shape->backward ? run_backward_graph : run_forward_graph, &base);
    if (status != TR_OK) {
        tr_cudnn_attention_release(g);
        return status;
    }
    ((cuda_attention *)base)->graph = g;
    base->scratch_bytes = tr_align_up(g->workspace_bytes) + tr_align_up(g->row_sum_bytes) +
                          tr_align_up(g->dq_sum_bytes) + tr_align_up(g->first_bytes);
    base->release = release_attention;
    base->plans = &plans;
    name_plan(g, g->config, base->plan);
    const tr_attention_desc *d = &desc->attention;
    size_t packed_bytes =
        (size_t)(d->batch * d->seq * tr_attention_row(d)) * tr_dtype_size(d->dtype);
    status = tr_cuda_warm(base, packed_bytes);
    if (status == TR_OK) *out = base;
    else release_attention(base);
    return status;
}

static tr_status prepare(const tr_op_context *context, const tr_op_desc *desc, bool backward,
                         tr_op **out) {
    tr_attention_shape shape =
        tr_cudnn_attention_packed(&desc->attention, backward, context->deterministic);
    TR_TRY(prepare_graph(context, desc, &shape, out));
    if (!*out) TR_TRY(tr_cuda_prepare_own_attention(context, desc, backward, out));
    return TR_OK;
}

tr_status tr_cuda_prepare_attention(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    return prepare(context, desc, false, out);
}
tr_status tr_cuda_prepare_attention_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                          tr_op **out) {
    return prepare(context, desc, true, out);
}
