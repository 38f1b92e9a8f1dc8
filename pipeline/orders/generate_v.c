/* Schedules in a V: stage s on rank s, and on the way back stage 2p - 1 - s. */
#include "pipeline/orders/generate_best.h"
#include "pipeline/orders/generate_block.h"
#include "pipeline/orders/generate_impl.h"

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

/* Finds the order with the least makespan, at the request's costs, among blocks and orders by list
 * scheduling. */
static tr_status generate_under_cap(tr_schedule *s, const tr_schedule_request *request,
                                    const tight *t, double micro_batches) {
    tr_best best = {.s = s, .request = request, .whole = t->shape[0].whole};
    TR_TRY(tr_best_open(&best, micro_batches));
    TR_TRY(offer_blocks(&best, t));
    TR_TRY(tr_best_list(&best));
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
