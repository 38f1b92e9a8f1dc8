/* Code shared by all groups: those of group_host.c over the host transports, and of
 * nccl_group.c. */
#include "base/memory.h"
#include "comm/nccl_impl.h"

/* Adds the group to those that are polled. */
static void enlist(tr_group *group) {
    tr_world *world = group->world;
    pthread_mutex_lock(&world->lock);
    group->next = world->groups;
    world->groups = group;
    pthread_mutex_unlock(&world->lock);
}

tr_status tr_group_open(tr_world *world, tr_device *device, const int *ranks, int n, int id,
                        size_t max_bytes, tr_group **out) {
    if (n < 1 || n > world->size)
        return TR_FAIL(TR_ERR_INTERNAL, "a group cannot have %d ranks in a world of %d", n,
                       world->size);
    if (id < 0 || id > world->transport->tag_limit - TR_TAG_GROUP)
        return TR_FAIL(TR_ERR_INTERNAL, "group id %d is outside 0..%d of this transport's tags", id,
                       world->transport->tag_limit - TR_TAG_GROUP);
    int rank = -1;
    bool inside = true;
    for (int i = 0; i < n; i++) {
        if (ranks[i] == world->rank) rank = i;
        inside = inside && ranks[i] >= 0 && ranks[i] < world->size;
    }
    if (!inside || rank < 0)
        return TR_FAIL(TR_ERR_INTERNAL, "group %d holds a rank outside the world, or not rank %d",
                       id, world->rank);
    const tr_group_desc desc = {.world = world,
                                .device = device,
                                .ranks = ranks,
                                .n = n,
                                .id = id,
                                .rank = rank,
                                .max_bytes = max_bytes};
    tr_group *g;
    /* A group of one sends no messages. */
    bool on_host = n == 1 || !device || tr_device_on_host(device);
    if (!on_host && tr_world_by_nccl(world, device)) TR_TRY(tr_group_make_nccl(&desc, &g));
    else TR_TRY(tr_group_make_host(&desc, !on_host, &g));
    g->world = world;
    g->id = id;
    g->rank = rank;
    g->n = n;
    if (g->ops->poll) enlist(g);
    *out = g;
    return TR_OK;
}

void tr_group_close(tr_group *group) {
    if (group) group->ops->close(group);
}

void tr_group_unlist(tr_group *group) {
    pthread_mutex_lock(&group->world->lock);
    tr_group **at = &group->world->groups;
    while (*at != group) at = &(*at)->next;
    *at = group->next;
    pthread_mutex_unlock(&group->world->lock);
}

/* Rows of at least 64 elements in each half (nccl_sums.c). */
size_t tr_group_landing_bytes(int n, size_t max_bytes, tr_own_sums own) {
    const size_t least = (size_t)n * 64 * sizeof(double);
    if (n < 2 || !(own.bf16 || (own.ordered && n > 2))) return 0;
    return 2 * tr_align_up((max_bytes > least ? max_bytes : least) / 2);
}

static tr_status check(const tr_group *g, const char *what, int64_t count, tr_dtype dtype,
                       tr_reduce op) {
    size_t bytes;
    if (op == TR_REDUCE_SUM_BF16 && dtype != TR_F32 && dtype != TR_BF16)
        return TR_FAIL(TR_ERR_INTERNAL, "%s cannot send elements of type %s in BF16 (group %d)",
                       what, tr_dtype_name(dtype), g->id);
    if (dtype != TR_F32 && dtype != TR_F64 && dtype != TR_BF16 && dtype != TR_F16)
        return TR_FAIL(TR_ERR_INTERNAL, "%s cannot take elements of type %s (group %d)", what,
                       tr_dtype_name(dtype), g->id);
    if (count < 0 || !tr_mul_size((size_t)count, (size_t)g->n * tr_dtype_size(dtype), &bytes))
        return TR_FAIL(TR_ERR_INTERNAL, "%s cannot take %lld elements (group %d)", what,
                       (long long)count, g->id);
    return TR_OK;
}

static tr_status start(tr_group *g, tr_stream *stream, void *buffer, int64_t count, tr_dtype dtype,
                       tr_reduce op, bool drives, int64_t *ticket) {
    TR_TRY(check(g, "all_reduce", count, dtype, op));
    *ticket = TR_GROUP_NO_TICKET;
    if (g->n == 1 || count == 0) return TR_OK;
    TR_TRY(g->ops->start(g, stream, buffer, count, dtype, op, drives, ticket));
    return TR_OK;
}

