#include "cli/plan_traffic.h"

#include "base/memory.h"
#include "partition/network.h"
#include "partition/tensor_sums.h"

#include <math.h>
#include <stdio.h>

static const double MIB = 1 << 20;

const char *cli_duration(double seconds, char *text, size_t size) {
    const struct {
        double below, unit;
        const char *format;
    } scale[] = {{1, 1e-3, "%.3g ms"},
                 {600, 1, "%.3g s"},
                 {7200, 60, "%.0f min"},
                 {172800, 3600, "%.1f h"},
                 {INFINITY, 86400, "%.0f days"}};
    size_t i = 0;
    while (seconds >= scale[i].below) i++;
    (void)snprintf(text, size, scale[i].format, seconds / scale[i].unit);
    return text;
}

/* Over which links something travels. */
typedef enum reach { INSIDE_HOSTS, BETWEEN_HOSTS, BOTH } reach;

static reach reach_of(bool far) {
    return far ? BETWEEN_HOSTS : INSIDE_HOSTS;
}

/* Returns over which links data ranks sum gradients: with two factors first inside runs. */
static reach reach_of_sums(const tr_config *c, const tr_mesh *mesh) {
    const bool far = tr_network_is_far(c, mesh, TR_AXIS_DP);
    return far && tr_mesh_near(mesh) > 1 && !tr_network_near_is_far(c, mesh) ? BOTH : reach_of(far);
}

/* Prints a line about messages or sums: what they take, without its end. */
static void print_moving(const tr_config *c, const char *name, double bytes, const char *what,
                         reach over, double seconds) {
    char time[32], first[32] = "";
    if (over == BOTH)
        (void)snprintf(first, sizeof first, "%.3g and ", tr_network_bytes(c, false) * 1e-9);
    (void)printf("%-8s %.1f MiB of %s take %s at %s%.3g GB/s, ", name, bytes / MIB, what,
                 cli_duration(seconds, time, sizeof time), first,
                 tr_network_bytes(c, over != INSIDE_HOSTS) * 1e-9);
}

static void print_exposed(double seconds) {
    char time[32];
    (void)printf("of which %s stay exposed\n", cli_duration(seconds, time, sizeof time));
}

/* What the messages take that a rank of the pipeline sends in a step. */
typedef struct messages {
    int count;
    double bytes, moving;
    bool far; /* some go to another host */
} messages;

static messages messages_of(const tr_program *program, const tr_simulated_links *links) {
    messages all = {0};
    for (int k = 0; k < program->count; k++) {
        const tr_instr *instr = &program->instr[k];
        if (instr->action.type != TR_ACTION_SEND) continue;
        const tr_link link = tr_simulated_link(links, program->rank, instr->peer);
        all.count++;
        all.bytes += (double)instr->bytes;
        all.moving += link.latency + link.per_byte * (double)instr->bytes;
        all.far |= link.per_byte == links->far.per_byte;
    }
    return all;
}

/* Prints what the messages take of the pipeline rank that sends longest, and by how much they make
 * the step longer. */
static tr_status print_messages(const tr_config *c, const tr_run_plan *p, double rate) {
    const tr_layout *l = p->layout;
    const tr_program_set *set = l->program[TR_LAYOUT_TRAIN];
    tr_simulated_links links = tr_network_links(c, &l->desc.mesh, rate);
    messages most = {0};
    char what[64], longer[32];
    tr_simulation *t;
    for (int r = 0; r < set->ranks; r++) {
        const messages all = messages_of(&set->program[r], &links);
        if (all.moving > most.moving) most = all;
    }
    if (most.count == 0) return TR_OK;
    links.sum = links.gather = links.copy = (tr_link){0};
    TR_TRY(tr_simulate(set, l->table.cost, &links, &t));
    (void)snprintf(what, sizeof what, "activations and gradients in %d messages", most.count);
    print_moving(c, "messages", most.bytes, what, reach_of(most.far), most.moving / rate);
    (void)printf("and make the step %s longer\n",
                 cli_duration((t->makespan - p->time->makespan) / rate, longer, sizeof longer));
    tr_simulation_destroy(t);
    return TR_OK;
}

/* Prints what the sums over tensor ranks take of the pipeline rank that waits longest for them.
 * Returns for how many seconds it waits. */
static double print_tensor_sums(const tr_config *c, const tr_run_plan *p, double rate) {
    const tr_layout *l = p->layout;
    const tr_program_set *set = l->program[TR_LAYOUT_TRAIN];
    const tr_mesh *mesh = &l->desc.mesh;
    const tr_link link = tr_network_sum(c, mesh, TR_AXIS_TP, rate);
    tr_sum_times most = {0};
    char what[64];
    if (mesh->degree[TR_AXIS_TP] == 1) return 0;
    for (int r = 0; r < set->ranks; r++) {
        const tr_sum_times sums = tr_sum_times_of(l->model, &l->placement, &set->program[r], link);
        if (r == 0 || sums.exposed > most.exposed) most = sums;
    }
    (void)snprintf(what, sizeof what, "activations and gradients in %lld %s", (long long)most.count,
                   l->model->shape.sequence ? "collectives" : "sums");
    print_moving(c, "tensor", most.bytes, what, reach_of(tr_network_is_far(c, mesh, TR_AXIS_TP)),
                 most.moving / rate);
    print_exposed(most.exposed / rate);
    return most.exposed / rate;
}

