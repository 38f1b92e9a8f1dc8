#include "pipeline/program/arena.h"

#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The begin of an item's live range, or the end, at the position after its last. */
typedef struct event {
    bool ends;
    int until; /* the last position of the item; counted from the end in the backward sweep */
    size_t bytes;
    int item;
} event;

/* At a position, ends come before begins, so that room is free, and items with longer live ranges
 * begin first: they then get the lowest offsets and do not split the free room. */
static int compare_events(const void *left, const void *right) {
    const event *a = left, *b = right;
    if (a->ends != b->ends) return a->ends ? -1 : 1;
    if (a->until != b->until) return a->until > b->until ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    return a->item < b->item ? -1 : a->item > b->item;
}

/* Returns the number of positions at which something may begin or end. */
static int count_positions(const tr_arena_item *items, int n) {
    int last = 0;
    for (int k = 0; k < n; k++)
        if (items[k].end > last) last = items[k].end;
    return last + 2;
}

/* Returns the item with its live range in the sweep's time. */
static tr_arena_item in_sweep(tr_arena_item item, bool backwards, int positions) {
    if (!backwards) return item;
    const int end = positions - 2; /* the last position of all items */
    return (tr_arena_item){.start = end - item.end, .end = end - item.start, .bytes = item.bytes};
}

/* Fills events[2 n] in the order of a sweep through time. Position by position, because a step of
 * many micro-batches has millions of them. Uses at[positions + 1]. */
static void list_events(const tr_arena_item *items, int n, bool backwards, int positions, int *at,
                        event *events) {
    memset(at, 0, ((size_t)positions + 1) * sizeof *at);
    for (int k = 0; k < n; k++) {
        const tr_arena_item x = in_sweep(items[k], backwards, positions);
        at[x.start + 1]++;
        at[x.end + 2]++;
    }
    for (int k = 0; k < positions; k++) at[k + 1] += at[k];
    for (int k = 0; k < n; k++) {
        const tr_arena_item x = in_sweep(items[k], backwards, positions);
        event e = {.until = x.end, .bytes = x.bytes, .item = k};
        events[at[x.start]++] = e;
        e.ends = true;
        events[at[x.end + 1]++] = e;
    }
    for (int k = 0, from = 0; k < positions; from = at[k++])
        qsort(events + from, (size_t)(at[k] - from), sizeof *events, compare_events);
}

/* Checks that the sum of all sizes does not overflow, because offsets are added without a check. */
static tr_status check_sum(const tr_arena_item *items, int n) {
    size_t total = 0;
    for (int k = 0; k < n; k++)
        if (__builtin_add_overflow(total, items[k].bytes, &total))
            return TR_FAIL(TR_ERR_FIT, "the activations of one step overflow a size");
    return TR_OK;
}

/* --- sweeps ----------------------------------------------------------------------------------- */

/* Free bytes [from, to). */
typedef struct gap {
    size_t from, to;
} gap;

/* The free bytes of an unlimited arena. */
typedef struct room {
    gap *gap; /* [gaps], by address; no two touch */
    int gaps;
} room;

static void remove_gap(room *r, int k) {
    memmove(&r->gap[k], &r->gap[k + 1], (size_t)(--r->gaps - k) * sizeof *r->gap);
}

static size_t size_of(gap g) {
    return g.to - g.from;
}

/* Takes bytes from the start of the lowest gap that is large enough, or of the `tightest` one;
 * returns their offset. */
static size_t take_bytes(room *r, size_t bytes, bool tightest) {
    int k = 0;
    while (size_of(r->gap[k]) < bytes) k++; /* the last gap is large enough */
    for (int j = k + 1; j < r->gaps && tightest; j++)
        if (size_of(r->gap[j]) >= bytes && size_of(r->gap[j]) < size_of(r->gap[k])) k = j;
    size_t from = r->gap[k].from;
    r->gap[k].from += bytes;
    if (r->gap[k].from == r->gap[k].to) remove_gap(r, k);
    return from;
}

static void give_bytes(room *r, size_t from, size_t to) {
    int k = 0;
    while (k < r->gaps && r->gap[k].from < from) k++;
    memmove(&r->gap[k + 1], &r->gap[k], (size_t)(r->gaps++ - k) * sizeof *r->gap);
    r->gap[k] = (gap){from, to};
    if (k + 1 < r->gaps && r->gap[k + 1].from == to) {
        r->gap[k].to = r->gap[k + 1].to;
        remove_gap(r, k + 1);
    }
    if (k > 0 && r->gap[k - 1].to == from) {
        r->gap[k - 1].to = r->gap[k].to;
        remove_gap(r, k);
    }
}

/* Fills offset[n]: each item gets the lowest offset that is free during its live range, or the
 * start of the `tightest` gap. Returns the arena's size. *peak: the most bytes alive. */
static size_t sweep(const tr_arena_item *items, int n, const event *events, bool tightest, room *r,
                    size_t *offset, size_t *peak) {
    size_t size = 0, live = 0;
    r->gap[0] = (gap){0, SIZE_MAX};
    r->gaps = 1;
    *peak = 0;
    for (int k = 0; k < 2 * n; k++) {
        int item = events[k].item;
        size_t bytes = items[item].bytes;
        if (events[k].ends) {
            give_bytes(r, offset[item], offset[item] + bytes);
            live -= bytes;
            continue;
        }
        offset[item] = take_bytes(r, bytes, tightest);
        live += bytes;
        if (live > *peak) *peak = live;
        if (offset[item] + bytes > size) size = offset[item] + bytes;
    }
    return size;
}

/* Sweeps with the tightest gaps follow where the others leave more than this part of the peak. */
enum { GOOD_PART = 64 };

/* Why these sweeps are enough: a step is a ramp up, a steady state and a ramp down. The forward
 * sweep places items well where live ranges begin together, as in the ramp up; the backward sweep
 * where they end together. In both, repeating items of the steady state get the room of their
 * predecessors. Small items that take the lowest gaps split the room of large ones there where both
 * alternate, as with the two directions of DualPipeV; in the tightest gaps they do not. */
tr_status tr_arena_pack(tr_arena_item *items, int n, size_t *bytes, size_t *live_peak) {
    tr_status status = TR_OK;
    event *events = NULL;
    int *at = NULL;
    size_t *offset = NULL;
    room r = {0};
    *bytes = *live_peak = 0;
    if (n == 0) return TR_OK;
    TR_TRY(check_sum(items, n));
    const int positions = count_positions(items, n);
    TR_TRY_OUT(tr_calloc((size_t)positions + 1, sizeof *at, &at));
    TR_TRY_OUT(tr_calloc(2 * (size_t)n, sizeof *events, &events));
    TR_TRY_OUT(tr_calloc((size_t)n, sizeof *offset, &offset));
    TR_TRY_OUT(tr_calloc((size_t)n + 2, sizeof *r.gap, &r.gap));
    for (int way = 0; way < 4 && (way < 2 || *bytes - *live_peak > *live_peak / GOOD_PART); way++) {
        const bool backwards = way % 2, tightest = way >= 2;
        list_events(items, n, backwards, positions, at, events);
        const size_t size = sweep(items, n, events, tightest, &r, offset, live_peak);
        if (way > 0 && size >= *bytes) continue;
        *bytes = size;
        for (int k = 0; k < n; k++) items[k].offset = offset[k];
    }
out:
    free(r.gap);
    free(offset);
    free(at);
    free(events);
    return status;
}
