#include "partition/search.h"

#include "base/memory.h"
#include "partition/offload_choice.h"
#include "partition/recompute_choice.h"
#include "partition/request.h"
#include "partition/run_plan.h"
#include "partition/search_estimate.h"
#include "partition/traffic.h"
#include "pipeline/orders/make.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MICRO_BATCH = 8, MOST_CHUNKS = 8 };
/* Estimates are of equal stages, and without messages and sums of gradients. Because unequal stages
 * may suit an order, a step may lack this part of its estimate's bubble. */
static const double BUBBLE = 0.5;
/* The first plan of an order and a micro-batch on a mesh says by how much its step exceeds the
 * estimate. With other recomputations, or other values of zero and sequence, a step exceeds its
 * estimate by at least this part of that, or, where sequence divides the messages of that step, by
 * one tensor rank's part. */
static const double EXCESS = 0.5;
static const char *const key_names[TR_SEARCH_KEYS] = {[TR_SEARCH_PP] = "parallel.pp",
                                                      [TR_SEARCH_TP] = "parallel.tp",
                                                      [TR_SEARCH_DP] = "parallel.dp",
                                                      [TR_SEARCH_SEQUENCE] = "parallel.sequence",
                                                      [TR_SEARCH_ZERO] = "parallel.zero",
                                                      [TR_SEARCH_SCHEDULE] = "parallel.schedule",
                                                      [TR_SEARCH_VIRTUAL] = "parallel.virtual",
                                                      [TR_SEARCH_MICRO_BATCH] = "train.micro_batch",
                                                      [TR_SEARCH_RECOMPUTE] = "train.recompute",
                                                      [TR_SEARCH_OFFLOAD] = "device.offload"};

const char *tr_search_key_name(tr_search_key key) {
    return key_names[key];
}

void tr_layout_choice_apply(const tr_layout_choice *x, unsigned kept, tr_config *c) {
    c->parallel.pp = x->pp;
    c->parallel.tp = x->tp;
    c->parallel.dp = x->dp;
    if (!(kept & 1U << TR_SEARCH_DP)) c->parallel.copies = x->copies > 1 ? x->copies : 1;
    c->parallel.zero = x->zero;
    c->model.sequence = x->sequence;
    c->parallel.virtual_stages = x->virtual_stages;
    (void)strcpy(c->parallel.cut, TR_LAYER_CUT_AUTO);
    c->train.micro_batch = x->micro_batch;
    if (!(kept & 1U << TR_SEARCH_SCHEDULE))
        (void)snprintf(c->parallel.schedule, sizeof c->parallel.schedule, "%s", x->schedule);
    if (!(kept & 1U << TR_SEARCH_RECOMPUTE))
        (void)snprintf(c->model.recompute, sizeof c->model.recompute, "%s",
                       tr_recompute_name(x->recompute));
    if (!(kept & 1U << TR_SEARCH_OFFLOAD))
        (void)tr_config_offload_text(&x->offload, c->device.offload, sizeof c->device.offload);
}

typedef struct candidate {
    tr_layout_choice choice;
    size_t number; /* in which it was made */
    tr_layout_estimate estimate;
} candidate;

/* An order and a micro-batch on a mesh, of which one layout has been planned. */
typedef struct correction {
    tr_layout_choice of;
    double seconds; /* by which its step exceeds the estimate, without the optimizer's */
    /* [zero][sequence]: the least estimate of those that fit with the fastest cut, or INFINITY.
     * More recomputation does not make their steps shorter. */
    double fitting[4][2];
} correction;

