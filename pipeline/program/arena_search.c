/* The second search of the packer: into an arena of a given size boxes are placed from the bottom
 * upwards, as long as at every time what is left to place still fits above what lies there.
 * (Offsets never descend in the order of placing: any packing, pushed down, can be built so.) */
#include "pipeline/program/arena_impl.h"

#include "base/memory.h"
#include "base/philox.h"

#include <stdlib.h>
#include <string.h>

enum {
    WORK = 8 << 20,
    MOST_WORK = 128 << 20, /* boxes and sections looked at: the second where 5% is missed */
    MOST_PAIRS = 1 << 21,  /* of boxes alive together: beyond it there is no second search */
    MOST_STEPS_BACK = 10   /* then the search starts again with other ranks */
};

typedef struct searcher {
    tr_packer *p;
    size_t size;            /* of the arena */
    int *first, *neighbour; /* boxes alive with box k: neighbour[first[k]] to [first[k + 1] - 1] */
    int sections;   /* times when most boxes are alive: an end follows, a start went before */
    int *from, *to; /* [count]: a box's sections */
    size_t *floor;  /* [sections]: end of the highest box placed there */
    size_t *load;   /* [sections]: bytes that are not yet placed there */
    size_t *lowest; /* [count]: a box's place, if it came next */
    bool *placed;   /* [count] */
    double *rank;   /* [count]: order of boxes at the same place */
    double *blame;  /* [count]: grows where the search fails */
    int *order;     /* [count]: placed boxes */
    int depth;
    bool by_rank; /* the rank comes before the place */
    uint64_t draw;
} searcher;

/* Pairs of boxes alive together, each counted at both; false when there are too many. */
static bool count_pairs(const tr_packer *p, int *degree) {
    int64_t pairs = 0;
    for (int k = 0; k < p->count; k++)
        for (int j = k + 1; j < p->count && p->boxes[j].start <= p->boxes[k].end; j++) {
            degree[k]++;
            degree[j]++;
            if (++pairs > MOST_PAIRS) return false;
        }
    return true;
}

/* first[k + 1] holds the degree of box k. */
static tr_status list_neighbours(searcher *s) {
    const tr_packer *p = s->p;
    int *next = s->order; /* scratch */
    for (int k = 0; k < p->count; k++) s->first[k + 1] += s->first[k];
    TR_TRY(tr_calloc((size_t)s->first[p->count], sizeof *s->neighbour, &s->neighbour));
    memcpy(next, s->first, (size_t)p->count * sizeof *next);
    for (int k = 0; k < p->count; k++)
        for (int j = k + 1; j < p->count && p->boxes[j].start <= p->boxes[k].end; j++) {
            s->neighbour[next[k]++] = j;
            s->neighbour[next[j]++] = k;
        }
    return TR_OK;
}

/* A section ends where a box ends and one has started since the last section's end. */
static void list_sections(searcher *s) {
    const tr_packer *p = s->p;
    int started = 0, before = 0;
    for (int k = 0; k < p->count; k++) {
        int end = p->endings[k].end;
        while (started < p->count && p->boxes[started].start <= end)
            s->from[started++] = s->sections;
        s->to[p->endings[k].box] = started > before ? s->sections : s->sections - 1;
        bool last = k + 1 == p->count || p->endings[k + 1].end > end;
        if (!last || started == before) continue;
        before = started;
        s->sections++;
    }
}

/* --- one attempt ------------------------------------------------------------------------------ */

static size_t top_of(const searcher *s, int box) {
    return s->p->boxes[box].offset + s->p->boxes[box].bytes;
}

static void put(searcher *s, int box) {
    tr_arena_box *b = &s->p->boxes[box];
    b->offset = s->lowest[box];
    size_t top = b->offset + b->bytes;
    s->placed[box] = true;
    s->order[s->depth++] = box;
    for (int t = s->from[box]; t <= s->to[box]; t++) {
        s->floor[t] = top;
        s->load[t] -= b->bytes;
    }
    for (int j = s->first[box]; j < s->first[box + 1]; j++)
        if (s->lowest[s->neighbour[j]] < top) s->lowest[s->neighbour[j]] = top;
    s->p->work -= s->first[box + 1] - s->first[box] + s->to[box] - s->from[box];
}

/* Takes the last box away again and returns it. */
static int take_back(searcher *s) {
    int box = s->order[--s->depth];
    s->placed[box] = false;
    for (int t = s->from[box]; t <= s->to[box]; t++) {
        s->floor[t] = 0;
        s->load[t] += s->p->boxes[box].bytes;
    }
    for (int j = s->first[box]; j < s->first[box + 1]; j++) {
        int other = s->neighbour[j];
        int from = s->from[other] > s->from[box] ? s->from[other] : s->from[box];
        int to = s->to[other] < s->to[box] ? s->to[other] : s->to[box];
        if (!s->placed[other]) continue;
        for (int t = from; t <= to; t++)
            if (top_of(s, other) > s->floor[t]) s->floor[t] = top_of(s, other);
    }
    for (int j = s->first[box]; j <= s->first[box + 1]; j++) {
        int other = j < s->first[box + 1] ? s->neighbour[j] : box;
        if (s->placed[other]) continue;
        s->lowest[other] = 0;
        for (int t = s->from[other]; t <= s->to[other]; t++)
            if (s->floor[t] > s->lowest[other]) s->lowest[other] = s->floor[t];
    }
    s->p->work -= (int64_t)(s->first[box + 1] - s->first[box]) * 8;
    return box;
}

/* The first section where not all would fit with the box in its place; -1: all fit. What is left to
 * place stands on the floor there, and no lower than the box; so does the box itself. */
