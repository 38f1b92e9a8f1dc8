#include "pipeline/program/arena.h"

#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The begin or end of an item's live range. */
typedef struct event {
    int position; /* its first position, or the one after its last; both negated in the backward
                     sweep */
    bool ends;
    int until; /* the last position of the item */
    size_t bytes;
    int item;
} event;

/* At a position, ends come before begins, so that room is free, and items with longer live ranges
 * begin first: they then get the lowest offsets and do not split the free room. */
static int compare_events(const void *left, const void *right) {
    const event *a = left, *b = right;
    if (a->position != b->position) return a->position < b->position ? -1 : 1;
    if (a->ends != b->ends) return a->ends ? -1 : 1;
    if (a->until != b->until) return a->until > b->until ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    return a->item < b->item ? -1 : a->item > b->item;
}

/* Fills events[2 n] in the order of a sweep through time. */
static void list_events(const tr_arena_item *items, int n, bool backwards, event *events) {
    for (int k = 0; k < n; k++) {
        int first = backwards ? -items[k].end : items[k].start;
        int last = backwards ? -items[k].start : items[k].end;
        event e = {.position = first, .until = last, .bytes = items[k].bytes, .item = k};
        events[2 * k] = e;
        e.position = last + 1;
        e.ends = true;
        events[2 * k + 1] = e;
    }
    qsort(events, 2 * (size_t)n, sizeof *events, compare_events);
}

tr_status tr_arena_live_peak(const tr_arena_item *items, int n, size_t *bytes) {
    event *events = NULL;
    TR_TRY(tr_calloc(2 * (size_t)n, sizeof *events, &events));
    list_events(items, n, false, events);
    size_t live = 0, peak = 0;
    bool overflow = false;
    for (int k = 0; k < 2 * n; k++) {
        if (events[k].ends) live -= events[k].bytes;
        else overflow |= __builtin_add_overflow(live, events[k].bytes, &live);
        if (live > peak) peak = live;
    }
    free(events);
    if (overflow) return TR_FAIL(TR_ERR_FIT, "the activations of one step overflow a size");
    *bytes = peak;
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

/* Takes bytes from the start of the lowest gap that is large enough; returns their offset. */
static size_t take_bytes(room *r, size_t bytes) {
    int k = 0;
    while (r->gap[k].to - r->gap[k].from < bytes) k++; /* the last gap is large enough */
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

/* Fills offset[n]: each item gets the lowest offset that is free during its live range. Returns the
 * arena's size. */
static size_t sweep(const tr_arena_item *items, int n, const event *events, room *r,
                    size_t *offset) {
    size_t size = 0;
    r->gap[0] = (gap){0, SIZE_MAX};
    r->gaps = 1;
    for (int k = 0; k < 2 * n; k++) {
        int item = events[k].item;
        size_t bytes = items[item].bytes;
        if (events[k].ends) {
            give_bytes(r, offset[item], offset[item] + bytes);
            continue;
        }
        offset[item] = take_bytes(r, bytes);
        if (offset[item] + bytes > size) size = offset[item] + bytes;
    }
    return size;
}

/* Checks that the sum of all sizes does not overflow, because offsets are added without a check. */
static tr_status check_sum(const tr_arena_item *items, int n) {
    size_t total = 0;
    for (int k = 0; k < n; k++)
        if (__builtin_add_overflow(total, items[k].bytes, &total))
            return TR_FAIL(TR_ERR_FIT, "the activations of one step overflow a size");
    return TR_OK;
}

/* Why two sweeps are enough: a step is a ramp up, a steady state and a ramp down. The forward sweep
 * places items well where live ranges begin together, as in the ramp up; the backward sweep where
 * they end together. In both, repeating items of the steady state get the room of their
 * predecessors. */
tr_status tr_arena_pack(tr_arena_item *items, int n, size_t *bytes) {
    tr_status status = TR_OK;
    event *events = NULL;
    size_t *offset = NULL;
    room r = {0};
    *bytes = 0;
    if (n == 0) return TR_OK;
    TR_TRY(check_sum(items, n));
    TR_TRY_OUT(tr_calloc(2 * (size_t)n, sizeof *events, &events));
    TR_TRY_OUT(tr_calloc((size_t)n, sizeof *offset, &offset));
    TR_TRY_OUT(tr_calloc((size_t)n + 2, sizeof *r.gap, &r.gap));
    for (int backwards = 0; backwards <= 1; backwards++) {
        list_events(items, n, backwards, events);
        size_t size = sweep(items, n, events, &r, offset);
        if (backwards && size >= *bytes) break;
        *bytes = size;
        for (int k = 0; k < n; k++) items[k].offset = offset[k];
    }
out:
    free(r.gap);
    free(offset);
    free(events);
    return status;
}
