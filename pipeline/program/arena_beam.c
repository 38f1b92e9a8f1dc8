/* The third search of the packer, for what the others leave well over the live peak: a sweep that
 * keeps many arrangements at a time. Boxes are placed as they begin to live (or, by turns,
 * backwards as they cease), each at either end of every gap that holds it, or so far from an end
 * that the largest box to come fits there; of all arrangements those with the least cost go on. An
 * arrangement costs little when its gaps are few and neighbours end together, so that the room they
 * leave is whole. The weights are drawn again in every round. */
#include "pipeline/program/arena_impl.h"

#include "base/memory.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORK = 160 << 20, /* slots and options looked at; less where there are many boxes */
    MANY = 512,
    LEAST_WIDTH = 32,     /* arrangements kept */
    MOST_WIDTH = 1 << 12, /* a power of two times the least */
    MOST_OPTIONS = 16,    /* an arrangement */
    MOST_STEPS = 1 << 22, /* count * width: memory of the steps */
    MOST_LIVE = 256       /* boxes alive together: beyond it there is no third search */
};

typedef struct slot {
    int box;
    size_t offset;
} slot;

/* A box put into an arrangement: in front of its slot `at`. */
typedef struct option {
    double cost;
    uint64_t hash;
    size_t offset;
    int parent, at;
} option;

typedef struct step {
    int parent;
    size_t offset;
} step;

typedef struct beam {
    tr_packer *p;
    tr_arena_box *box;   /* [count], by start in the round's direction; item: of p->boxes */
    size_t *room;        /* [count]: bytes of the largest box that begins while this one lives */
    bool makes_room;     /* a box may lie so far from a gap's end too */
    size_t size;         /* of the arena */
    int width, most;     /* arrangements kept, in this round and at most */
    int live, most_live; /* slots of every arrangement: the same boxes in all of them */
    int kept;
    slot *now, *next; /* [most * most_live], by place */
    option *option;   /* [most * MOST_OPTIONS] */
    int options;
    int *seen;  /* [2 * most * MOST_OPTIONS]: hash table of options, from 1; 0: free */
    step *step; /* [count * most] */
    uint64_t draw;
    double end_weight, noise, last_end; /* last_end: the end that the arena's walls have */
    double most_apart;
    int roots; /* of a gap's share of the arena: what it costs */
} beam;

static double draw(beam *b) {
    return (double)(tr_mix64(b->draw++) >> 11) * 0x1p-53;
}

static slot *state_of(const beam *b, slot *all, int k) {
    return all + (size_t)k * (size_t)b->most_live;
}

static uint64_t hash_slot(const beam *b, int box, size_t offset) {
    const tr_arena_box *x = &b->box[box];
    return tr_mix64(tr_mix64(offset) ^ tr_mix64(x->bytes + (uint64_t)(unsigned)x->end));
}

/* --- costs ------------------------------------------------------------------------------------ */

static double end_of(const beam *b, const slot *s, int at) {
    return at >= 0 && at < b->live ? b->box[s[at].box].end : b->last_end;
}

static double cost_between(const beam *b, double end, double other, size_t gap) {
    double apart = fabs(end - other), share = (double)gap / (double)b->size;
    for (int k = 0; k < b->roots; k++) share = sqrt(share);
    return b->end_weight * (apart < b->most_apart ? apart : b->most_apart) + (gap ? share : 0);
}

static size_t gap_before(const beam *b, const slot *s, int at, size_t *from) {
    *from = at > 0 ? s[at - 1].offset + b->box[s[at - 1].box].bytes : 0;
    return (at < b->live ? s[at].offset : b->size) - *from;
}

static double cost_of(const beam *b, const slot *s) {
    double cost = 0;
    for (int at = 0; at <= b->live; at++) {
        size_t from, gap = gap_before(b, s, at, &from);
        cost += cost_between(b, end_of(b, s, at - 1), end_of(b, s, at), gap);
    }
    return cost;
}

/* --- one box ---------------------------------------------------------------------------------- */

/* Takes boxes that ended before `start` out of every arrangement. */
static void remove_ended(beam *b, int start) {
    int left = b->live;
    for (int k = 0; k < b->kept; k++) {
        slot *s = state_of(b, b->now, k);
        left = 0;
        for (int at = 0; at < b->live; at++)
            if (b->box[s[at].box].end >= start) s[left++] = s[at];
    }
    b->p->work -= (int64_t)b->kept * b->live;
    b->live = left;
}

