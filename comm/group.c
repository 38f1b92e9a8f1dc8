/* Code shared by all groups. Collectives are those of group_host.c for host memory, of
 * group_staged.c for device memory over the host transports, or of nccl_group.c. */
#include "base/memory.h"
#include "comm/nccl_impl.h"

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
    TR_TRY(on_host                           ? tr_group_make_host(&desc, &g)
           : tr_world_by_nccl(world, device) ? tr_group_make_nccl(&desc, &g)
                                             : tr_group_make_staged(&desc, &g));
    g->world = world;
    g->id = id;
    g->rank = rank;
    g->n = n;
    *out = g;
    return TR_OK;
}

void tr_group_close(tr_group *group) {
    if (group) group->ops->close(group);
}

static tr_status check(const tr_group *g, const char *what, int64_t count, tr_dtype dtype) {
    size_t bytes;
    if (dtype != TR_F32 && dtype != TR_F64 && dtype != TR_BF16)
        return TR_FAIL(TR_ERR_INTERNAL, "%s cannot take elements of type %s (group %d)", what,
                       tr_dtype_name(dtype), g->id);
    if (count < 0 || !tr_mul_size((size_t)count, (size_t)g->n * tr_dtype_size(dtype), &bytes))
        return TR_FAIL(TR_ERR_INTERNAL, "%s cannot take %lld elements (group %d)", what,
                       (long long)count, g->id);
    return TR_OK;
}

tr_status tr_group_all_reduce(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                              tr_dtype dtype, tr_reduce op) {
    TR_TRY(check(group, "all_reduce", count, dtype));
    if (group->n == 1 || count == 0) return TR_OK;
    TR_TRY(group->ops->all_reduce(group, stream, buffer, count, dtype, op));
    return TR_OK;
}