typedef struct search {
    const tr_search_request *r;
    tr_search *out;
    tr_config *c; /* the request's config with a choice */
    tr_layout_estimator *estimator;
    candidate *candidate;
    size_t candidates, candidate_room, made;
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

/* --- candidates ------------------------------------------------------------------------------- */

static void keep_refusal(search *s) {
    if (!s->refusal[0]) (void)snprintf(s->refusal, sizeof s->refusal, "%s", tr_error_message());
}

/* Of two layouts with equal estimates the one that was made first comes first. */
static int compare_candidates(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    const double a_seconds = fmax(x->estimate.seconds, x->estimate.within);
    const double b_seconds = fmax(y->estimate.seconds, y->estimate.within);
    if (a_seconds != b_seconds) return a_seconds > b_seconds ? 1 : -1;
    return (x->number > y->number) - (x->number < y->number);
}

/* Estimates a choice, and adds it if the config allows it: to those that are sorted from `sorted`
 * on, which keep their order, or as the last one if that is their count. */
static tr_status add_estimated(search *s, const tr_layout_choice *x, size_t sorted,
                               tr_layout_estimate *out) {
    candidate new = {.choice = *x, .number = s->made};
    size_t at = sorted;
    choose(s, x);
    tr_status status = tr_config_check(s->c, s->r->ranks);
    if (status == TR_OK) status = tr_layout_estimate_make(s->estimator, x, s->c, &new.estimate);
    if (status == TR_ERR_CONFIG) keep_refusal(s);
    if (status != TR_OK) return status;
    TR_TRY(tr_grow(&s->candidate, &s->candidate_room, s->candidates + 1, sizeof *s->candidate));
    while (at < s->candidates && compare_candidates(&s->candidate[at], &new) < 0) at++;
    memmove(&s->candidate[at + 1], &s->candidate[at], (s->candidates - at) * sizeof new);
    s->candidate[at] = new;
    s->candidates++;
    s->made++;
    *out = new.estimate;
    return TR_OK;
}

/* Adds a layout that does not fit again, with parts of it in the host's memory. sorted: as in
 * add_estimated. */
static tr_status add_offloads(search *s, tr_layout_choice x, size_t sorted) {
    tr_layout_estimate estimate;
    if (keeps(s, TR_SEARCH_OFFLOAD)) return TR_OK;
    for (int k = 0; k < TR_OFFLOAD_CHOICES; k++) {
        x.offload = (tr_config_offloads){0};
        choose(s, &x);
        if (!tr_offload_adds(s->c, &tr_offload_choices[k])) continue;
        x.offload = tr_offload_choices[k];
        const tr_status status = add_estimated(s, &x, sorted, &estimate);
        if (status != TR_ERR_CONFIG) TR_TRY(status);
    }
    return TR_OK;
}

/* Adds a choice, if the config allows it. */
static tr_status add_candidate(search *s, const tr_layout_choice *x) {
    tr_layout_estimate estimate;
    const tr_status status = add_estimated(s, x, s->candidates, &estimate);
    if (status == TR_ERR_CONFIG) return TR_OK;
    TR_TRY(status);
    s->out->layouts++;
    return isinf(estimate.within) ? add_offloads(s, *x, s->candidates) : TR_OK;
}

/* Returns how many runs of data ranks there are when each is as large as a host allows, or 1. */
static int64_t runs_of(const search *s, const tr_layout_choice *x) {
    const int64_t host = s->r->config->device.host_ranks;
    if (host == 0 || host >= s->r->ranks || keeps(s, TR_SEARCH_DP)) return 1;
    for (int64_t near = x->dp; near > 1; near--)
        if (x->dp % near == 0 && host % (near * x->tp) == 0) return x->dp / near;
    return 1;
}

/* Adds one choice for every value of parallel.zero that suits its order, and again for each that
 * divides something, with runs of data ranks inside hosts. */
static tr_status add_choice(search *s, tr_layout_choice x) {
    const bool bfs = strcmp(x.schedule, "bfs") == 0;
    const int64_t least = bfs && !keeps(s, TR_SEARCH_SCHEDULE) ? 2 : 0;
    const int64_t own = s->r->config->parallel.zero;
    const int64_t first = keeps(s, TR_SEARCH_ZERO) ? own : least;
    const int64_t last = keeps(s, TR_SEARCH_ZERO) ? own : x.dp == 1 ? 0 : bfs ? 3 : 1;
    const int64_t runs = runs_of(s, &x);
    for (x.zero = first; x.zero <= last; x.zero++) {
        if (x.zero < least) continue;
        x.copies = 1;
        TR_TRY(add_candidate(s, &x));
        x.copies = runs;
        if (runs > 1 && x.zero > 0) TR_TRY(add_candidate(s, &x));
    }
    return TR_OK;
}

static tr_status add_recomputes(search *s, tr_layout_choice x) {
    const bool kept = keeps(s, TR_SEARCH_RECOMPUTE);
    const bool own = keeps(s, TR_SEARCH_SEQUENCE);
    const int last = own ? s->r->config->model.sequence : x.tp > 1;
    for (int sequence = own ? last : 0; sequence <= last; sequence++) {
        x.sequence = sequence;
        for (x.recompute = TR_RECOMPUTE_NONE; x.recompute < (kept ? 1 : TR_RECOMPUTE_MODES);
             x.recompute++)
            TR_TRY(add_choice(s, x));
    }
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
    /* Of several pipeline ranks, in addition to 1f1b and bfs. Without gpipe, which holds more than
     * 1f1b. */
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
        if (same_mesh(own, x) && own->copies == x->copies && own->micro_batch == x->micro_batch &&
            own->virtual_stages == x->virtual_stages &&
            (own->offload.stages > 0) == (x->offload.stages > 0) &&
            strcmp(own->schedule, x->schedule) == 0)
            return &s->correction[k];
    }
    return NULL;
}