/* False when the same arrangement was seen before. */
static bool is_new(beam *b, uint64_t hash) {
    size_t mask = 2 * (size_t)b->width * MOST_OPTIONS - 1, at = (size_t)hash & mask;
    for (; b->seen[at]; at = (at + 1) & mask)
        if (b->option[b->seen[at] - 1].hash == hash) return false;
    b->seen[at] = b->options + 1;
    return true;
}

/* All places of box k in one arrangement. */
static void list_options(beam *b, int k, int parent) {
    const slot *s = state_of(b, b->now, parent);
    const tr_arena_box *x = &b->box[k];
    double cost = cost_of(b, s);
    uint64_t hash = 0;
    int first = b->options;
    for (int at = 0; at < b->live; at++) hash += hash_slot(b, s[at].box, s[at].offset);
    b->p->work -= 2 * b->live;
    for (int at = 0; at <= b->live; at++) {
        size_t from, gap = gap_before(b, s, at, &from);
        if (gap < x->bytes) continue;
        double below = end_of(b, s, at - 1), above = end_of(b, s, at);
        double rest = cost - cost_between(b, below, above, gap);
        size_t left = gap - x->bytes, room = b->room[k];
        const size_t under[4] = {0, left, room, left - room}; /* bytes left free under the box */
        int places = left == 0 ? 1 : b->makes_room && room < left && room ? 4 : 2;
        for (int j = 0; j < places && b->options < first + MOST_OPTIONS; j++) {
            option o = {.offset = from + under[j], .parent = parent, .at = at};
            o.hash = hash + hash_slot(b, k, o.offset);
            b->p->work -= 4;
            if (!is_new(b, o.hash)) continue;
            o.cost = rest + cost_between(b, below, x->end, under[j]) +
                     cost_between(b, x->end, above, left - under[j]) + b->noise * draw(b);
            b->option[b->options++] = o;
        }
    }
}

