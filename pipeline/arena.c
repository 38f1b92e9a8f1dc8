#include "pipeline/arena.h"

#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A change of the live bytes: +bytes in front of `start`, -bytes behind `end`. */
typedef struct change {
    int position;
    bool ends;
    size_t bytes;
} change;

static int compare_changes(const void *left, const void *right) {
    const change *a = left, *b = right;
    if (a->position != b->position) return a->position < b->position ? -1 : 1;
    return (int)b->ends - (int)a->ends; /* `ends` stands at end + 1: frees before takes */
}

tr_status tr_arena_live_peak(const tr_arena_item *items, int n, size_t *bytes) {
    change *changes = NULL;
    TR_TRY(tr_calloc(2 * (size_t)n, sizeof *changes, &changes));
    for (int k = 0; k < n; k++) {
        changes[2 * k] = (change){.position = items[k].start, .bytes = items[k].bytes};
        changes[2 * k + 1] =
            (change){.position = items[k].end + 1, .ends = true, .bytes = items[k].bytes};
    }
    qsort(changes, 2 * (size_t)n, sizeof *changes, compare_changes);
    size_t live = 0, peak = 0;
    bool overflow = false;
    for (int k = 0; k < 2 * n; k++) {
        if (changes[k].ends) live -= changes[k].bytes;
        else overflow |= __builtin_add_overflow(live, changes[k].bytes, &live);
        if (live > peak) peak = live;
    }
    free(changes);
    if (overflow) return TR_FAIL(TR_ERR_FIT, "the activations of one step overflow a size");
    *bytes = peak;
    return TR_OK;
}

/* --- orders in which items are placed --------------------------------------------------------- */

typedef struct candidate {
    const tr_arena_item *item;
    int index;
} candidate;

static int by_start(const candidate *a, const candidate *b) {
    if (a->item->start != b->item->start) return a->item->start < b->item->start ? -1 : 1;
    if (a->item->bytes != b->item->bytes) return a->item->bytes > b->item->bytes ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int compare_by_start(const void *a, const void *b) {
    return by_start(a, b);
}

static int compare_by_bytes(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    if (a->item->bytes != b->item->bytes) return a->item->bytes > b->item->bytes ? -1 : 1;
    return by_start(a, b);
}

static int compare_by_length(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    int64_t length_a = (int64_t)a->item->end - a->item->start;
    int64_t length_b = (int64_t)b->item->end - b->item->start;
    if (length_a != length_b) return length_a > length_b ? -1 : 1;
    return compare_by_bytes(left, right);
}

static int compare_by_area(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    double area_a = (double)a->item->bytes * (double)(a->item->end - a->item->start + 1);
    double area_b = (double)b->item->bytes * (double)(b->item->end - b->item->start + 1);
    if (area_a != area_b) return area_a > area_b ? -1 : 1;
    return compare_by_bytes(left, right);
}

static int (*const orders[])(const void *, const void *) = {compare_by_bytes, compare_by_start,
                                                            compare_by_length, compare_by_area};

/* Places the candidates in their order, each into the smallest gap that holds it between the placed
 * items alive with it, else the lowest gap at the end. placed: scratch [n], kept sorted by offset.
 * Offsets go to offset[index]; returns the arena's size. */
static size_t place(const candidate *order, int n, size_t *offset, int *placed,
                    const tr_arena_item *items) {
    size_t size = 0;
    for (int k = 0; k < n; k++) {
        const tr_arena_item *item = order[k].item;
        size_t top = 0, best = SIZE_MAX, best_gap = SIZE_MAX;
        for (int j = 0; j < k; j++) {
            const tr_arena_item *other = &items[placed[j]];
            if (other->end < item->start || other->start > item->end) continue;
            size_t from = offset[placed[j]];
            if (from >= top && from - top >= item->bytes && from - top < best_gap) {
                best_gap = from - top;
                best = top;
            }
            if (from + other->bytes > top) top = from + other->bytes;
        }
        size_t at = best != SIZE_MAX ? best : top;
        offset[order[k].index] = at;
        if (at + item->bytes > size) size = at + item->bytes;
        int j = k;
        for (; j > 0 && offset[placed[j - 1]] > at; j--) placed[j] = placed[j - 1];
        placed[j] = order[k].index;
    }
    return size;
}

tr_status tr_arena_pack(tr_arena_item *items, int n, size_t *bytes) {
    tr_status status = TR_OK;
    candidate *order = NULL;
    size_t *offset = NULL;
    int *placed = NULL;
    size_t peak = 0, total = 0, best = SIZE_MAX;
    TR_TRY_OUT(tr_arena_live_peak(items, n, &peak));
    /* place() adds sizes without a check: their sum must not overflow. */
    for (int k = 0; k < n; k++)
        if (__builtin_add_overflow(total, items[k].bytes, &total)) {
            status = TR_FAIL(TR_ERR_FIT, "the activations of one step overflow a size");
            goto out;
        }
    TR_TRY_OUT(tr_calloc((size_t)n, sizeof *order, &order));
    TR_TRY_OUT(tr_calloc((size_t)n, sizeof *offset, &offset));
    TR_TRY_OUT(tr_calloc((size_t)n, sizeof *placed, &placed));
    for (size_t o = 0; o < sizeof orders / sizeof orders[0] && best > peak; o++) {
        for (int k = 0; k < n; k++) order[k] = (candidate){.item = &items[k], .index = k};
        qsort(order, (size_t)n, sizeof *order, orders[o]);
        size_t size = place(order, n, offset, placed, items);
        if (size >= best) continue;
        best = size;
        for (int k = 0; k < n; k++) items[k].offset = offset[k];
    }
    *bytes = n ? best : 0;
out:
    free(placed);
    free(offset);
    free(order);
    return status;
}
