/* Schedules in a V: stage s on rank s, and on the way back stage 2p - 1 - s. */
#include "pipeline/generate_best.h"
#include "pipeline/generate_block.h"
#include "pipeline/generate_impl.h"
#include "pipeline/generate_pull.h"

/* One rank of a V: how far each of its two stages is. */
typedef struct v_rank {
    tr_schedule *s;
    int stage[2];                        /* down, up */
    int forward[2], input[2], weight[2]; /* next micro-batch of each */
} v_rank;

static v_rank v_open(tr_schedule *s, int rank) {
    return (v_rank){.s = s, .stage = {rank, s->stages - 1 - rank}};
}

static tr_status v_add(v_rank *v, int side, tr_action_type type) {
    int *next = type == TR_ACTION_F ? v->forward : type == TR_ACTION_I ? v->input : v->weight;
    if (next[side] == v->s->micro_batches) return TR_OK; /* this kind has ended */
    return tr_generate_add(v->s, v->stage[side], type, next[side]++);
}

static tr_status v_add_backward(v_rank *v, int side) {
    TR_TRY(v_add(v, side, TR_ACTION_I));
    return v_add(v, side, TR_ACTION_W);
}

/* ZB-V (Qi et al. 2023, section 6), for F = I = W: rank i fills the time until the first
 * micro-batch is back with 2 (p - i) - 1 F of the way down, then one of each in turn; W follow
 * their I but in the last i turns, where they fill the drain. p micro-batches' memory on every
 * rank. */
static tr_status generate_zbv_rank(tr_schedule *s, int rank) {
    enum { DOWN, UP };
    v_rank v = v_open(s, rank);
    int p = s->ranks, m = s->micro_batches;
    for (int k = 0; k < 2 * (p - rank) - 1; k++) TR_TRY(v_add(&v, DOWN, TR_ACTION_F));
    for (int k = 0; k < rank; k++) {
        TR_TRY(v_add(&v, UP, TR_ACTION_F));
        TR_TRY(v_add(&v, DOWN, TR_ACTION_F));
    }
    for (int k = 0; k < p - rank; k++) {
        TR_TRY(v_add(&v, UP, TR_ACTION_F));
        TR_TRY(v_add_backward(&v, UP));
    }
    while (v.forward[UP] < m || v.forward[DOWN] < m) {
        TR_TRY(v_add(&v, DOWN, TR_ACTION_F));
        TR_TRY(v_add_backward(&v, DOWN));
        TR_TRY(v_add(&v, UP, TR_ACTION_F));
        TR_TRY(v_add_backward(&v, UP));
    }
    for (int k = 0; k < rank; k++) {
        TR_TRY(v_add(&v, DOWN, TR_ACTION_I));
        TR_TRY(v_add(&v, UP, TR_ACTION_I));
    }
    while (v.input[DOWN] < m || v.input[UP] < m) {
        TR_TRY(v_add(&v, UP, TR_ACTION_I));
        TR_TRY(v_add_backward(&v, DOWN));
    }
    while (v.weight[UP] < m) TR_TRY(v_add(&v, UP, TR_ACTION_W));
    while (v.weight[DOWN] < m) TR_TRY(v_add(&v, DOWN, TR_ACTION_W));
    return TR_OK;
}

tr_status tr_generate_zbv(tr_schedule *s, const tr_schedule_request *request) {
    (void)request;
    for (int r = 0; r < s->ranks; r++) TR_TRY(generate_zbv_rank(s, r));
    return tr_generate_repair(s);
}

/* --- V under a memory cap --------------------------------------------------------------------- */

enum { AHEADS = 33, LATES = 8, PREFERENCES = 12 };

/* A micro-batch waits longest on the first rank between its F down and its I back up, hardly at all
 * between its F up and its I down; on the last rank equally long: of the inputs that fit, all but
 * `tail` may be of the way down on the first rank, half on the last, and a few more or fewer. */
