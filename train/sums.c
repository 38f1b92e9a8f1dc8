#include "train/sums.h"

#include "base/memory.h"

#include <stdlib.h>

/* What one group sums of a bucket. */
typedef struct sum {
    int stage, bucket;
    tr_group *group;
    char *data; /* [count]: adjacent gradients that all members get; NULL: `range` */
    int64_t count;
    tr_scatter_range *range; /* [ranges] */
    size_t ranges, capacity;
    int64_t ticket;
} sum;

struct tr_sums {
    tr_dtype dtype;
    sum *sum; /* [count] */
    size_t count, capacity;
};

/* Returns true when each rank gets only the sums of its portions. */
static bool scatters(const tr_store *store, bool deterministic) {
    if (!store->divided) return false;
    if (!deterministic || !tr_world_uses_nccl(store->world)) return true;
    for (int i = 0; i < store->slots; i++)
        if (tr_mesh_part_size(&store->slot[i].layout.sum) > 2) return false;
    return true;
}

static tr_status add_sum(tr_sums *s, const sum *what) {
    TR_TRY(tr_grow(&s->sum, &s->capacity, s->count + 1, sizeof *s->sum));
    s->sum[s->count++] = *what;
    return TR_OK;
}

static tr_status sum_of(tr_sums *s, const tr_store_slot *slot, sum **out) {
    size_t i = 0;
    while (i < s->count && (s->sum[i].stage != slot->stage || s->sum[i].bucket != slot->bucket ||
                            s->sum[i].group != slot->sum))
        i++;
    if (i == s->count)
        TR_TRY(
            add_sum(s, &(sum){.stage = slot->stage, .bucket = slot->bucket, .group = slot->sum}));
    *out = &s->sum[i];
    return TR_OK;
}

/* Adds the portions of a gradient. In the group, the ranks of one data rank are neighbours, and all
 * of them get its portion. */
static tr_status add_slot(tr_sums *s, const tr_store *store, const tr_store_slot *slot) {
    const tr_mesh_part *all = &slot->layout.sum;
    const int owners = tr_mesh_part_size(&slot->layout.owners), run = all->count[TR_AXIS_TP];
    const size_t size = tr_dtype_size(store->acc);
    sum *to = NULL;
    TR_TRY(sum_of(s, slot, &to));
    for (int r = 0; r < owners; r++) {
        const tr_range portion = tr_param_portion_of(slot->param, store->divided, r);
        if (portion.extent == 0) continue;
        TR_TRY(tr_grow(&to->range, &to->capacity, to->ranges + 1, sizeof *to->range));
        to->range[to->ranges++] = (tr_scatter_range){
            .data = (char *)slot->param->grad + (size_t)portion.begin * size,
            .count = portion.extent,
            .rank = all->count[TR_AXIS_DP] > 1 ? r * run : 0, /* else all data ranks have the sum */
            .ranks = run};
    }
    return TR_OK;
}

tr_status tr_sums_create(const tr_store *store, bool deterministic, tr_sums **out) {
    tr_status status = TR_OK;
    tr_sums *s;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    s->dtype = store->acc;
    if (scatters(store, deterministic)) {
        for (int i = 0; i < store->slots; i++)
            if (store->slot[i].sum) TR_TRY_OUT(add_slot(s, store, &store->slot[i]));
    } else {
        for (int i = 0; i < store->spans; i++) {
            const tr_span *span = &store->span[i];
            TR_TRY_OUT(add_sum(s, &(sum){.stage = span->stage,
                                         .bucket = span->bucket,
                                         .group = span->sum,
                                         .data = span->data,
                                         .count = span->count}));
        }
    }
out:
    if (status != TR_OK) tr_sums_destroy(s);
    else *out = s;
    return status;
}

void tr_sums_destroy(tr_sums *s) {
    if (!s) return;
    for (size_t i = 0; i < s->count; i++) free(s->sum[i].range);
    free(s->sum);
    free(s);
}

tr_status tr_sums_start(tr_sums *s, tr_stream *stream, int local_stage, int bucket) {
    for (size_t i = 0; i < s->count; i++) {
        sum *one = &s->sum[i];
        if (one->stage != local_stage || one->bucket != bucket) continue;
        if (one->data)
            TR_TRY(tr_group_start(one->group, stream, one->data, one->count, s->dtype,
                                  TR_REDUCE_SUM, &one->ticket));
        else
            TR_TRY(tr_group_scatter_ranges(one->group, stream, one->range, (int)one->ranges,
                                           s->dtype, &one->ticket));
    }
    return TR_OK;
}

tr_status tr_sums_wait(tr_sums *s, tr_stream *stream, int local_stage, int bucket) {
    for (size_t i = 0; i < s->count; i++) {
        const sum *one = &s->sum[i];
        if (one->stage == local_stage && one->bucket == bucket)
            TR_TRY(tr_group_wait(one->group, stream, one->ticket));
    }
    return TR_OK;
}