tr_status tr_group_start(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                         tr_dtype dtype, tr_reduce op, int64_t *ticket) {
    return start(group, stream, buffer, count, dtype, op, false, ticket);
}

tr_status tr_group_wait(tr_group *group, tr_stream *stream, int64_t ticket) {
    if (ticket == TR_GROUP_NO_TICKET) return TR_OK;
    TR_TRY(group->ops->wait(group, stream, ticket));
    return TR_OK;
}

tr_status tr_group_follow(tr_group *group, tr_group *before, int64_t ticket) {
    if (ticket == TR_GROUP_NO_TICKET || group->n == 1) return TR_OK;
    return group->ops->follow(group, before, ticket);
}

double tr_group_waited(const tr_group *group) {
    return group->waited;
}

tr_status tr_group_all_reduce(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                              tr_dtype dtype, tr_reduce op) {
    int64_t ticket;
    TR_TRY(start(group, stream, buffer, count, dtype, op, true, &ticket));
    return tr_group_wait(group, stream, ticket);
}

tr_status tr_group_scatter_ranges(tr_group *g, tr_stream *stream, const tr_scatter_range *range,
                                  int count, tr_dtype dtype, tr_reduce op, int64_t *ticket) {
    *ticket = TR_GROUP_NO_TICKET;
    if (op == TR_REDUCE_MAX)
        return TR_FAIL(TR_ERR_INTERNAL, "reduce_scatter takes no maximum (group %d)", g->id);
    for (int i = 0; i < count; i++) {
        TR_TRY(check(g, "reduce_scatter", range[i].count, dtype, op));
        const int first = range[i].rank, ranks = range[i].ranks;
        if (ranks < 1 || ranks != range[0].ranks || first < 0 || first % ranks ||
            first > g->n - ranks)
            return TR_FAIL(TR_ERR_INTERNAL,
                           "a run of %d from place %d of group %d with %d ranks cannot get a sum",
                           ranks, first, g->id, g->n);
    }
    if (g->n == 1 || count == 0) return TR_OK;
    TR_TRY(g->ops->scatter_ranges(g, stream, range, count, dtype, op, ticket));
    return TR_OK;
}

static tr_status gather(tr_group *g, tr_stream *stream, const tr_gather_range *range, int count,
                        tr_dtype held, tr_dtype sent, int64_t *ticket) {
    *ticket = TR_GROUP_NO_TICKET;
    for (int i = 0; i < count; i++)
        if (range[i].rank < 0 || range[i].rank >= g->n)
            return TR_FAIL(TR_ERR_INTERNAL,
                           "group %d of %d ranks has no rank %d that computed a "
                           "range",
                           g->id, g->n, range[i].rank);
    if (g->n == 1 || count == 0) return TR_OK;
    TR_TRY(g->ops->gather(g, stream, range, count, held, sent, ticket));
    return TR_OK;
}

tr_status tr_group_gather(tr_group *group, tr_stream *stream, const tr_gather_range *range,
                          int count, int64_t *ticket) {
    return gather(group, stream, range, count, TR_U8, TR_U8, ticket);
}

tr_status tr_group_gather_sums(tr_group *g, tr_stream *stream, const tr_gather_range *range,
                               int count, tr_dtype dtype, tr_reduce op, int64_t *ticket) {
    for (int i = 0; i < count; i++)
        TR_TRY(check(g, "all_gather", (int64_t)(range[i].bytes / tr_dtype_size(dtype)), dtype, op));
    return gather(g, stream, range, count, dtype, tr_reduce_wire(op, dtype), ticket);
}

tr_status tr_group_scatter(tr_group *g, tr_stream *stream, void *whole, void *part, int64_t count,
                           tr_dtype dtype, int64_t *ticket) {
    TR_TRY(check(g, "reduce_scatter", count, dtype, TR_REDUCE_SUM));
    *ticket = TR_GROUP_NO_TICKET;
    if (count == 0) return TR_OK;
    if (g->n == 1) return tr_stream_copy(stream, part, whole, (size_t)count * tr_dtype_size(dtype));
    TR_TRY(g->ops->scatter(g, stream, whole, part, count, dtype, ticket));
    return TR_OK;
}

tr_status tr_group_gather_parts(tr_group *g, tr_stream *stream, void *whole, int64_t count,
                                tr_dtype dtype, int64_t *ticket) {
    TR_TRY(check(g, "all_gather", count, dtype, TR_REDUCE_SUM));
    *ticket = TR_GROUP_NO_TICKET;
    if (g->n == 1 || count == 0) return TR_OK;
    TR_TRY(g->ops->gather_parts(g, stream, whole, count, dtype, ticket));
    return TR_OK;
}
