/* Zero-bubble schedules on a chain or a loop: I and W apart (Qi et al. 2023). */
#include "base/memory.h"
#include "pipeline/orders/generate_best.h"
#include "pipeline/orders/generate_impl.h"

#include <stdlib.h>

/* Rank i runs ahead[i] F, then I, the W of `late[i]` turns before, and the next F in turn. */
static tr_status generate_late_w(tr_schedule *s, const tr_loop *loop, int rank, int ahead,
                                 int late) {
    int total = loop->chunks * loop->micro_batches;
    if (ahead > total) ahead = total;
    for (int k = 0; k < ahead; k++)
        TR_TRY(tr_schedule_add(s, rank, tr_loop_forward(loop, rank, k)));
    for (int k = 0; k < total + late; k++) {
        if (k < total)
            TR_TRY(tr_schedule_add(s, rank, tr_loop_backward(loop, rank, k, TR_ACTION_I)));
        if (k >= late)
            TR_TRY(tr_schedule_add(s, rank, tr_loop_backward(loop, rank, k - late, TR_ACTION_W)));
        if (k + ahead < total)
            TR_TRY(tr_schedule_add(s, rank, tr_loop_forward(loop, rank, k + ahead)));
    }
    return TR_OK;
}

/* The rules of the three: F ahead of rank i and the delay of its W. */
static tr_status generate_rule(tr_schedule *s, const tr_schedule_request *request, int factor) {
    tr_status status = TR_OK;
    tr_loop loop = {0};
    TR_TRY(tr_loop_open(request, &loop));
    for (int r = 0; r < s->ranks; r++) {
        int ahead = (loop.chunks - 1) * loop.largest + factor * (s->ranks - r - 1) + 1;
        TR_TRY_OUT(generate_late_w(s, &loop, r, ahead, factor * r));
    }
    TR_TRY_OUT(tr_generate_repair(s, request->table));
out:
    tr_loop_close(&loop);
    return status;
}

/* ZB-H1: p - i F ahead, W i turns late. Rank i holds (p - i) m_b + i m_w. */
tr_status tr_generate_zb_h1(tr_schedule *s, const tr_schedule_request *request) {
    return generate_rule(s, request, 1);
}

/* ZB-H2: 2 (p - i) - 1 F ahead, W 2 i turns late. Rank i holds (2 (p - i) - 1) m_b + 2 i m_w. */
tr_status tr_generate_zb_h2(tr_schedule *s, const tr_schedule_request *request) {
    return generate_rule(s, request, 2);
}

/* ZB-H1 in a loop: (v - 1) N + p - i F ahead, W i turns late; p m_b where N = p. */
tr_status tr_generate_interleaved_zb(tr_schedule *s, const tr_schedule_request *request) {
    return generate_rule(s, request, 1);
}

/* --- ZB-1p, ZB-2p ----------------------------------------------------------------------------- */

/* Finds the order with the shortest span, at the request's costs and under the cap, among ZB-H1,
 * ZB-H2 and orders by list scheduling: so it is never worse than ZB-H1 or ZB-H2 where that fits. */
static tr_status generate_under_cap(tr_schedule *s, const tr_schedule_request *request,
                                    double micro_batches) {
    tr_best best = {.s = s, .request = request, .span = true};
    TR_TRY(tr_best_open(&best, micro_batches));
    TR_TRY(tr_best_list(&best));
    for (int factor = 1; factor <= 2; factor++) {
        tr_schedule *order = NULL;
        TR_TRY(tr_schedule_create(s->name, s->ranks, s->stages, s->micro_batches, NULL, &order));
        tr_status status = generate_rule(order, request, factor);
        if (status == TR_OK) status = tr_best_offer(&best, order);
        tr_schedule_destroy(order);
        TR_TRY(status);
    }
    return tr_best_end(&best);
}

/* ZB-1p: at most p micro-batches' memory on a rank. */
tr_status tr_generate_zb_1p(tr_schedule *s, const tr_schedule_request *request) {
    return generate_under_cap(s, request, s->ranks);
}

/* ZB-2p: at most 2p. */
tr_status tr_generate_zb_2p(tr_schedule *s, const tr_schedule_request *request) {
    return generate_under_cap(s, request, 2 * s->ranks);
}