static int find_overflow(searcher *s, int box) {
    size_t offset = s->lowest[box];
    s->p->work -= s->sections;
    for (int t = 0; t < s->sections; t++) {
        size_t low = s->floor[t] > offset ? s->floor[t] : offset;
        if (s->load[t] && low + s->load[t] > s->size) return t;
    }
    return -1;
}

static bool comes_before(const searcher *s, int a, int b) {
    if (!s->by_rank && s->lowest[a] != s->lowest[b]) return s->lowest[a] < s->lowest[b];
    if (s->rank[a] != s->rank[b]) return s->rank[a] > s->rank[b];
    return a < b;
}

/* The next box to place, behind `after` when that is not -1; -1 when none leaves room for the rest.
 * A box above one that would fit wholly below it is none: the other could be pushed down later. */
static int choose(searcher *s, int after) {
    int count = s->p->count;
    size_t ceiling = SIZE_MAX;
    for (int k = 0; k < count; k++)
        if (!s->placed[k] && s->lowest[k] + s->p->boxes[k].bytes < ceiling)
            ceiling = s->lowest[k] + s->p->boxes[k].bytes;
    for (;;) {
        int found = -1;
        for (int k = 0; k < count; k++) {
            if (s->placed[k] || s->lowest[k] >= ceiling) continue;
            if (after >= 0 && !comes_before(s, after, k)) continue;
            if (found < 0 || comes_before(s, k, found)) found = k;
        }
        s->p->work -= count;
        if (found < 0) return -1;
        int full = find_overflow(s, found);
        if (full < 0) return found;
        for (int k = 0; k < count; k++)
            if (!s->placed[k] && s->from[k] <= full && full <= s->to[k]) s->blame[k] += 0.02;
        after = found;
    }
}

static bool attempt(searcher *s) {
    const tr_packer *p = s->p;
    int back = 0, after = -1;
    s->depth = 0;
    for (int t = 0; t < s->sections; t++) s->floor[t] = s->load[t] = 0;
    for (int k = 0; k < p->count; k++) {
        s->placed[k] = false;
        s->lowest[k] = 0;
        for (int t = s->from[k]; t <= s->to[k]; t++) s->load[t] += p->boxes[k].bytes;
    }
    while (s->depth < p->count) {
        int box = choose(s, after);
        after = -1;
        if (p->work <= 0) return false;
        if (box >= 0) put(s, box);
        else if (s->depth == 0 || back++ == MOST_STEPS_BACK) return false;
        else after = take_back(s);
    }
    return true;
}

/* --- attempts --------------------------------------------------------------------------------- */

/* Large boxes, long ones, or both first; from the second time on with noise, and those first whose
 * like found no room before. */
static void make_ranks(searcher *s, int round) {
    enum { RULES = 5 };
    const tr_packer *p = s->p;
    for (int k = 0; k < p->count; k++) {
        const tr_arena_box *b = &p->boxes[k];
        double bytes = (double)b->bytes, life = (double)b->end - b->start + 1;
        const double rule[RULES] = {bytes * life, bytes, life, bytes * life * life,
                                    1.0 / (1.0 + b->start)};
        double noise = (double)(tr_mix64(s->draw++) >> 11) * 0x1p-53 - 0.5;
        if (round < RULES) noise = 0;
        s->rank[k] = rule[round % RULES] * (1 + 0.7 * noise) * (1 + s->blame[k]);
    }
    s->by_rank = round % 3 == 2;
}

/* Attempts at what is asked for, and by turns at an eighth to a half less than the best. */
static void search(searcher *s, int64_t work) {
    tr_packer *p = s->p;
    size_t asked = p->peak / TR_ARENA_ASKED;
    p->work = work;
    for (int round = 0; !tr_packer_is_done(p); round++) {
        size_t over = p->best - p->peak, part = over / 8 * (size_t)(4 + round / 2 % 4);
        s->size = p->peak + (round % 2 == 0 && over > asked ? asked : part);
        make_ranks(s, round);
        if (attempt(s)) tr_packer_keep(p);
    }
}

static tr_status searcher_open(searcher *s) {
    size_t n = (size_t)s->p->count;
    TR_TRY(tr_calloc(n, sizeof *s->order, &s->order));
    TR_TRY(tr_calloc(n, sizeof *s->from, &s->from));
    TR_TRY(tr_calloc(n, sizeof *s->to, &s->to));
    TR_TRY(tr_calloc(n, sizeof *s->floor, &s->floor));
    TR_TRY(tr_calloc(n, sizeof *s->load, &s->load));
    TR_TRY(tr_calloc(n, sizeof *s->lowest, &s->lowest));
    TR_TRY(tr_calloc(n, sizeof *s->placed, &s->placed));
    TR_TRY(tr_calloc(n, sizeof *s->rank, &s->rank));
    TR_TRY(tr_calloc(n, sizeof *s->blame, &s->blame));
    TR_TRY(list_neighbours(s));
    list_sections(s);
    return TR_OK;
}

tr_status tr_packer_search(tr_packer *p) {
    tr_status status = TR_OK;
    searcher s = {.p = p};
    TR_TRY_OUT(tr_calloc((size_t)p->count + 1, sizeof *s.first, &s.first));
    if (!count_pairs(p, s.first + 1)) goto out;
    TR_TRY_OUT(searcher_open(&s));
    search(&s, WORK);
    if (p->best - p->peak > p->peak / TR_ARENA_ASKED) TR_TRY_OUT(tr_packer_beam(p));
    if (p->best - p->peak > p->peak / TR_ARENA_ASKED) search(&s, MOST_WORK);
out:
    free(s.blame);
    free(s.rank);
    free(s.placed);
    free(s.lowest);
    free(s.load);
    free(s.floor);
    free(s.to);
    free(s.from);
    free(s.order);
    free(s.neighbour);
    free(s.first);
    return status;
}
