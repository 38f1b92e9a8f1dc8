#include "pipeline/program/arena_search.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "base/philox.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Best fit (Sekiyama et al., "Profile-guided memory optimization for deep neural networks", 2018,
 * arXiv:1804.10001): the arena is filled from below. The heights of all positions are levels of
 * neighbours with one height. The lowest level gets the bundle of most weight among those that live
 * only there; where none does, it rises to the lower one of its neighbours, and the room is wasted.
 * Weights are the bytes of a bundle, or the bytes times the length of the live range. The search
 * then changes them, of a bundle that made the arena too large or of a few others, and keeps what
 * makes the arena no larger.
 *
 * Why this fills what sweeps do not: a sweep gives an item the lowest room of the moment, whatever
 * comes next, so small items split the room of the large ones, as the values that parallel.zero 3
 * gathers are. Here a large one gets its room first, wherever in time it lives. */

enum {
    MOST_CHANGES = 8, /* factors changed at a time */
    EVEN = 16         /* factor of a bundle of unchanged weight */
};

/* What a search with bundles of one kind takes at most. */
static const struct {
    int64_t steps; /* some 50 ms; some 800 ms */
    int trials;
} efforts[] = {[TR_ARENA_SHORT] = {1 << 24, 500}, [TR_ARENA_LONG] = {1 << 28, 8000}};

/* The items of one bundle: items that follow each other and have one live range. */
typedef struct bundle {
    int begin, end; /* positions at which a live range begins, numbered */
    size_t bytes;
    size_t offset;
    uint64_t weight;
} bundle;

/* Neighbouring positions of one height. */
typedef struct level {
    int begin, end;
    size_t height;
} level;

typedef struct search {
    bundle *bundle; /* [bundles], by their begin */
    int bundles, positions;
    int *of;              /* [n]: the bundle of an item */
    int *first;           /* [positions + 1]: bundles by their begin */
    int *next;            /* [bundles + 1]: itself, or a later one when the bundle is placed */
    size_t *load, *waste; /* [positions]: bytes alive; bytes below the height that stay free */
    level *level;         /* [levels], by position; two more than there are positions */
    int levels;
    uint8_t *factor, *kept; /* [bundles]: of the weights; those of the smallest arena */
    int blamed;             /* bundle that made the last arena too large, or -1 */
    uint64_t draws;
    int64_t steps; /* that are left */
} search;

static void close_search(const search *s) {
    free(s->bundle);
    free(s->of);
    free(s->first);
    free(s->next);
    free(s->load);
    free(s->waste);
    free(s->level);
    free(s->factor);
    free(s->kept);
}

/* --- bundles ---------------------------------------------------------------------------------- */

/* Returns true when item k belongs to the bundle of the item before. together: whatever its bytes;
 * fewer bundles pack faster, and often better. */
static bool continues(const tr_arena_item *items, int k, bool together) {
    return k > 0 && items[k].start == items[k - 1].start && items[k].end == items[k - 1].end &&
           (together || items[k].bytes == items[k - 1].bytes);
}

/* Sets number[t] to how many positions up to t are the start of an item, less one. Only at these
 * positions can the bytes that are alive grow. */
static tr_status number_positions(const tr_arena_item *items, int n, int **number, int *positions) {
    int last = 0;
    for (int k = 0; k < n; k++)
        if (items[k].end > last) last = items[k].end;
    TR_TRY(tr_calloc((size_t)last + 1, sizeof **number, number));
    for (int k = 0; k < n; k++) (*number)[items[k].start] = 1;
    for (int t = 0, sum = 0; t <= last; t++) {
        sum += (*number)[t];
        (*number)[t] = sum - 1;
        *positions = sum;
    }
    return TR_OK;
}

/* Joins items to bundles, which are sorted by their begin and stay in order otherwise. */
static void make_bundles(search *s, const tr_arena_item *items, int n, const int *number,
                         bool together) {
    for (int k = 0; k < n; k++)
        if (!continues(items, k, together)) s->first[number[items[k].start] + 1]++;
    for (int t = 0; t < s->positions; t++) s->first[t + 1] += s->first[t];
    for (int k = 0; k < n; k++) {
        const int begin = number[items[k].start];
        const bool more = continues(items, k, together);
        const int own = more ? s->of[k - 1] : s->first[begin]++;
        bundle *b = &s->bundle[own];
        s->of[k] = own;
        if (!more) *b = (bundle){.begin = begin, .end = number[items[k].end]};
        b->bytes += (size_t)items[k].count * items[k].bytes;
    }
    for (int t = s->positions; t > 0; t--) s->first[t] = s->first[t - 1];
    s->first[0] = 0;
    s->bundles = s->first[s->positions];
}

