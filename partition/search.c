#include "partition/search.h"

#include "base/memory.h"
#include "partition/network.h"
#include "partition/recompute_choice.h"
#include "partition/request.h"
#include "partition/run_plan.h"
#include "partition/tensor_sums.h"
#include "partition/traffic.h"
#include "pipeline/orders/estimate.h"
#include "pipeline/orders/make.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MICRO_BATCH = 8, MOST_CHUNKS = 8 };
/* Estimates are of equal stages, and without messages and sums of gradients. Because unequal stages
 * may suit an order, a step may lack this part of its estimate's bubble. */
static const double BUBBLE = 0.5;
/* The first plan of an order and a micro-batch on a mesh says by how much the step exceeds its
 * estimate; with other recomputations and values of zero it is this part of it or more. */
static const double EXCESS = 0.5;
/* A layout is not planned when its estimated bytes exceed the limit by this factor, before and
 * after such a plan: stages are not equal, and a cut for the memory may bring a rank below the
 * estimate. */
static const double MEMORY_SLACK = 1.5, CORRECTED_MEMORY_SLACK = 1.2;

static const char *const key_names[TR_SEARCH_KEYS] = {[TR_SEARCH_PP] = "parallel.pp",
                                                      [TR_SEARCH_TP] = "parallel.tp",
                                                      [TR_SEARCH_DP] = "parallel.dp",
                                                      [TR_SEARCH_ZERO] = "parallel.zero",
                                                      [TR_SEARCH_SCHEDULE] = "parallel.schedule",
                                                      [TR_SEARCH_VIRTUAL] = "parallel.virtual",
                                                      [TR_SEARCH_MICRO_BATCH] = "train.micro_batch",
                                                      [TR_SEARCH_RECOMPUTE] = "train.recompute"};

const char *tr_search_key_name(tr_search_key key) {
    return key_names[key];
}

void tr_layout_choice_apply(const tr_layout_choice *x, unsigned kept, tr_config *c) {
    c->parallel.pp = x->pp;
    c->parallel.tp = x->tp;
    c->parallel.dp = x->dp;
    if (!(kept & 1 << TR_SEARCH_DP)) c->parallel.copies = 1;
    c->parallel.zero = x->zero;
    c->parallel.virtual_stages = x->virtual_stages;
    (void)strcpy(c->parallel.cut, TR_LAYER_CUT_AUTO);
    c->train.micro_batch = x->micro_batch;
    if (!(kept & 1 << TR_SEARCH_SCHEDULE))
        (void)snprintf(c->parallel.schedule, sizeof c->parallel.schedule, "%s", x->schedule);
    if (!(kept & 1 << TR_SEARCH_RECOMPUTE))
        (void)snprintf(c->model.recompute, sizeof c->model.recompute, "%s",
                       tr_recompute_name(x->recompute));
}

typedef struct candidate {
    tr_layout_choice choice;
    size_t number;         /* in which it was made */
    double seconds, bytes; /* estimated */
    double bubble, update; /* parts of the seconds; update: the optimizer's step */
} candidate;

/* What a micro-batch takes of a rank's tensor share of all layers. */
typedef struct share {
    int64_t tp, micro_batch;
    tr_recompute recompute;
    tr_stage_cost cost; /* f, i, w, m_b, m_w */
    double sums;        /* for which a rank waits, in FLOPs */
    double rate;        /* FLOP/s of a rank */
} share;

/* What does not depend on the micro-batch: of a rank with all layers. */
typedef struct known {
    int64_t tp, dp, zero;
    double bytes;
    tr_optim_cost update; /* of each of the data ranks, if they divide it equally */
} known;

/* An order and a micro-batch on a mesh, of which one layout has been planned. */
typedef struct correction {
    tr_layout_choice of;
    double seconds; /* by which its step exceeds the estimate, without the optimizer's */
    double memory;  /* by which factor its bytes exceed theirs */
} correction;

typedef struct search {
    const tr_search_request *r;
    tr_search *out;
    tr_config *c; /* the request's config with a choice */
    share *share;
    size_t shares, share_room;
    known *known;
    size_t knowns, known_room;
    candidate *candidate;
    size_t candidates, candidate_room;
    correction *correction;
    size_t corrections, correction_room;
    tr_found *best; /* of each mesh */
    size_t meshes, mesh_room;
    char refusal[1024]; /* the first one of a layout; then of a plan */
} search;

