/* Groups of NCCL: one communicator and one stream each. A collective runs on the group's stream,
 * after an event of the caller's stream, and the wait for it is another event. NCCL computes sums
 * of two values, and others unless they must have the order of ranks. */
#include "base/memory.h"
#include "comm/nccl_library.h"
#include "comm/nccl_sums.h"

#include <stdlib.h>

typedef struct nccl_group {
    tr_group base;
    tr_nccl_comm comm;
    tr_own_sums own;
    tr_nccl_sums *sums; /* NULL: none are own */
} nccl_group;

static nccl_group *self_of(tr_group *group) {
    return (nccl_group *)group;
}

static ncclDataType_t type_of(tr_dtype dtype) {
    return (ncclDataType_t)tr_nccl_type(dtype);
}

static ncclRedOp_t op_of(tr_reduce op) {
    return op == TR_REDUCE_SUM ? ncclSum : ncclMax;
}

/* Returns true when the group adds by itself, in rank order. NCCL adds two values with equal
 * bits. */
static bool is_own(const nccl_group *g, tr_reduce op) {
    return op == TR_REDUCE_SUM_BF16 || (op == TR_REDUCE_SUM && g->own.ordered && g->base.n > 2);
}

/* Fails when a sum in BF16 was not announced by tr_world_set_own_sums. */
static tr_status check_op(const nccl_group *g, tr_reduce op) {
    if (!is_own(g, op) || g->sums) return TR_OK;
    return TR_FAIL(TR_ERR_INTERNAL, "group %d was opened without sums in BF16", g->base.id);
}

static tr_status reduce(nccl_group *g, void *buffer, int64_t count, tr_dtype dtype, tr_reduce op) {
    if (is_own(g, op)) return tr_nccl_sums_reduce(g->sums, buffer, count, dtype, op);
    tr_nccl_begin(&g->comm, "all_reduce");
    return tr_nccl_end(&g->comm,
                       (int)ncclAllReduce(buffer, buffer, (size_t)count, type_of(dtype), op_of(op),
                                          g->comm.handle, tr_stream_native(g->comm.stream)));
}

static tr_status nccl_start(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                            tr_dtype dtype, tr_reduce op, bool drives, int64_t *ticket) {
    (void)drives;
    nccl_group *g = self_of(group);
    TR_TRY(check_op(g, op));
    TR_TRY(tr_nccl_enter(&g->comm, "all_reduce", stream));
    TR_TRY(reduce(g, buffer, count, dtype, op));
    return tr_nccl_leave(&g->comm, ticket);
}

/* Makes one call of NCCL for all ranges. A sum that several members get goes to all. */
static tr_status reduce_ranges(nccl_group *g, const tr_scatter_range *range, int count,
                               tr_dtype dtype) {
    const ncclDataType_t type = type_of(dtype);
    cudaStream_t own = tr_stream_native(g->comm.stream);
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
    return tr_nccl_end(&g->comm, (int)(result == ncclSuccess ? ended : result));
}

static tr_status nccl_scatter_ranges(tr_group *group, tr_stream *stream,
                                     const tr_scatter_range *range, int count, tr_dtype dtype,
                                     tr_reduce op, int64_t *ticket) {
    nccl_group *g = self_of(group);
    TR_TRY(check_op(g, op));
    TR_TRY(tr_nccl_enter(&g->comm, "reduce_scatter", stream));
    if (is_own(g, op)) TR_TRY(tr_nccl_sums_ranges(g->sums, range, count, dtype, op));
    else TR_TRY(reduce_ranges(g, range, count, dtype));
    return tr_nccl_leave(&g->comm, ticket);
}

