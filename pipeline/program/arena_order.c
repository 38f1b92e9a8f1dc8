#include "pipeline/program/arena_order.h"

#include "base/memory.h"
#include "base/philox.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Every packing without empty room below a box comes from an order: that of its boxes by their
 * offsets. So a search over orders can find the smallest arena, where best fit (arena_search.h)
 * fills room that is better left empty. The search begins with the largest first. It moves a box
 * that made the arena too large before others, or a few at random, and keeps an order that makes
 * the arena of the large boxes no larger. These are few, above all the values and gradients of
 * parallel.zero 3, so a trial is short; small boxes fill the room between them afterwards. */

/* Chosen on the drawn plans of docs/architecture.md. */
enum {
    LARGE_PART = 16,   /* a buffer is large from this part of the largest one on */
    MOST_BOXES = 4096, /* to place them takes quadratic time */
    MOST_MOVES = 6,    /* random moves of boxes at a time */
    REPAIRS = 40       /* moves of blamed boxes before the search returns to the order it keeps */
};
static const int64_t STEPS = 1 << 29; /* comparisons with a box that has its place: some 1.5 s */

/* A large buffer, or small buffers with one live range: those of small items between which no small
 * item has another one. */
typedef struct box {
    int start, end;
    bool large;
    size_t bytes, offset;
} box;

/* A box that has its place. */
typedef struct placed {
    int start, end;
    size_t from, to;
} placed;

typedef struct search {
    box *box; /* [boxes]: in the order of their items */
    int boxes, large;
    int *of;        /* [n]: the first box of an item's buffers */
    size_t *above;  /* [n]: where they begin in a box of several items */
    int *order;     /* [boxes]: the large ones first, then by size */
    int *kept;      /* [large]: of the smallest arena */
    placed *placed; /* [boxes]: by offset */
    int blamed;     /* place in the order of the box that made the last arena too large, or -1 */
    uint64_t draws;
    int64_t steps; /* that are left */
} search;

static void close_search(const search *s) {
    free(s->box);
    free(s->of);
    free(s->above);
    free(s->order);
    free(s->kept);
    free(s->placed);
}

/* --- boxes ------------------------------------------------------------------------------------ */

static bool live_alike(const tr_arena_item *a, const tr_arena_item *b) {
    return a->start == b->start && a->end == b->end;
}

/* Adds the buffers of item k: large ones as boxes, small ones as a box, or to that of item `last`,
 * the small one before it, if it has the same live range; last -1: there is none. */
static void add_boxes(search *s, const tr_arena_item *items, int k, bool small, int last) {
    const tr_arena_item *item = &items[k];
    const bool joins = small && last >= 0 && live_alike(&items[last], item);
    const int boxes = joins ? 0 : small ? 1 : item->count;
    s->of[k] = joins ? s->of[last] : s->boxes;
    for (int j = 0; j < boxes; j++)
        s->box[s->boxes++] = (box){item->start, item->end, !small, small ? 0 : item->bytes, 0};
    if (!small) {
        s->large += boxes;
        return;
    }
    s->above[k] = s->box[s->of[k]].bytes;
    s->box[s->of[k]].bytes += (size_t)item->count * item->bytes;
}

static int larger_first(const void *a, const void *b, void *boxes) {
    const int i = *(const int *)a, j = *(const int *)b;
    const box *x = (const box *)boxes + i, *y = (const box *)boxes + j;
    if (x->large != y->large) return x->large ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return i - j;
}

/* Makes the boxes, of which those of at least `least` bytes are large; none when there are too
 * many. The caller releases *s with close_search, also after an error. */
static tr_status open_search(search *s, const tr_arena_item *items, int n, size_t least) {
    const size_t count = (size_t)n;
    size_t boxes = 0;
    *s = (search){.steps = STEPS};
    for (int k = 0, last = -1; k < n; k++) {
        const bool small = items[k].bytes < least;
        boxes += !small ? (size_t)items[k].count : last < 0 || !live_alike(&items[last], &items[k]);
        if (small) last = k;
    }
    if (boxes > MOST_BOXES) return TR_OK;
    TR_TRY(tr_calloc(boxes, sizeof *s->box, &s->box));
    TR_TRY(tr_calloc(count, sizeof *s->of, &s->of));
    TR_TRY(tr_calloc(count, sizeof *s->above, &s->above));
    for (int k = 0, last = -1; k < n; k++) {
        const bool small = items[k].bytes < least;
        add_boxes(s, items, k, small, last);
        if (small) last = k;
    }
    TR_TRY(tr_calloc(boxes, sizeof *s->order, &s->order));
    TR_TRY(tr_calloc(boxes, sizeof *s->kept, &s->kept));
    TR_TRY(tr_calloc(boxes, sizeof *s->placed, &s->placed));
    for (int k = 0; k < s->boxes; k++) s->order[k] = k;
    qsort_r(s->order, (size_t)s->boxes, sizeof *s->order, larger_first, s->box);
    return TR_OK;
}

