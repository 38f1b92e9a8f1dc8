#include "partition/run_plan.h"

#include "base/memory.h"
#include "partition/request.h"
#include "pipeline/orders/estimate.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_RANKS = 1 << 20 };

static tr_status make_layout(const tr_config *c, const tr_orders *orders, int tp_rank,
                             tr_own_sums own, tr_layout **out) {
    const tr_mesh mesh = {.degree = {[TR_AXIS_PP] = (int)c->parallel.pp,
                                     [TR_AXIS_DP] = (int)c->parallel.dp,
                                     [TR_AXIS_TP] = (int)c->parallel.tp},
                          .index = {[TR_AXIS_TP] = tp_rank},
                          .near = tr_config_near(c)};
    tr_layout_desc desc = tr_request_layout(c, orders, &mesh);
    desc.own = own;
    return tr_layout_create(&desc, out);
}

static tr_status count_param(void *context, int stage, tr_param *param, bool shares) {
    (void)stage;
    int64_t *count = context;
    if (!shares) *count += param->count;
    return TR_OK;
}

/* Plans the ranks of one tensor index. Data ranks from 1 on are equal, unless they have different
 * portions of the optimizer's state; data rank 0 also computes the norm. */
static tr_status plan_ranks(tr_run_plan *p, const tr_layout *l, tr_device *device) {
    tr_mesh mesh = l->desc.mesh;
    for (int pp = 0; pp < mesh.degree[TR_AXIS_PP]; pp++) {
        int64_t count = 0;
        tr_memory_plan memory = {0};
        TR_TRY(tr_placement_visit(&l->placement, l->model, pp, count_param, &count));
        for (int dp = 0; dp < mesh.degree[TR_AXIS_DP]; dp++) {
            if (dp < 2 || l->desc.zero) TR_TRY(tr_layout_memory(l, device, pp, dp, &memory));
            mesh.index[TR_AXIS_PP] = pp;
            mesh.index[TR_AXIS_DP] = dp;
            int rank = tr_mesh_rank(&mesh, mesh.index);
            p->memory[rank] = memory;
            p->parameters[rank] = count;
        }
    }
    return TR_OK;
}