static bool keeps(const search *s, tr_search_key key) {
    return (s->r->kept & 1U << key) != 0;
}

static void choose(const search *s, const tr_layout_choice *x) {
    *s->c = *s->r->config;
    tr_layout_choice_apply(x, s->r->kept, s->c);
}

/* --- estimates -------------------------------------------------------------------------------- */

/* Returns the time for which a rank with all layers waits for its tensor ranks in one micro-batch,
 * at FLOP/s `rate`. */
static double wait_of(const search *s, const tr_layout *l, double rate) {
    tr_instr instr[2] = {{.action.type = TR_ACTION_F}, {.action.type = TR_ACTION_B}};
    const tr_program program = {.count = 2, .instr = instr};
    if (s->c->parallel.tp == 1) return 0;
    const tr_link link = tr_network_sum(s->c, &l->desc.mesh, TR_AXIS_TP, rate);
    return tr_sum_times_of(l->model, &l->placement, &program, link).exposed;
}

/* With train.recompute auto, takes the bytes of full: the least that it may choose. */
static tr_status take_least_bytes(const search *s, share *of) {
    tr_config *c = s->c;
    tr_whole whole;
    if (strcmp(c->model.recompute, TR_RECOMPUTE_AUTO) != 0) return TR_OK;
    (void)strcpy(c->model.recompute, tr_recompute_name(TR_RECOMPUTE_FULL));
    const tr_status status = tr_whole_open(c, &whole);
    (void)strcpy(c->model.recompute, TR_RECOMPUTE_AUTO);
    TR_TRY(status);
    of->cost.m_b = whole.layout->table.cost->m_b;
    of->cost.m_w = whole.layout->table.cost->m_w;
    tr_whole_close(&whole);
    return TR_OK;
}

static tr_status add_share(search *s, const tr_layout_choice *x) {
    tr_whole whole;
    double rate;
    TR_TRY(s->r->rate(s->r->context, s->c, &rate));
    TR_TRY(tr_grow(&s->share, &s->share_room, s->shares + 1, sizeof *s->share));
    TR_TRY(tr_whole_open(s->c, &whole));
    const tr_stage_cost *cost = whole.layout->table.cost;
    s->share[s->shares] = (share){
        .tp = x->tp,
        .micro_batch = x->micro_batch,
        .recompute = x->recompute,
        .cost = {.f = cost->f, .i = cost->i, .w = cost->w, .m_b = cost->m_b, .m_w = cost->m_w},
        .sums = wait_of(s, whole.layout, rate),
        .rate = rate};
    tr_whole_close(&whole);
    return take_least_bytes(s, &s->share[s->shares++]);
}

static tr_status find_share(search *s, const tr_layout_choice *x, const share **out) {
    size_t k = 0;
    while (k < s->shares && (s->share[k].tp != x->tp || s->share[k].micro_batch != x->micro_batch ||
                             s->share[k].recompute != x->recompute))
        k++;
    if (k == s->shares) TR_TRY(add_share(s, x));
    *out = &s->share[k];
    return TR_OK;
}

static tr_status add_known(search *s, const tr_layout_choice *x) {
    tr_whole whole;
    tr_memory_plan memory;
    TR_TRY(tr_grow(&s->known, &s->known_room, s->knowns + 1, sizeof *s->known));
    TR_TRY(tr_whole_open(s->c, &whole));
    const tr_layout *l = whole.layout;
    const tr_mesh *mesh = &l->desc.mesh;
    const double parts = tr_memory_divided(mesh, l->desc.zero) ? tr_mesh_near(mesh) : 1;
    const tr_optim_cost update =
        tr_optim_cost_of(l->model, &l->placement, mesh, 0, l->desc.optimizer);
    tr_layout_memory_known(l, 0, 0, &memory);
    tr_whole_close(&whole);
    s->known[s->knowns++] = (known){
        x->tp, x->dp, x->zero, (double)memory.total, {update.bytes / parts, update.flops / parts}};
    return TR_OK;
}

static tr_status find_known(search *s, const tr_layout_choice *x, const known **out) {
    size_t k = 0;
    while (k < s->knowns &&
           (s->known[k].tp != x->tp || s->known[k].dp != x->dp || s->known[k].zero != x->zero))
        k++;
    if (k == s->knowns) TR_TRY(add_known(s, x));
    *out = &s->known[k];
    return TR_OK;
}