static void list_offsets(const search *s, const tr_arena_item *items, int n, size_t *offset) {
    for (int k = 0; k < n; k++) {
        const box *own = &s->box[s->of[k]];
        for (int j = 0; j < items[k].count; j++)
            *offset++ =
                own->large ? own[j].offset : own->offset + s->above[k] + (size_t)j * items[k].bytes;
    }
}

/* --- places ----------------------------------------------------------------------------------- */

/* Returns the lowest offset at which the box overlaps none of the first `count` placed. */
static size_t lowest_offset(search *s, const box *own, int count) {
    const placed *by = s->placed;
    size_t at = 0;
    int k = 0;
    for (; k < count && by[k].from < at + own->bytes; k++)
        if (by[k].start <= own->end && own->start <= by[k].end && by[k].to > at) at = by[k].to;
    s->steps -= k;
    return at;
}

static void insert_placed(placed *by, int count, placed own) {
    int k = count;
    for (; k > 0 && by[k - 1].from > own.from; k--) by[k] = by[k - 1];
    by[k] = own;
}

/* Places the boxes [first, after) of the order after those before them, which take `size` bytes.
 * Returns the arena's size, or SIZE_MAX and blames a box when it is not smaller than `below`. */
static size_t place(search *s, int first, int after, size_t size, size_t below) {
    s->blamed = -1;
    for (int k = first; k < after; k++) {
        box *own = &s->box[s->order[k]];
        own->offset = lowest_offset(s, own, k);
        const size_t end = own->offset + own->bytes;
        if (end >= below) {
            s->blamed = k;
            return SIZE_MAX;
        }
        insert_placed(s->placed, k, (placed){own->start, own->end, own->offset, end});
        if (end > size) size = end;
    }
    return size;
}

/* --- search ----------------------------------------------------------------------------------- */

static int draw(search *s, int below) {
    return (int)(tr_mix64(s->draws++) % (uint64_t)below);
}

static void move(int *order, int from, int to) {
    const int own = order[from];
    if (to < from) memmove(&order[to + 1], &order[to], (size_t)(from - to) * sizeof *order);
    else memmove(&order[from], &order[from + 1], (size_t)(to - from) * sizeof *order);
    order[to] = own;
}

/* Moves the blamed box before others, or boxes of the order that is kept. */
static void change_order(search *s, int *repairs) {
    if (s->blamed > 0 && *repairs < REPAIRS && draw(s, 4) > 0) {
        ++*repairs;
        move(s->order, s->blamed, draw(s, s->blamed));
        return;
    }
    *repairs = 0;
    memcpy(s->order, s->kept, (size_t)s->large * sizeof *s->order);
    for (int moves = 1 + draw(s, MOST_MOVES); moves > 0; moves--) {
        const int from = draw(s, s->large);
        move(s->order, from, draw(s, s->large));
    }
}

/* Returns the most bytes of large boxes alive at one position. */
static size_t most_alive(const search *s) {
    size_t most = 0;
    for (int k = 0; k < s->large; k++) {
        const int at = s->box[s->order[k]].start;
        size_t live = 0;
        for (int j = 0; j < s->large; j++) {
            const box *b = &s->box[s->order[j]];
            if (b->start <= at && at <= b->end) live += b->bytes;
        }
        if (live > most) most = live;
    }
    return most;
}

tr_status tr_arena_largest_first(const tr_arena_item *items, int n, size_t *bytes, size_t *offset) {
    search s;
    tr_status status = open_search(&s, items, n, 0);
    const size_t size =
        status == TR_OK && s.boxes > 0 ? place(&s, 0, s.boxes, 0, *bytes) : SIZE_MAX;
    if (size < SIZE_MAX) {
        *bytes = size;
        list_offsets(&s, items, n, offset);
    }
    close_search(&s);
    return status;
}

tr_status tr_arena_search_order(const tr_arena_item *items, int n, size_t most, size_t *bytes,
                                size_t *offset) {
    tr_status status = TR_OK;
    search s;
    size_t largest = 0, own = SIZE_MAX; /* the smallest arena of the large boxes */
    int repairs = 0;
    for (int k = 0; k < n; k++)
        if (items[k].bytes > largest) largest = items[k].bytes;
    TR_TRY_OUT(open_search(&s, items, n, largest / LARGE_PART));
    if (s.boxes == 0) goto out;
    const size_t bound = most_alive(&s);
    for (bool first = true; s.steps > 0 && *bytes > most && own > bound; first = false) {
        if (!first) change_order(&s, &repairs);
        const size_t size = place(&s, 0, s.large, 0, own < SIZE_MAX ? own + 1 : own);
        if (size == SIZE_MAX) continue;
        repairs = 0;
        memcpy(s.kept, s.order, (size_t)s.large * sizeof *s.kept);
        if (size == own) continue;
        own = size;
        const size_t whole = place(&s, s.large, s.boxes, size, *bytes);
        s.blamed = -1; /* only large boxes move */
        if (whole == SIZE_MAX) continue;
        *bytes = whole;
        list_offsets(&s, items, n, offset);
    }
out:
    close_search(&s);
    return status;
}
