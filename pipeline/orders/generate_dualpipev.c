/* DualPipeV: DualPipe (DeepSeek-V3) cut in half, on a V. */
#include "base/memory.h"
#include "pipeline/orders/generate_impl.h"

#include <stdlib.h>

enum { DOWN, UP };

/* One rank: how far its two stages are, and the W that wait for their turn, oldest first. */
typedef struct dual {
    tr_schedule *s;
    int rank;
    int forward[2], backward[2];
    tr_action *late; /* W */
    int late_first, late_count;
    int pattern; /* micro-batches of the pattern; those that the schedule lacks are left out */
} dual;

static int stage_of(const dual *d, int side) {
    return side == DOWN ? d->rank : d->s->stages - 1 - d->rank;
}

static tr_status put(dual *d, tr_action a) {
    return a.micro_batch < d->s->micro_batches ? tr_schedule_add(d->s, d->rank, a) : TR_OK;
}

static tr_action next_forward(dual *d, int side) {
    return (tr_action){
        .stage = stage_of(d, side), .type = TR_ACTION_F, .micro_batch = d->forward[side]++};
}

static tr_action next_backward(dual *d, int side, tr_action_type type) {
    return (tr_action){
        .stage = stage_of(d, side), .type = type, .micro_batch = d->backward[side]++};
}

static tr_status add_forward(dual *d, int side) {
    return put(d, next_forward(d, side));
}

static tr_status add_backward(dual *d, int side) {
    return put(d, next_backward(d, side, TR_ACTION_B));
}

/* I now, its W when add_late_weight comes to it. */
static tr_status add_input(dual *d, int side) {
    tr_action a = next_backward(d, side, TR_ACTION_I);
    TR_TRY(put(d, a));
    a.type = TR_ACTION_W;
    d->late[d->late_count++] = a;
    return TR_OK;
}

static tr_status add_late_weight(dual *d) {
    return put(d, d->late[d->late_first++]);
}

static tr_status add_pair(dual *d, int forward_side, int backward_side) {
    tr_action f = next_forward(d, forward_side);
    tr_action b = next_backward(d, backward_side, TR_ACTION_B);
    int m = d->s->micro_batches;
    f.overlap = f.micro_batch < m && b.micro_batch < m;
    TR_TRY(put(d, f));
    return put(d, b);
}

/* The eight phases of a rank. From the second to the last everything moves one turn of the V up
 * and one down; `below` ranks stand between this one and the turn. */
static tr_status generate_rank(dual *d) {
    int below = d->s->ranks - 1 - d->rank, above = d->rank;
    for (int k = 0; k < 2 * below; k++) TR_TRY(add_forward(d, DOWN));
    for (int k = 0; k <= above; k++) {
        TR_TRY(add_forward(d, DOWN));
        TR_TRY(add_forward(d, UP));
    }
    for (int k = 0; k < below; k++) {
        TR_TRY(add_input(d, UP));
        TR_TRY(add_late_weight(d));
        TR_TRY(add_forward(d, UP));
    }
    int pairs = d->pattern - 2 * d->s->ranks + above + 1;
    for (int k = 0; k < pairs; k++) {
        /* At the turn nothing runs ahead yet: the first B would wait for the F next to it. */
        if (k == 0 && below == 0) {
            TR_TRY(add_forward(d, DOWN));
            TR_TRY(add_backward(d, UP));
        } else {
            TR_TRY(add_pair(d, DOWN, UP));
        }
        TR_TRY(add_pair(d, UP, DOWN));
    }
    for (int k = 0; k < below; k++) {
        TR_TRY(add_backward(d, UP));
        TR_TRY(add_pair(d, UP, DOWN));
    }
    /* Of the last 2 (above + 1) backwards, the second half leaves its W for the drain. */
    for (int k = 0; k < 2 * (above + 1); k++) {
        int side = k % 2 ? DOWN : UP;
        TR_TRY(k <= above ? add_backward(d, side) : add_input(d, side));
    }
    for (int k = 0; k < below; k++) {
        TR_TRY(add_late_weight(d));
        TR_TRY(add_input(d, DOWN));
    }
    while (d->late_first < d->late_count) TR_TRY(add_late_weight(d));
    return TR_OK;
}

/* F and B of two micro-batches in one cell wherever both directions run. The pattern needs 2 p
 * micro-batches: fewer are made by leaving the others out. */
tr_status tr_generate_dualpipev(tr_schedule *s, const tr_schedule_request *request) {
    (void)request;
    tr_status status = TR_OK;
    int pattern = s->micro_batches > 2 * s->ranks ? s->micro_batches : 2 * s->ranks;
    for (int r = 0; r < s->ranks; r++) {
        dual d = {.s = s, .rank = r, .pattern = pattern};
        TR_TRY(tr_calloc(2 * (size_t)pattern, sizeof *d.late, &d.late));
        status = generate_rank(&d);
        free(d.late);
        TR_TRY(status);
    }
    return TR_OK;
}