/* seconds: of a step with the fastest cut, without the optimizer's. */
static tr_status add_correction(search *s, const candidate *x, double seconds, correction **out) {
    *out = correction_of(s, &x->choice);
    if (*out) return TR_OK;
    TR_TRY(tr_grow(&s->correction, &s->correction_room, s->corrections + 1, sizeof *s->correction));
    *out = &s->correction[s->corrections++];
    **out = (correction){.of = x->choice,
                         .seconds = seconds - (x->estimate.seconds - x->estimate.update)};
    for (int k = 0; k < 8; k++) (*out)->fitting[k / 2][k % 2] = INFINITY;
    return TR_OK;
}

static double *fitting_of(correction *by, const tr_layout_choice *x) {
    return &by->fitting[x->zero][x->sequence];
}

/* Takes what a plan needs, if it is the least so far; used when no plan fits. */
static void take_least(tr_search *out, const tr_layout_choice *x, const tr_run_plan *p) {
    const double bytes = (double)p->memory[tr_run_plan_largest(p)].total;
    if (!tr_run_plan_fits_device(p)) {
        if (bytes < out->least) out->least_choice = *x;
        out->least = fmin(out->least, bytes);
    } else if (!out->host_bytes || p->host_bytes < out->host_bytes) {
        out->host_choice = *x;
        out->host_bytes = p->host_bytes;
        out->host_limit = p->host_limit;
    }
}

static tr_found *best_of_mesh(search *s, const tr_layout_choice *x) {
    for (size_t k = 0; k < s->meshes; k++)
        if (same_mesh(&s->best[k].choice, x)) return &s->best[k];
    return NULL;
}

/* Completes a sketch that may become a row or the least that does not fit. seconds: of its step. */
static tr_status complete(search *s, const tr_layout_choice *x, double seconds, tr_run_plan *p) {
    const tr_found *best = best_of_mesh(s, x);
    const double bytes = (double)p->memory[tr_run_plan_largest(p)].total;
    const bool fits = tr_run_plan_fits(p);
    if (fits ? best && best->seconds <= seconds : bytes >= s->out->least) return TR_OK;
    return tr_run_plan_complete(s->c, s->r->device, p);
}

