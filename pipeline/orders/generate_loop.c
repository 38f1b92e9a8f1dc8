/* Schedules on a chain or a loop. */
#include "base/memory.h"
#include "pipeline/orders/generate_best.h"
#include "pipeline/orders/generate_impl.h"

#include <stdlib.h>

/* Looped breadth-first (Lamy-Poirier 2022): all micro-batches of a rank's first stage, then of its
 * next; B from the last stage to the first. On a chain it is GPipe (Huang et al. 2019). B come in
 * ascending order, like every sum over micro-batches. */
tr_status tr_generate_bfs(tr_schedule *s, const tr_schedule_request *request) {
    (void)request;
    for (int stage = 0; stage < s->stages; stage++)
        for (int k = 0; k < s->micro_batches; k++)
            TR_TRY(tr_generate_add(s, stage, TR_ACTION_F, k));
    for (int stage = s->stages - 1; stage >= 0; stage--)
        for (int k = 0; k < s->micro_batches; k++)
            TR_TRY(tr_generate_add(s, stage, TR_ACTION_B, k));
    return TR_OK;
}

/* Returns how many micro-batches' F a stage can have run: as many as all stages that it reads. */
static int inputs_of(const tr_graph *graph, const int *next, int stage, int all) {
    for (int k = 0, from; (from = tr_graph_get(graph, false, stage, k)) >= 0; k++)
        if (next[from] < all) all = next[from];
    return all;
}

/* Forward only: in turns of equal length every rank runs the possible F nearest to the end. So at
 * most as many micro-batches are in flight as there are stages, for every placement. */
tr_status tr_generate_forward(tr_schedule *s, const tr_schedule_request *request) {
    int *next = NULL, *turn_of = NULL; /* next micro-batch of a stage; last turn of a rank */
    tr_graph graph = {0};
    tr_status status = TR_OK;
    int64_t left = (int64_t)s->stages * s->micro_batches;
    s->forward_only = true;
    TR_TRY_OUT(tr_graph_open(request->table, s->stages, &graph));
    TR_TRY_OUT(tr_calloc((size_t)s->stages, sizeof *next, &next));
    TR_TRY_OUT(tr_calloc((size_t)s->ranks, sizeof *turn_of, &turn_of));
    for (int turn = 1; left > 0; turn++) /* The F of stage - 1 in this turn does not count yet. */
        for (int stage = s->stages - 1; stage >= 0; stage--) {
            int k = next[stage];
            if (k == inputs_of(&graph, next, stage, s->micro_batches)) continue;
            if (turn_of[s->rank_of[stage]] == turn) continue;
            TR_TRY_OUT(tr_generate_add(s, stage, TR_ACTION_F, k));
            next[stage]++;
            turn_of[s->rank_of[stage]] = turn;
            left--;
        }
out:
    free(turn_of);
    free(next);
    tr_graph_close(&graph);
    return status;
}

/* --- in turn ---------------------------------------------------------------------------------- */

/* The micro-batches of a looped schedule are taken in groups: a rank runs a group's F of its first
 * chunk, then of its second, and so on; I or B from the last chunk to the first. */
typedef struct groups {
    int count;
    int *first; /* [count + 1]: first micro-batch of each group */
    int largest;
} groups;

/* Makes groups of request->group micro-batches; 0: equal groups of at least `ranks`. With a last
 * group of fewer than `ranks` the first rank would wait for the last at every turn, so it joins the
 * previous group if that has `ranks`. The caller frees groups->first. */
static tr_status open_groups(const tr_schedule_request *request, groups *out) {
    int p = request->ranks, m = request->micro_batches, n = request->group;
    groups of = {0};
    bool even = !n;
    if (even) {
        of.count = m >= p ? m / p : 1;
    } else {
        if (n > m) n = m;
        of.count = (m - 1) / n + 1;
        if (n >= p && m % n && m % n < p && of.count > 1) of.count--;
    }
    TR_TRY(tr_calloc((size_t)of.count + 1, sizeof *of.first, &of.first));
    for (int g = 0; g < of.count; g++) {
        /* Equal groups, larger ones first. */
        int larger = m % of.count;
        of.first[g] = even ? g * (m / of.count) + (g < larger ? g : larger) : g * n;
    }
    of.first[of.count] = m;
    for (int g = 0; g < of.count; g++)
        if (of.first[g + 1] - of.first[g] > of.largest) of.largest = of.first[g + 1] - of.first[g];
    *out = of;
    return TR_OK;
}

