/* Schedules with whole backwards on a chain or a loop. */
#include "base/memory.h"
#include "pipeline/orders/generate_impl.h"

#include <stdlib.h>

/* GPipe (Huang et al. 2019): all F, then all B; B in ascending order, like every sum over
 * micro-batches. */
tr_status tr_generate_gpipe(tr_schedule *s, const tr_schedule_request *request) {
    return tr_generate_bfs(s, request);
}

/* 1F1B (Narayanan et al. 2019, with flush): rank i runs min(m, p - i - 1) F ahead, then one F and
 * one B in turn, then the B that remain. Holds min(m, p - i) micro-batches; any p and m. */
tr_status tr_generate_1f1b(tr_schedule *s, const tr_schedule_request *request) {
    (void)request;
    for (int stage = 0; stage < s->stages; stage++) {
        int ahead = s->stages - stage - 1;
        if (ahead > s->micro_batches) ahead = s->micro_batches;
        for (int k = 0; k < ahead; k++) TR_TRY(tr_generate_add(s, stage, TR_ACTION_F, k));
        for (int k = 0; k < s->micro_batches; k++) {
            if (k + ahead < s->micro_batches)
                TR_TRY(tr_generate_add(s, stage, TR_ACTION_F, k + ahead));
            TR_TRY(tr_generate_add(s, stage, TR_ACTION_B, k));
        }
    }
    return TR_OK;
}

/* Looped breadth-first (Lamy-Poirier 2022): all micro-batches of a rank's first stage, then of its
 * next; B from the last stage to the first. */
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

/* --- groups ----------------------------------------------------------------------------------- */

tr_status tr_loop_open(const tr_schedule_request *request, tr_loop *out) {
    int p = request->ranks, m = request->micro_batches, n = request->group;
    tr_loop loop = {.ranks = p, .chunks = request->chunks, .micro_batches = m};
    bool even = !n;
    if (even) {
        loop.groups = m >= p ? m / p : 1;
    } else {
        if (n > m) n = m;
        loop.groups = (m - 1) / n + 1;
        if (n >= p && m % n && m % n < p && loop.groups > 1) loop.groups--;
    }
    TR_TRY(tr_calloc((size_t)loop.groups + 1, sizeof *loop.first, &loop.first));
    for (int g = 0; g < loop.groups; g++) {
        /* Equal groups, larger ones first. */
        int larger = m % loop.groups;
        loop.first[g] = even ? g * (m / loop.groups) + (g < larger ? g : larger) : g * n;
    }
    loop.first[loop.groups] = m;
    for (int g = 0; g < loop.groups; g++)
        if (loop.first[g + 1] - loop.first[g] > loop.largest)
            loop.largest = loop.first[g + 1] - loop.first[g];
    *out = loop;
    return TR_OK;
}

void tr_loop_close(tr_loop *loop) {
    free(loop->first);
}

/* The chunk (in the group's order) and micro-batch of the k-th turn. */
static void find_turn(const tr_loop *loop, int k, int *chunk, int *micro_batch) {
    int low = 0, high = loop->groups - 1; /* the group: the last that starts at or before k */
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (loop->first[middle] * loop->chunks <= k) low = middle;
        else high = middle - 1;
    }
    int size = loop->first[low + 1] - loop->first[low];
    int within = k - loop->first[low] * loop->chunks;
    *chunk = within / size;
    *micro_batch = loop->first[low] + within % size;
}

tr_action tr_loop_forward(const tr_loop *loop, int rank, int k) {
    int chunk, micro_batch;
    find_turn(loop, k, &chunk, &micro_batch);
    return (tr_action){
        .stage = chunk * loop->ranks + rank, .type = TR_ACTION_F, .micro_batch = micro_batch};
}

tr_action tr_loop_backward(const tr_loop *loop, int rank, int k, tr_action_type type) {
    int chunk, micro_batch;
    find_turn(loop, k, &chunk, &micro_batch);
    return (tr_action){.stage = (loop->chunks - 1 - chunk) * loop->ranks + rank,
                       .type = type,
                       .micro_batch = micro_batch};
}

/* Interleaved 1F1B (Narayanan et al. 2021), depth first in groups of N micro-batches: rank i runs
 * (v - 1) N + 2 (p - 1 - i) F ahead, then one F and one B in turn. At most
 * (v - 1) N + 2 (p - 1) + 1 stage inputs on a rank, each 1/v of a micro-batch's. */
tr_status tr_generate_interleaved(tr_schedule *s, const tr_schedule_request *request) {
    tr_status status = TR_OK;
    tr_loop loop = {0};
    if (request->chunks == 1) return tr_generate_1f1b(s, request);
    TR_TRY(tr_loop_open(request, &loop));
    int total = loop.chunks * loop.micro_batches;
    for (int r = 0; r < s->ranks; r++) {
        int ahead = (loop.chunks - 1) * loop.largest + 2 * (s->ranks - 1 - r);
        if (ahead > total) ahead = total;
        for (int k = 0; k < ahead; k++)
            TR_TRY_OUT(tr_schedule_add(s, r, tr_loop_forward(&loop, r, k)));
        for (int k = 0; k < total; k++) {
            if (k + ahead < total)
                TR_TRY_OUT(tr_schedule_add(s, r, tr_loop_forward(&loop, r, k + ahead)));
            TR_TRY_OUT(tr_schedule_add(s, r, tr_loop_backward(&loop, r, k, TR_ACTION_B)));
        }
    }
out:
    tr_loop_close(&loop);
    return status;
}