static void set_ahead(tr_greedy_rules *rules, int k) {
    double inputs = 2 * rules->memory.cap / rules->memory.mb;
    double tail = k % 4, more = (k / 4 - 3) * 0.5;
    rules->ahead_first = inputs - tail + more;
    rules->ahead_last = inputs / 2 + more;
    if (k == AHEADS - 1) rules->ahead_first = rules->ahead_last = 0;
}

static void set_late(tr_greedy_rules *rules, int k) {
    static const int values[LATES] = {-1, 1, 2, 3, 4, 6, 10, 16};
    rules->late = values[k];
}

static void set_preference(tr_greedy_rules *rules, int k) {
    static const double values[] = {0, 0.1, 0.5, 1};
    rules->patience = rules->first_patience = values[k / TR_GREEDY_FIRSTS];
    rules->first = (tr_greedy_first)(k % TR_GREEDY_FIRSTS);
}

enum { WEIGHTS = 3, SWAP_BUDGET = 5000000 };

/* Offers the periodic order as it is and with its gaps filled; of whole backwards, which pack
 * worse, several of them, and with neighbours swapped. */
static tr_status offer_block(tr_best *best, bool whole) {
    static const int weight[WEIGHTS][4] = {{1, 1, 1, 1}, {2, 4, 2, 4}, {2, 4, 4, 1}};
    const tr_schedule *s = best->s;
    for (int k = 0; k < (whole ? WEIGHTS : 1); k++)
        for (int filled = 0; filled < 2; filled++) {
            tr_schedule *order = NULL;
            TR_TRY(tr_schedule_create(s->name, s->ranks, s->stages, s->micro_batches, s->rank_of,
                                      &order));
            tr_status status = tr_block_fill(order, whole, weight[k]);
            if (status == TR_OK && filled)
                status = tr_generate_pull(order, best->request, best->cap);
            if (status == TR_OK) status = tr_best_offer(best, order);
            tr_schedule_destroy(order);
            TR_TRY(status);
        }
    return whole && best->found ? tr_generate_swap(best->s, best->request, best->cap, SWAP_BUDGET)
                                : TR_OK;
}

/* The best makespan of orders that are played with the true costs. */
static tr_status generate_under_cap(tr_schedule *s, const tr_schedule_request *request,
                                    double cap) {
    tr_best best = {.s = s, .request = request, .cap = tr_best_cap(request, cap)};
    tr_greedy_rules rules = {.costs = request->costs, .memory = request->memory, .late = -1};
    rules.memory.cap = best.cap;
    TR_TRY(tr_best_sweep(&best, &rules, AHEADS, set_ahead));
    TR_TRY(tr_best_sweep(&best, &rules, LATES, set_late));
    TR_TRY(tr_best_sweep(&best, &rules, PREFERENCES, set_preference));
    TR_TRY(tr_best_sweep(&best, &rules, AHEADS, set_ahead));
    return offer_block(&best, false);
}

/* V-Half (Qi et al. 2024): floor((p + 2) / 2) micro-batches' memory. */
tr_status tr_generate_v_half(tr_schedule *s, const tr_schedule_request *request) {
    return generate_under_cap(s, request, (s->ranks + 2) / 2 * request->memory.mb);
}

/* V-Min: floor((p + 4) / 3). */
tr_status tr_generate_v_min(tr_schedule *s, const tr_schedule_request *request) {
    return generate_under_cap(s, request, (s->ranks + 4) / 3 * request->memory.mb);
}

/* 1F1B-V: whole backwards; 3p / 4 micro-batches' memory, in halves, from four ranks on. */
tr_status tr_generate_1f1b_v(tr_schedule *s, const tr_schedule_request *request) {
    double most = s->ranks < 4 ? s->ranks : 0.5 * ((3 * s->ranks + 1) / 2);
    tr_best best = {
        .s = s, .request = request, .cap = tr_best_cap(request, most * request->memory.mb)};
    tr_greedy_rules rules = {.costs = request->costs, .memory = request->memory, .whole = true};
    rules.memory.cap = best.cap;
    TR_TRY(tr_best_sweep(&best, &rules, AHEADS, set_ahead));
    TR_TRY(tr_best_sweep(&best, &rules, PREFERENCES, set_preference));
    return offer_block(&best, true);
}
