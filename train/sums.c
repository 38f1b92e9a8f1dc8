#include "train/sums.h"

#include "base/memory.h"
#include "partition/param_memory.h"

#include <stdlib.h>

/* What a range is of: the range's address is set when the sum starts, because steps with another
 * number of micro-batches may have their gradients in other places of the arena. */
typedef struct portion {
    const tr_param *param;
    int64_t begin;
    bool own; /* this rank gets it */
} portion;

/* What one group sums of a bucket. With data ranks in two factors (tr_mesh.near) the near ones sum
 * portions first; then those of `across` sum these sums, and if updates are not divided the near
 * ones gather them. More than two ranks of `across` each sum a part of the portions and gather the
 * other parts, so that a rank sends each element at most twice. */
typedef struct sum {
    int stage, bucket;
    tr_group *group, *across, *near; /* across, near: NULL with one factor */
    const tr_span *span;             /* that all members get; NULL: `range` */
    tr_scatter_range *range;         /* [ranges] */
    tr_scatter_range *own;   /* [owns]: parts of those that this rank gets, in their order */
    tr_gather_range *spread; /* [owns]: the same parts */
    tr_gather_range *back;   /* [ranges] */
    portion *portion;        /* [ranges] */
    size_t ranges, owns, capacity, owns_capacity, spread_capacity, back_capacity, portions_capacity;
    int across_ranks, parts; /* parts: of each portion */
    tr_group *last;          /* the group of the last collective, and its ticket */
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
    const int across = tr_mesh_part_size(&slot->layout.across);
    size_t i = 0;
    while (i < s->count && (s->sum[i].stage != slot->stage || s->sum[i].bucket != slot->bucket ||
                            s->sum[i].group != slot->sum || s->sum[i].across != slot->across))
        i++;
    if (i == s->count)
        TR_TRY(add_sum(s, &(sum){.stage = slot->stage,
                                 .bucket = slot->bucket,
                                 .group = slot->sum,
                                 .across = slot->across,
                                 .across_ranks = across,
                                 .parts = across > 2 ? across : 1,
                                 .near = slot->near}));
    *out = &s->sum[i];
    return TR_OK;
}

/* Adds the portion of the owner at `place`, which `rank` gets in the group. */
static tr_status add_portion(sum *to, const tr_store_slot *slot, tr_range part, int place, int rank,
                             int run, bool own) {
    const size_t i = to->ranges, owns = to->owns + (own ? (size_t)to->parts : 0);
    TR_TRY(tr_grow(&to->range, &to->capacity, i + 1, sizeof *to->range));
    TR_TRY(tr_grow(&to->portion, &to->portions_capacity, i + 1, sizeof *to->portion));
    TR_TRY(tr_grow(&to->back, &to->back_capacity, i + 1, sizeof *to->back));
    TR_TRY(tr_grow(&to->own, &to->owns_capacity, owns, sizeof *to->own));
    TR_TRY(tr_grow(&to->spread, &to->spread_capacity, owns, sizeof *to->spread));
    to->portion[i] = (portion){.param = slot->param, .begin = part.begin, .own = own};
    to->range[i] = (tr_scatter_range){.count = part.extent, .rank = rank, .ranks = run};
    to->back[i] = (tr_gather_range){.rank = place};
    to->owns = owns;
    to->ranges++;
    return TR_OK;
}

/* Adds the portions of a gradient. In the group, the ranks of one data rank are neighbours, and all
 * of them get its portion. */
static tr_status add_slot(tr_sums *s, const tr_store *store, const tr_store_slot *slot) {
    const tr_mesh_part *all = &slot->layout.sum;
    const int owners = tr_mesh_part_size(&slot->layout.owners), run = all->count[TR_AXIS_TP];
    const int mine = tr_mesh_part_place(&store->mesh, &slot->layout.owners);
    sum *to = NULL;
    TR_TRY(sum_of(s, slot, &to));
    for (int r = 0; r < owners; r++) {
        const tr_range own = tr_param_portion_of(slot->param, &store->mesh, r);
        if (own.extent == 0) continue;
        /* else all data ranks have the sum */
        const int rank = all->count[TR_AXIS_DP] > 1 ? r * run : 0;
        TR_TRY(add_portion(to, slot, own, r, rank, run, r == mine));
    }
    return TR_OK;
}

tr_status tr_sums_create(const tr_store *store, tr_reduce op, tr_sums **out) {
    tr_status status = TR_OK;
    tr_sums *s;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    s->store = store;
    s->op = op;
    if (store->divided || tr_memory_factored(&store->mesh)) {
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
        free(s->sum[i].own);
        free(s->sum[i].spread);
        free(s->sum[i].back);
        free(s->sum[i].portion);
    }
    free(s->sum);
    free(s);
}

