#include "partition/traffic.h"

#include "base/minmax.h"
#include "layers/param_layout.h"
#include "partition/network.h"
#include "partition/tensor_sums.h"

#include <math.h>

static tr_reach reach_of(bool far) {
    return far ? TR_REACH_BETWEEN_HOSTS : TR_REACH_INSIDE_HOSTS;
}

/* Returns over which links gradients are summed (tr_network_reduce): with two factors of data ranks
 * first inside runs. */
static tr_reach reach_of_sums(const tr_config *c, const tr_mesh *mesh) {
    const tr_axis axis = mesh->degree[TR_AXIS_DP] == 1 ? TR_AXIS_TP : TR_AXIS_DP;
    const bool far = tr_network_is_far(c, mesh, axis);
    return far && tr_mesh_near(mesh) > 1 && !tr_network_near_is_far(c, mesh) ? TR_REACH_BOTH
                                                                             : reach_of(far);
}

/* --- messages --------------------------------------------------------------------------------- */

/* Returns the reach of a link of tr_simulated_link. */
static tr_reach reach_of_link(const tr_simulated_links *links, tr_link link) {
    return reach_of(link.per_byte == links->far.per_byte);
}

static tr_traffic messages_of(const tr_program *program, const tr_simulated_links *links) {
    tr_traffic all = {0};
    for (int k = 0; k < program->count; k++) {
        const tr_instr *instr = &program->instr[k];
        if (instr->action.type != TR_ACTION_SEND) continue;
        const tr_link link = tr_simulated_link(links, program->rank, instr->peer);
        all.count++;
        all.bytes += (double)instr->bytes;
        all.moving += link.latency + link.per_byte * (double)instr->bytes;
        if (all.over != TR_REACH_BETWEEN_HOSTS) all.over = reach_of_link(links, link);
    }
    return all;
}

/* Sets *out to the makespan of a step over the links; NULL: nothing takes time to travel. */
static tr_status find_makespan(const tr_layout *l, const tr_simulated_links *links, double *out) {
    tr_simulation *t;
    TR_TRY(tr_simulate(l->program[TR_LAYOUT_TRAIN], l->table.cost, links, &t));
    *out = t->makespan;
    tr_simulation_destroy(t);
    return TR_OK;
}

static tr_status find_messages(const tr_layout *l, const tr_simulated_links *all, tr_traffic *out) {
    const tr_program_set *set = l->program[TR_LAYOUT_TRAIN];
    tr_simulated_links links = *all;
    double alone = 0, with = 0;
    for (int r = 0; r < set->ranks; r++) {
        const tr_traffic own = messages_of(&set->program[r], all);
        if (own.moving > out->moving) *out = own;
    }
    if (out->count == 0) return TR_OK;
    links.sum = links.gather = links.copy = (tr_link){0};
    TR_TRY(find_makespan(l, NULL, &alone));
    TR_TRY(find_makespan(l, &links, &with));
    out->exposed = with - alone;
    return TR_OK;
}

/* --- sums of gradients and gathers of values -------------------------------------------------- */

static tr_traffic collectives_of(const tr_program *program, const tr_instr_time *time,
                                 tr_action_type start, tr_action_type wait) {
    tr_traffic all = {0};
    for (int k = 0; k < program->count; k++) {
        const tr_instr *instr = &program->instr[k];
        if (instr->action.type == wait) all.exposed += time[k].end - time[k].start;
        if (instr->action.type != start) continue;
        all.count++;
        all.bytes += (double)instr->bytes;
        all.moving += time[k].complete - time[k].begin;
    }
    return all;
}

/* Returns the collectives of the rank that waits longest for them; of ranks that wait equally long,
 * those that take longest. */
static tr_traffic longest_collectives(const tr_program_set *set, const tr_simulation *t,
                                      tr_action_type start, tr_action_type wait) {
    tr_traffic most = {0};
    for (int r = 0; r < t->ranks; r++) {
        const tr_traffic own = collectives_of(&set->program[r], t->instr[r], start, wait);
        const bool longer = own.exposed > most.exposed;
        if (longer || (own.exposed >= most.exposed && own.moving > most.moving)) most = own;
    }
    return most;
}

static tr_status find_collectives(const tr_config *c, const tr_layout *l,
                                  const tr_simulated_links *all, tr_traffic *sums,
                                  tr_traffic *gathers) {
    const tr_program_set *set = l->program[TR_LAYOUT_TRAIN];
    const tr_simulated_links links = {.sum = all->sum, .gather = all->gather};
    tr_simulation *t;
    TR_TRY(tr_simulate(set, l->table.cost, &links, &t));
    *sums = longest_collectives(set, t, TR_ACTION_REDUCE_START, TR_ACTION_REDUCE_WAIT);
    sums->over = reach_of_sums(c, &l->desc.mesh);
    *gathers = longest_collectives(set, t, TR_ACTION_GATHER_START, TR_ACTION_GATHER_WAIT);
    gathers->over = reach_of(tr_network_near_is_far(c, &l->desc.mesh));
    tr_simulation_destroy(t);
    return TR_OK;
}

