#include "partition/search_estimate.h"

#include "base/memory.h"
#include "partition/least_memory.h"
#include "partition/model_order.h"
#include "partition/network.h"
#include "partition/offload.h"
#include "partition/optim_cost.h"
#include "partition/request.h"
#include "partition/tensor_sums.h"
#include "partition/whole.h"
#include "pipeline/orders/estimate.h"
#include "pipeline/orders/make.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a micro-batch takes of a rank's tensor share of all layers. */
typedef struct share {
    int64_t tp, micro_batch;
    bool sequence;
    tr_recompute recompute;
    tr_stage_cost cost;             /* f, i, w */
    double block;                   /* part of the costs of the block that takes least */
    tr_least_memory memory;         /* what is kept, and the action */
    double waits[TR_COMPUTE_TYPES]; /* of each action for its tensor ranks, in FLOPs */
    double rate;                    /* FLOP/s of a rank */
} share;

/* Of a rank with all layers: what does not depend on the micro-batch. */
typedef struct known {
    int64_t tp, dp, copies, zero;
    bool sequence, offloads; /* the optimizer's state */
    tr_least_memory memory;  /* all but what is kept, and the action */
    /* Of each of the data ranks, if they divide them equally. */
    tr_optim_cost update;
    double host; /* seconds that the optimizer's step on the host takes */
    tr_mesh mesh;
} known;

/* An order with equal stages. */
typedef struct order {
    tr_layout_choice of;
    double makespan, work, waits; /* FLOPs; of a rank */
    bool known;                   /* as a plan has it */
    /* If it is known: what its ranks hold, and what they hold at least when all activations are
     * offloaded. */
    tr_held held, offloading;
} order;

struct tr_layout_estimator {
    const tr_search_request *r;
    double limit;
    const tr_config *c; /* with the choice that is estimated */
    share *share;
    size_t shares, share_room;
    known *known;
    size_t knowns, known_room;
    order last;
};

tr_status tr_layout_estimator_create(const tr_search_request *request, size_t limit,
                                     tr_layout_estimator **out) {
    tr_layout_estimator *e;
    TR_TRY(tr_calloc(1, sizeof *e, &e));
    *e = (tr_layout_estimator){.r = request, .limit = (double)limit};
    *out = e;
    return TR_OK;
}

static void close_order(order *o) {
    tr_held_free(&o->held);
    tr_held_free(&o->offloading);
}

void tr_layout_estimator_destroy(tr_layout_estimator *e) {
    if (!e) return;
    close_order(&e->last);
    free(e->known);
    free(e->share);
    free(e);
}

/* Sets waits[] to how long the actions of a rank with all layers wait for its tensor ranks, in
 * FLOPs at FLOP/s `rate`. */
static void take_waits(const tr_layout_estimator *e, const tr_layout *l, double rate,
                       double *waits) {
    tr_mesh mesh = l->desc.mesh;
    if (e->c->parallel.tp == 1) return;
    mesh.degree[TR_AXIS_PP] = (int)e->c->parallel.pp; /* which hosts there are */
    const tr_link link = tr_network_sum(e->c, &mesh, TR_AXIS_TP, rate);
    for (int type = 0; type < TR_COMPUTE_TYPES; type++) {
        tr_instr instr = {.action.type = (tr_action_type)type};
        const tr_program program = {.count = 1, .instr = &instr};
        waits[type] = tr_sum_times_of(l->model, &l->placement, &program, link).exposed;
    }
}

/* Measures what layers keep, and their actions. With train.recompute auto as with full, which keeps
 * least; an action of another mode may take less. */
static tr_status take_kept(const tr_layout_estimator *e, share *of) {
    const bool chosen = strcmp(e->c->model.recompute, TR_RECOMPUTE_AUTO) == 0;
    tr_config *c;
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    *c = *e->c;
    if (chosen) (void)strcpy(c->model.recompute, tr_recompute_name(TR_RECOMPUTE_FULL));
    const tr_status status = tr_least_memory_of(c, e->r->device, &of->memory);
    free(c);
    if (chosen) of->memory.action = 0;
    return status;
}

/* Returns the part of a model's FLOPs that the block with fewest has. */
static double least_block(const tr_model *model, const tr_stage_cost *all) {
    double least = INFINITY;
    for (int k = 0; k < model->count; k++) {
        const tr_layer *layer = model->layers[k];
        if (tr_layer_is_block(layer))
            least = fmin(least, layer->flops_f + layer->flops_i + layer->flops_w);
    }
    return least / (all->f + all->i + all->w);
}

