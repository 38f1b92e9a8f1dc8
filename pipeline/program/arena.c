#include "pipeline/program/arena.h"

#include "base/memory.h"
#include "pipeline/program/arena_order.h"
#include "pipeline/program/arena_search.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Items are swept in time, forwards or backwards. Those that begin at one position go by the end of
 * their live ranges, the last one first: they then get the lowest offsets and do not split the free
 * room. After that the larger ones go first. */
typedef struct sweep_order {
    int *begin, *until; /* [n]: where an item begins; how long before the sweep's end it ends */
    int last;           /* position of the sweep's end */
    int *by_bytes, *by_until, *by_begin; /* [n]: items in the order of a key, and of those before */
    int *at;                             /* [last + 2]: where each position's items are sorted to */
} sweep_order;

/* Sorts items by bytes, the larger ones first, and those of one size in their order: by one digit
 * of the size after the other, the lowest first. Counts, because a step of many micro-batches has
 * millions of items. */
static void sort_by_bytes(const tr_arena_item *items, int n, sweep_order *o) {
    enum { BITS = 8, DIGITS = 1 << BITS };
    size_t all = 0;
    for (int k = 0; k < n; k++) {
        o->by_bytes[k] = k;
        all |= items[k].bytes;
    }
    for (int shift = 0; shift < 64 && all >> shift; shift += BITS) {
        int at[DIGITS + 1] = {0}, *const sorted = o->by_until;
        for (int k = 0; k < n; k++) at[DIGITS - (items[k].bytes >> shift) % DIGITS]++;
        for (int d = 0; d < DIGITS; d++) at[d + 1] += at[d];
        for (int k = 0; k < n; k++) {
            const int item = o->by_bytes[k];
            sorted[at[DIGITS - 1 - (items[item].bytes >> shift) % DIGITS]++] = item;
        }
        o->by_until = o->by_bytes;
        o->by_bytes = sorted;
    }
}

/* Sorts items by a position; those with the same one stay in their order. */
static void sort_by_position(const sweep_order *o, const int *position, const int *from, int n,
                             int *to) {
    memset(o->at, 0, ((size_t)o->last + 2) * sizeof *o->at);
    for (int k = 0; k < n; k++) o->at[position[k] + 1]++;
    for (int k = 0; k <= o->last; k++) o->at[k + 1] += o->at[k];
    for (int k = 0; k < n; k++) to[o->at[position[from[k]]]++] = from[k];
}

static void destroy_order(const sweep_order *o) {
    free(o->begin);
    free(o->until);
    free(o->by_bytes);
    free(o->by_until);
    free(o->by_begin);
    free(o->at);
}

/* The caller releases *o with destroy_order, also after an error. */
static tr_status create_order(const tr_arena_item *items, int n, sweep_order *o) {
    const size_t count = (size_t)n;
    *o = (sweep_order){.last = 0};
    for (int k = 0; k < n; k++)
        if (items[k].end > o->last) o->last = items[k].end;
    TR_TRY(tr_calloc(count, sizeof *o->begin, &o->begin));
    TR_TRY(tr_calloc(count, sizeof *o->until, &o->until));
    TR_TRY(tr_calloc(count, sizeof *o->by_bytes, &o->by_bytes));
    TR_TRY(tr_calloc(count, sizeof *o->by_until, &o->by_until));
    TR_TRY(tr_calloc(count, sizeof *o->by_begin, &o->by_begin));
    TR_TRY(tr_calloc((size_t)o->last + 2, sizeof *o->at, &o->at));
    for (int k = 0; k < n; k++) {
        o->begin[k] = items[k].start;
        o->until[k] = o->last - items[k].end;
    }
    sort_by_bytes(items, n, o);
    return TR_OK;
}

/* Turns time around. */
static void turn(sweep_order *o) {
    int *const begin = o->begin;
    o->begin = o->until;
    o->until = begin;
}

/* Numbers the buffers, and sets *buffers to their sum. Checks that the sum of all sizes does not
 * overflow, because offsets are added without a check. */
static tr_status number_buffers(tr_arena_item *items, int n, size_t *buffers) {
    size_t total = 0, bytes;
    int sum = 0;
    for (int k = 0; k < n; k++) {
        items[k].first = sum;
        if (__builtin_add_overflow(sum, items[k].count, &sum) ||
            !tr_mul_size((size_t)items[k].count, items[k].bytes, &bytes) ||
            __builtin_add_overflow(total, bytes, &total))
            return TR_FAIL(TR_ERR_FIT, "the activations of one step overflow a size");
    }
    *buffers = (size_t)sum;
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
    size_t capacity;
} room;