/* --- sums of tied gradients ------------------------------------------------------------------- */

typedef struct tied {
    const tr_layout *l;
    const tr_simulated_links *links;
    tr_traffic all;
} tied;

/* Adds the sum of two uses' gradients. It begins when both ranks have ended their programs, and
 * norms and steps wait for it, so that all of it is exposed. */
static tr_status add_tie(void *context, const tr_tie *tie) {
    tied *t = context;
    const tr_layout_desc *d = &t->l->desc;
    const tr_mesh *divided = tr_memory_divided(&d->mesh, d->zero);
    const int first = tie->ranks.first[TR_AXIS_PP], other = first + tie->ranks.stride[TR_AXIS_PP];
    const tr_link link = tr_simulated_link(t->links, first, other);
    int64_t most = 0; /* elements of a data rank */
    if (tie->param->use > 0) return TR_OK;
    for (int place = 0; place < tr_mesh_near(&d->mesh); place++)
        most = tr_max_i64(most, tr_param_portion_of(tie->param, divided, place).extent);
    const size_t size = tr_dtype_size(tr_optim_grad_dtype(d->optimizer, d->dtype));
    const double bytes = (double)most * (double)size;
    t->all.count++;
    t->all.bytes += bytes;
    t->all.moving += 2 * link.latency + link.per_byte * bytes; /* of two ranks: tr_network_sum */
    t->all.exposed = t->all.moving;
    t->all.over = reach_of_link(t->links, link);
    return TR_OK;
}

static tr_status find_ties(const tr_layout *l, const tr_simulated_links *links, tr_traffic *out) {
    tied t = {.l = l, .links = links};
    tr_mesh mesh = l->desc.mesh;
    for (int pp = 0; pp < mesh.degree[TR_AXIS_PP]; pp++) {
        mesh.index[TR_AXIS_PP] = pp;
        TR_TRY(tr_placement_visit_ties(&l->placement, l->model, &mesh, add_tie, &t));
    }
    *out = t.all;
    return TR_OK;
}

/* --- sums over tensor ranks ------------------------------------------------------------------- */

static tr_traffic find_tensor_sums(const tr_config *c, const tr_layout *l, double rate) {
    const tr_program_set *set = l->program[TR_LAYOUT_TRAIN];
    const tr_mesh *mesh = &l->desc.mesh;
    const tr_link link = tr_network_sum(c, mesh, TR_AXIS_TP, rate);
    tr_sum_times most = {0};
    if (mesh->degree[TR_AXIS_TP] == 1) return (tr_traffic){0};
    for (int r = 0; r < set->ranks; r++) {
        const tr_sum_times sums = tr_sum_times_of(l->model, &l->placement, &set->program[r], link);
        if (r == 0 || sums.exposed > most.exposed) most = sums;
    }
    return (tr_traffic){.count = most.count,
                        .bytes = most.bytes,
                        .moving = most.moving,
                        .exposed = most.exposed,
                        .over = reach_of(tr_network_is_far(c, mesh, TR_AXIS_TP))};
}

/* --- to the host ------------------------------------------------------------------------------ */

static tr_status find_copies(const tr_layout *l, const tr_simulated_links *all, tr_traffic *out) {
    const tr_program_set *set = l->program[TR_LAYOUT_TRAIN];
    const tr_simulated_links links = {.copy = all->copy};
    int rank = 0;
    tr_simulation *t;
    TR_TRY(tr_simulate(set, l->table.cost, &links, &t));
    for (int r = 1; r < t->ranks; r++)
        if (t->copying[r] > t->copying[rank] ||
            (t->copying[rank] <= 0 && set->program[r].copies > set->program[rank].copies))
            rank = r;
    for (int k = 0; k < set->program[rank].count; k++) {
        const tr_action_type type = set->program[rank].instr[k].action.type;
        if (type != TR_ACTION_OFFLOAD && type != TR_ACTION_FETCH) continue;
        out->count++;
        out->bytes += (double)set->program[rank].instr[k].bytes;
        out->moving += t->instr[rank][k].complete - t->instr[rank][k].begin;
    }
    out->exposed = t->copying[rank];
    out->over = TR_REACH_TO_HOST;
    tr_simulation_destroy(t);
    return TR_OK;
}