/* Plans a choice. *fits: whether each rank's part fits; *stages: of its order, if it has one. */
static tr_status plan(search *s, const candidate *x, bool *fits, int *stages, tr_found *out) {
    tr_run_plan *p;
    tr_step_traffic traffic;
    double rate;
    *fits = false;
    choose(s, &x->choice);
    TR_TRY(s->r->rate(s->r->context, s->c, &rate));
    s->out->plans++;
    tr_status planned = tr_request_recompute(s->c, s->r->device);
    if (planned == TR_OK) planned = tr_run_plan_sketch(s->c, s->r->device, s->out->limit, &p);
    if (planned == TR_ERR_CONFIG || planned == TR_ERR_FIT) {
        keep_refusal(s);
        return TR_OK;
    }
    TR_TRY(planned);
    tr_status status = tr_traffic_step(s->c, p->layout, rate, &traffic);
    if (status == TR_OK) status = complete(s, &x->choice, traffic.makespan / rate, p);
    *out = (tr_found){.choice = x->choice,
                      .seconds = traffic.makespan / rate,
                      .bubble = fmax(0, 1 - p->ideal / p->time->makespan),
                      .bytes = p->memory[tr_run_plan_largest(p)].total};
    *fits = tr_run_plan_fits(p);
    *stages = p->layout->desc.schedule->stages;
    take_least(s->out, &x->choice, p);
    const bool is_fastest = !p->room;
    const double fastest = is_fastest ? 1 : p->fastest / p->time->makespan;
    tr_run_plan_destroy(p);
    TR_TRY(status);
    correction *by;
    const double others = (traffic.makespan - tr_traffic_update(&traffic)) / rate;
    TR_TRY(add_correction(s, x, others * fastest, &by));
    double *fitting = fitting_of(by, &x->choice);
    if (*fits && is_fastest) *fitting = fmin(*fitting, x->estimate.seconds);
    return TR_OK;
}

/* Of two meshes with equal times the one with fewer pipeline ranks, and then fewer tensor ranks, is
 * the first. */
static int compare_found(const void *a, const void *b) {
    const tr_found *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? 1 : -1;
    if (x->choice.pp != y->choice.pp) return x->choice.pp > y->choice.pp ? 1 : -1;
    return (x->choice.tp > y->choice.tp) - (x->choice.tp < y->choice.tp);
}

/* Returns the seconds that a mesh without a plan must be shorter than. */
static double longest_shown(search *s) {
    if (s->meshes < TR_SEARCH_MOST) return INFINITY;
    qsort(s->best, s->meshes, sizeof *s->best, compare_found);
    return s->best[TR_SEARCH_MOST - 1].seconds;
}

/* Returns which part of the correction's seconds the choice exceeds its estimate by at least. */
static double part_of(const correction *by, const tr_layout_choice *x) {
    if (by->seconds <= 0) return 1;
    return x->sequence && !by->of.sequence ? fmin(EXCESS, 1 / (double)x->tp) : EXCESS;
}

/* Returns true when the choice cannot be the best of its mesh, or of those that are shown, or when
 * it does not fit. */
static bool is_hopeless(search *s, const candidate *x) {
    const double shown = longest_shown(s);
    const tr_found *best = best_of_mesh(s, &x->choice);
    correction *by = correction_of(s, &x->choice);
    const tr_layout_estimate *e = &x->estimate;
    if (by && e->seconds >= *fitting_of(by, &x->choice)) return true;
    const double excess = by ? part_of(by, &x->choice) * by->seconds : -BUBBLE * e->bubble;
    const double seconds = fmax(e->seconds + excess, e->within);
    return seconds >= (best ? fmin(best->seconds, shown) : shown) || isinf(e->within);
}

/* Plans a layout with as few stages that offload activations as suffice, which fits when all do. */
static tr_status plan_narrow(search *s, candidate x, int stages, bool *fits, tr_found *out) {
    choose(s, &x.choice);
    tr_status status = tr_request_recompute(s->c, s->r->device);
    if (status == TR_OK) status = tr_offload_narrow(s->c, s->r->device, stages);
    TR_TRY(status);
    (void)tr_config_offload(s->c, &x.choice.offload);
    return plan(s, &x, fits, &stages, out);
}