static tr_status add_share(tr_layout_estimator *e, const tr_layout_choice *x) {
    tr_whole whole;
    share new = {.tp = x->tp,
                 .micro_batch = x->micro_batch,
                 .sequence = x->sequence,
                 .recompute = x->recompute};
    TR_TRY(e->r->rate(e->r->context, e->c, &new.rate));
    TR_TRY(tr_grow(&e->share, &e->share_room, e->shares + 1, sizeof *e->share));
    TR_TRY(tr_whole_open(e->c, &whole));
    const tr_stage_cost *cost = whole.layout->table.cost;
    new.cost = (tr_stage_cost){.f = cost->f, .i = cost->i, .w = cost->w};
    new.block = least_block(whole.layout->model, cost);
    take_waits(e, whole.layout, new.rate, new.waits);
    tr_whole_close(&whole);
    TR_TRY(take_kept(e, &new));
    e->share[e->shares++] = new;
    return TR_OK;
}

static tr_status find_share(tr_layout_estimator *e, const tr_layout_choice *x, const share **out) {
    size_t k = 0;
    while (k < e->shares &&
           (e->share[k].tp != x->tp || e->share[k].micro_batch != x->micro_batch ||
            e->share[k].sequence != x->sequence || e->share[k].recompute != x->recompute))
        k++;
    if (k == e->shares) TR_TRY(add_share(e, x));
    *out = &e->share[k];
    return TR_OK;
}

static tr_status add_known(tr_layout_estimator *e, const tr_layout_choice *x) {
    tr_whole whole;
    tr_least_memory memory;
    TR_TRY(tr_grow(&e->known, &e->known_room, e->knowns + 1, sizeof *e->known));
    TR_TRY(tr_whole_open(e->c, &whole));
    const tr_layout *l = whole.layout;
    const tr_mesh mesh = l->desc.mesh;
    const double parts = tr_memory_divided(&mesh, l->desc.zero) ? tr_mesh_near(&mesh) : 1;
    const tr_optim_cost update =
        tr_optim_cost_of(l->model, &l->placement, &mesh, 0, l->desc.optimizer);
    const tr_param_memory params =
        tr_memory_of_params(l->model, &l->placement, 0, NULL, 0, l->desc.optimizer);
    const double host =
        l->desc.optimizer.offload
            ? tr_offload_seconds(e->c, tr_offload_traffic_of(&params, l->desc.dtype))
            : 0;
    const tr_status status = tr_least_memory_measure(l, false, &memory);
    tr_whole_close(&whole);
    TR_TRY(status);
    e->known[e->knowns++] = (known){.tp = x->tp,
                                    .dp = x->dp,
                                    .copies = x->copies,
                                    .zero = x->zero,
                                    .sequence = x->sequence,
                                    .offloads = x->offload.optimizer,
                                    .host = host / parts,
                                    .mesh = mesh,
                                    .memory = memory,
                                    .update = {.bytes = update.bytes / parts,
                                               .flops = update.flops / parts,
                                               .sums = update.sums / parts,
                                               .sum_bytes = update.sum_bytes / parts,
                                               .turns = update.turns}};
    return TR_OK;
}

static tr_status find_known(tr_layout_estimator *e, const tr_layout_choice *x, const known **out) {
    size_t k = 0;
    while (k < e->knowns &&
           (e->known[k].tp != x->tp || e->known[k].dp != x->dp || e->known[k].copies != x->copies ||
            e->known[k].zero != x->zero || e->known[k].sequence != x->sequence ||
            e->known[k].offloads != x->offload.optimizer))
        k++;
    if (k == e->knowns) TR_TRY(add_known(e, x));
    *out = &e->known[k];
    return TR_OK;
}

/* --- orders ----------------------------------------------------------------------------------- */

/* Returns true when two choices have the same order and costs. */
static bool same_order(const tr_layout_choice *a, const tr_layout_choice *b) {
    return a->pp == b->pp && a->tp == b->tp && a->dp == b->dp && a->sequence == b->sequence &&
           a->micro_batch == b->micro_batch && a->virtual_stages == b->virtual_stages &&
           a->recompute == b->recompute && b->schedule && strcmp(a->schedule, b->schedule) == 0;
}

/* Returns how long a rank's actions wait for its tensor ranks, on average. */
static double mean_waits(const tr_schedule *s, const double *waits) {
    double sum = 0;
    for (int r = 0; r < s->ranks; r++)
        for (int k = 0; k < s->count[r]; k++)
            if (tr_action_computes(s->action[r][k])) sum += waits[s->action[r][k].type];
    return sum / s->stages / s->ranks;
}

/* Takes what ranks hold at least that offload the activations of all stages: whatever is copied to
 * the host is on the device until its F ends. */