/* An order with equal stages. */
typedef struct order_cost {
    double makespan, work; /* FLOPs; of a rank */
    double peak;           /* bytes of the rank that holds most */
} order_cost;

/* Estimates the order of a choice. One that is made for the model, or read from a file, counts as
 * one without bubbles. */
static tr_status estimate_order(const search *s, const tr_layout_choice *x, const share *of,
                                order_cost *out) {
    const int m = (int)(s->c->train.batch / x->dp / x->micro_batch);
    const double part = 1 / (double)x->pp;
    const tr_stage_cost rank = {.f = of->cost.f * part,
                                .i = of->cost.i * part,
                                .w = of->cost.w * part,
                                .m_b = of->cost.m_b * part,
                                .m_w = of->cost.m_w * part};
    const tr_schedule_request request = {.name = s->c->parallel.schedule,
                                         .ranks = (int)x->pp,
                                         .micro_batches = m,
                                         .chunks = (int)x->virtual_stages,
                                         .share = rank};
    tr_schedule *order;
    tr_estimate *e = NULL;
    const double work = m * (rank.f + rank.i + rank.w);
    *out = (order_cost){.makespan = work, .work = work};
    if (tr_request_is_auto(s->c) || tr_schedule_is_path(request.name)) return TR_OK;
    TR_TRY(tr_schedule_make(&request, &order));
    tr_status status = tr_estimate_order(order, &(tr_estimate_options){.share = rank}, &e);
    if (status == TR_OK) {
        tr_config_offloads offload;
        const bool leaves = tr_config_offload(s->c, &offload) && offload.stages > 0;
        out->makespan = e->makespan;
        for (int r = 0; r < e->ranks && !leaves; r++) out->peak = fmax(out->peak, e->peak[r]);
    }
    tr_estimate_destroy(e);
    tr_schedule_destroy(order);
    return status;
}

/* --- candidates ------------------------------------------------------------------------------- */

static void keep_refusal(search *s) {
    if (!s->refusal[0]) (void)snprintf(s->refusal, sizeof s->refusal, "%s", tr_error_message());
}

/* Adds one choice for every value of parallel.zero that suits its order, if the config allows it.
 */
static tr_status add_choice(search *s, tr_layout_choice x) {
    const bool bfs = strcmp(x.schedule, "bfs") == 0;
    const int64_t least = bfs && !keeps(s, TR_SEARCH_SCHEDULE) ? 2 : 0;
    const int64_t own = s->r->config->parallel.zero;
    const int64_t first = keeps(s, TR_SEARCH_ZERO) ? own : least;
    const int64_t last = keeps(s, TR_SEARCH_ZERO) ? own : x.dp == 1 ? 0 : bfs ? 3 : 1;
    order_cost order = {0};
    const share *of = NULL;
    for (x.zero = first; x.zero <= last; x.zero++) {
        const known *whole = NULL;
        if (x.zero < least) continue;
        choose(s, &x);
        const tr_status allowed = tr_config_check(s->c, s->r->ranks);
        if (allowed == TR_ERR_CONFIG) {
            keep_refusal(s);
            continue;
        }
        TR_TRY(allowed);
        if (!of) {
            TR_TRY(find_share(s, &x, &of));
            const tr_status made = estimate_order(s, &x, of, &order);
            if (made == TR_ERR_CONFIG) { /* the order has no such number of stages */
                keep_refusal(s);
                return TR_OK;
            }
            TR_TRY(made);
        }
        TR_TRY(find_known(s, &x, &whole));
        TR_TRY(tr_grow(&s->candidate, &s->candidate_room, s->candidates + 1, sizeof *s->candidate));
        const double waits = of->sums * (double)(s->c->train.batch / x.dp / x.micro_batch);
        const double update =
            tr_optim_time(s->c, whole->update, of->rate) / (double)x.pp / of->rate;
        s->candidate[s->candidates] =
            (candidate){.choice = x,
                        .number = s->candidates,
                        .seconds = (order.makespan + waits / (double)x.pp) / of->rate + update,
                        .bytes = order.peak + whole->bytes / (double)x.pp,
                        .bubble = (order.makespan - order.work) / of->rate,
                        .update = update};
        s->candidates++;
    }
    return TR_OK;
}

