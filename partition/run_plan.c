#include "partition/run_plan.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "partition/least_memory.h"
#include "partition/request.h"
#include "pipeline/orders/estimate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 1 << 20 };

/* first: the cut; NULL: chosen, for the room. */
static tr_status make_layout(const tr_config *c, const tr_orders *orders, int tp_rank,
                             tr_own_sums own, const double *room, const int *first,
                             tr_layout **out) {
    tr_mesh mesh = tr_request_mesh(c);
    mesh.index[TR_AXIS_TP] = tp_rank;
    tr_layout_desc desc = tr_request_layout(c, orders, &mesh);
    desc.own = own;
    desc.room = room;
    desc.first = first;
    return tr_layout_create(&desc, out);
}

static tr_status count_param(void *context, int stage, tr_param *param, bool shares) {
    (void)stage;
    int64_t *count = context;
    if (!shares) *count += param->count;
    return TR_OK;
}

/* Data ranks with a portion of another size than the rank before. */
typedef struct steps {
    const tr_mesh *mesh;
    bool *differs; /* [data ranks] */
} steps;

static tr_status mark_steps(void *context, int stage, tr_param *param, bool shares) {
    const steps *s = context;
    int place[TR_PORTION_STEPS];
    (void)stage, (void)shares;
    for (int n = tr_param_portion_steps(param, s->mesh, place); n > 0; n--)
        for (int dp = place[n - 1]; dp < s->mesh->degree[TR_AXIS_DP]; dp += tr_mesh_near(s->mesh))
            s->differs[dp] = true;
    return TR_OK;
}

/* Plans the ranks of one pipeline and tensor index, those of mesh->index. A data rank is equal to
 * the one before unless they have portions of different sizes, or snapshots of what they save; data
 * rank 0 also computes the norm. */
static tr_status plan_line(tr_run_plan *p, const tr_layout *l, tr_device *device, tr_mesh *mesh,
                           bool *differs) {
    const int pp = mesh->index[TR_AXIS_PP], data_ranks = mesh->degree[TR_AXIS_DP];
    int64_t count = 0;
    tr_memory_plan memory;
    TR_TRY(tr_placement_visit(&l->placement, l->model, pp, count_param, &count));
    for (int dp = 0; dp < data_ranks; dp++) differs[dp] = dp < 2 || l->desc.background;
    if (tr_memory_divided(mesh, l->desc.zero))
        TR_TRY(tr_placement_visit(&l->placement, l->model, pp, mark_steps,
                                  &(steps){.mesh = mesh, .differs = differs}));
    for (int dp = 0; dp < data_ranks; dp++) {
        mesh->index[TR_AXIS_DP] = dp;
        if (differs[dp]) TR_TRY(tr_layout_memory(l, device, mesh, &memory));
        const int rank = tr_mesh_rank(mesh, mesh->index);
        p->memory[rank] = memory;
        p->parameters[rank] = count;
    }
    return TR_OK;
}

/* Plans the ranks of the tensor index of `mesh` with the layout of a rank that has the same
 * programs. */
static tr_status plan_ranks(tr_run_plan *p, const tr_layout *l, tr_device *device, tr_mesh mesh) {
    bool *differs;
    tr_status status = TR_OK;
    TR_TRY(tr_calloc((size_t)mesh.degree[TR_AXIS_DP], sizeof *differs, &differs));
    for (int pp = 0; pp < mesh.degree[TR_AXIS_PP] && status == TR_OK; pp++) {
        mesh.index[TR_AXIS_PP] = pp;
        status = plan_line(p, l, device, &mesh, differs);
    }
    free(differs);
    return status;
}

/* Returns true when the parts that the ranks of two tensor indices hold have equal sizes, so that
 * both have the same programs. */
static bool are_alike(const tr_model *a, const tr_model *b) {
    for (int i = 0; i < a->count; i++)
        for (int k = 0; k < a->layers[i]->params_count; k++)
            if (a->layers[i]->params[k].count != b->layers[i]->params[k].count) return false;
    return true;
}

/* Sums what hosts keep for their ranks; if that is anything, asks how much it may be. */
static tr_status take_host_memory(tr_run_plan *p, const tr_config *c, tr_device *device) {
    const int host = c->device.host_ranks ? (int)c->device.host_ranks : p->ranks;
    size_t bytes = 0;
    p->host_bytes = 0;
    for (int r = 0; r < p->ranks; r++) {
        bytes = (r % host ? bytes : 0) + tr_memory_in_host(&p->memory[r]);
        if (bytes > p->host_bytes) p->host_bytes = bytes;
    }
    p->host_limit = SIZE_MAX;
    return p->host_bytes > 0 ? tr_request_host_memory(c, device, &p->host_limit) : TR_OK;
}

