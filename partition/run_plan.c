#include "partition/run_plan.h"

#include "base/memory.h"
#include "partition/request.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_RANKS = 1 << 20 };

static tr_status make_layout(const tr_config *c, const tr_schedule *schedule, int tp_rank,
                             tr_layout **out) {
    tr_layout_desc desc = {.mesh = {.degree = {[TR_AXIS_PP] = (int)c->parallel.pp,
                                               [TR_AXIS_DP] = (int)c->parallel.dp,
                                               [TR_AXIS_TP] = (int)c->parallel.tp},
                                    .index = {[TR_AXIS_TP] = tp_rank}},
                           .model = c->model,
                           .batch = c->train.batch,
                           .micro_batch = c->train.micro_batch,
                           .dtype = tr_config_dtype(c),
                           .schedule = schedule};
    return tr_layout_create(&desc, out);
}

static tr_status count_param(void *context, int stage, tr_param *param, bool shares) {
    (void)stage;
    int64_t *count = context;
    if (!shares) *count += param->count;
    return TR_OK;
}

/* The ranks of one tensor index. Data ranks from 1 on are alike: rank 0 also takes the norm. */
static tr_status plan_ranks(tr_run_plan *p, const tr_layout *l, tr_device *device) {
    tr_mesh mesh = l->desc.mesh;
    for (int pp = 0; pp < mesh.degree[TR_AXIS_PP]; pp++) {
        int64_t count = 0;
        tr_memory_plan memory = {0};
        TR_TRY(tr_placement_visit(&l->placement, l->model, pp, count_param, &count));
        for (int dp = 0; dp < mesh.degree[TR_AXIS_DP]; dp++) {
            if (dp < 2) TR_TRY(tr_layout_memory(l, device, pp, dp, &memory));
            mesh.index[TR_AXIS_PP] = pp;
            mesh.index[TR_AXIS_DP] = dp;
            int rank = tr_mesh_rank(&mesh, mesh.index);
            p->memory[rank] = memory;
            p->parameters[rank] = count;
        }
    }
    return TR_OK;
}

static tr_status take_time(tr_run_plan *p) {
    const tr_layout *l = p->layout;
    TR_TRY(tr_simulate(l->program[TR_LAYOUT_TRAIN], l->table.cost, 0, &p->time));
    for (int r = 0; r < p->time->ranks; r++) p->ideal += p->time->busy[r] / p->time->ranks;
    return TR_OK;
}

static tr_status count_ranks(const tr_config *c, int *out) {
    int64_t ranks = c->parallel.pp * c->parallel.tp * c->parallel.dp; /* at most 2^40: the schema */
    if (ranks > MOST_RANKS)
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.pp * tp * dp = %lld * %lld * %lld are more ranks than can be "
                       "planned: at most %d",
                       (long long)c->parallel.pp, (long long)c->parallel.tp,
                       (long long)c->parallel.dp, MOST_RANKS);
    *out = (int)ranks;
    return TR_OK;
}

tr_status tr_run_plan_make(const tr_config *config, tr_device *device, tr_run_plan **out) {
    tr_status status = TR_OK;
    tr_run_plan *p = NULL;
    tr_layout *l = NULL;
    tr_schedule *schedule = NULL;
    tr_schedule_report report;
    TR_TRY(tr_config_check(config, 0));
    TR_TRY(tr_calloc(1, sizeof *p, &p));
    TR_TRY_OUT(count_ranks(config, &p->ranks));
    TR_TRY_OUT(tr_request_memory(config, device, p->ranks, &p->limit));
    TR_TRY_OUT(tr_request_schedule(config, &schedule, &report));
    TR_TRY_OUT(tr_calloc((size_t)p->ranks, sizeof *p->memory, &p->memory));
    TR_TRY_OUT(tr_calloc((size_t)p->ranks, sizeof *p->parameters, &p->parameters));
    for (int tp = 0; tp < config->parallel.tp; tp++) {
        TR_TRY_OUT(make_layout(config, schedule, tp, &l));
        TR_TRY_OUT(tr_layout_lower(l, device, NULL, -1));
        TR_TRY_OUT(plan_ranks(p, l, device));
        if (tp == 0) p->layout = l;
        else tr_layout_destroy(l);
        l = NULL;
    }
    TR_TRY_OUT(take_time(p));
out:
    tr_layout_destroy(l);
    tr_schedule_destroy(schedule);
    if (status != TR_OK) tr_run_plan_destroy(p);
    else *out = p;
    return status;
}

void tr_run_plan_destroy(tr_run_plan *p) {
    if (!p) return;
    tr_simulation_destroy(p->time);
    tr_layout_destroy(p->layout);
    free(p->memory);
    free(p->parameters);
    free(p);
}

int tr_run_plan_largest(const tr_run_plan *p) {
    int most = 0;
    for (int r = 1; r < p->ranks; r++)
        if (p->memory[r].total > p->memory[most].total) most = r;
    return most;
}

bool tr_run_plan_fits(const tr_run_plan *p) {
    return p->memory[tr_run_plan_largest(p)].total <= p->limit;
}

/* --- what would fit --------------------------------------------------------------------------- */

/* Parameters alone are over the limit on some rank: not worth a plan. */
static tr_status is_hopeless(const tr_config *c, tr_device *device, bool *out) {
    tr_schedule *schedule = NULL;
    tr_schedule_report report;
    tr_layout *l = NULL;
    int ranks = 0;
    size_t limit = 0;
    TR_TRY(tr_config_check(c, 0));
    TR_TRY(count_ranks(c, &ranks));
    TR_TRY(tr_request_memory(c, device, ranks, &limit));
    TR_TRY(tr_request_schedule(c, &schedule, &report));
    tr_status status = make_layout(c, schedule, 0, &l);
    *out = false;
    for (int pp = 0; status == TR_OK && pp < c->parallel.pp && !*out; pp++) {
        tr_memory_plan known;
        tr_layout_memory_known(l, pp, &known);
        *out = known.total > limit;
    }
    tr_layout_destroy(l);
    tr_schedule_destroy(schedule);
    return status;
}

