#include "train/sums.h"

#include "base/memory.h"

#include <stdlib.h>

/* What a range is of: the range's address is set when the sum starts, because steps with another
 * number of micro-batches may have their gradients in other places of the arena. */
typedef struct portion {
    const tr_param *param;
    int64_t begin;
} portion;

/* What one group sums of a bucket. */
typedef struct sum {
    int stage, bucket;
    tr_group *group;
    const tr_span *span;     /* that all members get; NULL: `range` */
    tr_scatter_range *range; /* [ranges] */
    portion *portion;        /* [ranges] */
    size_t ranges, capacity, portions_capacity;
    int64_t ticket;
} sum;

struct tr_sums {
    const tr_store *store;
    tr_reduce op;
    sum *sum; /* [count] */
    size_t count, capacity;
};

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
    sum *to = NULL;
    TR_TRY(sum_of(s, slot, &to));
    for (int r = 0; r < owners; r++) {
        const tr_range own = tr_param_portion_of(slot->param, store->divided, r);
        if (own.extent == 0) continue;
        TR_TRY(tr_grow(&to->range, &to->capacity, to->ranges + 1, sizeof *to->range));
        TR_TRY(tr_grow(&to->portion, &to->portions_capacity, to->ranges + 1, sizeof *to->portion));
        to->portion[to->ranges] = (portion){.param = slot->param, .begin = own.begin};
        to->range[to->ranges++] = (tr_scatter_range){
            .count = own.extent,
            .rank = all->count[TR_AXIS_DP] > 1 ? r * run : 0, /* else all data ranks have the sum */
            .ranks = run};
    }
    return TR_OK;
}

tr_status tr_sums_create(const tr_store *store, tr_reduce op, tr_sums **out) {
    tr_status status = TR_OK;
    tr_sums *s;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    s->store = store;
    s->op = store->grad_dtype == TR_BF16 ? TR_REDUCE_SUM : op; /* BF16 travels as it is */
    if (store->divided) {
        for (int i = 0; i < store->slots; i++)
            if (store->slot[i].sum) TR_TRY_OUT(add_slot(s, store, &store->slot[i]));
    } else {
        for (int i = 0; i < store->spans; i++) {
            const tr_span *span = &store->span[i];
            TR_TRY_OUT(add_sum(s, &(sum){.stage = span->stage,
                                         .bucket = span->bucket,
                                         .group = span->sum,
                                         .span = span}));
        }
    }
out:
    if (status != TR_OK) tr_sums_destroy(s);
    else *out = s;
    return status;
}

void tr_sums_destroy(tr_sums *s) {
    if (!s) return;
    for (size_t i = 0; i < s->count; i++) {
        free(s->sum[i].range);
        free(s->sum[i].portion);
    }
    free(s->sum);
    free(s);
}

static tr_status start(const tr_store *store, tr_reduce op, tr_stream *stream, sum *one) {
    const size_t size = tr_dtype_size(store->grad_dtype);
    if (one->span)
        return tr_group_start(one->group, stream, store->slot[one->span->slot].param->grad,
                              one->span->count, store->grad_dtype, op, &one->ticket);
    for (size_t k = 0; k < one->ranges; k++)
        one->range[k].data =
            (char *)one->portion[k].param->grad + (size_t)one->portion[k].begin * size;
    return tr_group_scatter_ranges(one->group, stream, one->range, (int)one->ranges,
                                   store->grad_dtype, op, &one->ticket);
}

tr_status tr_sums_start(tr_sums *s, tr_stream *stream, int local_stage, int bucket) {
    for (size_t i = 0; i < s->count; i++) {
        sum *one = &s->sum[i];
        if (one->stage == local_stage && one->bucket == bucket)
            TR_TRY(start(s->store, s->op, stream, one));
    }
    return TR_OK;
}

/* Copies the sums of this rank's portions out of the arena. */
static tr_status keep_portions(const tr_store *store, tr_stream *stream, int local_stage,
                               int bucket) {
    const size_t size = tr_dtype_size(store->grad_dtype);
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        if (slot->stage != local_stage || slot->bucket != bucket || !slot->grad) continue;
        const char *from = (const char *)slot->param->grad + (size_t)slot->portion.begin * size;
        TR_TRY(tr_stream_copy(stream, slot->grad, from, (size_t)slot->portion.extent * size));
    }
    return TR_OK;
}

tr_status tr_sums_wait(tr_sums *s, tr_stream *stream, int local_stage, int bucket) {
    for (size_t i = 0; i < s->count; i++) {
        const sum *one = &s->sum[i];
        if (one->stage == local_stage && one->bucket == bucket)
            TR_TRY(tr_group_wait(one->group, stream, one->ticket));
    }
    return s->store->in_arena ? keep_portions(s->store, stream, local_stage, bucket) : TR_OK;
}