static tr_status take_offloading(const tr_held *held, tr_held *out) {
    tr_held_rank *rank;
    TR_TRY(tr_calloc((size_t)held->ranks, sizeof *rank, &rank));
    for (int r = 0; r < held->ranks; r++) {
        const bool one = held->rank[r].stages == 1;
        rank[r] = held->rank[r];
        rank[r].all = 1;
        rank[r].least = one ? 1 : 0;
    }
    *out = *held;
    out->rank = rank;
    out->first = rank[held->first_owner].least;
    out->final = rank[held->last_owner].least;
    return TR_OK;
}

/* Takes the times of an order with equal stages, and what its ranks hold. */
static tr_status take_order(const tr_layout_estimator *e, const tr_schedule *s, const share *of,
                            tr_stage_cost rank, order *out) {
    tr_estimate *times;
    TR_TRY(tr_estimate_order(s, &(tr_estimate_options){.share = rank}, &times));
    out->makespan = times->makespan;
    out->waits = mean_waits(s, of->waits);
    tr_estimate_destroy(times);
    out->known = !tr_order_is_made(e->c);
    if (!out->known) return TR_OK;
    TR_TRY(tr_held_of(s, &out->held));
    return take_offloading(&out->held, &out->offloading);
}

/* Estimates the order of a choice. One that is made for the model, or read from a file, counts as
 * one without bubbles, of which no bytes are known. */
static tr_status estimate_order(tr_layout_estimator *e, const tr_layout_choice *x,
                                const share *of) {
    const tr_config *c = e->c;
    const int m = (int)(c->train.batch / x->dp / x->micro_batch);
    const double part = 1 / (double)x->pp;
    const tr_stage_cost rank = {
        .f = of->cost.f * part, .i = of->cost.i * part, .w = of->cost.w * part};
    const tr_schedule_request request = {.name = c->parallel.schedule,
                                         .ranks = (int)x->pp,
                                         .micro_batches = m,
                                         .chunks = (int)x->virtual_stages,
                                         .share = rank};
    const double work = m * (rank.f + rank.i + rank.w);
    tr_schedule *s;
    close_order(&e->last);
    e->last = (order){.makespan = work,
                      .work = work,
                      .waits = m * part * (of->waits[TR_ACTION_F] + of->waits[TR_ACTION_B])};
    if (!tr_request_is_auto(c) && !tr_schedule_is_path(request.name)) {
        TR_TRY(tr_schedule_make(&request, &s));
        const tr_status status = take_order(e, s, of, rank, &e->last);
        tr_schedule_destroy(s);
        TR_TRY(status);
    }
    e->last.of = *x;
    return TR_OK;
}

/* --- the limit of memory ---------------------------------------------------------------------- */

/* Joins two measurements of the layers: of their parameters, and of what they keep. */
static tr_least_memory join(const tr_least_memory *state, const tr_least_memory *kept) {
    tr_least_memory both = *state;
    both.action = kept->action;
    both.front.kept = kept->front.kept;
    both.back.kept = kept->back.kept;
    both.block.kept = kept->block.kept;
    both.all.kept = kept->all.kept;
    return both;
}

tr_status tr_layout_estimate_make(tr_layout_estimator *e, const tr_layout_choice *x,
                                  const tr_config *config, tr_layout_estimate *out) {
    const share *of = NULL;
    const known *whole = NULL;
    const order *o = &e->last;
    e->c = config;
    TR_TRY(find_share(e, x, &of));
    if (!same_order(x, &o->of)) TR_TRY(estimate_order(e, x, of));
    TR_TRY(find_known(e, x, &whole));
    const double ranks = (double)x->pp;
    const tr_optim_sums sums = tr_optim_sums_of(config, &whole->mesh, whole->update, of->rate);
    const double on_device = tr_optim_time(config, whole->update, of->rate) + sums.exposed;
    const double update = (on_device / of->rate + whole->host) / ranks;
    const bool offloads = x->offload.stages > 0;
    const tr_least_memory memory =
        offloads && !o->known ? whole->memory : join(&whole->memory, &of->memory);
    const tr_held *held = !o->known ? NULL : offloads ? &o->offloading : &o->held;
    const double bytes = tr_least_memory_in(&memory, held, x->pp);
    const double blocks = held ? tr_least_memory_blocks(&memory, held, e->limit) : 0;
    const double most = fmax(1, blocks * of->block * ranks); /* of the mean rank's work */
    *out = (tr_layout_estimate){
        .seconds = (o->makespan + o->waits) / of->rate + update,
        .bubble = (o->makespan - o->work) / of->rate,
        .update = update,
        .within = bytes > e->limit ? INFINITY : (most * o->work + o->waits) / of->rate + update,
        .bytes = bytes};
    return TR_OK;
}