static tr_status take_time(tr_run_plan *p) {
    const tr_layout *l = p->layout;
    TR_TRY(tr_simulate(l->program[TR_LAYOUT_TRAIN], l->table.cost, NULL, &p->time));
    for (int r = 0; r < p->time->ranks; r++) p->ideal += p->time->time[r].busy / p->time->ranks;
    return TR_OK;
}

/* Sets *out to the makespan of a training step. */
static tr_status take_makespan(const tr_layout *l, double *out) {
    tr_simulation *time;
    TR_TRY(tr_simulate(l->program[TR_LAYOUT_TRAIN], l->table.cost, NULL, &time));
    *out = time->makespan;
    tr_simulation_destroy(time);
    return TR_OK;
}

/* Simulates a step with each of the run's batches; that of the whole one is p->time. */
static tr_status take_steps(tr_run_plan *p, const tr_config *c) {
    tr_batch_size size[TR_CONFIG_BATCHES];
    p->steps = tr_config_batches(c, size);
    for (int k = 0; k < p->steps; k++) {
        tr_run_step *step = &p->step[k];
        tr_simulation *time = p->time;
        *step = (tr_run_step){.batch = size[k].batch,
                              .until = size[k].until,
                              .set = tr_layout_step(p->layout, size[k].batch)};
        const bool whole = step->set == p->layout->program[TR_LAYOUT_TRAIN];
        if (!whole) TR_TRY(tr_simulate(step->set, p->layout->table.cost, NULL, &time));
        step->makespan = time->makespan;
        for (int r = 0; r < time->ranks; r++) step->ideal += time->time[r].busy / time->ranks;
        if (!whole) tr_simulation_destroy(time);
    }
    return TR_OK;
}

static tr_status count_ranks(const tr_config *c, int *out) {
    int64_t ranks = c->parallel.pp * c->parallel.tp * c->parallel.dp; /* at most 2^40: the schema */
    if (ranks > MOST_RANKS)
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.pp * tp * dp = %lld * %lld * %lld is more ranks than can be "
                       "planned: use at most %d",
                       (long long)c->parallel.pp, (long long)c->parallel.tp,
                       (long long)c->parallel.dp, MOST_RANKS);
    *out = (int)ranks;
    return TR_OK;
}

/* Returns true for GPUs that this machine lacks: each rank is expected to have one of its own. */
static bool is_elsewhere_by_nccl(const tr_config *c, const tr_device *device, int ranks) {
    return tr_config_on_gpu(c) && tr_device_on_host(device) && ranks > 1 &&
           tr_request_plane(c) != TR_PLANE_MPI;
}

/* What a plan is made from. */
typedef struct planning {
    const tr_config *c;
    tr_device *device;
    tr_own_sums own;
    int receive_units;
    tr_run_plan *p;
} planning;

/* Prepares and lowers a layout, and plans its ranks. */
static tr_status complete(const planning *x, tr_layout *l) {
    const tr_op_context context = {.device = x->device, .deterministic = x->c->train.deterministic};
    TR_TRY(tr_layout_prepare(l, &context, x->receive_units, NULL, -1));
    TR_TRY(tr_layout_lower(l));
    return plan_ranks(x->p, l, x->device, l->desc.mesh);
}

/* Returns the most bytes that ranks of tensor index 0 take at a pipeline index. */
static size_t most_of(const tr_run_plan *p, int pp_rank) {
    tr_mesh mesh = p->layout->desc.mesh;
    size_t most = 0;
    mesh.index[TR_AXIS_PP] = pp_rank;
    for (int dp = 0; dp < mesh.degree[TR_AXIS_DP]; dp++) {
        mesh.index[TR_AXIS_DP] = dp;
        const size_t total = p->memory[tr_mesh_rank(&mesh, mesh.index)].total;
        if (total > most) most = total;
    }
    return most;
}

/* A search for a cut that fits: what ranks need (tr_layout_needs), the most that they took beyond
 * that in any plan so far, and the room that this leaves. */
typedef struct fitting {
    double *need, *others, *room; /* [pipeline ranks] */
} fitting;

static tr_status leave_room(const tr_run_plan *p, const fitting *f) {
    TR_TRY(tr_layout_needs(p->layout, f->need));
    for (int r = 0; r < p->layout->desc.mesh.degree[TR_AXIS_PP]; r++) {
        f->others[r] = fmax(f->others[r], (double)most_of(p, r) - f->need[r]);
        f->room[r] = fmax(1, (double)p->limit - f->others[r]);
    }
    return TR_OK;
}