/* Plans a candidate, and keeps it if it is the best one of its mesh. *fits: as in `plan`. */
static tr_status plan_candidate(search *s, candidate x, bool *fits) {
    tr_found found;
    int stages;
    TR_TRY(plan(s, &x, fits, &stages, &found));
    if (*fits && x.choice.offload.stages > 1) TR_TRY(plan_narrow(s, x, stages, fits, &found));
    if (!*fits) return TR_OK;
    tr_found *best = best_of_mesh(s, &x.choice);
    if (best && best->seconds <= found.seconds) return TR_OK;
    if (!best) {
        TR_TRY(tr_grow(&s->best, &s->mesh_room, s->meshes + 1, sizeof *s->best));
        best = &s->best[s->meshes++];
    }
    *best = found;
    return TR_OK;
}

/* Plans candidates, the shortest estimate first: those that do not offload activations; or those
 * that do, on meshes where no other one fits. */
static tr_status plan_by_estimate(search *s, bool activations) {
    for (size_t k = 0; k < s->candidates; k++) {
        const candidate x = s->candidate[k];
        const tr_config_offloads own = x.choice.offload;
        bool fits;
        if ((own.stages > 0) != activations || is_hopeless(s, &x)) continue;
        const tr_found *best = best_of_mesh(s, &x.choice); /* is_hopeless has sorted them */
        if (activations && best && best->choice.offload.stages == 0) continue;
        TR_TRY(plan_candidate(s, x, &fits));
        if (!fits && !activations && !own.optimizer) TR_TRY(add_offloads(s, x.choice, k + 1));
    }
    return TR_OK;
}

static int compare_bytes(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->estimate.bytes != y->estimate.bytes)
        return x->estimate.bytes > y->estimate.bytes ? 1 : -1;
    return (x->number > y->number) - (x->number < y->number);
}

/* Plans also those that do not fit, in the order of what they take at least, until none can take
 * less than one of the plans: when no layout fits. */
static tr_status find_least(search *s) {
    qsort(s->candidate, s->candidates, sizeof *s->candidate, compare_bytes);
    bool fits;
    for (size_t k = 0; k < s->candidates && s->candidate[k].estimate.bytes < s->out->least; k++)
        if (isinf(s->candidate[k].estimate.within))
            TR_TRY(plan_candidate(s, s->candidate[k], &fits));
    return TR_OK;
}

static tr_status plan_candidates(search *s) {
    tr_search *out = s->out;
    qsort(s->candidate, s->candidates, sizeof *s->candidate, compare_candidates);
    TR_TRY(plan_by_estimate(s, false));
    if (s->meshes < TR_SEARCH_MOST) TR_TRY(plan_by_estimate(s, true));
    if (s->meshes == 0 && out->host_bytes == 0) TR_TRY(find_least(s));
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
    int stages;
    *out = (tr_search){.least = INFINITY};
    TR_TRY(
        tr_config_cut_stages(r->config, &stages)); /* choices replace the cut, so none reads it */
    TR_TRY(tr_calloc(1, sizeof *s.c, &s.c));
    *s.c = *r->config;
    TR_TRY_OUT(tr_request_memory(r->config, r->device, r->ranks, &out->limit));
    TR_TRY_OUT(tr_layout_estimator_create(r, out->limit, &s.estimator));
    TR_TRY_OUT(add_meshes(&s));
    if (s.candidates == 0) TR_TRY_OUT(refuse(&s));
    s.refusal[0] = '\0';
    TR_TRY_OUT(plan_candidates(&s));
    if (isinf(out->least) && out->count == 0 && out->host_bytes == 0) TR_TRY_OUT(refuse(&s));
    tr_error_clear();
out:
    free(s.best);
    free(s.correction);
    free(s.candidate);
    tr_layout_estimator_destroy(s.estimator);
    free(s.c);
    return status;
}
