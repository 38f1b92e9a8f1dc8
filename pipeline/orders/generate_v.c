/* Schedules in a V: stage s on rank s, and on the way back stage 2p - 1 - s. */
#include "pipeline/orders/generate_best.h"
#include "pipeline/orders/generate_block.h"
#include "pipeline/orders/generate_impl.h"

#include <math.h>

/* One rank of a V: the progress of its two stages. */
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
    return TR_OK;
}

/* --- V under a memory cap --------------------------------------------------------------------- */

/* A schedule for a memory: the blocks that squeeze best into it, over 3 to 64 ranks. */
enum { MOST_SHAPES = 4 };
typedef struct tight {
    tr_generate_block_shape shape[MOST_SHAPES];
    int shapes;
} tight;

static const tight v_half = {.shape = {{false, {1, 1, 2, 2}, {2, 2, 1, 2}},
                                       {false, {1, 3, 1, 3}, {4, 1, 1, 4}},
                                       {false, {1, 1, 2, 3}, {4, 4, 2, 2}},
                                       {false, {1, 1, 1, 1}, {1, 1, 1, 1}}},
                             .shapes = 4};
static const tight v_min = {.shape = {{false, {1, 1, 1, 1}, {3, 1, 3, 4}},
                                      {false, {1, 1, 2, 2}, {3, 2, 2, 4}},
                                      {false, {2, 1, 1, 1}, {1, 1, 2, 2}}},
                            .shapes = 3};
static const tight v_1f1b = {
    .shape = {{true, {1, 1, 2, 3}, {3, 3, 1, 2}}, {true, {1, 1, 2, 4}, {4, 3, 1, 1}}}, .shapes = 2};

static tr_status offer_blocks(tr_best *best, const tight *t) {
    const tr_schedule *s = best->s;
    for (int k = 0; k < t->shapes; k++) {
        tr_schedule *order = NULL;
        TR_TRY(
            tr_schedule_create(s->name, s->ranks, s->stages, s->micro_batches, s->rank_of, &order));
        tr_status status =
            tr_generate_block(order, &t->shape[k], &best->request->memory, best->cap);
        if (status == TR_OK) status = tr_best_offer(best, order);
        tr_schedule_destroy(order);
        TR_TRY(status);
    }
    return TR_OK;
}

enum { AHEADS = 33, LATES = 8, PREFERENCES = 12, ACTIONS = 6 };

/* Sets how many F of a rank's first stage may wait. On the first rank a micro-batch waits long
 * between its F down and its I back up, and hardly between its F up and its I down; on the last
 * rank both waits are equal. So of the inputs that fit, all except `tail` may be of the first stage
 * on the first rank, half on the last, and a few more or fewer. Values that gave the best order
 * most often come first. */
static void set_ahead(tr_greedy_rules *rules, int k) {
    static const char values[AHEADS - 1] = {17, 12, 13, 14, 22, 21, 16, 18, 9,  23, 27,
                                            8,  4,  0,  1,  2,  3,  5,  6,  7,  10, 11,
                                            15, 19, 20, 24, 25, 26, 28, 29, 30, 31};
    if (k == AHEADS - 1) {
        rules->ahead_first = rules->ahead_last = 0;
        return;
    }
    double most = rules->whole ? rules->memory.m_b : fmax(rules->memory.m_b, rules->memory.m_w);
    double inputs = 2 * rules->memory.cap / most;
    int tail = values[k] % 4;
    double more = (values[k] / 4 - 3) * 0.5;
    rules->ahead_first = inputs - tail + more;
    rules->ahead_last = inputs / 2 + more;
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

/* Actions that may be played while rules are chosen, and in the order itself. */
static const double most_played = 2e6, most_order = 1e6;

static tr_status choose_rules(tr_best *best, double orders, tr_greedy_rules *rules) {
    int aheads = orders < (int)AHEADS ? (int)orders + 1 : AHEADS;
    TR_TRY(tr_best_sweep(best, rules, aheads, set_ahead));
    if (orders < (int)(AHEADS + LATES + PREFERENCES)) return TR_OK;
    if (!rules->whole) TR_TRY(tr_best_sweep(best, rules, LATES, set_late));
    TR_TRY(tr_best_sweep(best, rules, PREFERENCES, set_preference));
    return tr_best_sweep(best, rules, AHEADS, set_ahead);
}

/* Orders that are played. For large ones the rules are those of the best order for fewer
 * micro-batches, more of which only repeat its middle. */
static tr_status offer_played(tr_best *best, bool whole) {
    const tr_schedule_request *q = best->request;
    const tr_schedule *s = best->s;
    tr_greedy_rules rules = {
        .table = q->table, .costs = q->costs, .memory = q->memory, .whole = whole, .late = -1};
    double actions = (double)ACTIONS * s->ranks * s->micro_batches, orders = most_played / actions;
    rules.memory.cap = best->cap;
    int few = q->micro_batches % q->ranks + 2 * q->ranks;
    if (orders >= 2 * AHEADS + LATES + PREFERENCES || few >= q->micro_batches)
        return actions > most_order ? TR_OK : choose_rules(best, orders, &rules);
    if (actions > most_order) return TR_OK;
    tr_best less = {.request = q, .cap = best->cap};
    TR_TRY(tr_schedule_create(s->name, s->ranks, s->stages, few, s->rank_of, &less.s));
    tr_status status = choose_rules(&less, orders * q->micro_batches / few, &rules);
    tr_schedule_destroy(less.s);
    bool better;
    return status == TR_OK ? tr_best_play(best, &rules, &better) : status;
}

/* The best makespan, at the true costs, of blocks and of orders that are played. */
static tr_status generate_under_cap(tr_schedule *s, const tr_schedule_request *request,
                                    const tight *t, double micro_batches) {
    tr_best best = {
        .s = s, .request = request, .cap = tr_best_cap(request, micro_batches, t->shape[0].whole)};
    TR_TRY(offer_blocks(&best, t));
    TR_TRY(offer_played(&best, t->shape[0].whole));
    if (best.found) return TR_OK;
    /* For a cap that no block satisfies, in an order that is too large to play often. */
    tr_greedy_rules rules = {.table = request->table,
                             .costs = request->costs,
                             .memory = request->memory,
                             .whole = t->shape[0].whole,
                             .late = -1};
    rules.memory.cap = best.cap;
    bool better;
    TR_TRY(tr_best_play(&best, &rules, &better));
    return tr_best_end(&best);
}

/* V-Half (Qi et al. 2024): floor((p + 2) / 2) micro-batches' memory. */
tr_status tr_generate_v_half(tr_schedule *s, const tr_schedule_request *request) {
    return generate_under_cap(s, request, &v_half, (s->ranks + 2) / 2);
}

/* V-Min: floor((p + 4) / 3). */
tr_status tr_generate_v_min(tr_schedule *s, const tr_schedule_request *request) {
    return generate_under_cap(s, request, &v_min, (s->ranks + 4) / 3);
}

/* 1F1B-V: whole backwards; 3p / 4 micro-batches' memory, in halves, from four ranks on. */
tr_status tr_generate_1f1b_v(tr_schedule *s, const tr_schedule_request *request) {
    double most = s->ranks < 4 ? s->ranks : 0.5 * ((3 * s->ranks + 1) / 2);
    return generate_under_cap(s, request, &v_1f1b, most);
}
