#include "pipeline/generate_block.h"

#include "base/memory.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { PERIOD = 6, MOST_PLACES = PERIOD * 5 * 4 * 3 };

/* A micro-batch's way: down and up with F, down and up with I or B. */
enum { F_DOWN, F_UP, I_DOWN, I_UP, WAYS, W_DOWN = WAYS, W_UP, STREAMS };

/* Where in the period a rank has its F and I. */
typedef struct places {
    int at[WAYS];
} places;

typedef struct block {
    tr_schedule *s;
    bool whole;
    int length[WAYS], weight[WAYS];
    int count;
    places place[MOST_PLACES];
    int *from; /* [ranks * count]: the places of the rank before on the shortest path */
} block;

/* All ways to place the four without overlap. */
static void list_places(block *b) {
    for (int code = 0; code < PERIOD * PERIOD * PERIOD * PERIOD; code++) {
        places p;
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

/* From the start of one action to the start of the next, at their places. */
static int hop(const block *b, int way, int from, int to) {
    int length = b->length[way];
    return length + ((to - from - length) % PERIOD + PERIOD) % PERIOD;
}

static int cost_between(const block *b, const places *above, const places *below) {
    int cost = 0;
    for (int way = 0; way < WAYS; way++) {
        bool down = way == F_DOWN || way == I_DOWN;
        int length = down ? hop(b, way, above->at[way], below->at[way])
                          : hop(b, way, below->at[way], above->at[way]);
        cost += b->weight[way] * length;
    }
    return cost;
}

static int cost_of_turns(const block *b, const places *p) {
    return b->weight[F_DOWN] * hop(b, F_DOWN, p->at[F_DOWN], p->at[F_UP]) +
           b->weight[I_DOWN] * hop(b, I_DOWN, p->at[I_DOWN], p->at[I_UP]);
}

/* The shortest path over the ranks; chosen[ranks]. Places of the first rank start with its F at 0.
 */
static tr_status find_path(block *b, int *chosen) {
    tr_status status = TR_OK;
    int ranks = b->s->ranks, *cost = NULL, *next = NULL, best = 0;
    size_t n = (size_t)b->count;
    TR_TRY_OUT(tr_calloc(n, sizeof *cost, &cost));
    TR_TRY_OUT(tr_calloc(n, sizeof *next, &next));
    for (int k = 0; k < b->count; k++) {
        const places *p = &b->place[k];
        cost[k] = p->at[F_DOWN] ? INT_MAX / 2
                                : b->weight[F_UP] * hop(b, F_UP, p->at[F_UP], p->at[I_DOWN]);
    }
    for (int r = 1; r < ranks; r++) {
        for (int k = 0; k < b->count; k++) {
            next[k] = INT_MAX;
            for (int j = 0; j < b->count; j++) {
                int c = cost[j] + cost_between(b, &b->place[j], &b->place[k]);
                if (c >= next[k]) continue;
                next[k] = c;
                b->from[(size_t)r * n + (size_t)k] = j;
            }
        }
        int *swap = cost;
        cost = next;
        next = swap;
    }
    for (int k = 0; k < b->count; k++) {
        cost[k] += cost_of_turns(b, &b->place[k]);
        if (cost[k] < cost[best]) best = k;
    }
    for (int r = ranks - 1; r >= 0; r--) {
        chosen[r] = best;
        best = b->from[(size_t)r * n + (size_t)best];
    }
out:
    free(cost);
    free(next);
    return status;
}

/* Start of micro-batch 0's actions: start[rank * STREAMS + stream]. */
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

/* The two W of a rank in the places that are left: the first that comes behind their I. */
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

/* A rank's actions by their start. */
static tr_status add_rank(block *b, int rank, const int *start) {
    static const tr_action_type types[STREAMS] = {TR_ACTION_F, TR_ACTION_F, TR_ACTION_I,
                                                  TR_ACTION_I, TR_ACTION_W, TR_ACTION_W};
    /* Down are the rank's first stage's F; I and W come down through its second. */
    static const bool second[STREAMS] = {false, true, true, false, true, false};
    int next[STREAMS] = {0}, m = b->s->micro_batches, streams = b->whole ? WAYS : STREAMS;
    for (int left = m * streams; left > 0; left--) {
        int first = -1;
        for (int k = 0; k < streams; k++)
            if (next[k] < m &&
                (first < 0 || start[k] + next[k] * PERIOD < start[first] + next[first] * PERIOD))
                first = k;
        tr_action a = {.stage = second[first] ? b->s->stages - 1 - rank : rank,
                       .type = types[first],
                       .micro_batch = next[first]++};
        if (b->whole && a.type == TR_ACTION_I) a.type = TR_ACTION_B;
        TR_TRY(tr_schedule_add(b->s, rank, a));
    }
    return TR_OK;
}

tr_status tr_block_fill(tr_schedule *s, bool whole, const int *weight) {
    tr_status status = TR_OK;
    int *chosen = NULL, *start = NULL, back = whole ? 2 : 1;
    block *b = NULL;
    TR_TRY_OUT(tr_calloc(1, sizeof *b, &b));
    *b = (block){.s = s, .whole = whole, .length = {1, 1, back, back}};
    memcpy(b->weight, weight, sizeof b->weight);
    list_places(b);
    TR_TRY_OUT(tr_calloc((size_t)s->ranks * (size_t)b->count, sizeof *b->from, &b->from));
    TR_TRY_OUT(tr_calloc((size_t)s->ranks, sizeof *chosen, &chosen));
    TR_TRY_OUT(tr_calloc((size_t)s->ranks * STREAMS, sizeof *start, &start));
    TR_TRY_OUT(find_path(b, chosen));
    find_starts(b, chosen, start);
    for (int r = 0; r < s->ranks; r++) {
        if (!whole) place_weights(&b->place[chosen[r]], &start[r * STREAMS]);
        TR_TRY_OUT(add_rank(b, r, &start[r * STREAMS]));
    }
out:
    if (b) free(b->from);
    free(b);
    free(start);
    free(chosen);
    return status;
}
