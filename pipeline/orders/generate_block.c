#include "pipeline/orders/generate_block.h"

#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PERIOD = 6, CODES = PERIOD * PERIOD * PERIOD * PERIOD, MOST_PLACES = PERIOD * 5 * 4 * 3 };

/* A micro-batch's way: down and up with F, down and up with I or B. */
enum { F_DOWN, F_UP, I_DOWN, I_UP, WAYS, W_DOWN = WAYS, W_UP, STREAMS };

/* Where in the period a rank has its F and I; code: the same as one number, with a digit in base
 * PERIOD for each way, the first one in the units. */
typedef struct places {
    int at[WAYS], code;
} places;

typedef struct block {
    tr_schedule *s;
    const tr_generate_block_shape *shape;
    int length[WAYS];
    int count;
    places place[MOST_PLACES];
    int *from; /* [ranks * count]: the places of the rank before on the shortest path */
    /* The cost of a way between a place on a rank and a place on the next one. */
    int between[WAYS][PERIOD][PERIOD];
} block;

/* Lists all ways to place the four without overlap. */
static void list_places(block *b) {
    for (int code = 0; code < CODES; code++) {
        places p = {.code = code};
        bool used[PERIOD] = {false}, good = true;
        for (int way = 0, rest = code; way < WAYS; way++, rest /= PERIOD) {
            p.at[way] = rest % PERIOD;
            for (int k = 0; k < b->length[way]; k++) {
                int slot = (p.at[way] + k) % PERIOD;
                good = good && !used[slot];
                used[slot] = true;
            }
        }
        if (good) b->place[b->count++] = p;
    }
}

/* Returns the time from the start of one action to the start of the next, at their places. */
static int hop(const block *b, int way, int from, int to) {
    int length = b->length[way];
    return length + ((to - from - length) % PERIOD + PERIOD) % PERIOD;
}

static int penalty(const block *b, int way, int length) {
    int over = length - b->shape->hop[way];
    return b->shape->weight[way] * over * over;
}

static void list_costs(block *b) {
    for (int way = 0; way < WAYS; way++)
        for (int above = 0; above < PERIOD; above++)
            for (int below = 0; below < PERIOD; below++) {
                bool down = way == F_DOWN || way == I_DOWN;
                int length = down ? hop(b, way, above, below) : hop(b, way, below, above);
                b->between[way][above][below] = penalty(b, way, length);
            }
}

static int cost_of_turns(const block *b, const places *p) {
    return penalty(b, F_DOWN, hop(b, F_DOWN, p->at[F_DOWN], p->at[F_UP])) +
           penalty(b, I_DOWN, hop(b, I_DOWN, p->at[I_DOWN], p->at[I_UP]));
}

/* Returns a cost with the places that it comes from: of equal costs the first places are the
 * least. */
static int64_t key_of(int64_t cost, int from) {
    return cost * MOST_PLACES + from;
}

/* Replaces the keys of a rank's places, by their codes, by the least keys of the next rank's. The
 * cost of a step is a sum over the ways, so that each way steps by itself: in between, the first
 * digits of a code are places of the next rank, and the last ones places of this rank. */
static void step_to_next(const block *b, int64_t key[CODES]) {
    for (int way = 0, stride = 1; way < WAYS; way++, stride *= PERIOD)
        for (int code = 0; code < CODES; code++) {
            if (code / stride % PERIOD) continue;
            int64_t least[PERIOD];
            for (int below = 0; below < PERIOD; below++) {
                least[below] = INT64_MAX;
                for (int above = 0; above < PERIOD; above++) {
                    int64_t k =
                        key[code + above * stride] + key_of(b->between[way][above][below], 0);
                    if (k < least[below]) least[below] = k;
                }
            }
            for (int below = 0; below < PERIOD; below++) key[code + below * stride] = least[below];
        }
}

/* Finds the shortest path over the ranks: the places of rank r are chosen[r]. Those of the first
 * rank start with its F at 0. */