/* Cuts the layers for the room that the plan leaves, and plans that. Keeps the cut if the rank that
 * takes most takes less; otherwise sets *nearer to false. */
static tr_status try_cut(const planning *x, const fitting *f, bool *nearer) {
    tr_run_plan *p = x->p;
    tr_layout *old = p->layout, *l = NULL;
    const size_t stages = (size_t)old->placement.stages, ranks = (size_t)x->c->parallel.pp;
    const size_t before = p->memory[tr_run_plan_largest(p)].total;
    *nearer = false;
    TR_TRY(leave_room(p, f));
    TR_TRY(make_layout(x->c, &p->orders, 0, x->own, f->room, NULL, &l));
    tr_status status = TR_OK;
    if (memcmp(l->first, old->first, (stages + 1) * sizeof *l->first) != 0) {
        status = complete(x, l);
        *nearer = status == TR_OK && p->memory[tr_run_plan_largest(p)].total < before;
        if (status == TR_OK && !*nearer) status = plan_ranks(p, old, x->device, old->desc.mesh);
    }
    if (*nearer) {
        p->layout = l;
        memcpy(p->room, f->room, ranks * sizeof *p->room);
    }
    tr_layout_destroy(*nearer ? old : l);
    return status;
}

/* Cuts the layers again while a rank does not fit and that brings it nearer. */
static tr_status fit(const planning *x) {
    enum { TRIES = 4 };
    const size_t ranks = (size_t)x->c->parallel.pp;
    tr_run_plan *p = x->p;
    fitting f = {0};
    bool nearer = true, found = false;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc(ranks, sizeof *p->room, &p->room));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *f.need, &f.need));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *f.others, &f.others));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *f.room, &f.room));
    for (size_t r = 0; r < ranks; r++) f.others[r] = -INFINITY;
    TR_TRY_OUT(take_makespan(p->layout, &p->fastest));
    for (int n = 0; n < TRIES && nearer && !tr_run_plan_fits_device(p); n++) {
        TR_TRY_OUT(try_cut(x, &f, &nearer));
        found = found || nearer;
    }
    if (!found) {
        free(p->room);
        p->room = NULL;
    }
out:
    free(f.room);
    free(f.others);
    free(f.need);
    return status;
}

/* Takes the bytes of the ranks of tensor index 0 for the others. */
static void repeat_first(tr_run_plan *p, int tp) {
    for (int r = 0; r < p->ranks; r++) {
        p->memory[r] = p->memory[r / tp * tp]; /* the tensor index is innermost */
        p->parameters[r] = p->parameters[r / tp * tp];
    }
}

/* Plans the ranks of tensor index 0, and makes their layout that of the plan. fits: with a cut that
 * fits, if there is one. */
static tr_status plan_first(const planning *x, bool fits) {
    tr_run_plan *p = x->p;
    TR_TRY(make_layout(x->c, &p->orders, 0, x->own, NULL, NULL, &p->layout));
    TR_TRY(complete(x, p->layout));
    const bool chosen = x->c->parallel.pp > 1 && !tr_config_cut(x->c);
    return fits && chosen && !tr_run_plan_fits_device(p) ? fit(x) : TR_OK;
}

/* Plans the ranks of the other tensor indices. Neighbours that are alike share a layout. */
static tr_status plan_others(const planning *x) {
    tr_run_plan *p = x->p;
    tr_layout *l = p->layout;
    tr_status status = TR_OK;
    for (int tp = 1; tp < x->c->parallel.tp && status == TR_OK; tp++) {
        tr_layout *own;
        status = make_layout(x->c, &p->orders, tp, x->own, p->room, p->layout->first, &own);
        if (status != TR_OK) break;
        const bool alike = are_alike(l->model, own->model);
        status = alike ? plan_ranks(p, l, x->device, own->desc.mesh) : complete(x, own);
        tr_layout *done = alike ? own : l;
        if (!alike) l = own;
        if (done != p->layout) tr_layout_destroy(done);
    }
    if (l != p->layout) tr_layout_destroy(l);
    return status;
}

/* Plans the ranks that a sketch took from those of tensor index 0. */
static tr_status complete_sketch(const planning *x) {
    x->p->sketched = false;
    TR_TRY(plan_others(x));
    return take_host_memory(x->p, x->c, x->device);
}

/* Plans all ranks, and what hosts keep for them. fits: with a cut that fits, if there is one.
 * sketch: as tr_run_plan_sketch. */
