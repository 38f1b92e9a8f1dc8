#include "pipeline/program/arena.h"

#include "base/memory.h"
#include "pipeline/program/arena_impl.h"

#include <limits.h>
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

/* --- boxes ------------------------------------------------------------------------------------ */

/* Items in the order in which they are placed by a sweep. */
static int compare_starts(const void *left, const void *right) {
    const tr_arena_box *a = left, *b = right;
    if (a->start != b->start) return a->start < b->start ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    return a->item < b->item ? -1 : a->item > b->item;
}

static int compare_ends(const void *left, const void *right) {
    const tr_arena_ending *a = left, *b = right;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return a->box < b->box ? -1 : a->box > b->box;
}

static void count_classes(tr_packer *p) {
    size_t size[TR_ARENA_CLASSES];
    p->classes = 0;
    for (int k = 0; k < p->count; k++) {
        int c = 0;
        while (c < p->classes && size[c] != p->boxes[k].bytes) c++;
        if (c == p->classes && c < TR_ARENA_CLASSES) size[p->classes++] = p->boxes[k].bytes;
        p->boxes[k].size_class = c < TR_ARENA_CLASSES ? c : TR_ARENA_CLASSES - 1;
    }
}

static void make_boxes(tr_packer *p) {
    for (int k = 0; k < p->count; k++)
        p->boxes[k] = (tr_arena_box){.start = p->items[k].start,
                                     .end = p->items[k].end,
                                     .bytes = p->items[k].bytes,
                                     .item = k};
    qsort(p->boxes, (size_t)p->count, sizeof *p->boxes, compare_starts);
    for (int k = 0; k < p->count; k++)
        p->endings[k] = (tr_arena_ending){.end = p->boxes[k].end, .box = k};
    qsort(p->endings, (size_t)p->count, sizeof *p->endings, compare_ends);
    count_classes(p);
}

void tr_packer_keep(tr_packer *p) {
    size_t size = 0;
    for (int k = 0; k < p->count; k++)
        if (p->boxes[k].offset + p->boxes[k].bytes > size)
            size = p->boxes[k].offset + p->boxes[k].bytes;
    if (size >= p->best) return;
    p->best = size;
    for (int k = 0; k < p->count; k++) p->items[p->boxes[k].item].offset = p->boxes[k].offset;
}

/* --- sweeps ----------------------------------------------------------------------------------- */

/* Gives [from, to) back to the gaps. */
static void give_back(tr_packer *p, size_t from, size_t to) {
    int low = 0, high = p->gaps; /* the first gap that ends at `from` or behind it */
    while (low < high) {
        int middle = (low + high) / 2;
        if (p->gap[middle].to < from) low = middle + 1;
        else high = middle;
    }
    tr_arena_gap *at = &p->gap[low];
    size_t behind = (size_t)(p->gaps - low);
    bool joins_low = low < p->gaps && at->to == from;
    tr_arena_gap *next = joins_low ? at + 1 : at;
    bool joins_high = next < p->gap + p->gaps && next->from == to;
    if (joins_low && joins_high) {
        at->to = next->to;
        memmove(next, next + 1, (behind - 2) * sizeof *at);
        p->gaps--;
    } else if (joins_low) at->to = to;
    else if (joins_high) next->from = from;
    else {
        memmove(at + 1, at, behind * sizeof *at);
        *at = (tr_arena_gap){from, to};
        p->gaps++;
    }
}

/* The gap for a box: the first that holds it from below, or above, or the smallest; -1: none. */
static int find_gap(tr_packer *p, size_t bytes, bool above, bool smallest) {
    int found = -1;
    size_t least = SIZE_MAX;
    for (int k = 0; k < p->gaps; k++) {
        int at = above ? p->gaps - 1 - k : k;
        size_t room = p->gap[at].to - p->gap[at].from;
        p->work--;
        if (room < bytes || room >= least) continue;
        found = at;
        least = room;
        if (!smallest || room == bytes) break;
    }
    return found;
}