/* Adds the bytes of the bundles that are alive at each position. */
static void measure_load(search *s) {
    for (int k = 0; k < s->bundles; k++) {
        const bundle *b = &s->bundle[k];
        s->load[b->begin] += b->bytes;
        if (b->end + 1 < s->positions) s->load[b->end + 1] -= b->bytes; /* wraps, and back */
    }
    for (int t = 1; t < s->positions; t++) s->load[t] += s->load[t - 1];
}

/* The caller releases *s with close_search, also after an error. */
static tr_status open_search(search *s, const tr_arena_item *items, int n, bool together,
                             int64_t steps) {
    tr_status status = TR_OK;
    int *number = NULL;
    *s = (search){.steps = steps};
    TR_TRY_OUT(number_positions(items, n, &number, &s->positions));
    const size_t count = (size_t)n, positions = (size_t)s->positions;
    TR_TRY_OUT(tr_calloc(count, sizeof *s->bundle, &s->bundle));
    TR_TRY_OUT(tr_calloc(count, sizeof *s->of, &s->of));
    TR_TRY_OUT(tr_calloc(positions + 1, sizeof *s->first, &s->first));
    TR_TRY_OUT(tr_calloc(count + 1, sizeof *s->next, &s->next));
    TR_TRY_OUT(tr_calloc(positions, sizeof *s->load, &s->load));
    TR_TRY_OUT(tr_calloc(positions, sizeof *s->waste, &s->waste));
    TR_TRY_OUT(tr_calloc(positions + 2, sizeof *s->level, &s->level));
    TR_TRY_OUT(tr_calloc(count, sizeof *s->factor, &s->factor));
    TR_TRY_OUT(tr_calloc(count, sizeof *s->kept, &s->kept));
    make_bundles(s, items, n, number, together);
    measure_load(s);
out:
    free(number);
    return status;
}

/* --- best fit --------------------------------------------------------------------------------- */

/* Returns the first bundle from k on that is not placed, or the number of bundles. */
static int next_bundle(search *s, int k) {
    while (s->next[k] != k) k = s->next[k] = s->next[s->next[k]];
    return k;
}

static int lowest_level(search *s) {
    int low = 0;
    for (int k = 1; k < s->levels; k++)
        if (s->level[k].height < s->level[low].height) low = k;
    s->steps -= s->levels;
    return low;
}

/* Returns the bundle of most weight that lives only at the level's positions, or -1. */
static int heaviest_bundle(search *s, const level *at) {
    int best = -1;
    for (int k = next_bundle(s, s->first[at->begin]); k < s->first[at->end + 1];
         k = next_bundle(s, k + 1), s->steps--)
        if (s->bundle[k].end <= at->end &&
            (best < 0 || s->bundle[k].weight > s->bundle[best].weight))
            best = k;
    return best;
}

static int draw(search *s, int below) {
    return (int)(tr_mix64(s->draws++) % (uint64_t)below);
}

/* Blames a bundle alive at a position that is not placed: mostly the largest. */
static void blame_largest(search *s, int position) {
    for (int k = next_bundle(s, 0); k < s->first[position + 1]; k = next_bundle(s, k + 1))
        if (s->bundle[k].end >= position &&
            (s->blamed < 0 || s->bundle[k].bytes > s->bundle[s->blamed].bytes || draw(s, 4) == 0))
            s->blamed = k;
}

/* Replaces the levels [from, to) by `count` others. */
static void replace_levels(search *s, int from, int to, const level *by, int count) {
    memmove(&s->level[from + count], &s->level[to], (size_t)(s->levels - to) * sizeof *s->level);
    memcpy(&s->level[from], by, (size_t)count * sizeof *by);
    s->levels += count - (to - from);
}

/* Raises level k to the lower one of its neighbours, and joins it to those of that height. Returns
 * false, and blames a bundle, when the waste makes the arena too large. */
static bool raise_level(search *s, int k, size_t below) {
    const level own = s->level[k];
    const size_t left = k > 0 ? s->level[k - 1].height : SIZE_MAX,
                 right = k + 1 < s->levels ? s->level[k + 1].height : SIZE_MAX,
                 height = left < right ? left : right;
    const int from = left == height ? k - 1 : k, to = right == height ? k + 2 : k + 1;
    const level joined = {s->level[from].begin, s->level[to - 1].end, height};
    s->steps -= own.end - own.begin + 1;
    for (int t = own.begin; t <= own.end; t++) {
        s->waste[t] += height - own.height;
        if (s->load[t] + s->waste[t] < below) continue;
        blame_largest(s, t);
        return false;
    }
    replace_levels(s, from, to, &joined, 1);
    return true;
}

/* Places a bundle on level k, and returns the bundle's upper end. */
static size_t put_bundle(search *s, int k, int number) {
    const level own = s->level[k];
    bundle *b = &s->bundle[number];
    level by[3];
    int count = 0, from = k, to = k + 1;
    level top = {b->begin, b->end, own.height + b->bytes};
    b->offset = own.height;
    s->next[number] = number + 1;
    if (own.begin < b->begin) by[count++] = (level){own.begin, b->begin - 1, own.height};
    else if (k > 0 && s->level[k - 1].height == top.height) top.begin = s->level[--from].begin;
    if (own.end == b->end && to < s->levels && s->level[to].height == top.height)
        top.end = s->level[to++].end;
    by[count++] = top;
    if (b->end < own.end) by[count++] = (level){b->end + 1, own.end, own.height};
    replace_levels(s, from, to, by, count);
    return top.height;
}