static tr_status plan_all(const planning *x, bool fits, bool sketch) {
    tr_run_plan *p = x->p;
    TR_TRY(plan_first(x, fits));
    p->sketched = sketch && x->c->parallel.tp > 1;
    if (sketch) {
        repeat_first(p, (int)x->c->parallel.tp);
        TR_TRY(take_host_memory(p, x->c, x->device));
        if (tr_run_plan_fits_host(p)) return TR_OK;
    }
    return complete_sketch(x);
}

/* Sets the fields of a plan with this number of ranks that follow from the config and the
 * device. */
static void take_plane(planning *x, int ranks) {
    x->receive_units = tr_world_expected_units(x->device, tr_request_plane(x->c), ranks);
    if (x->receive_units > 0 || is_elsewhere_by_nccl(x->c, x->device, ranks))
        x->own = tr_request_own_sums(x->c);
}

/* Begins a plan, without orders. limit: of a rank; NULL: the config's. */
static tr_status begin(planning *x, const size_t *limit) {
    const tr_config *c = x->c;
    tr_run_plan *p;
    TR_TRY(tr_config_check(c, 0));
    TR_TRY(tr_calloc(1, sizeof *p, &p));
    x->p = p;
    TR_TRY(count_ranks(c, &p->ranks));
    take_plane(x, p->ranks);
    if (limit) p->limit = *limit;
    else TR_TRY(tr_request_memory(c, x->device, p->ranks, &p->limit));
    TR_TRY(tr_calloc((size_t)p->ranks, sizeof *p->memory, &p->memory));
    return tr_calloc((size_t)p->ranks, sizeof *p->parameters, &p->parameters);
}

static tr_status make(const tr_config *c, tr_device *device, const size_t *limit, bool fits,
                      bool sketch, tr_run_plan **out) {
    tr_status status = TR_OK;
    tr_schedule_report report;
    planning x = {.c = c, .device = device};
    TR_TRY_OUT(begin(&x, limit));
    TR_TRY_OUT(tr_request_orders(c, &x.p->orders, &report));
    TR_TRY_OUT(plan_all(&x, fits, sketch));
    TR_TRY_OUT(take_time(x.p));
    TR_TRY_OUT(take_steps(x.p, c));
out:
    if (status != TR_OK) tr_run_plan_destroy(x.p);
    else *out = x.p;
    return status;
}

tr_status tr_run_plan_make(const tr_config *config, tr_device *device, tr_run_plan **out) {
    return make(config, device, NULL, true, false, out);
}

tr_status tr_run_plan_make_within(const tr_config *config, tr_device *device, size_t limit,
                                  tr_run_plan **out) {
    return make(config, device, &limit, true, false, out);
}

tr_status tr_run_plan_make_fastest(const tr_config *config, tr_device *device, tr_run_plan **out) {
    return make(config, device, NULL, false, false, out);
}

tr_status tr_run_plan_sketch(const tr_config *config, tr_device *device, size_t limit,
                             tr_run_plan **out) {
    return make(config, device, &limit, true, true, out);
}

tr_status tr_run_plan_complete(const tr_config *config, tr_device *device, tr_run_plan *plan) {
    planning x = {.c = config, .device = device, .p = plan};
    if (!plan->sketched) return TR_OK;
    take_plane(&x, plan->ranks);
    return complete_sketch(&x);
}

void tr_run_plan_destroy(tr_run_plan *p) {
    if (!p) return;
    tr_simulation_destroy(p->time);
    tr_layout_destroy(p->layout);
    tr_orders_close(&p->orders);
    free(p->memory);
    free(p->parameters);
    free(p->room);
    free(p);
}

int tr_run_plan_largest(const tr_run_plan *p) {
    int most = 0;
    for (int r = 1; r < p->ranks; r++)
        if (p->memory[r].total > p->memory[most].total) most = r;
    return most;
}

bool tr_run_plan_fits_device(const tr_run_plan *p) {
    return p->memory[tr_run_plan_largest(p)].total <= p->limit;
}

bool tr_run_plan_fits_host(const tr_run_plan *p) {
    return p->host_bytes <= p->host_limit;
}

bool tr_run_plan_fits(const tr_run_plan *p) {
    return tr_run_plan_fits_device(p) && tr_run_plan_fits_host(p);
}

void tr_run_plan_limit_host(const tr_run_plan *p, tr_config *c) {
    if (p->host_limit == SIZE_MAX) return;
    c->device.host_memory = (int64_t)(tr_run_plan_fits_host(p) ? p->host_limit : p->host_bytes);
}

/* Sets *out to true when the known bytes of a rank, with the most that its actions hold before they
 * are placed, exceed the limit: the arena is never smaller. */
