#include "partition/cut_for_schedule.h"

#include "base/memory.h"
#include "layers/layer_stage.h"
#include "partition/cut.h"
#include "partition/param_memory.h"
#include "pipeline/orders/estimate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Actions that may be estimated, about 0.05 s of one core. Making the stage table of a trial takes
 * about as long as estimating layer_actions actions for each layer. */
static const int64_t most_actions = 500000, layer_actions = 30;

/* A smaller relative difference is rounding. */
static const double rounding = 1e-9;

/* Balances the FLOPs, with this weight for F and the rest of 1 for I and W. room: see
 * tr_cut_balanced. */
static tr_status balance(const tr_model *model, double forward, int stages, const tr_cut_room *room,
                         int *first, bool *found) {
    size_t n = (size_t)model->count;
    double *cost = NULL;
    bool *block = NULL;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc(n, sizeof *cost, &cost));
    TR_TRY_OUT(tr_calloc(n, sizeof *block, &block));
    for (size_t k = 0; k < n; k++) {
        const tr_layer *layer = model->layers[k];
        cost[k] = forward * layer->flops_f + (1 - forward) * (layer->flops_i + layer->flops_w);
        block[k] = tr_layer_is_block(layer);
    }
    status = tr_cut_balanced(cost, block, model->count, stages, room, first, found);
out:
    free(block);
    free(cost);
    return status;
}

tr_status tr_cut_model(const tr_model *model, int stages, int *first) {
    bool found;
    return balance(model, 0.5, stages, NULL, first, &found);
}

/* Estimates a cut's order. */
static tr_status estimate(const tr_model *model, const tr_schedule *s, const int *first,
                          tr_stage_table *table, tr_estimate **out) {
    TR_TRY(tr_layer_table_make(model, first, s->stages, table));
    return tr_estimate_order(s, &(tr_estimate_options){.table = table}, out);
}

/* Returns the bytes of the parameters of a rank and of their state. */
static double state_of(const tr_model *model, const tr_placement *placement, int rank,
                       const tr_cut_memory *memory) {
    size_t values, gradients, moments;
    const tr_param_memory params = tr_memory_of_params(model, placement, rank, memory->divided,
                                                       memory->zero, memory->optimizer);
    tr_memory_params_bytes(&params, model->shape.dtype, &values, &gradients, &moments);
    return (double)(values + gradients + moments);
}

tr_status tr_cut_measure(const tr_model *model, const tr_schedule *s, const tr_cut_memory *memory,
                         const int *first, double *time, double *need) {
    tr_stage_table table = {0};
    tr_estimate *e = NULL;
    const tr_placement placement = {.stages = s->stages, .first = first, .owner = s->rank_of};
    const tr_status status = estimate(model, s, first, &table, &e);
    for (int r = 0; r < s->ranks && status == TR_OK; r++)
        need[r] = state_of(model, &placement, r, memory) + e->peak[r];
    if (status == TR_OK) *time = e->makespan;
    tr_estimate_destroy(e);
    tr_stage_table_free(&table);
    return status;
}

typedef struct search {
    const tr_model *model;
    const tr_schedule *s;
    const tr_cut_memory *memory;
    double *room, *need; /* [ranks]: what they may need; what those of the trial need */
    int *best, *trial;   /* [stages + 1] */
    double time, excess; /* of the best; what its ranks need beyond their room */
    int64_t actions;     /* estimated so far */
} search;

/* Returns true when every stage has a block. */
static bool is_valid(const search *x) {
    for (int k = 0; k < x->s->stages; k++) {
        bool found = false;
        for (int n = x->trial[k]; n < x->trial[k + 1]; n++)
            found = found || tr_layer_is_block(x->model->layers[n]);
        if (!found) return false;
    }
    return true;
}

/* Measures the trial. */
static tr_status measure(search *x, double *time) {
    TR_TRY(tr_cut_measure(x->model, x->s, x->memory, x->trial, time, x->need));
    for (int r = 0; r < x->s->ranks; r++) x->actions += x->s->count[r];
    x->actions += layer_actions * x->model->count;
    return TR_OK;
}