static tr_status add_recomputes(search *s, tr_layout_choice x) {
    const bool kept = keeps(s, TR_SEARCH_RECOMPUTE);
    for (x.recompute = TR_RECOMPUTE_NONE; x.recompute < (kept ? 1 : TR_RECOMPUTE_MODES);
         x.recompute++)
        TR_TRY(add_choice(s, x));
    return TR_OK;
}

static tr_status add_micro_batches(search *s, tr_layout_choice x) {
    const int64_t own = s->r->config->train.micro_batch;
    const int64_t batch = s->r->config->train.batch / x.dp;
    if (keeps(s, TR_SEARCH_MICRO_BATCH)) {
        x.micro_batch = own;
        return add_recomputes(s, x);
    }
    for (x.micro_batch = 1; x.micro_batch <= MOST_MICRO_BATCH; x.micro_batch *= 2)
        if (batch % x.micro_batch == 0) TR_TRY(add_recomputes(s, x));
    return TR_OK;
}

/* chunks: stages a rank, unless they are kept. */
static tr_status add_order(search *s, tr_layout_choice x, const char *schedule, int64_t chunks) {
    x.schedule = schedule;
    x.virtual_stages = keeps(s, TR_SEARCH_VIRTUAL) ? s->r->config->parallel.virtual_stages : chunks;
    return add_micro_batches(s, x);
}

/* Adds an order with 2, 4, ... stages a rank. */
static tr_status add_chunks(search *s, tr_layout_choice x, const char *schedule) {
    const int64_t most = s->r->config->model.layers / x.pp;
    if (keeps(s, TR_SEARCH_VIRTUAL)) return add_order(s, x, schedule, 0);
    for (int64_t v = 2; v <= most && v <= MOST_CHUNKS; v *= 2) TR_TRY(add_order(s, x, schedule, v));
    return TR_OK;
}

/* Adds the config's order. */
static tr_status add_kept_order(search *s, tr_layout_choice x) {
    const char *own = s->r->config->parallel.schedule;
    const int64_t blocks = s->r->config->model.layers / x.pp;
    TR_TRY(add_order(s, x, own, 0));
    if (keeps(s, TR_SEARCH_VIRTUAL) || tr_schedule_is_path(own)) return TR_OK;
    TR_TRY(add_chunks(s, x, own));
    const bool added = blocks <= MOST_CHUNKS && (blocks & (blocks - 1)) == 0;
    return strcmp(own, "bfs") == 0 && !added ? add_order(s, x, own, blocks) : TR_OK;
}

static tr_status add_orders(search *s, tr_layout_choice x) {
    /* Those that are not searched for themselves, and not gpipe, which holds more than 1f1b. */
    static const struct {
        const char *name;
        bool chunks; /* it takes any number of stages a rank */
    } orders[] = {
        {"interleaved", true}, {"interleaved-zb", true}, {"zb-h1", false}, {"zbv", false}};
    const int64_t blocks = s->r->config->model.layers / x.pp;
    if (keeps(s, TR_SEARCH_SCHEDULE)) return add_kept_order(s, x);
    TR_TRY(add_order(s, x, "1f1b", 0));
    if (x.dp > 1 && blocks > 2) TR_TRY(add_order(s, x, "bfs", blocks));
    if (x.pp == 1) return TR_OK;
    for (size_t k = 0; k < sizeof orders / sizeof *orders; k++)
        TR_TRY(orders[k].chunks ? add_chunks(s, x, orders[k].name)
                                : add_order(s, x, orders[k].name, 0));
    return TR_OK;
}

static tr_status add_meshes(search *s) {
    const tr_config *own = s->r->config;
    const int64_t ranks = s->r->ranks;
    for (int64_t pp = 1; pp <= ranks && pp <= own->model.layers; pp++)
        for (int64_t tp = 1; pp * tp <= ranks; tp++) {
            const tr_layout_choice x = {.pp = pp, .tp = tp, .dp = ranks / (pp * tp)};
            if (ranks % (pp * tp) || own->model.heads % tp || own->train.batch % x.dp) continue;
            if ((keeps(s, TR_SEARCH_PP) && pp != own->parallel.pp) ||
                (keeps(s, TR_SEARCH_TP) && tp != own->parallel.tp) ||
                (keeps(s, TR_SEARCH_DP) && x.dp != own->parallel.dp))
                continue;
            TR_TRY(add_orders(s, x));
        }
    return TR_OK;
}