/* Sums what hosts keep for their ranks; if that is anything, asks how much it may be. */
static tr_status take_host_memory(tr_run_plan *p, const tr_config *c, tr_device *device) {
    const int host = c->device.host_ranks ? (int)c->device.host_ranks : p->ranks;
    size_t bytes = 0;
    for (int r = 0; r < p->ranks; r++) {
        bytes = (r % host ? bytes : 0) + p->memory[r].of[TR_MEMORY_OFFLOAD];
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

/* Simulates a step with each of the run's batches. */
static tr_status take_steps(tr_run_plan *p, const tr_config *c) {
    tr_batch_size size[TR_CONFIG_BATCHES];
    p->steps = tr_config_batches(c, size);
    for (int k = 0; k < p->steps; k++) {
        tr_run_step *step = &p->step[k];
        tr_simulation *time;
        *step = (tr_run_step){.batch = size[k].batch,
                              .until = size[k].until,
                              .set = tr_layout_step(p->layout, size[k].batch)};
        TR_TRY(tr_simulate(step->set, p->layout->table.cost, NULL, &time));
        step->makespan = time->makespan;
        for (int r = 0; r < time->ranks; r++) step->ideal += time->time[r].busy / time->ranks;
        tr_simulation_destroy(time);
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

tr_status tr_run_plan_make(const tr_config *config, tr_device *device, tr_run_plan **out) {
    tr_status status = TR_OK;
    tr_run_plan *p = NULL;
    tr_layout *l = NULL;
    tr_schedule_report report;
    tr_own_sums own = {false};
    int receive_units;
    const tr_op_context context = {.device = device, .deterministic = config->train.deterministic};
    TR_TRY(tr_config_check(config, 0));
    TR_TRY(tr_calloc(1, sizeof *p, &p));
    TR_TRY_OUT(count_ranks(config, &p->ranks));
    receive_units = tr_world_expected_units(device, tr_request_plane(config), p->ranks);
    if (receive_units > 0 || is_elsewhere_by_nccl(config, device, p->ranks))
        own = tr_request_own_sums(config);
    TR_TRY_OUT(tr_request_memory(config, device, p->ranks, &p->limit));
    TR_TRY_OUT(tr_request_orders(config, &p->orders, &report));
    TR_TRY_OUT(tr_calloc((size_t)p->ranks, sizeof *p->memory, &p->memory));
    TR_TRY_OUT(tr_calloc((size_t)p->ranks, sizeof *p->parameters, &p->parameters));
    for (int tp = 0; tp < config->parallel.tp; tp++) {
        TR_TRY_OUT(make_layout(config, &p->orders, tp, own, &l));
        TR_TRY_OUT(tr_layout_prepare(l, &context, receive_units, NULL, -1));
        TR_TRY_OUT(tr_layout_lower(l));
        TR_TRY_OUT(plan_ranks(p, l, device));
        if (tp == 0) p->layout = l;
        else tr_layout_destroy(l);
        l = NULL;
    }
    TR_TRY_OUT(take_host_memory(p, config, device));
    TR_TRY_OUT(take_time(p));
    TR_TRY_OUT(take_steps(p, config));
out:
    tr_layout_destroy(l);
    if (status != TR_OK) tr_run_plan_destroy(p);
    else *out = p;
    return status;
}

void tr_run_plan_destroy(tr_run_plan *p) {
    if (!p) return;
    tr_simulation_destroy(p->time);
    tr_layout_destroy(p->layout);
    tr_orders_close(&p->orders);
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

/* Sets *out to true when every order exceeds the limit. When the last stage ends its first F, all
 * stages hold the same micro-batch, so the ranks of a pipeline then hold together at least what one
 * rank with all layers holds. Data ranks that divide the optimizer's state are not judged. */
static tr_status exceeds_always(const tr_config *c, size_t limit, bool *out) {
    tr_orders orders = {0};
    tr_layout *l = NULL;
    tr_config *whole = NULL;
    tr_memory_plan known;
    *out = false;
    tr_config_offloads offload;
    if (c->parallel.zero) return TR_OK;
    if (tr_config_offload(c, &offload) && offload.stages > 0) return TR_OK;
    TR_TRY(tr_calloc(1, sizeof *whole, &whole));
    *whole = *c;
    whole->parallel.pp = whole->parallel.virtual_stages = 1;
    whole->train.batch = c->train.micro_batch * c->parallel.dp;
    (void)snprintf(whole->parallel.schedule, sizeof whole->parallel.schedule, "1f1b");
    tr_status status = tr_request_schedule(whole, &orders.schedule, NULL);
    if (status == TR_OK) status = make_layout(whole, &orders, 0, (tr_own_sums){false}, &l);
    if (status == TR_OK) {
        tr_layout_memory_known(l, 0, 0, &known);
        *out =
            ((double)known.total + l->table.cost[0].m_b) / (double)c->parallel.pp > (double)limit;
    }
    tr_layout_destroy(l);
    tr_orders_close(&orders);
    free(whole);
    return status;
}

tr_status tr_run_plan_is_hopeless(const tr_config *c, tr_device *device, bool *out) {
    tr_orders orders = {0}; /* only that of the whole batch, which every plan has */
    tr_schedule_report report;
    tr_layout *l = NULL;
    int ranks = 0;
    size_t limit = 0;
    TR_TRY(tr_config_check(c, 0));
    TR_TRY(count_ranks(c, &ranks));
    TR_TRY(tr_request_memory(c, device, ranks, &limit));
    if (tr_request_is_auto(c)) { /* making an order takes long */
        TR_TRY(exceeds_always(c, limit, out));
        if (*out) return TR_OK;
    }
    TR_TRY(tr_request_schedule(c, &orders.schedule, &report));
    tr_status status = make_layout(c, &orders, 0, (tr_own_sums){false}, &l);
    if (status == TR_OK) status = exceeds(l, limit, out);
    tr_layout_destroy(l);
    tr_orders_close(&orders);
    return status;
}