/* A change that the schedule or the model does not take, or whose sizes overflow, does not fit
 * either. */
static tr_status try_change(const tr_config *c, tr_device *device, bool *fits) {
    bool hopeless;
    tr_run_plan *plan;
    *fits = false;
    tr_status status = is_hopeless(c, device, &hopeless);
    if (status == TR_OK && !hopeless) {
        status = tr_run_plan_make(c, device, &plan);
        if (status == TR_OK) {
            *fits = tr_run_plan_fits(plan);
            tr_run_plan_destroy(plan);
        }
    }
    return status == TR_ERR_CONFIG || status == TR_ERR_FIT ? TR_OK : status;
}

/* Each finds the first value of one key that fits, from the config's own on, and leaves it in *c.
 */
static tr_status find_micro_batch(tr_config *c, tr_device *device, bool *fits) {
    int64_t share = c->train.batch / c->parallel.dp, from = c->train.micro_batch;
    *fits = false;
    for (int64_t b = from - 1; b >= 1 && !*fits; b--) {
        if (share % b) continue;
        c->train.micro_batch = b;
        TR_TRY(try_change(c, device, fits));
    }
    if (!*fits) c->train.micro_batch = from;
    return TR_OK;
}

static tr_status find_pp(tr_config *c, tr_device *device, bool *fits) {
    int64_t from = c->parallel.pp;
    *fits = false;
    for (int64_t pp = from + 1; pp <= c->model.layers && !*fits; pp++) {
        c->parallel.pp = pp;
        TR_TRY(try_change(c, device, fits));
    }
    if (!*fits) c->parallel.pp = from;
    return TR_OK;
}

static tr_status find_tp(tr_config *c, tr_device *device, bool *fits) {
    int64_t from = c->parallel.tp;
    *fits = false;
    for (int64_t tp = from + 1; tp <= c->model.heads && !*fits; tp++) {
        if (c->model.heads % tp) continue;
        c->parallel.tp = tp;
        TR_TRY(try_change(c, device, fits));
    }
    if (!*fits) c->parallel.tp = from;
    return TR_OK;
}

typedef struct advice {
    char *text;
    size_t size, used;
    int changes;
} advice;

/* The keys in which `to` differs from `from`, and the number of ranks when that does. */
static void add_change(advice *a, const tr_config *from, const tr_config *to) {
    const struct {
        const char *key;
        int64_t from, to;
    } change[] = {{"train.micro_batch", from->train.micro_batch, to->train.micro_batch},
                  {"parallel.pp", from->parallel.pp, to->parallel.pp},
                  {"parallel.tp", from->parallel.tp, to->parallel.tp}};
    char text[160] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof change / sizeof *change; i++)
        if (change[i].from != change[i].to)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s=%lld", used ? " " : "",
                                     change[i].key, (long long)change[i].to);
    int64_t ranks = to->parallel.pp * to->parallel.tp * to->parallel.dp;
    if (ranks != from->parallel.pp * from->parallel.tp * from->parallel.dp)
        (void)snprintf(text + used, sizeof text - used, " on %lld ranks", (long long)ranks);
    int n = snprintf(a->text + a->used, a->size - a->used, "%s%s",
                     a->changes ? ", or " : "it fits with ", text);
    a->used += n > 0 && (size_t)n < a->size - a->used ? (size_t)n : 0;
    a->changes++;
}

typedef tr_status (*find_fn)(tr_config *c, tr_device *device, bool *fits);

static tr_status add_found(advice *a, const tr_config *asked, const tr_config *from,
                           tr_device *device, find_fn find) {
    bool fits;
    tr_config *c;
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    *c = *from;
    tr_status status = find(c, device, &fits);
    if (status == TR_OK && fits) add_change(a, asked, c);
    free(c);
    return status;
}

/* The smallest micro-batch together with more stages, at the least tensor degree that has one. */
static tr_status add_pair(advice *a, const tr_config *asked, tr_device *device) {
    tr_config *c;
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    *c = *asked;
    c->train.micro_batch = 1;
    tr_status status = TR_OK;
    for (int64_t tp = asked->parallel.tp; tp <= asked->model.heads && !a->changes; tp++) {
        if (asked->model.heads % tp) continue;
        c->parallel.tp = tp;
        c->parallel.pp = asked->parallel.pp - 1; /* the search begins above it */
        status = add_found(a, asked, c, device, find_pp);
        if (status != TR_OK) break;
    }
    free(c);
    return status;
}

tr_status tr_run_plan_advise(const tr_config *config, tr_device *device, char *text, size_t size) {
    advice a = {.text = text, .size = size};
    static const find_fn find[] = {find_micro_batch, find_pp, find_tp};
    text[0] = '\0';
    for (size_t i = 0; i < sizeof find / sizeof *find; i++)
        TR_TRY(add_found(&a, config, config, device, find[i]));
    if (!a.changes) TR_TRY(add_pair(&a, config, device));
    if (!a.changes)
        (void)snprintf(
            text, size,
            "no larger parallel.pp or parallel.tp and no smaller train.micro_batch makes it "
            "fit: give each rank more memory, or make the model smaller");
    return TR_OK;
}