/* Notes the last collective of a sum. */
static void note(sum *one, tr_group *group, int64_t ticket) {
    if (ticket == TR_GROUP_NO_TICKET) return;
    one->last = group;
    one->ticket = ticket;
}

/* Sums the near ranks' sums of this rank's portions across, and gathers them if no rank has updates
 * of its own. */
static tr_status continue_across(const tr_store *store, tr_reduce op, tr_stream *stream, sum *one) {
    int64_t ticket;
    if (one->owns > 0) TR_TRY(tr_group_follow(one->across, one->last, one->ticket));
    TR_TRY(tr_group_scatter_ranges(one->across, stream, one->own, (int)one->owns, store->grad_dtype,
                                   op, &ticket));
    note(one, one->across, ticket);
    if (one->parts > 1) {
        TR_TRY(tr_group_gather_sums(one->across, stream, one->spread, (int)one->owns,
                                    store->grad_dtype, op, &ticket));
        note(one, one->across, ticket);
    }
    if (store->divided) return TR_OK;
    TR_TRY(tr_group_follow(one->near, one->last, one->ticket));
    TR_TRY(tr_group_gather_sums(one->near, stream, one->back, (int)one->ranges, store->grad_dtype,
                                op, &ticket));
    note(one, one->near, ticket);
    return TR_OK;
}

/* Sets part `index` of a portion, and the ranks of `across` that sum it. */
static void place_part(const sum *one, const tr_scatter_range *whole, size_t size, int index,
                       size_t own) {
    const tr_range part = tr_range_part(whole->count, one->parts, index);
    char *data = (char *)whole->data + (size_t)part.begin * size;
    one->own[own] = (tr_scatter_range){.data = data,
                                       .count = part.extent,
                                       .rank = index,
                                       .ranks = one->parts > 1 ? 1 : one->across_ranks};
    one->spread[own] =
        (tr_gather_range){.data = data, .bytes = (size_t)part.extent * size, .rank = index};
}

/* Sets the addresses of a sum's ranges. */
static void place(const tr_store *store, sum *one) {
    const size_t size = tr_dtype_size(store->grad_dtype);
    size_t own = 0;
    for (size_t k = 0; k < one->ranges; k++) {
        tr_scatter_range *range = &one->range[k];
        range->data = (char *)one->portion[k].param->grad + (size_t)one->portion[k].begin * size;
        if (!one->across) continue;
        one->back[k].data = range->data;
        one->back[k].bytes = (size_t)range->count * size;
        for (int i = 0; i < one->parts && one->portion[k].own; i++)
            place_part(one, range, size, i, own++);
    }
}

static tr_status start(const tr_store *store, tr_reduce op, tr_stream *stream, sum *one) {
    one->last = one->group;
    if (one->span)
        return tr_group_start(one->group, stream, store->slot[one->span->slot].param->grad,
                              one->span->count, store->grad_dtype, op, &one->ticket);
    place(store, one);
    TR_TRY(tr_group_scatter_ranges(one->group, stream, one->range, (int)one->ranges,
                                   store->grad_dtype, op, &one->ticket));
    return one->across ? continue_across(store, op, stream, one) : TR_OK;
}

tr_status tr_sums_start(tr_sums *s, tr_stream *stream, int stage, int bucket) {
    for (size_t i = 0; i < s->count; i++) {
        sum *one = &s->sum[i];
        if (one->stage == stage && one->bucket == bucket)
            TR_TRY(start(s->store, s->op, stream, one));
    }
    return TR_OK;
}

/* Copies the sums of this rank's portions out of the arena. */
static tr_status keep_portions(const tr_store *store, tr_stream *stream, int stage, int bucket) {
    const size_t size = tr_dtype_size(store->grad_dtype);
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        if (slot->stage != stage || slot->bucket != bucket || !slot->grad) continue;
        const char *from = (const char *)slot->param->grad + (size_t)slot->portion.begin * size;
        TR_TRY(tr_stream_copy(stream, slot->grad, from, (size_t)slot->portion.extent * size));
    }
    return TR_OK;
}

tr_status tr_sums_wait(tr_sums *s, tr_stream *stream, int stage, int bucket) {
    for (size_t i = 0; i < s->count; i++) {
        const sum *one = &s->sum[i];
        if (one->stage == stage && one->bucket == bucket)
            TR_TRY(tr_group_wait(one->last, stream, one->ticket));
    }
    return s->store->in_arena ? keep_portions(s->store, stream, stage, bucket) : TR_OK;
}