/* Places all bundles in an arena smaller than `below`; returns its size, or SIZE_MAX and blames a
 * bundle. */
static size_t fit(search *s, size_t below) {
    size_t size = 0;
    s->blamed = -1;
    s->levels = 1;
    s->level[0] = (level){.begin = 0, .end = s->positions - 1};
    memset(s->waste, 0, (size_t)s->positions * sizeof *s->waste);
    for (int k = 0; k <= s->bundles; k++) s->next[k] = k;
    s->steps -= s->positions + s->bundles;
    for (int left = s->bundles; left > 0;) {
        const int low = lowest_level(s), number = heaviest_bundle(s, &s->level[low]);
        if (s->steps < 0) return SIZE_MAX;
        if (number < 0) {
            if (!raise_level(s, low, below)) return SIZE_MAX;
            continue;
        }
        const size_t end = put_bundle(s, low, number);
        left--;
        if (end > size) size = end;
        if (size >= below) {
            s->blamed = number;
            return SIZE_MAX;
        }
    }
    return size;
}

/* --- search ----------------------------------------------------------------------------------- */

/* Returns the weight by bytes, or by bytes and length. Products may wrap: any weights are valid. */
static uint64_t weight_of(const bundle *b, bool by_length) {
    const uint64_t length = by_length ? (uint64_t)(b->end - b->begin) + 1 : 1;
    return b->bytes / TR_ALIGN * length;
}

static size_t fit_weights(search *s, bool by_length, size_t below) {
    for (int k = 0; k < s->bundles; k++)
        s->bundle[k].weight = s->factor[k] * weight_of(&s->bundle[k], by_length);
    s->steps -= s->bundles;
    return fit(s, below);
}

/* Changes the factors of the last arena: raises the blamed bundle's; else those of a few bundles of
 * the smallest arena, to a quarter up to four times, more of them below one. */
static void change_factors(search *s) {
    if (s->blamed >= 0 && draw(s, 3) > 0) {
        const int raised = s->factor[s->blamed] * (5 + draw(s, 8)) / 4 + 1;
        s->factor[s->blamed] = (uint8_t)tr_min_int(raised, UINT8_MAX);
        return;
    }
    memcpy(s->factor, s->kept, (size_t)s->bundles);
    for (int changes = 1 + draw(s, MOST_CHANGES); changes > 0; changes--) {
        const int root = draw(s, 4 * EVEN);
        s->factor[draw(s, s->bundles)] = (uint8_t)(EVEN / 4 + root * root / (4 * EVEN));
    }
}

static void list_offsets(const search *s, const tr_arena_item *items, int n, bool together,
                         size_t *offset) {
    size_t at = 0;
    for (int k = 0; k < n; k++) {
        if (!continues(items, k, together)) at = s->bundle[s->of[k]].offset;
        for (int j = 0; j < items[k].count; j++, at += items[k].bytes) *offset++ = at;
    }
}

/* Searches with bundles of one kind. */
static tr_status search_bundles(const tr_arena_item *items, int n, bool together,
                                tr_arena_effort effort, size_t enough, size_t *bytes,
                                size_t *offset) {
    tr_status status = TR_OK;
    search s;
    bool by_length = false;
    size_t own = SIZE_MAX; /* their smallest arena, which may be larger than *bytes */
    TR_TRY_OUT(open_search(&s, items, n, together, efforts[effort].steps));
    memset(s.kept, EVEN, (size_t)s.bundles);
    memset(s.factor, EVEN, (size_t)s.bundles);
    for (int trial = 0; trial < efforts[effort].trials && s.steps > 0 && *bytes > enough; trial++) {
        const bool other = trial == 1; /* the first two trials choose the weights */
        if (trial > 1) change_factors(&s);
        const size_t size = fit_weights(&s, other || by_length, own < SIZE_MAX ? own + 1 : own);
        if (size == SIZE_MAX) continue;
        if (size < own && other) by_length = true;
        own = size;
        memcpy(s.kept, s.factor, (size_t)s.bundles);
        if (size >= *bytes) continue;
        *bytes = size;
        list_offsets(&s, items, n, together, offset);
    }
out:
    close_search(&s);
    return status;
}

tr_status tr_arena_search(const tr_arena_item *items, int n, tr_arena_effort effort, size_t enough,
                          size_t *bytes, size_t *offset) {
    TR_TRY(search_bundles(items, n, true, effort, enough, bytes, offset));
    return search_bundles(items, n, false, effort, enough, bytes, offset);
}