tr_offload_traffic tr_traffic_host_steps(const tr_config *c, const tr_layout *l) {
    const tr_mesh *mesh = &l->desc.mesh;
    tr_offload_traffic most = {0};
    for (int pp = 0; pp < mesh->degree[TR_AXIS_PP]; pp++)
        for (int dp = 0; dp < mesh->degree[TR_AXIS_DP]; dp++) {
            const tr_param_memory memory = tr_layout_params(l, pp, dp);
            const tr_offload_traffic own = tr_offload_traffic_of(&memory, l->desc.dtype);
            if (tr_offload_seconds(c, own) > tr_offload_seconds(c, most)) most = own;
        }
    return most;
}

static tr_traffic find_steps(const tr_config *c, const tr_layout *l, double rate) {
    if (!l->desc.optimizer.offload) return (tr_traffic){0};
    const tr_offload_traffic steps = tr_traffic_host_steps(c, l);
    const tr_link link = tr_network_host(c, rate);
    const double per_s = link.per_byte * tr_network_host_bytes(c);
    return (tr_traffic){.count = 1,
                        .over = TR_REACH_TO_HOST,
                        .bytes = steps.down + steps.up,
                        .moving = fmax(steps.down, steps.up) * link.per_byte,
                        .exposed = tr_offload_seconds(c, steps) * per_s};
}

/* --- the optimizer's step --------------------------------------------------------------------- */

static tr_traffic products_of(const tr_config *c, const tr_mesh *mesh, tr_optim_cost cost,
                              double rate) {
    const tr_optim_sums sums = tr_optim_sums_of(c, mesh, cost, rate);
    return (tr_traffic){.count = (int64_t)cost.sums,
                        .bytes = cost.sum_bytes,
                        .moving = sums.moving,
                        .exposed = sums.exposed,
                        .over = reach_of(tr_network_is_far(c, mesh, TR_AXIS_TP))};
}

/* Finds the rank that takes longest. Data ranks that divide every tensor have nearly equal parts,
 * so that the first stands for all. */
static void find_update(const tr_config *c, const tr_layout *l, double rate, tr_step_traffic *out) {
    tr_mesh mesh = l->desc.mesh;
    const bool whole = tr_optim_row_of(l->desc.optimizer.kind)->whole;
    const int parts = whole && tr_memory_divided(&mesh, l->desc.zero) ? tr_mesh_near(&mesh) : 1;
    for (int pp = 0; pp < mesh.degree[TR_AXIS_PP]; pp++)
        for (int dp = 0; dp < parts; dp++) {
            mesh.index[TR_AXIS_PP] = pp;
            mesh.index[TR_AXIS_DP] = dp;
            const tr_optim_cost own =
                tr_optim_cost_of(l->model, &l->placement, &mesh, l->desc.zero, l->desc.optimizer);
            const double time = tr_optim_time(c, own, rate);
            const tr_traffic sums = products_of(c, &mesh, own, rate);
            if (time + sums.exposed <= out->updating + out->of[TR_TRAFFIC_PRODUCTS].exposed)
                continue;
            out->update = own;
            out->updating = time;
            out->of[TR_TRAFFIC_PRODUCTS] = sums;
        }
}

double tr_traffic_update(const tr_step_traffic *t) {
    return t->updating + t->of[TR_TRAFFIC_PRODUCTS].exposed + t->of[TR_TRAFFIC_STEPS].exposed;
}

/* --- all of it -------------------------------------------------------------------------------- */

tr_status tr_traffic_step(const tr_config *c, const tr_layout *l, double rate,
                          tr_step_traffic *out) {
    const tr_simulated_links links = tr_network_links(c, &l->desc.mesh, rate);
    *out = (tr_step_traffic){0};
    TR_TRY(find_makespan(l, &links, &out->makespan));
    out->of[TR_TRAFFIC_TENSOR] = find_tensor_sums(c, l, rate);
    TR_TRY(find_ties(l, &links, &out->of[TR_TRAFFIC_TIES]));
    out->of[TR_TRAFFIC_STEPS] = find_steps(c, l, rate);
    find_update(c, l, rate, out);
    out->makespan += out->of[TR_TRAFFIC_TENSOR].exposed + out->of[TR_TRAFFIC_TIES].exposed +
                     tr_traffic_update(out);
    return TR_OK;
}

tr_status tr_traffic_of(const tr_config *c, const tr_layout *l, double rate, tr_step_traffic *out) {
    const tr_simulated_links links = tr_network_links(c, &l->desc.mesh, rate);
    TR_TRY(tr_traffic_step(c, l, rate, out));
    TR_TRY(find_messages(l, &links, &out->of[TR_TRAFFIC_MESSAGES]));
    TR_TRY(find_collectives(c, l, &links, &out->of[TR_TRAFFIC_SUMS], &out->of[TR_TRAFFIC_GATHERS]));
    return find_copies(l, &links, &out->of[TR_TRAFFIC_COPIES]);
}