static int compare_options(const void *left, const void *right) {
    const option *a = left, *b = right;
    if (a->cost != b->cost) return a->cost < b->cost ? -1 : 1;
    if (a->parent != b->parent) return a->parent < b->parent ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* Places box k; false when no arrangement has room for it. */
static bool place(beam *b, int k) {
    b->options = 0;
    memset(b->seen, 0, 2 * (size_t)b->width * MOST_OPTIONS * sizeof *b->seen);
    for (int parent = 0; parent < b->kept; parent++) list_options(b, k, parent);
    qsort(b->option, (size_t)b->options, sizeof *b->option, compare_options);
    b->kept = b->options < b->width ? b->options : b->width;
    for (int j = 0; j < b->kept; j++) {
        const option *o = &b->option[j];
        const slot *from = state_of(b, b->now, o->parent);
        slot *to = state_of(b, b->next, j);
        memcpy(to, from, (size_t)o->at * sizeof *to);
        to[o->at] = (slot){k, o->offset};
        memcpy(to + o->at + 1, from + o->at, (size_t)(b->live - o->at) * sizeof *to);
        b->step[(size_t)k * (size_t)b->most + (size_t)j] = (step){o->parent, o->offset};
    }
    b->p->work -= (int64_t)b->kept * b->live + 8 * (int64_t)b->options + 2 * b->width;
    slot *swap = b->now;
    b->now = b->next;
    b->next = swap;
    b->live++;
    return b->kept > 0;
}

/* --- one round -------------------------------------------------------------------------------- */

static int compare_starts(const void *left, const void *right) {
    const tr_arena_box *a = left, *b = right;
    if (a->start != b->start) return a->start < b->start ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    return a->item < b->item ? -1 : a->item > b->item;
}

static void turn_boxes(beam *b, bool backwards) {
    const tr_packer *p = b->p;
    for (int k = 0; k < p->count; k++) {
        const tr_arena_box *x = &p->boxes[k];
        b->box[k] = (tr_arena_box){.start = backwards ? -x->end : x->start,
                                   .end = backwards ? -x->start : x->end,
                                   .bytes = x->bytes,
                                   .item = k};
    }
    qsort(b->box, (size_t)p->count, sizeof *b->box, compare_starts);
    for (int k = 0; k < p->count; k++) {
        b->room[k] = 0;
        for (int j = k + 1; j < p->count && b->box[j].start <= b->box[k].end; j++)
            if (b->box[j].bytes > b->room[k]) b->room[k] = b->box[j].bytes;
    }
}

static void draw_weights(beam *b, bool backwards) {
    const tr_packer *p = b->p;
    int end = backwards ? -p->boxes[0].start : p->endings[p->count - 1].end;
    b->end_weight = draw(b) < 0.3 ? 0 : 0.05 * draw(b);
    b->most_apart = draw(b) < 0.5 ? HUGE_VAL : 10 + 60 * draw(b);
    b->last_end = end + (draw(b) < 0.5 ? 0 : 60 * draw(b));
    b->noise = draw(b) < 0.5 ? 0 : 0.2 * draw(b);
    b->roots = (int)(3 * draw(b));
    b->makes_room = draw(b) < 0.5;
}

static bool sweep(beam *b) {
    const tr_packer *p = b->p;
    b->kept = 1;
    b->live = 0;
    for (int k = 0; k < p->count; k++) {
        remove_ended(b, b->box[k].start);
        if (p->work <= 0 || !place(b, k)) return false;
    }
    for (int k = p->count - 1, at = 0; k >= 0; k--) {
        const step *s = &b->step[(size_t)k * (size_t)b->most + (size_t)at];
        p->boxes[b->box[k].item].offset = s->offset;
        at = s->parent;
    }
    return true;
}

/* Rounds at what is asked for, every third one at half of what could be won; wider and wider. */
static void search(beam *b) {
    enum { ROUNDS = 12 }; /* of one width */
    tr_packer *p = b->p;
    size_t asked = p->peak / TR_ARENA_ASKED;
    b->width = LEAST_WIDTH;
    p->work = WORK / (1 + p->count / MANY);
    for (int round = 0; p->best - p->peak > asked && p->work > 0; round++) {
        if (round > 0 && round % ROUNDS == 0 && 2 * b->width <= b->most) b->width *= 2;
        size_t half = (p->best - p->peak) / 2, over = round % 3 == 2 && half > asked ? half : asked;
        b->size = (p->peak + over) / TR_ALIGN * TR_ALIGN;
        turn_boxes(b, round % 2 == 1);
        draw_weights(b, round % 2 == 1);
        if (sweep(b)) tr_packer_keep(p);
    }
}

/* Most boxes alive at one position. */
static int most_alive(const tr_packer *p) {
    int alive = 0, most = 0;
    for (int k = 0, ended = 0; k < p->count; k++) {
        alive++;
        for (; p->endings[ended].end < p->boxes[k].start; ended++) alive--;
        if (alive > most) most = alive;
    }
    return most;
}

static tr_status beam_open(beam *b) {
    size_t count = (size_t)b->p->count, most = (size_t)b->most, live = (size_t)b->most_live;
    TR_TRY(tr_calloc(count, sizeof *b->box, &b->box));
    TR_TRY(tr_calloc(count, sizeof *b->room, &b->room));
    TR_TRY(tr_calloc(most * live, sizeof *b->now, &b->now));
    TR_TRY(tr_calloc(most * live, sizeof *b->next, &b->next));
    TR_TRY(tr_calloc(most * MOST_OPTIONS, sizeof *b->option, &b->option));
    TR_TRY(tr_calloc(2 * most * MOST_OPTIONS, sizeof *b->seen, &b->seen));
    TR_TRY(tr_calloc(count * most, sizeof *b->step, &b->step));
    return TR_OK;
}

tr_status tr_packer_beam(tr_packer *p) {
    tr_status status = TR_OK;
    beam b = {.p = p, .most = MOST_WIDTH, .most_live = most_alive(p)};
    while (b.most > LEAST_WIDTH && (int64_t)b.most * p->count > MOST_STEPS) b.most /= 2;
    if (b.most_live > MOST_LIVE || (int64_t)b.most * p->count > MOST_STEPS) return TR_OK;
    TR_TRY_OUT(beam_open(&b));
    search(&b);
out:
    free(b.step);
    free(b.seen);
    free(b.option);
    free(b.next);
    free(b.now);
    free(b.room);
    free(b.box);
    return status;
}
