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

static bool is_block(const tr_layer *layer) {
    return layer->inputs > 0 && layer->outputs > 0;
}

/* Balances the FLOPs, with this weight for F and the rest of 1 for I and W. */
static tr_status balance(const tr_model *model, double forward, int stages, int *first) {
    size_t n = (size_t)model->count;
    double *cost = NULL;
    bool *block = NULL;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc(n, sizeof *cost, &cost));
    TR_TRY_OUT(tr_calloc(n, sizeof *block, &block));
    for (size_t k = 0; k < n; k++) {
        const tr_layer *layer = model->layers[k];
        cost[k] = forward * layer->flops_f + (1 - forward) * (layer->flops_i + layer->flops_w);
        block[k] = is_block(layer);
    }
    status = tr_cut_balanced(cost, block, model->count, stages, first);
out:
    free(block);
    free(cost);
    return status;
}

tr_status tr_cut_model(const tr_model *model, int stages, int *first) {
    return balance(model, 0.5, stages, first);
}

typedef struct search {
    const tr_model *model;
    const tr_schedule *s;
    tr_optim_memory optimizer;
    int *best, *trial;   /* [stages + 1] */
    double time, memory; /* of the best; the most that a rank may need */
    int64_t actions;     /* estimated so far */
} search;

/* Returns true when every stage has a block. */
static bool is_valid(const search *x) {
    for (int k = 0; k < x->s->stages; k++) {
        bool found = false;
        for (int n = x->trial[k]; n < x->trial[k + 1]; n++)
            found = found || is_block(x->model->layers[n]);
        if (!found) return false;
    }
    return true;
}

/* Estimates the trial's time, and the memory of its fullest rank: parameters, their state, and the
 * peak of its activations before they are placed. State and gradients count as a whole, also when
 * data ranks divide them, so that parallel.zero does not move the cut. */
static tr_status estimate(search *x, double *time, double *memory) {
    const tr_schedule *s = x->s;
    tr_stage_table table = {0};
    tr_estimate *e = NULL;
    tr_placement placement = {.stages = s->stages, .first = x->trial, .owner = s->rank_of};
    TR_TRY(tr_layer_table_make(x->model, x->trial, s->stages, &table));
    tr_status status = tr_estimate_order(s, &(tr_estimate_options){.table = &table}, &e);
    *memory = 0;
    for (int r = 0; r < s->ranks && status == TR_OK; r++) {
        size_t values, gradients, moments;
        tr_param_memory params =
            tr_memory_of_params(x->model, &placement, r, NULL, 0, x->optimizer);
        tr_memory_params_bytes(&params, x->model->shape.dtype, &values, &gradients, &moments);
        *memory = fmax(*memory, (double)(values + gradients + moments) + e->peak[r]);
        x->actions += s->count[r];
    }
    if (status == TR_OK) *time = e->makespan;
    x->actions += layer_actions * x->model->count;
    tr_estimate_destroy(e);
    tr_stage_table_free(&table);
    return status;
}

/* Takes the trial if it is faster and fits. */
static tr_status take_better(search *x, bool *better) {
    double time, memory;
    if (!is_valid(x) || x->actions >= most_actions) return TR_OK;
    TR_TRY(estimate(x, &time, &memory));
    if (!(time < x->time * (1 - rounding) && memory <= x->memory * (1 + rounding))) return TR_OK;
    x->time = time;
    *better = true;
    memcpy(x->best, x->trial, ((size_t)x->s->stages + 1) * sizeof *x->best);
    return TR_OK;
}

/* Moves boundaries `from` to `to` of the best cut by a layer, up or down; then those at both ends
 * apart or together, without those between. */
static tr_status move(search *x, int from, int to, bool *better) {
    static const int moves[][3] = {{1, 1, 1},   {-1, -1, -1}, {1, 0, 1},
                                   {-1, 0, -1}, {1, 0, -1},   {-1, 0, 1}};
    for (int n = 0; n < (int)(sizeof moves / sizeof *moves); n++) {
        if (n >= 2 && (from == to || (n < 4 && to == from + 1))) continue; /* the same as another */
        memcpy(x->trial, x->best, ((size_t)x->s->stages + 1) * sizeof *x->best);
        for (int k = from; k <= to; k++) x->trial[k] += moves[n][k == from ? 0 : k < to ? 1 : 2];
        TR_TRY(take_better(x, better));
    }
    return TR_OK;
}

static tr_status run(search *x) {
    enum { WEIGHTS = 8 };
    const int stages = x->s->stages;
    bool better = false;
    TR_TRY(tr_cut_model(x->model, stages, x->trial));
    memcpy(x->best, x->trial, ((size_t)stages + 1) * sizeof *x->best);
    if (stages == 1) return TR_OK;
    TR_TRY(estimate(x, &x->time, &x->memory));
    for (int k = 0; k <= WEIGHTS; k++) {
        TR_TRY(balance(x->model, (double)k / WEIGHTS, stages, x->trial));
        TR_TRY(take_better(x, &better));
    }
    /* A run of boundaries that moves together takes a layer from one stage and gives one to
     * another, with stages between them that keep their number of layers. */
    for (better = true; better && x->actions < most_actions;) {
        better = false;
        for (int length = 0; length < stages - 1; length++)
            for (int from = 1; from + length < stages; from++)
                TR_TRY(move(x, from, from + length, &better));
    }
    return TR_OK;
}

tr_status tr_cut_for_schedule(const tr_model *model, const tr_schedule *schedule,
                              tr_optim_memory optimizer, int *first) {
    search x = {.model = model, .s = schedule, .optimizer = optimizer, .best = first};
    TR_TRY(tr_calloc((size_t)schedule->stages + 1, sizeof *x.trial, &x.trial));
    tr_status status = run(&x);
    free(x.trial);
    return status;
}