/* One call of NCCL for all ranges. */
static tr_status gather_bytes(nccl_group *g, const tr_gather_range *range, int count) {
    tr_nccl_begin(&g->comm, "all_gather");
    ncclResult_t result = ncclGroupStart();
    for (int i = 0; i < count && result == ncclSuccess; i++)
        if (range[i].bytes > 0)
            result = ncclBroadcast(range[i].data, range[i].data, range[i].bytes, ncclInt8,
                                   range[i].rank, g->comm.handle, tr_stream_native(g->comm.stream));
    const ncclResult_t ended = ncclGroupEnd();
    return tr_nccl_end(&g->comm, (int)(result == ncclSuccess ? ended : result));
}

static tr_status nccl_gather(tr_group *group, tr_stream *stream, const tr_gather_range *range,
                             int count, tr_dtype held, tr_dtype sent, int64_t *ticket) {
    nccl_group *g = self_of(group);
    if (held != sent) TR_TRY(check_op(g, TR_REDUCE_SUM_BF16));
    TR_TRY(tr_nccl_enter(&g->comm, "all_gather", stream));
    if (held != sent) TR_TRY(tr_nccl_sums_gather(g->sums, range, count));
    else TR_TRY(gather_bytes(g, range, count));
    return tr_nccl_leave(&g->comm, ticket);
}

static tr_status reduce_parts(nccl_group *g, void *whole, void *part, int64_t count,
                              tr_dtype dtype) {
    tr_nccl_begin(&g->comm, "reduce_scatter");
    return tr_nccl_end(&g->comm,
                       (int)ncclReduceScatter(whole, part, (size_t)count, type_of(dtype), ncclSum,
                                              g->comm.handle, tr_stream_native(g->comm.stream)));
}

static tr_status nccl_scatter(tr_group *group, tr_stream *stream, void *whole, void *part,
                              int64_t count, tr_dtype dtype, int64_t *ticket) {
    nccl_group *g = self_of(group);
    TR_TRY(tr_nccl_enter(&g->comm, "reduce_scatter", stream));
    if (is_own(g, TR_REDUCE_SUM)) TR_TRY(tr_nccl_sums_scatter(g->sums, whole, part, count, dtype));
    else TR_TRY(reduce_parts(g, whole, part, count, dtype));
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

static tr_status nccl_follow(tr_group *group, tr_group *before, int64_t ticket) {
    return tr_nccl_follow(&self_of(group)->comm, &self_of(before)->comm, ticket);
}

static void nccl_close(tr_group *group) {
    nccl_group *g = self_of(group);
    if (g->comm.world) tr_nccl_close(&g->comm);
    tr_nccl_sums_close(g->sums);
    free(g);
}

static const tr_group_ops nccl_ops = {.start = nccl_start,
                                      .scatter_ranges = nccl_scatter_ranges,
                                      .gather = nccl_gather,
                                      .scatter = nccl_scatter,
                                      .gather_parts = nccl_gather_parts,
                                      .wait = nccl_wait,
                                      .follow = nccl_follow,
                                      .close = nccl_close};

tr_status tr_group_make_nccl(const tr_group_desc *desc, tr_group **out) {
    tr_status status = TR_OK;
    nccl_group *g;
    TR_TRY(tr_calloc(1, sizeof *g, &g));
    g->base.ops = &nccl_ops;
    g->base.n = desc->n;
    g->own = tr_world_own_sums(desc->world);
    const tr_nccl_desc comm = {.world = desc->world,
                               .device = desc->device,
                               .ranks = desc->ranks,
                               .n = desc->n,
                               .rank = desc->rank,
                               .tag = TR_TAG_GROUP + desc->id,
                               .id = desc->id,
                               .peer = -1};
    const size_t landing = tr_group_landing_bytes(desc->n, desc->max_bytes, g->own);
    TR_TRY_OUT(tr_nccl_open(&comm, &g->comm));
    if (landing > 0)
        TR_TRY_OUT(
            tr_nccl_sums_open(&g->comm, desc->device, desc->n, desc->rank, landing, &g->sums));
    g->comm.meets = false;
    *out = &g->base;
    return TR_OK;
out:
    tr_world_give_up(desc->world, status);
    nccl_close(&g->base);
    return status;
}