static tr_status exceeds(const tr_layout *l, size_t limit, bool *out) {
    const tr_schedule *s = l->desc.schedule;
    const bool offloads = l->desc.offload_stages > 0;
    tr_estimate *e = NULL;
    tr_memory_plan known;
    *out = false;
    TR_TRY(tr_estimate_order(s, &(tr_estimate_options){.table = &l->table}, &e));
    for (int pp = 0; pp < s->ranks && !*out; pp++) {
        tr_layout_memory_known(l, pp, 0, &known);
        *out = (double)known.total + (offloads ? 0 : e->peak[pp]) > (double)limit;
    }
    tr_estimate_destroy(e);
    return TR_OK;
}

/* Plans the fastest cut until it is known whether it fits; leaves *fits when it does not. least: of
 * the config. */
static tr_status try_fastest(const planning *x, const tr_least_memory *least, bool *fits) {
    tr_run_plan *p = x->p;
    tr_schedule_report report;
    tr_held held;
    bool exceeded = tr_least_memory_exceeds(least, x->c->parallel.pp, (double)p->limit);
    if (exceeded) return TR_OK;
    TR_TRY(tr_request_orders(x->c, &p->orders, &report));
    TR_TRY(tr_held_of(p->orders.schedule, &held));
    exceeded = isinf(tr_least_memory_blocks(least, &held, (double)p->limit));
    tr_held_free(&held);
    if (exceeded) return TR_OK;
    TR_TRY(make_layout(x->c, &p->orders, 0, x->own, NULL, NULL, &p->layout));
    TR_TRY(exceeds(p->layout, p->limit, &exceeded));
    if (exceeded) return TR_OK;
    TR_TRY(complete(x, p->layout));
    if (!tr_run_plan_fits_device(p)) return TR_OK; /* no other tensor rank takes more */
    TR_TRY(plan_others(x));
    TR_TRY(take_host_memory(p, x->c, x->device));
    *fits = tr_run_plan_fits(p);
    return TR_OK;
}

static tr_status try(const tr_config *c, tr_device *device, const tr_least_memory *least,
                     bool *fits, int *stages) {
    planning x = {.c = c, .device = device};
    tr_status status = begin(&x, NULL);
    *fits = false;
    if (status == TR_OK) status = try_fastest(&x, least, fits);
    if (status == TR_OK && *fits) *stages = x.p->layout->desc.schedule->stages;
    tr_run_plan_destroy(x.p);
    return status;
}

/* Takes a refusal for a layout that does not fit. */
static tr_status allow_refusal(tr_status status) {
    return status == TR_ERR_CONFIG || status == TR_ERR_FIT ? TR_OK : status;
}

tr_status tr_run_plan_try(const tr_config *c, tr_device *device, bool *fits, int *stages) {
    tr_least_memory least;
    *fits = false;
    tr_status status = tr_config_check(c, 0);
    if (status == TR_OK) status = tr_least_memory_of(c, device, &least);
    if (status == TR_OK) status = try(c, device, &least, fits, stages);
    return allow_refusal(status);
}

/* Up to so many pipeline ranks every number is tried; no preset has as many layers. Beyond it each
 * number is a quarter more than the one before, because the time of a plan grows with the ranks,
 * and halving the distance finds the fewest from the last one that did not fit. Pipelines
 * of hundreds of ranks more would not help anybody. */
enum { EVERY_NUMBER = 128, STEPS = 4, MOST_MORE = 512 };

static int64_t number_after(int64_t pp, int64_t most) {
    const int64_t next = pp + (pp < EVERY_NUMBER ? 1 : pp / STEPS);
    return pp < most && next > most ? most : next;
}

int64_t tr_run_plan_most_ranks(const tr_config *config) {
    return tr_min_i64(config->model.layers, config->parallel.pp + MOST_MORE);
}

tr_status tr_run_plan_fewest_ranks(const tr_config *config, tr_device *device, int64_t *pp) {
    const int64_t most = tr_run_plan_most_ranks(config);
    int64_t less = config->parallel.pp - 1, next = less + 1; /* `less` does not fit */
    tr_config *c;
    tr_least_memory least;
    *pp = config->model.layers + 1;
    tr_status status = tr_least_memory_of(config, device, &least);
    if (status != TR_OK) return allow_refusal(status);
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    *c = *config;
    while (next <= most && next > less && status == TR_OK) {
        bool fits;
        int stages;
        c->parallel.pp = next;
        status = allow_refusal(try(c, device, &least, &fits, &stages));
        if (fits) *pp = next;
        else less = next;
        next = *pp > most ? number_after(less, most) : less + (*pp - less) / 2;
    }
    free(c);
    return status;
}
