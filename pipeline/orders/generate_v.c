/* Schedules in a V: stage s on rank s, and on the way back stage 2p - 1 - s. */
#include "pipeline/orders/generate_best.h"
#include "pipeline/orders/generate_block.h"
#include "pipeline/orders/generate_impl.h"

#include <string.h>

enum { DOWN, UP };

/* One rank of a V: the progress of its two stages. */
typedef struct v_rank {
    tr_schedule *s;
    int rank, stage[2];
    int forward[2], input[2], weight[2]; /* next micro-batch of each */
} v_rank;

static v_rank v_open(tr_schedule *s, int rank) {
    return (v_rank){.s = s, .rank = rank, .stage = {[DOWN] = rank, [UP] = s->stages - 1 - rank}};
}

/* Appends the stage's next F, I, W or B; nothing after its last one. */
static tr_status v_add(v_rank *v, int side, tr_action_type type) {
    int *next = type == TR_ACTION_F ? v->forward : type == TR_ACTION_W ? v->weight : v->input;
    if (next[side] == v->s->micro_batches) return TR_OK;
    if (type == TR_ACTION_B) v->weight[side]++;
    return tr_generate_add(v->s, v->stage[side], type, next[side]++);
}

static tr_status v_add_split(v_rank *v, int side) {
    TR_TRY(v_add(v, side, TR_ACTION_I));
    return v_add(v, side, TR_ACTION_W);
}

/* ZB-V (Qi et al. 2023, section 6), for F = I = W: rank i fills the time until the first
 * micro-batch is back with 2 (p - i) - 1 F of the way down, then one of each in turn; W follow
 * their I but in the last i turns, where they fill the drain. p micro-batches' memory on every
 * rank. */