/* Places the boxes into an arena of `size` bytes as they begin to live; the classes of `above` from
 * its end downwards, the others from its start. False when one finds no room. */
static bool sweep(tr_packer *p, size_t size, unsigned above, bool smallest) {
    int ended = 0;
    p->gaps = 1;
    p->gap[0] = (tr_arena_gap){0, size};
    for (int k = 0; k < p->count; k++) {
        tr_arena_box *b = &p->boxes[k];
        for (; p->endings[ended].end < b->start; ended++) {
            const tr_arena_box *o = &p->boxes[p->endings[ended].box];
            give_back(p, o->offset, o->offset + o->bytes);
        }
        bool is_above = above >> b->size_class & 1u;
        int found = find_gap(p, b->bytes, is_above, smallest);
        p->work--;
        if (found < 0) return false;
        tr_arena_gap *g = &p->gap[found];
        if (is_above) b->offset = g->to -= b->bytes;
        else {
            b->offset = g->from;
            g->from += b->bytes;
        }
        if (g->from == g->to) memmove(g, g + 1, (size_t)(--p->gaps - found) * sizeof *g);
    }
    return true;
}

static bool try_size(tr_packer *p, size_t size, unsigned above, bool smallest) {
    if (!sweep(p, size, above, smallest)) return false;
    tr_packer_keep(p);
    return true;
}

/* Sweeps into smaller arenas as long as one rule fills them. */
static void shrink(tr_packer *p, unsigned above, bool smallest) {
    while (p->best > p->peak && p->work > 0) {
        size_t over = p->best - p->peak, least = p->peak / 256;
        size_t half = p->peak + over / 2 / TR_ALIGN * TR_ALIGN;
        size_t step = over / 8 > least ? over / 8 : least;
        size_t next = step < over ? (p->best - step) / TR_ALIGN * TR_ALIGN : p->peak;
        if (!try_size(p, half, above, smallest) && !try_size(p, next, above, smallest)) break;
    }
}

/* --- the whole -------------------------------------------------------------------------------- */

bool tr_packer_is_tight(const tr_packer *p) {
    return p->best - p->peak <= p->peak / 100;
}

bool tr_packer_is_done(const tr_packer *p) {
    return tr_packer_is_tight(p) || p->work <= 0;
}

/* All rules of the sweep. */
static void sweep_all(tr_packer *p) {
    (void)try_size(p, p->total, 0, true); /* finds room whatever happens */
    for (unsigned above = 0; above >> p->classes == 0 && !tr_packer_is_done(p); above++)
        for (int smallest = 1; smallest >= 0; smallest--) shrink(p, above, smallest);
}

static tr_status packer_open(tr_packer *p) {
    size_t n = (size_t)p->count;
    /* Offsets are sums of sizes and are added without a check: the sum of all must not overflow. */
    for (int k = 0; k < p->count; k++)
        if (__builtin_add_overflow(p->total, p->items[k].bytes, &p->total))
            return TR_FAIL(TR_ERR_FIT, "the activations of one step overflow a size");
    TR_TRY(tr_arena_live_peak(p->items, p->count, &p->peak));
    TR_TRY(tr_calloc(n, sizeof *p->boxes, &p->boxes));
    TR_TRY(tr_calloc(n, sizeof *p->endings, &p->endings));
    TR_TRY(tr_calloc(n + 1, sizeof *p->gap, &p->gap));
    return TR_OK;
}

tr_status tr_arena_pack(tr_arena_item *items, int n, size_t *bytes) {
    enum { WORK = 2000000 };
    tr_status status = TR_OK;
    tr_packer p = {.items = items, .count = n, .best = SIZE_MAX, .work = WORK + 16 * (int64_t)n};
    *bytes = 0;
    if (n == 0) return TR_OK;
    TR_TRY_OUT(packer_open(&p));
    make_boxes(&p);
    sweep_all(&p);
    if (!tr_packer_is_tight(&p)) TR_TRY_OUT(tr_packer_search(&p));
    *bytes = p.best;
out:
    free(p.gap);
    free(p.endings);
    free(p.boxes);
    return status;
}