/* Returns what the ranks of the trial need beyond their room. */
static double excess_of(const search *x) {
    double excess = 0;
    for (int r = 0; r < x->s->ranks; r++)
        excess += fmax(0, x->need[r] - x->room[r] * (1 + rounding));
    return excess;
}

/* Takes the trial if it exceeds the room by less, or does not and is faster. */
static tr_status take_better(search *x, bool *better) {
    double time;
    if (!is_valid(x) || x->actions >= most_actions) return TR_OK;
    TR_TRY(measure(x, &time));
    const double excess = excess_of(x);
    const bool nearer = excess < x->excess * (1 - rounding);
    const bool faster = excess <= x->excess && time < x->time * (1 - rounding);
    if (!nearer && !faster) return TR_OK;
    x->time = time;
    x->excess = excess;
    *better = true;
    memcpy(x->best, x->trial, ((size_t)x->s->stages + 1) * sizeof *x->best);
    return TR_OK;
}

/* By how many layers the boundaries from a first to a last one move: the first, those between, and
 * the last. */
typedef struct shift {
    int from, to, by[3];
} shift;

static int shift_of(const shift *m, int boundary) {
    if (boundary < m->from || boundary > m->to) return 0;
    return m->by[boundary == m->from ? 0 : boundary < m->to ? 1 : 2];
}

/* Returns true when a stage of the best cut next to the first or the last boundary would lose its
 * only layer: an early answer of is_valid, which takes longer the more layers there are. */
static bool empties(const search *x, const shift *m) {
    const int next_to[] = {m->from - 1, m->from, m->to - 1, m->to};
    for (int n = 0; n < 4; n++) {
        const int k = next_to[n];
        if (x->best[k + 1] + shift_of(m, k + 1) <= x->best[k] + shift_of(m, k)) return true;
    }
    return false;
}

/* Moves boundaries `from` to `to` of the best cut by a layer, up or down; then those at both ends
 * apart or together, without those between. */
static tr_status move(search *x, int from, int to, bool *better) {
    static const int moves[][3] = {{1, 1, 1},   {-1, -1, -1}, {1, 0, 1},
                                   {-1, 0, -1}, {1, 0, -1},   {-1, 0, 1}};
    for (int n = 0; n < (int)(sizeof moves / sizeof *moves); n++) {
        const shift m = {from, to, {moves[n][0], moves[n][1], moves[n][2]}};
        if (n >= 2 && (from == to || (n < 4 && to == from + 1))) continue; /* the same as another */
        if (empties(x, &m)) continue;
        memcpy(x->trial, x->best, ((size_t)x->s->stages + 1) * sizeof *x->best);
        for (int k = from; k <= to; k++) x->trial[k] += shift_of(&m, k);
        TR_TRY(take_better(x, better));
    }
    return TR_OK;
}

/* Sets the room: that which is given, or what the fullest rank of the trial needs. */
static void set_room(search *x) {
    double most = 0;
    for (int r = 0; r < x->s->ranks; r++) most = fmax(most, x->need[r]);
    for (int r = 0; r < x->s->ranks; r++) x->room[r] = x->memory->room ? x->memory->room[r] : most;
}

/* Fills state[layers] with the bytes of each layer's parameters and of their state, and one[layers]
 * with those of its activations of a micro-batch. */
static tr_status measure_layers(const search *x, double *state, double *one) {
    const int n = x->model->count;
    int *first = NULL, *owner = NULL; /* every layer is a stage, of a rank of its own */
    tr_stage_table table = {0};
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)n + 1, sizeof *first, &first));
    TR_TRY_OUT(tr_calloc((size_t)n, sizeof *owner, &owner));
    for (int k = 0; k < n; k++) {
        first[k + 1] = k + 1;
        owner[k] = k;
    }
    const tr_placement placement = {.stages = n, .first = first, .owner = owner};
    TR_TRY_OUT(tr_layer_table_make(x->model, first, n, &table));
    for (int k = 0; k < n; k++) {
        state[k] = state_of(x->model, &placement, k, x->memory);
        one[k] = table.cost[k].m_b;
    }
out:
    tr_stage_table_free(&table);
    free(owner);
    free(first);
    return status;
}

