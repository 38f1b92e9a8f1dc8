/* Groups of NCCL: one communicator and one stream each. A collective runs on the group's stream,
 * after an event of the caller's stream, and the wait for it is another event. */
#include "base/memory.h"
#include "comm/nccl_impl.h"
#include "comm/nccl_library.h"

#include <stdlib.h>

typedef struct nccl_group {
    tr_group base;
    tr_nccl_comm comm;
} nccl_group;

static nccl_group *self_of(tr_group *group) {
    return (nccl_group *)group;
}

static ncclDataType_t type_of(tr_dtype dtype) {
    switch (dtype) {
    case TR_F32: return ncclFloat32;
    case TR_F64: return ncclFloat64;
    case TR_F16: return ncclFloat16;
    default: return ncclBfloat16;
    }
}

static ncclRedOp_t op_of(tr_reduce op) {
    return op == TR_REDUCE_SUM ? ncclSum : ncclMax;
}

/* Refuses what only host transports do. */
static tr_status check_op(tr_reduce op) {
    if (op != TR_REDUCE_SUM_BF16) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG, "parallel.reduce bf16 does not work over NCCL: set "
                                  "parallel.transport to mpi, or parallel.reduce to fp32");
}

static tr_status nccl_start(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                            tr_dtype dtype, tr_reduce op, bool drives, int64_t *ticket) {
    (void)drives;
    nccl_group *g = self_of(group);
    TR_TRY(check_op(op));
    TR_TRY(tr_nccl_enter(&g->comm, "all_reduce", stream));
    tr_nccl_begin(&g->comm, "all_reduce");
    TR_TRY(tr_nccl_end(&g->comm,
                       (int)ncclAllReduce(buffer, buffer, (size_t)count, type_of(dtype), op_of(op),
                                          g->comm.handle, tr_stream_native(g->comm.stream))));
    return tr_nccl_leave(&g->comm, ticket);
}

/* One call of NCCL for all ranges. A sum that several members get goes to all. */
static tr_status nccl_scatter_ranges(tr_group *group, tr_stream *stream,
                                     const tr_scatter_range *range, int count, tr_dtype dtype,
                                     tr_reduce op, int64_t *ticket) {
    nccl_group *g = self_of(group);
    const ncclDataType_t type = type_of(dtype);
    cudaStream_t own = tr_stream_native(g->comm.stream);
    TR_TRY(check_op(op));
    TR_TRY(tr_nccl_enter(&g->comm, "reduce_scatter", stream));
    tr_nccl_begin(&g->comm, "reduce_scatter");
    ncclResult_t result = ncclGroupStart();
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        const tr_scatter_range *r = &range[i];
        const size_t n = (size_t)r->count;
        if (n > 0 && r->ranks == 1)
            result = ncclReduce(r->data, r->data, n, type, ncclSum, r->rank, g->comm.handle, own);
        else if (n > 0)
            result = ncclAllReduce(r->data, r->data, n, type, ncclSum, g->comm.handle, own);
    }
    const ncclResult_t ended = ncclGroupEnd();
    TR_TRY(tr_nccl_end(&g->comm, (int)(result == ncclSuccess ? ended : result)));
    return tr_nccl_leave(&g->comm, ticket);
}

/* One call of NCCL for all ranges. */
static tr_status nccl_gather(tr_group *group, tr_stream *stream, const tr_gather_range *range,
                             int count, int64_t *ticket) {
    nccl_group *g = self_of(group);
    TR_TRY(tr_nccl_enter(&g->comm, "all_gather", stream));
    tr_nccl_begin(&g->comm, "all_gather");
    ncclResult_t result = ncclGroupStart();
    for (int i = 0; i < count && result == ncclSuccess; i++)
        if (range[i].bytes > 0)
            result = ncclBroadcast(range[i].data, range[i].data, range[i].bytes, ncclInt8,
                                   range[i].rank, g->comm.handle, tr_stream_native(g->comm.stream));
    const ncclResult_t ended = ncclGroupEnd();
    TR_TRY(tr_nccl_end(&g->comm, (int)(result == ncclSuccess ? ended : result)));
    return tr_nccl_leave(&g->comm, ticket);
}

static tr_status nccl_scatter(tr_group *group, tr_stream *stream, void *whole, void *part,
                              int64_t count, tr_dtype dtype, int64_t *ticket) {
    nccl_group *g = self_of(group);
    TR_TRY(tr_nccl_enter(&g->comm, "reduce_scatter", stream));
    tr_nccl_begin(&g->comm, "reduce_scatter");
    TR_TRY(tr_nccl_end(&g->comm,
                       (int)ncclReduceScatter(whole, part, (size_t)count, type_of(dtype), ncclSum,
                                              g->comm.handle, tr_stream_native(g->comm.stream))));
    return tr_nccl_leave(&g->comm, ticket);
}

static tr_status nccl_gather_parts(tr_group *group, tr_stream *stream, void *whole, int64_t count,
                                   tr_dtype dtype, int64_t *ticket) {
    nccl_group *g = self_of(group);
    const size_t bytes = (size_t)count * tr_dtype_size(dtype);
    TR_TRY(tr_nccl_enter(&g->comm, "all_gather", stream));
    tr_nccl_begin(&g->comm, "all_gather");
    TR_TRY(
        tr_nccl_end(&g->comm, (int)ncclAllGather((const char *)whole + (size_t)group->rank * bytes,
                                                 whole, bytes, ncclInt8, g->comm.handle,
                                                 tr_stream_native(g->comm.stream))));
    return tr_nccl_leave(&g->comm, ticket);
}

static tr_status nccl_wait(tr_group *group, tr_stream *stream, int64_t ticket) {
    return tr_nccl_need(&self_of(group)->comm, ticket, stream);
}

static void nccl_close(tr_group *group) {
    nccl_group *g = self_of(group);
    if (g->comm.world) tr_nccl_close(&g->comm);
    free(g);
}

static const tr_group_ops nccl_ops = {.start = nccl_start,
                                      .scatter_ranges = nccl_scatter_ranges,
                                      .gather = nccl_gather,
                                      .scatter = nccl_scatter,
                                      .gather_parts = nccl_gather_parts,
                                      .wait = nccl_wait,
                                      .close = nccl_close};

tr_status tr_group_make_nccl(const tr_group_desc *desc, tr_group **out) {
    tr_status status = TR_OK;
    nccl_group *g;
    TR_TRY(tr_calloc(1, sizeof *g, &g));
    g->base.ops = &nccl_ops;
    const tr_nccl_desc comm = {.world = desc->world,
                               .device = desc->device,
                               .ranks = desc->ranks,
                               .n = desc->n,
                               .rank = desc->rank,
                               .tag = TR_TAG_GROUP + desc->id,
                               .id = desc->id,
                               .peer = -1};
    TR_TRY_OUT(tr_nccl_open(&comm, &g->comm));
    g->comm.meets = false;
    *out = &g->base;
    return TR_OK;
out:
    tr_world_give_up(desc->world, status);
    nccl_close(&g->base);
    return status;
}