static void find_path(block *b, int *chosen) {
    const int64_t none = INT64_MAX / 2;
    int ranks = b->s->ranks, best = 0;
    size_t n = (size_t)b->count;
    int64_t cost[MOST_PLACES], key[CODES];
    for (int k = 0; k < b->count; k++) {
        const places *p = &b->place[k];
        cost[k] = p->at[F_DOWN] ? none / MOST_PLACES
                                : penalty(b, F_UP, hop(b, F_UP, p->at[F_UP], p->at[I_DOWN]));
    }
    for (int r = 1; r < ranks; r++) {
        for (int code = 0; code < CODES; code++) key[code] = none;
        for (int k = 0; k < b->count; k++) key[b->place[k].code] = key_of(cost[k], k);
        step_to_next(b, key);
        for (int k = 0; k < b->count; k++) {
            cost[k] = key[b->place[k].code] / MOST_PLACES;
            b->from[(size_t)r * n + (size_t)k] = (int)(key[b->place[k].code] % MOST_PLACES);
        }
    }
    for (int k = 0; k < b->count; k++) {
        cost[k] += cost_of_turns(b, &b->place[k]);
        if (cost[k] < cost[best]) best = k;
    }
    for (int r = ranks - 1; r >= 0; r--) {
        chosen[r] = best;
        best = b->from[(size_t)r * n + (size_t)best];
    }
}

/* Sets start[rank * STREAMS + stream] to the starts of micro-batch 0's actions. */
static void find_starts(const block *b, const int *chosen, int *start) {
    int ranks = b->s->ranks, now = 0;
    for (int way = 0; way < WAYS; way++)
        for (int k = 0; k < ranks; k++) {
            bool down = way == F_DOWN || way == I_DOWN;
            int r = down ? k : ranks - 1 - k, to = b->place[chosen[r]].at[way];
            if (way || k) {
                int earlier_way = k ? way : way - 1;
                int earlier = k ? (down ? r - 1 : r + 1) : r;
                int from = b->place[chosen[earlier]].at[earlier_way];
                now += hop(b, earlier_way, from, to);
            } else {
                now = to;
            }
            start[r * STREAMS + way] = now;
        }
}

/* Places the two W of a rank in what is left of the period, each as early after its I as
 * possible. */
static void place_weights(const places *p, int *start) {
    bool used[PERIOD] = {false};
    for (int way = 0; way < WAYS; way++) used[p->at[way]] = true;
    for (int k = 0; k < 2; k++) {
        int at = start[k ? I_UP : I_DOWN] + 1;
        while (used[at % PERIOD]) at++;
        used[at % PERIOD] = true;
        start[k ? W_UP : W_DOWN] = at;
    }
}

/* --- squeezing -------------------------------------------------------------------------------- */

/* The table of slots, one unit each, in which the periodic order stands. */
typedef struct squeezer {
    const block *b;
    const tr_stage_cost *share;
    double cap;       /* of a rank, in the unit of share->m_b; 0: none */
    const int *start; /* [ranks][STREAMS]: of micro-batch 0 */
    int slots;
    double *held; /* [ranks][slots]: while the slot runs */
    char *used;   /* [ranks][slots] */
    int *at;      /* [ranks][STREAMS][m]: where the action stands */
    int *next;    /* [ranks][STREAMS]: micro-batches that have been placed */
} squeezer;

static int streams_of(const block *b) {
    return b->shape->whole ? WAYS : STREAMS;
}

static int length_of(const block *b, int stream) {
    return stream < WAYS ? b->length[stream] : 1;
}

static size_t slot_of(const squeezer *x, int rank, int slot) {
    return (size_t)rank * (size_t)x->slots + (size_t)slot;
}

static int *place_of(const squeezer *x, int rank, int stream, int k) {
    return &x->at[((size_t)rank * STREAMS + (size_t)stream) * (size_t)x->b->s->micro_batches +
                  (size_t)k];
}

static int end_of(const squeezer *x, int rank, int stream, int k) {
    return *place_of(x, rank, stream, k) + length_of(x->b, stream);
}