/* Appends the rank's k-th F, or its k-th I, W or B; k < chunks * micro_batches. */
static tr_status add(tr_schedule *s, const groups *of, int rank, tr_action_type type, int k) {
    int chunks = s->stages / s->ranks;
    int low = 0, high = of->count - 1; /* the group: the last that starts at or before k */
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (of->first[middle] * chunks <= k) low = middle;
        else high = middle - 1;
    }
    int size = of->first[low + 1] - of->first[low], within = k - of->first[low] * chunks;
    int chunk = type == TR_ACTION_F ? within / size : chunks - 1 - within / size;
    return tr_generate_add(s, chunk * s->ranks + rank, type, of->first[low] + within % size);
}

/* Rank i runs (v - 1) N + factor * (p - 1 - i) + 1 F ahead, then in turn an I, the W of factor * i
 * turns before, and the next F; `whole`: in turn a B and the next F. N: the largest group. */
static tr_status generate_turns(tr_schedule *s, const tr_schedule_request *request, int factor,
                                bool whole) {
    tr_status status = TR_OK;
    groups of = {0};
    int total = request->chunks * s->micro_batches;
    TR_TRY(open_groups(request, &of));
    for (int r = 0; r < s->ranks; r++) {
        int ahead = (request->chunks - 1) * of.largest + factor * (s->ranks - 1 - r) + 1;
        int late = whole ? 0 : factor * r;
        for (int k = 0; k < ahead && k < total; k++) TR_TRY_OUT(add(s, &of, r, TR_ACTION_F, k));
        for (int k = 0; k < total + late; k++) {
            if (k < total) TR_TRY_OUT(add(s, &of, r, whole ? TR_ACTION_B : TR_ACTION_I, k));
            if (k >= late && !whole) TR_TRY_OUT(add(s, &of, r, TR_ACTION_W, k - late));
            if (k + ahead < total) TR_TRY_OUT(add(s, &of, r, TR_ACTION_F, k + ahead));
        }
    }
out:
    free(of.first);
    return status;
}

/* 1F1B (Narayanan et al. 2019, with flush): rank i holds min(m, p - i) micro-batches; any p and m.
 * Interleaved 1F1B (Narayanan et al. 2021): depth first in groups of N micro-batches; at most
 * (v - 1) N + 2 (p - 1) + 1 stage inputs on a rank, each 1/v of a micro-batch's. */
tr_status tr_generate_1f1b(tr_schedule *s, const tr_schedule_request *request) {
    return generate_turns(s, request, request->chunks == 1 ? 1 : 2, true);
}

/* Zero bubble (Qi et al. 2023). ZB-H1: rank i holds (p - i) m_b + i m_w; in a loop, interleaved-zb,
 * p m_b where N = p. */
tr_status tr_generate_zb_h1(tr_schedule *s, const tr_schedule_request *request) {
    return generate_turns(s, request, 1, false);
}

/* ZB-H2: rank i holds (2 (p - i) - 1) m_b + 2 i m_w. */
tr_status tr_generate_zb_h2(tr_schedule *s, const tr_schedule_request *request) {
    return generate_turns(s, request, 2, false);
}

/* --- ZB-1p, ZB-2p ----------------------------------------------------------------------------- */

static tr_status fill_turns(tr_schedule *order, const tr_best *best, const void *factor) {
    TR_TRY(generate_turns(order, best->request, *(const int *)factor, false));
    return tr_generate_repair(order, best->request->table); /* it is estimated next */
}

/* ZB-1p and ZB-2p: the order with the shortest span, at the request's costs and under the cap,
 * among ZB-H1, ZB-H2 and orders by list scheduling. */
tr_status tr_generate_zb_capped(tr_schedule *s, const tr_schedule_request *request) {
    tr_best best = {.s = s, .request = request, .span = true};
    TR_TRY(tr_best_open(&best));
    TR_TRY(tr_best_list(&best));
    for (int factor = 1; factor <= 2; factor++) TR_TRY(tr_best_try(&best, fill_turns, &factor));
    return tr_best_end(&best);
}