/* Returns how many micro-batches of its layers a rank holds in the best cut when that takes most,
 * and sets *chunks to its stages. */
static double held(const search *x, const tr_estimate *e, const double *one, int rank,
                   int *chunks) {
    double sum = 0;
    *chunks = 0;
    for (int s = 0; s < x->s->stages; s++) {
        if (x->s->rank_of[s] != rank) continue;
        ++*chunks;
        for (int k = x->best[s]; k < x->best[s + 1]; k++) sum += one[k];
    }
    return sum > 0 ? e->peak[rank] / sum : 0;
}

/* Fills need[stages][layers] with what layers need in each stage, with as many micro-batches as the
 * stage's rank holds in the best cut, and room[stages] with equal parts of the ranks' room. */
static tr_status share_room(const search *x, double *need, double *room) {
    const tr_schedule *s = x->s;
    const size_t n = (size_t)x->model->count;
    double *state = NULL, *one = NULL;
    tr_stage_table table = {0};
    tr_estimate *e = NULL;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc(n, sizeof *state, &state));
    TR_TRY_OUT(tr_calloc(n, sizeof *one, &one));
    TR_TRY_OUT(measure_layers(x, state, one));
    TR_TRY_OUT(estimate(x->model, s, x->best, &table, &e));
    for (int t = 0; t < s->stages; t++) {
        int chunks;
        const double count = held(x, e, one, s->rank_of[t], &chunks);
        room[t] = x->room[s->rank_of[t]] / chunks;
        for (size_t k = 0; k < n; k++) need[(size_t)t * n + k] = state[k] + count * one[k];
    }
out:
    tr_estimate_destroy(e);
    tr_stage_table_free(&table);
    free(one);
    free(state);
    return status;
}

enum { WEIGHTS = 8 };

/* Tries the cuts that balance F, I and W with different weights. */
static tr_status try_weights(search *x, const tr_cut_room *room) {
    for (int k = 0; k <= WEIGHTS; k++) {
        bool found, better = false;
        TR_TRY(balance(x->model, (double)k / WEIGHTS, x->s->stages, room, x->trial, &found));
        if (found) TR_TRY(take_better(x, &better));
    }
    return TR_OK;
}

/* The same among those that fit the ranks' room by the layers' bytes. */
static tr_status try_within(search *x) {
    const size_t stages = (size_t)x->s->stages;
    double *need = NULL, *room = NULL;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc(stages * (size_t)x->model->count, sizeof *need, &need));
    TR_TRY_OUT(tr_calloc(stages, sizeof *room, &room));
    TR_TRY_OUT(share_room(x, need, room));
    status = try_weights(x, &(tr_cut_room){.need = need, .room = room});
out:
    free(room);
    free(need);
    return status;
}

static tr_status run(search *x) {
    const int stages = x->s->stages;
    bool better = true;
    TR_TRY(tr_cut_model(x->model, stages, x->trial));
    memcpy(x->best, x->trial, ((size_t)stages + 1) * sizeof *x->best);
    if (stages == 1) return TR_OK;
    TR_TRY(measure(x, &x->time));
    set_room(x);
    x->excess = excess_of(x);
    TR_TRY(try_weights(x, NULL));
    if (x->excess > 0) TR_TRY(try_within(x));
    /* A run of boundaries that moves together takes a layer from one stage and gives one to
     * another, with stages between them that keep their number of layers. */
    while (better && x->actions < most_actions) {
        better = false;
        for (int length = 0; length < stages - 1; length++)
            for (int from = 1; from + length < stages && x->actions < most_actions; from++)
                TR_TRY(move(x, from, from + length, &better));
    }
    return TR_OK;
}

tr_status tr_cut_for_schedule(const tr_model *model, const tr_schedule *schedule,
                              const tr_cut_memory *memory, int *first) {
    search x = {.model = model, .s = schedule, .memory = memory, .best = first};
    const size_t ranks = (size_t)schedule->ranks;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)schedule->stages + 1, sizeof *x.trial, &x.trial));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *x.need, &x.need));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *x.room, &x.room));
    status = run(&x);
out:
    free(x.room);
    free(x.need);
    free(x.trial);
    return status;
}