/* Returns the first slot that the action's inputs, and the action of its kind before it, allow. */
static int earliest(const squeezer *x, int rank, int stream, int k) {
    int last = x->b->s->ranks - 1, from = k ? end_of(x, rank, stream, k - 1) : 0, other = 0;
    bool down = stream == F_DOWN || stream == I_DOWN;
    if (stream >= WAYS) other = end_of(x, rank, stream == W_DOWN ? I_DOWN : I_UP, k);
    else if (down && rank > 0) other = end_of(x, rank - 1, stream, k);
    else if (!down && rank < last) other = end_of(x, rank + 1, stream, k);
    else if (stream != F_DOWN) other = end_of(x, rank, stream - 1, k);
    if (stream == I_DOWN) {
        int own = end_of(x, rank, F_UP, k);
        if (own > other) other = own;
    }
    return other > from ? other : from;
}

/* Return by how much a rank holds more from the start, and from the end, of the stream's actions
 * on. */
static double takes(const squeezer *x, int stream) {
    return stream <= F_UP ? x->share->m_b / 2 : 0;
}

static double leaves(const squeezer *x, int stream) {
    if (stream <= F_UP) return 0;
    if (stream >= WAYS) return -x->share->m_w / 2;
    return (x->b->shape->whole ? 0 : x->share->m_w / 2) - x->share->m_b / 2;
}

static void hold(squeezer *x, int rank, int from, int to, double more) {
    for (int slot = from; slot < to; slot++) x->held[slot_of(x, rank, slot)] += more;
}

static void use(squeezer *x, int rank, int from, int length, char used) {
    memset(&x->used[slot_of(x, rank, from)], used, (size_t)length);
}

/* Moves the action from its slot to the first free one between `from` and it. */
static void squeeze(squeezer *x, int rank, int stream, int k, int slot) {
    int length = length_of(x->b, stream), from = earliest(x, rank, stream, k), free = 0;
    double more = takes(x, stream), most = x->cap - more + 1e-9 * x->cap;
    use(x, rank, slot, length, 0);
    if (more > 0 && x->cap > 0) {
        int first = slot;
        while (first > from && x->held[slot_of(x, rank, first - 1)] <= most) first--;
        from = first;
    }
    int at = from;
    for (; at < slot; at++) {
        free = x->used[slot_of(x, rank, at)] ? 0 : free + 1;
        if (free == length) break;
    }
    at = at < slot ? at - length + 1 : slot;
    use(x, rank, at, length, 1);
    hold(x, rank, at, slot, more);
    hold(x, rank, at + length, slot + length, leaves(x, stream));
    *place_of(x, rank, stream, k) = at;
}

/* Fills the table with the periodic order. */
static void fill_table(squeezer *x) {
    int m = x->b->s->micro_batches;
    for (int r = 0; r < x->b->s->ranks; r++)
        for (int stream = 0; stream < streams_of(x->b); stream++) {
            int length = length_of(x->b, stream);
            for (int k = 0; k < m; k++) {
                int slot = x->start[r * STREAMS + stream] + k * PERIOD;
                *place_of(x, r, stream, k) = slot;
                use(x, r, slot, length, 1);
                x->held[slot_of(x, r, slot)] += takes(x, stream);
                x->held[slot_of(x, r, slot + length)] += leaves(x, stream);
            }
        }
    for (int r = 0; r < x->b->s->ranks; r++)
        for (int slot = 1; slot < x->slots; slot++)
            x->held[slot_of(x, r, slot)] += x->held[slot_of(x, r, slot - 1)];
}

/* Returns the stream with a next action that the periodic order starts in this slot; -1: none. */
static int starting(const squeezer *x, int rank, int slot) {
    for (int stream = 0; stream < streams_of(x->b); stream++) {
        int k = x->next[rank * STREAMS + stream];
        if (k < x->b->s->micro_batches && x->start[rank * STREAMS + stream] + k * PERIOD == slot)
            return stream;
    }
    return -1;
}