static tr_status generate_zbv_rank(tr_schedule *s, int rank) {
    v_rank v = v_open(s, rank);
    int p = s->ranks, m = s->micro_batches;
    for (int k = 0; k < 2 * (p - rank) - 1; k++) TR_TRY(v_add(&v, DOWN, TR_ACTION_F));
    for (int k = 0; k < rank; k++) {
        TR_TRY(v_add(&v, UP, TR_ACTION_F));
        TR_TRY(v_add(&v, DOWN, TR_ACTION_F));
    }
    for (int k = 0; k < p - rank; k++) {
        TR_TRY(v_add(&v, UP, TR_ACTION_F));
        TR_TRY(v_add_split(&v, UP));
    }
    while (v.forward[UP] < m || v.forward[DOWN] < m) {
        TR_TRY(v_add(&v, DOWN, TR_ACTION_F));
        TR_TRY(v_add_split(&v, DOWN));
        TR_TRY(v_add(&v, UP, TR_ACTION_F));
        TR_TRY(v_add_split(&v, UP));
    }
    for (int k = 0; k < rank; k++) {
        TR_TRY(v_add(&v, DOWN, TR_ACTION_I));
        TR_TRY(v_add(&v, UP, TR_ACTION_I));
    }
    while (v.input[DOWN] < m || v.input[UP] < m) {
        TR_TRY(v_add(&v, UP, TR_ACTION_I));
        TR_TRY(v_add_split(&v, DOWN));
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

/* --- DualPipeV: DualPipe (DeepSeek-V3) cut in half, on a V ------------------------------------ */

/* Appends an F and a B that overlap; only one of them if the other's stage has no more. */
static tr_status v_add_pair(v_rank *v, int forward_side, int backward_side) {
    int m = v->s->micro_batches;
    bool both = v->forward[forward_side] < m && v->input[backward_side] < m;
    TR_TRY(v_add(v, forward_side, TR_ACTION_F));
    if (both) v->s->action[v->rank][v->s->count[v->rank] - 1].overlap = true;
    return v_add(v, backward_side, TR_ACTION_B);
}

/* The eight phases of a rank. From the second to the last everything moves one turn of the V up
 * and one down; `below` ranks stand between this one and the turn. */
static tr_status generate_dualpipev_rank(tr_schedule *s, int rank, int pattern) {
    v_rank v = v_open(s, rank);
    int below = s->ranks - 1 - rank, above = rank;
    for (int k = 0; k < 2 * below; k++) TR_TRY(v_add(&v, DOWN, TR_ACTION_F));
    for (int k = 0; k <= above; k++) {
        TR_TRY(v_add(&v, DOWN, TR_ACTION_F));
        TR_TRY(v_add(&v, UP, TR_ACTION_F));
    }
    for (int k = 0; k < below; k++) {
        TR_TRY(v_add_split(&v, UP));
        TR_TRY(v_add(&v, UP, TR_ACTION_F));
    }
    int pairs = pattern - 2 * s->ranks + above + 1;
    for (int k = 0; k < pairs; k++) {
        /* At the turn nothing runs ahead yet: the first B would wait for the F next to it. */
        if (k == 0 && below == 0) {
            TR_TRY(v_add(&v, DOWN, TR_ACTION_F));
            TR_TRY(v_add(&v, UP, TR_ACTION_B));
        } else {
            TR_TRY(v_add_pair(&v, DOWN, UP));
        }
        TR_TRY(v_add_pair(&v, UP, DOWN));
    }
    for (int k = 0; k < below; k++) {
        TR_TRY(v_add(&v, UP, TR_ACTION_B));
        TR_TRY(v_add_pair(&v, UP, DOWN));
    }
    /* Of the last 2 (above + 1) backwards, the second half leaves its W for the drain, where W run
     * in the order of their I. */
    for (int k = 0; k < 2 * (above + 1); k++)
        TR_TRY(v_add(&v, k % 2 ? DOWN : UP, k <= above ? TR_ACTION_B : TR_ACTION_I));
    for (int k = 0; k < s->ranks; k++) {
        TR_TRY(v_add(&v, k > above || (above + 1 + k) % 2 ? DOWN : UP, TR_ACTION_W));
        if (k < below) TR_TRY(v_add(&v, DOWN, TR_ACTION_I));
    }
    return TR_OK;
}

/* F and B of two micro-batches in one cell wherever both directions run. The pattern needs 2 p
 * micro-batches: fewer are made by leaving the others out. */
tr_status tr_generate_dualpipev(tr_schedule *s, const tr_schedule_request *request) {
    (void)request;
    int pattern = s->micro_batches > 2 * s->ranks ? s->micro_batches : 2 * s->ranks;
    for (int r = 0; r < s->ranks; r++) TR_TRY(generate_dualpipev_rank(s, r, pattern));
    return TR_OK;
}

/* --- V under a memory cap --------------------------------------------------------------------- */

/* The blocks that squeeze best into the schedule's memory, over 3 to 64 ranks. V-Half, V-Min: Qi et
 * al. 2024. 1F1B-V has whole backwards and holds 3p / 4 micro-batches, in halves. */
enum { MOST_SHAPES = 4 };
static const struct blocks {
    const char *name;
    int shapes;
    tr_generate_block_shape shape[MOST_SHAPES];
} blocks[] = {
    {"v-half",
     4,
     {{false, {1, 1, 2, 2}, {2, 2, 1, 2}},
      {false, {1, 3, 1, 3}, {4, 1, 1, 4}},
      {false, {1, 1, 2, 3}, {4, 4, 2, 2}},
      {false, {1, 1, 1, 1}, {1, 1, 1, 1}}}},
    {"v-min",
     3,
     {{false, {1, 1, 1, 1}, {3, 1, 3, 4}},
      {false, {1, 1, 2, 2}, {3, 2, 2, 4}},
      {false, {2, 1, 1, 1}, {1, 1, 2, 2}}}},
    {"1f1b-v", 2, {{true, {1, 1, 2, 3}, {3, 3, 1, 2}}, {true, {1, 1, 2, 4}, {4, 3, 1, 1}}}}};

static tr_status fill_block(tr_schedule *order, const tr_best *best, const void *shape) {
    return tr_generate_block(order, shape, &best->request->share, best->cap);
}

/* Finds the order with the least makespan, at the request's costs, among blocks and orders by list
 * scheduling. */
tr_status tr_generate_v_capped(tr_schedule *s, const tr_schedule_request *request) {
    const struct blocks *b = blocks;
    while (strcmp(b->name, s->name) != 0) b++;
    tr_best best = {.s = s, .request = request, .whole = b->shape[0].whole};
    TR_TRY(tr_best_open(&best));
    for (int k = 0; k < b->shapes; k++) TR_TRY(tr_best_try(&best, fill_block, &b->shape[k]));
    TR_TRY(tr_best_list(&best));
    return tr_best_end(&best);
}