/* --- plans ------------------------------------------------------------------------------------ */

static bool same_mesh(const tr_layout_choice *a, const tr_layout_choice *b) {
    return a->pp == b->pp && a->tp == b->tp && a->dp == b->dp;
}

static correction *correction_of(const search *s, const tr_layout_choice *x) {
    for (size_t k = 0; k < s->corrections; k++) {
        const tr_layout_choice *own = &s->correction[k].of;
        if (same_mesh(own, x) && own->micro_batch == x->micro_batch &&
            own->virtual_stages == x->virtual_stages && strcmp(own->schedule, x->schedule) == 0)
            return &s->correction[k];
    }
    return NULL;
}

/* seconds: of a step with the fastest cut, without the optimizer's. */
static tr_status add_correction(search *s, const candidate *x, double seconds, size_t bytes) {
    if (correction_of(s, &x->choice)) return TR_OK;
    TR_TRY(tr_grow(&s->correction, &s->correction_room, s->corrections + 1, sizeof *s->correction));
    s->correction[s->corrections++] = (correction){.of = x->choice,
                                                   .seconds = seconds - (x->seconds - x->update),
                                                   .memory = (double)bytes / x->bytes};
    return TR_OK;
}

/* Takes what a plan that does not fit needs, if it is the least so far. */
static void take_least(tr_search *out, const tr_run_plan *p) {
    if (!tr_run_plan_fits_device(p))
        out->least = fmin(out->least, (double)p->memory[tr_run_plan_largest(p)].total);
    else if (!out->host_bytes || p->host_bytes < out->host_bytes) {
        out->host_bytes = p->host_bytes;
        out->host_limit = p->host_limit;
    }
}

/* Plans a choice. *fits: whether each rank's part fits. */
static tr_status plan(search *s, const candidate *x, bool *fits, tr_found *out) {
    tr_run_plan *p;
    tr_step_traffic traffic;
    double rate;
    *fits = false;
    choose(s, &x->choice);
    TR_TRY(s->r->rate(s->r->context, s->c, &rate));
    s->out->planned++;
    tr_status planned = tr_request_recompute(s->c, s->r->device);
    if (planned == TR_OK) planned = tr_run_plan_sketch(s->c, s->r->device, s->out->limit, &p);
    if (planned == TR_ERR_CONFIG || planned == TR_ERR_FIT) {
        keep_refusal(s);
        return TR_OK;
    }
    TR_TRY(planned);
    const tr_status status = tr_traffic_of(s->c, p->layout, rate, &traffic);
    *out = (tr_found){.choice = x->choice,
                      .seconds = traffic.makespan / rate,
                      .bubble = fmax(0, 1 - p->ideal / p->time->makespan),
                      .bytes = p->memory[tr_run_plan_largest(p)].total};
    *fits = tr_run_plan_fits(p);
    take_least(s->out, p);
    const double fastest = p->room ? p->fastest / p->time->makespan : 1;
    tr_run_plan_destroy(p);
    TR_TRY(status);
    const double others = (traffic.makespan - traffic.updating) / rate;
    return add_correction(s, x, others * fastest, out->bytes);
}

static tr_found *best_of_mesh(search *s, const tr_layout_choice *x) {
    for (size_t k = 0; k < s->meshes; k++)
        if (same_mesh(&s->best[k].choice, x)) return &s->best[k];
    return NULL;
}

/* Of two meshes with equal times the one with fewer pipeline ranks, and then fewer tensor ranks, is
 * the first. */
static int compare_found(const void *a, const void *b) {
    const tr_found *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? 1 : -1;
    if (x->choice.pp != y->choice.pp) return x->choice.pp > y->choice.pp ? 1 : -1;
    return (x->choice.tp > y->choice.tp) - (x->choice.tp < y->choice.tp);
}

static int compare_candidates(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? 1 : -1;
    return (x->number > y->number) - (x->number < y->number);
}