/* Moves every action, in the order of their times in the periodic order, to the first free slot. */
static void squeeze_all(squeezer *x) {
    for (int slot = 0; slot < x->slots; slot++)
        for (int r = 0; r < x->b->s->ranks; r++) {
            int stream = starting(x, r, slot);
            if (stream >= 0) squeeze(x, r, stream, x->next[r * STREAMS + stream]++, slot);
        }
}

/* Adds a rank's actions to the schedule, in the order of their slots. */
static tr_status add_rank(const squeezer *x, int rank) {
    static const tr_action_type types[STREAMS] = {TR_ACTION_F, TR_ACTION_F, TR_ACTION_I,
                                                  TR_ACTION_I, TR_ACTION_W, TR_ACTION_W};
    /* Down are the rank's first stage's F; I and W come down through its second. */
    static const bool second[STREAMS] = {false, true, true, false, true, false};
    const block *b = x->b;
    int next[STREAMS] = {0}, m = b->s->micro_batches;
    for (int left = m * streams_of(b); left > 0; left--) {
        int first = -1;
        for (int k = 0; k < streams_of(b); k++)
            if (next[k] < m && (first < 0 || *place_of(x, rank, k, next[k]) <
                                                 *place_of(x, rank, first, next[first])))
                first = k;
        tr_action a = {.stage = second[first] ? b->s->stages - 1 - rank : rank,
                       .type = types[first],
                       .micro_batch = next[first]++};
        if (b->shape->whole && a.type == TR_ACTION_I) a.type = TR_ACTION_B;
        TR_TRY(tr_schedule_add(b->s, rank, a));
    }
    return TR_OK;
}

static tr_status place(const block *b, const int *start, const tr_stage_cost *share, double cap) {
    tr_status status = TR_OK;
    squeezer x = {.b = b, .start = start, .share = share, .cap = cap};
    size_t ranks = (size_t)b->s->ranks, m = (size_t)b->s->micro_batches;
    int last = 0;
    for (size_t k = 0; k < ranks * STREAMS; k++)
        if (start[k] > last) last = start[k];
    x.slots = last + (int)m * PERIOD + 3;
    TR_TRY_OUT(tr_calloc(ranks * (size_t)x.slots, sizeof *x.held, &x.held));
    TR_TRY_OUT(tr_calloc(ranks * (size_t)x.slots, 1, &x.used));
    TR_TRY_OUT(tr_calloc(ranks * STREAMS * m, sizeof *x.at, &x.at));
    TR_TRY_OUT(tr_calloc(ranks * STREAMS, sizeof *x.next, &x.next));
    fill_table(&x);
    squeeze_all(&x);
    for (int r = 0; r < b->s->ranks; r++) TR_TRY_OUT(add_rank(&x, r));
out:
    free(x.next);
    free(x.at);
    free(x.used);
    free(x.held);
    return status;
}

tr_status tr_generate_block(tr_schedule *s, const tr_generate_block_shape *shape,
                            const tr_stage_cost *share, double cap) {
    tr_status status = TR_OK;
    int *chosen = NULL, *start = NULL, back = shape->whole ? 2 : 1;
    block *b = NULL;
    TR_TRY_OUT(tr_calloc(1, sizeof *b, &b));
    *b = (block){.s = s, .shape = shape, .length = {1, 1, back, back}};
    list_places(b);
    list_costs(b);
    TR_TRY_OUT(tr_calloc((size_t)s->ranks * (size_t)b->count, sizeof *b->from, &b->from));
    TR_TRY_OUT(tr_calloc((size_t)s->ranks, sizeof *chosen, &chosen));
    TR_TRY_OUT(tr_calloc((size_t)s->ranks * STREAMS, sizeof *start, &start));
    find_path(b, chosen);
    find_starts(b, chosen, start);
    for (int r = 0; r < s->ranks && !shape->whole; r++)
        place_weights(&b->place[chosen[r]], &start[r * STREAMS]);
    TR_TRY_OUT(place(b, start, share, cap));
out:
    if (b) free(b->from);
    free(b);
    free(start);
    free(chosen);
    return status;
}