/* What the sums of gradients, or the gathers of values, take of a pipeline rank. */
typedef struct collectives {
    int count;
    double bytes, moving, exposed;
} collectives;

static collectives collectives_of(const tr_program *program, const tr_instr_time *time,
                                  tr_action_type start, tr_action_type wait) {
    collectives all = {0};
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

/* Prints the collectives of one kind of the pipeline rank that waits longest for them, if there are
 * any. */
static void print_collectives(const tr_config *c, const tr_layout *l, const tr_simulation *t,
                              double rate, bool gathers) {
    const tr_program_set *set = l->program[TR_LAYOUT_TRAIN];
    collectives most = {0};
    char what[64];
    for (int r = 0; r < t->ranks; r++) {
        const collectives all =
            collectives_of(&set->program[r], t->instr[r],
                           gathers ? TR_ACTION_GATHER_START : TR_ACTION_REDUCE_START,
                           gathers ? TR_ACTION_GATHER_WAIT : TR_ACTION_REDUCE_WAIT);
        if (r == 0 || all.exposed > most.exposed) most = all;
    }
    if (most.count == 0) return;
    const bool narrow =
        !gathers && tr_reduce_wire(l->desc.reduce, tr_optim_grad_dtype(l->desc.optimizer,
                                                                       l->desc.dtype)) == TR_BF16;
    (void)snprintf(what, sizeof what, "%s%s%s in %d %s%s", narrow ? "bf16 " : "",
                   gathers && l->desc.zero < 3 ? "updated " : "",
                   gathers ? "parameters" : "gradients", most.count, gathers ? "gather" : "bucket",
                   most.count == 1 ? "" : "s");
    print_moving(c, gathers ? "gather" : "reduce", most.bytes, what,
                 gathers ? reach_of(tr_network_near_is_far(c, &l->desc.mesh))
                         : reach_of_sums(c, &l->desc.mesh),
                 most.moving / rate);
    print_exposed(most.exposed / rate);
}

/* Prints what the sums of gradients take, and with parallel.zero the gathers of values. */
static tr_status print_reductions(const tr_config *c, const tr_run_plan *p, double rate) {
    const tr_layout *l = p->layout;
    const tr_simulated_links links = {.sum = tr_network_reduce(c, &l->desc.mesh, rate),
                                      .gather = tr_network_gather(c, &l->desc.mesh, rate)};
    tr_simulation *t;
    TR_TRY(tr_simulate(l->program[TR_LAYOUT_TRAIN], l->table.cost, &links, &t));
    print_collectives(c, l, t, rate, false);
    print_collectives(c, l, t, rate, true);
    tr_simulation_destroy(t);
    return TR_OK;
}

/* Prints what the copies of activations take of the pipeline rank that waits longest for them. */
static tr_status print_copies(const tr_config *c, const tr_run_plan *p, double rate) {
    const tr_program_set *set = p->layout->program[TR_LAYOUT_TRAIN];
    const tr_simulated_links links = {.copy = tr_network_message(c, false, rate)};
    int rank = 0;
    double bytes = 0, moving = 0;
    tr_simulation *t;
    TR_TRY(tr_simulate(set, p->layout->table.cost, &links, &t));
    for (int r = 1; r < t->ranks; r++)
        if (t->copying[r] > t->copying[rank] ||
            (t->copying[rank] <= 0 && set->program[r].copies > set->program[rank].copies))
            rank = r;
    for (int k = 0; k < set->program[rank].count; k++) {
        const tr_action_type type = set->program[rank].instr[k].action.type;
        if (type != TR_ACTION_OFFLOAD && type != TR_ACTION_FETCH) continue;
        bytes += (double)set->program[rank].instr[k].bytes;
        moving += t->instr[rank][k].complete - t->instr[rank][k].begin;
    }
    if (bytes > 0) {
        print_moving(c, "copies", bytes, "activations to the host and back", INSIDE_HOSTS,
                     moving / rate);
        print_exposed(t->copying[rank] / rate);
    }
    tr_simulation_destroy(t);
    return TR_OK;
}

tr_status cli_plan_traffic(const tr_config *c, const tr_run_plan *p, double rate, double *step) {
    const tr_layout *l = p->layout;
    const tr_simulated_links links = tr_network_links(c, &l->desc.mesh, rate);
    tr_simulation *t;
    TR_TRY(tr_simulate(l->program[TR_LAYOUT_TRAIN], l->table.cost, &links, &t));
    *step = t->makespan / rate;
    tr_simulation_destroy(t);
    TR_TRY(print_messages(c, p, rate));
    TR_TRY(print_reductions(c, p, rate));
    *step += print_tensor_sums(c, p, rate); /* which the simulation does not have */
    return print_copies(c, p, rate);
}