static void remove_gap(room *r, int k) {
    memmove(&r->gap[k], &r->gap[k + 1], (size_t)(--r->gaps - k) * sizeof *r->gap);
}

static size_t size_of(gap g) {
    return g.to - g.from;
}

/* Returns the lowest gap that is large enough, or the `tightest` one; no gap before `k` is. */
static int find_gap(const room *r, int k, size_t bytes, bool tightest) {
    while (size_of(r->gap[k]) < bytes) k++; /* the last gap is large enough */
    for (int j = k + 1; j < r->gaps && tightest && size_of(r->gap[k]) > bytes; j++)
        if (size_of(r->gap[j]) >= bytes && size_of(r->gap[j]) < size_of(r->gap[k])) k = j;
    return k;
}

static void give_bytes(room *r, size_t from, size_t to) {
    int k = 0;
    for (int end = r->gaps; k < end;) { /* to the first gap behind them */
        const int middle = (k + end) / 2;
        if (r->gap[middle].from < from) k = middle + 1;
        else end = middle;
    }
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

/* Buffers of an item that are next to each other. */
typedef struct extent {
    size_t from;
    int count;
} extent;

/* The places of a sweep. */
typedef struct places {
    extent *extent; /* of every item, in the order in which they were placed */
    int extents;
    size_t capacity;
    int *first, *after; /* [n]: an item's extents */
    size_t end;         /* of the arena */
} places;

static tr_status open_places(places *p, int n) {
    TR_TRY(tr_calloc((size_t)n, sizeof *p->first, &p->first));
    return tr_calloc((size_t)n, sizeof *p->after, &p->after);
}

static void close_places(places *p) {
    free(p->extent);
    free(p->first);
    free(p->after);
}

/* Places the item's buffers, each at the start of the lowest gap that is large enough or of the
 * `tightest` one. The next buffer has the same gap as long as it is large enough: it is the lowest
 * still, and has become tighter. */
static tr_status place(places *p, room *r, const tr_arena_item *items, int item, bool tightest) {
    const size_t bytes = items[item].bytes;
    p->first[item] = p->extents;
    for (int left = items[item].count, k = 0; left > 0;) {
        k = find_gap(r, tightest ? 0 : k, bytes, tightest);
        gap *g = &r->gap[k];
        const size_t fit = size_of(*g) / bytes;
        const int count = fit < (size_t)left ? (int)fit : left;
        TR_TRY(tr_grow(&p->extent, &p->capacity, (size_t)p->extents + 1, sizeof *p->extent));
        p->extent[p->extents++] = (extent){g->from, count};
        g->from += (size_t)count * bytes;
        if (g->from > p->end) p->end = g->from;
        if (g->from == g->to) remove_gap(r, k);
        left -= count;
    }
    p->after[item] = p->extents;
    /* Room for a gap behind each extent, so that give_bytes needs no memory. */
    return tr_grow(&r->gap, &r->capacity, (size_t)p->extents + 2, sizeof *r->gap);
}

/* Gives the bytes of an item back, and returns how many. */
static size_t release(const places *p, room *r, const tr_arena_item *items, int item) {
    const size_t bytes = items[item].bytes;
    for (int e = p->first[item]; e < p->after[item]; e++)
        give_bytes(r, p->extent[e].from, p->extent[e].from + (size_t)p->extent[e].count * bytes);
    return (size_t)items[item].count * bytes;
}

/* Fills *p: each buffer gets the lowest offset that is free during its live range, or the start of
 * the `tightest` gap. *peak: the most bytes alive. Ends early when the arena is not smaller than
 * `most`. */
static tr_status sweep(const tr_arena_item *items, int n, const sweep_order *o, bool tightest,
                       size_t most, room *r, places *p, size_t *peak) {
    size_t live = 0;
    int ended = n; /* by_until has those that are over from here on */
    TR_TRY(tr_grow(&r->gap, &r->capacity, 1, sizeof *r->gap));
    r->gap[0] = (gap){0, SIZE_MAX};
    r->gaps = 1;
    p->extents = 0;
    p->end = 0;
    *peak = 0;
    sort_by_position(o, o->until, o->by_bytes, n, o->by_until);
    sort_by_position(o, o->begin, o->by_until, n, o->by_begin);
    for (int k = 0; k < n && p->end < most; k++) {
        const int item = o->by_begin[k];
        for (; o->last - o->until[o->by_until[ended - 1]] < o->begin[item]; ended--)
            live -= release(p, r, items, o->by_until[ended - 1]);
        TR_TRY(place(p, r, items, item, tightest));
        live += (size_t)items[item].count * items[item].bytes;
        if (live > *peak) *peak = live;
    }
    return TR_OK;
}

enum { WAYS = 4 }; /* forwards, backwards, and both with the tightest gaps */
/* Sweeps with the tightest gaps follow where the others leave more than this part of the peak. */
enum { GOOD_PART = 64 };

static bool is_worth_a_sweep(int way, size_t best, size_t peak) {
    return way < 2 ? best > peak : best - peak > peak / GOOD_PART;
}

/* Keeps the smallest arena of the sweeps in *best; *trial has another one. */
static tr_status sweep_all(const tr_arena_item *items, int n, sweep_order *o, room *r, places *best,
                           places *trial, size_t *live_peak) {
    best->end = SIZE_MAX;
    for (int way = 0; way < WAYS && is_worth_a_sweep(way, best->end, *live_peak); way++) {
        size_t peak = 0;
        TR_TRY(sweep(items, n, o, way >= 2, best->end, r, trial, &peak));
        turn(o);
        if (way == 0) *live_peak = peak;
        if (trial->end >= best->end) continue;
        const places better = *trial;
        *trial = *best;
        *best = better;
    }
    return TR_OK;
}

static void list_offsets(const tr_arena_item *items, int n, const places *p, size_t *offset) {
    for (int k = 0; k < n; k++)
        for (int e = p->first[k]; e < p->after[k]; e++)
            for (int j = 0; j < p->extent[e].count; j++)
                *offset++ = p->extent[e].from + (size_t)j * items[k].bytes;
}

/* --- the arena -------------------------------------------------------------------------------- */

/* What follows the sweeps has enough when it leaves no more of the peak than the first part, and is
 * to leave no more than the second. */
enum { ENOUGH_PART = 32, MOST_PART = 20 };

/* Why these sweeps are mostly enough: a step is a ramp up, a steady state and a ramp down. The
 * forward sweep places items well where live ranges begin together, as in the ramp up; the backward
 * sweep where they end together. In both, repeating items of the steady state get the room of their
 * predecessors. Small items that take the lowest gaps split the room of large ones there where both
 * alternate, as with the two directions of DualPipeV; in the tightest gaps they do not. What an F
 * with recompute does not keep is larger than most gaps, so the largest are placed first. With the
 * values that parallel.zero 3 gathers for several stages of a rank that is not enough either, so
 * searches place these. */
tr_status tr_arena_pack(tr_arena_item *items, int n, size_t **offset, size_t *bytes,
                        size_t *live_peak) {
    tr_status status = TR_OK;
    sweep_order order = {0};
    places best = {0}, trial = {0};
    room r = {0};
    size_t buffers = 0, *own = NULL;
    *bytes = *live_peak = 0;
    if (offset) *offset = NULL;
    if (n == 0) return TR_OK;
    TR_TRY(number_buffers(items, n, &buffers));
    TR_TRY_OUT(create_order(items, n, &order));
    TR_TRY_OUT(open_places(&best, n));
    TR_TRY_OUT(open_places(&trial, n));
    TR_TRY_OUT(sweep_all(items, n, &order, &r, &best, &trial, live_peak));
    *bytes = best.end;
    const size_t enough = *live_peak + *live_peak / ENOUGH_PART,
                 most = *live_peak + *live_peak / MOST_PART;
    if (!offset && *bytes <= enough) goto out;
    TR_TRY_OUT(tr_calloc(buffers, sizeof *own, &own));
    list_offsets(items, n, &best, own);
    if (*bytes > enough) TR_TRY_OUT(tr_arena_largest_first(items, n, bytes, own));
    if (*bytes > enough) TR_TRY_OUT(tr_arena_search(items, n, TR_ARENA_SHORT, enough, bytes, own));
    if (*bytes > most) TR_TRY_OUT(tr_arena_search_order(items, n, most, bytes, own));
    if (*bytes > most) TR_TRY_OUT(tr_arena_search(items, n, TR_ARENA_LONG, most, bytes, own));
    if (!offset) goto out;
    *offset = own;
    own = NULL;
out:
    free(own);
    free(r.gap);
    close_places(&trial);
    close_places(&best);
    destroy_order(&order);
    return status;
}