/* Returns the seconds that a mesh without a plan must be shorter than. */
static double longest_shown(search *s) {
    if (s->meshes < TR_SEARCH_MOST) return INFINITY;
    qsort(s->best, s->meshes, sizeof *s->best, compare_found);
    return s->best[TR_SEARCH_MOST - 1].seconds;
}

/* Returns true when the choice cannot be the best of its mesh, or of those that are shown, or when
 * it is far from the limit of memory. */
static bool is_hopeless(search *s, const candidate *x) {
    const double shown = longest_shown(s);
    const tr_found *best = best_of_mesh(s, &x->choice);
    const correction *by = correction_of(s, &x->choice);
    const double excess = by ? (by->seconds > 0 ? EXCESS : 1) * by->seconds : 0;
    const double seconds = x->seconds + (by ? excess : -BUBBLE * x->bubble);
    const double bytes =
        by ? x->bytes * by->memory / CORRECTED_MEMORY_SLACK : x->bytes / MEMORY_SLACK;
    return seconds >= (best ? fmin(best->seconds, shown) : shown) || bytes > (double)s->out->limit;
}

static tr_status plan_candidate(search *s, const candidate *x) {
    tr_found found;
    bool fits;
    TR_TRY(plan(s, x, &fits, &found));
    if (!fits) return TR_OK;
    tr_found *best = best_of_mesh(s, &x->choice);
    if (best && best->seconds <= found.seconds) return TR_OK;
    if (!best) {
        TR_TRY(tr_grow(&s->best, &s->mesh_room, s->meshes + 1, sizeof *s->best));
        best = &s->best[s->meshes++];
    }
    *best = found;
    return TR_OK;
}

static tr_status plan_candidates(search *s) {
    tr_search *out = s->out;
    qsort(s->candidate, s->candidates, sizeof *s->candidate, compare_candidates);
    for (size_t k = 0; k < s->candidates; k++) {
        const candidate *x = &s->candidate[k];
        const correction *by = correction_of(s, &x->choice);
        if (!is_hopeless(s, x)) TR_TRY(plan_candidate(s, x));
        else out->least = fmin(out->least, by ? x->bytes * by->memory : x->bytes);
    }
    if (s->meshes > 0) qsort(s->best, s->meshes, sizeof *s->best, compare_found);
    out->count = s->meshes < TR_SEARCH_MOST ? (int)s->meshes : TR_SEARCH_MOST;
    if (out->count > 0) memcpy(out->found, s->best, (size_t)out->count * sizeof *out->found);
    return TR_OK;
}

/* Fails because there is no layout, or none that can be planned. */
static tr_status refuse(const search *s) {
    const tr_config *c = s->r->config;
    const int ranks = s->r->ranks;
    const char *plural = ranks == 1 ? "" : "s";
    tr_error_clear();
    if (s->refusal[0])
        return TR_FAIL(TR_ERR_CONFIG, "no layout of %d rank%s is possible: %s", ranks, plural,
                       s->refusal);
    return TR_FAIL(TR_ERR_CONFIG,
                   "no layout of %d rank%s is possible: parallel.tp divides model.heads (%lld), "
                   "parallel.dp train.batch (%lld), and parallel.pp is at most model.layers "
                   "(%lld)%s",
                   ranks, plural, (long long)c->model.heads, (long long)c->train.batch,
                   (long long)c->model.layers,
                   s->r->kept ? ", and keys that are given as arguments stay" : "");
}

tr_status tr_search_make(const tr_search_request *r, tr_search *out) {
    search s = {.r = r, .out = out};
    tr_status status = TR_OK;
    *out = (tr_search){.least = INFINITY};
    TR_TRY(tr_calloc(1, sizeof *s.c, &s.c));
    *s.c = *r->config;
    TR_TRY_OUT(tr_request_memory(r->config, r->device, r->ranks, &out->limit));
    TR_TRY_OUT(add_meshes(&s));
    out->layouts = (int64_t)s.candidates;
    if (s.candidates == 0) TR_TRY_OUT(refuse(&s));
    s.refusal[0] = '\0';
    TR_TRY_OUT(plan_candidates(&s));
    if (isinf(out->least) && out->count == 0 && out->host_bytes == 0) TR_TRY_OUT(refuse(&s));
    tr_error_clear();
out:
    free(s.best);
    free(s.correction);
    free(s.candidate);
    free(s.known);
    free(s.share);
    free(s.c);
    return status;
}
