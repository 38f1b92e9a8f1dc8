/* trireme plan [CONFIG] [--search RANKS] [--rate GFLOP/s] [key=value ...]: the memory of every rank
 * and the time of a run, or the layouts with the shortest steps, computed by one process. */
#include "cli/cli.h"
#include "cli/plan_host.h"
#include "cli/plan_search.h"
#include "cli/plan_traffic.h"

#include "base/cores.h"
#include "base/memory.h"
#include "base/text.h"
#include "partition/advice.h"
#include "partition/rate.h"
#include "partition/recompute_choice.h"
#include "partition/request.h"
#include "partition/run_plan.h"
#include "train/time_step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double MIB = 1 << 20;

/* The limits keep the printed times finite. */
static tr_status parse_rate(int argc, char **argv, int *at, double *rate) {
    double giga;
    if (*at + 1 == argc)
        return cli_usage("plan", "--rate takes the GFLOP/s of a rank, for example 400000");
    TR_TRY(cli_take_number("plan", "--rate", argv[++*at], 1e-6, 1e12, &giga));
    *rate = giga * 1e9;
    return TR_OK;
}

/* What the arguments ask for. */
typedef struct plan_request {
    double rate;   /* --rate, in FLOP/s; 0: not given */
    int ranks;     /* --search; 0: not given */
    unsigned kept; /* as in tr_search_request: the keys that are given as arguments */
} plan_request;

static tr_status parse_search(int argc, char **argv, int *at, int *ranks) {
    int64_t value;
    if (*at + 1 == argc)
        return cli_usage("plan", "--search takes the number of ranks, for example 64");
    TR_TRY(cli_take_integer("plan", "--search", argv[++*at], 1, 1 << 20, &value));
    *ranks = (int)value;
    return TR_OK;
}

/* Reads the arguments and the config, if there is one. A plan needs no data, but refuses what
 * training on the data that the config names would refuse before it opens them. */
static tr_status load(int argc, char **argv, tr_config *config, plan_request *out) {
    const char *path = NULL, **overrides;
    int count = 0;
    *out = (plan_request){0};
    TR_TRY(tr_calloc((size_t)argc + 1, sizeof *overrides, &overrides));
    tr_status status = TR_OK;
    for (int i = 1; i < argc && status == TR_OK; i++) {
        if (cli_is_setting(argv[i], !path && !count)) overrides[count++] = argv[i];
        else if (!strcmp(argv[i], "--rate")) status = parse_rate(argc, argv, &i, &out->rate);
        else if (!strcmp(argv[i], "--search")) status = parse_search(argc, argv, &i, &out->ranks);
        else if (argv[i][0] == '-') status = cli_unknown_option("plan", argv[i]);
        else if (path)
            status =
                cli_usage("plan", "more than one config, or a key without its value: %s", argv[i]);
        else path = argv[i];
    }
    if (status == TR_OK && !path && !count)
        status = cli_usage("plan", "no config was given, and no key, such as "
                                   "model.preset=llama-3-8b");
    if (status == TR_OK)
        status = path ? tr_config_load(path, overrides, count, config)
                      : tr_config_parse("", 0, "the arguments", overrides, count, config);
    if (status == TR_OK && config->data.path[0]) status = tr_config_check_data(config);
    out->kept = cli_plan_kept(overrides, count);
    free(overrides);
    return status;
}

/* Prints how much of a rank's whole gradients or values is alive at one time, and whether the order
 * lets that parallel.zero save memory. */
static void print_whole(const char *what, size_t peak, size_t bytes, int zero, const char *more) {
    (void)printf("zero     at most %.1f of a rank's %.1f MiB of whole %s are alive at one time, in "
                 "the activations%s",
                 (double)peak / MIB, (double)bytes / MIB, what, more);
    if (peak == bytes)
        (void)printf("; this order saves nothing over parallel.zero %d: use parallel.schedule bfs "
                     "with parallel.virtual 3 or more",
                     zero - 1);
    (void)printf("\n");
}

/* Returns how many times a rank gathers its values in a step. */
static double gathers_of(const tr_program *program) {
    size_t bytes = 0;
    for (int k = 0; k < program->count; k++)
        if (program->instr[k].action.type == TR_ACTION_GATHER_START)
            bytes += tr_align_up(program->instr[k].bytes);
    return (double)bytes / (double)program->value_bytes;
}

/* Prints what parallel.zero 2 and 3 save: of the rank with the most alive at one time. */
static void print_zero(const tr_run_plan *p) {
    const tr_program_set *set = p->layout->program[TR_LAYOUT_TRAIN];
    const tr_program *grads = &set->program[0], *values = grads;
    char more[128];
    for (int r = 1; r < set->ranks; r++) {
        if (set->program[r].bucket_peak > grads->bucket_peak) grads = &set->program[r];
        if (set->program[r].value_peak > values->value_peak) values = &set->program[r];
    }
    if (grads->buckets > 0)
        print_whole("gradients", grads->bucket_peak, grads->bucket_bytes, 2, "");
    if (values->value_bytes == 0) return;
    const double times = gathers_of(values);
    (void)snprintf(more, sizeof more, ", and gathered %.1f times a step%s", times,
                   times > 2 ? " (at most twice with parallel.schedule bfs)" : "");
    print_whole("parameters", values->value_peak, values->value_bytes, 3, more);
}

/* Prints the cut as parallel.cut takes it, of several stages. */
static void print_cut(const tr_run_plan *p) {
    const tr_placement *placement = &p->layout->placement;
    char cut[TR_LAYER_CUT_TEXT];
    if (placement->stages == 1) return;
    tr_layer_cut_print(placement->first, placement->stages, cut, sizeof cut);
    (void)printf("cut      %s", cut[0] ? cut : "not shown, because it is too long");
    if (p->room)
        (void)printf(": for the memory of a rank; a step with the fastest cut, which does not fit, "
                     "is %.1f%% shorter",
                     100 * (1 - p->fastest / p->time->makespan));
    (void)printf("\n");
}

/* here: this machine has the config's device. */
static void print_head(const tr_config *c, const tr_run_plan *p, bool here) {
    const tr_model *model = p->layout->model;
    const int64_t trained = tr_model_trained_parameters(model);
    char costs[256], work[32], mesh[TR_CONFIG_MESH], limit[32];
    tr_request_costs(c, costs, sizeof costs);
    (void)printf("model    %s, %lld layers, width %lld, %.2f M parameters, %s; %s a token\n",
                 c->model.family, (long long)c->model.layers, (long long)c->model.width,
                 (double)tr_model_parameters(model) * 1e-6, c->train.precision,
                 tr_text_flop(tr_model_flops_per_token(model), "FLOP", work, sizeof work));
    if (!here)
        (void)printf("device   this machine has no device %s: the plan has the scratch of the cpu "
                     "device's operators\n",
                     c->device.name);
    if (costs[0]) (void)printf("slow     %s\n", costs);
    (void)printf("trained  %.2f M parameters, %.2f M frozen; a checkpoint has %.1f MiB of "
                 "tensors\n",
                 (double)trained * 1e-6, (double)(tr_model_parameters(model) - trained) * 1e-6,
                 tr_memory_of_checkpoint(model, p->layout->desc.optimizer) / MIB);
    if (strcmp(c->model.recompute, tr_recompute_name(TR_RECOMPUTE_NONE)) != 0)
        (void)printf("recompute %s\n", c->model.recompute);
    (void)printf("layout   %s, %s, %d micro-batches of %lld\n",
                 tr_config_mesh_text(c, mesh, sizeof mesh), c->parallel.schedule,
                 p->layout->micro_batches, (long long)c->train.micro_batch);
    print_cut(p);
    print_zero(p);
    tr_text_memory(p->limit, limit, sizeof limit);
    if (c->device.memory) (void)printf("limit    %s a rank (device.memory)\n\n", limit);
    else
        (void)printf("limit    %s a rank (free memory here, divided among %d rank%s)\n\n", limit,
                     p->ranks, p->ranks > 1 ? "s" : "");
}

/* "0,3-5": ranges of numbers; "..." stands for those beyond the column's width. */
typedef struct list {
    char text[64];
    size_t used;
    int first, last; /* the range at the end of the text, which may still grow */
    size_t before;   /* the text's length without it */
    bool full;
} list;

enum { LIST_REST = 8 }; /* room that a list keeps for ",..." and the NUL */

static void write_range(list *l) {
    char range[32];
    (void)snprintf(range, sizeof range, "%s", l->before > 0 ? "," : "");
    tr_text_add_range(range, sizeof range, l->first, l->last);
    l->full = l->before + strlen(range) + LIST_REST > sizeof l->text;
    l->used = l->before + (size_t)snprintf(l->text + l->before, sizeof l->text - l->before, "%s",
                                           l->full ? ",..." : range);
}

static void add_range(list *l, int first, int last) {
    if (l->full) return;
    l->before = l->used;
    l->first = first;
    l->last = last;
    write_range(l);
}

/* Adds a number that is larger than those before it; neighbours become one range. */
static void add_number(list *l, int number) {
    if (l->full) return;
    if (l->used == 0 || l->last + 1 != number) {
        add_range(l, number, number);
        return;
    }
    l->last = number;
    write_range(l);
}

static bool rounds_alike(double a, double b, double unit) {
    return lround(a / unit) == lround(b / unit);
}

/* Returns true when the table would print the same numbers for two ranks of a pipeline index. */
static bool alike(const tr_run_plan *p, int a, int b) {
    const tr_memory_plan *x = &p->memory[a], *y = &p->memory[b];
    bool same = rounds_alike((double)p->parameters[a], (double)p->parameters[b], 1e4) &&
                rounds_alike((double)x->live_peak, (double)y->live_peak, 0.1 * MIB) &&
                rounds_alike((double)x->total, (double)y->total, 0.1 * MIB);
    for (tr_memory k = TR_MEMORY_PARAMETERS; k <= TR_MEMORY_DATA; k++)
        same = same && rounds_alike((double)x->of[k], (double)y->of[k], 0.1 * MIB);
    return same;
}

/* Lists the stages and layers of a rank. */
static void list_stages(const tr_run_plan *p, int rank, list *stages, list *layers) {
    const tr_layout *l = p->layout;
    const tr_mesh *mesh = &l->desc.mesh;
    int pp_rank = rank / (mesh->degree[TR_AXIS_DP] * mesh->degree[TR_AXIS_TP]);
    *stages = *layers = (list){0};
    for (int s = 0; s < l->placement.stages; s++) {
        if (l->owner[s] != pp_rank) continue;
        add_number(stages, s);
        add_range(layers, l->first[s], l->first[s + 1] - 1);
    }
}

/* A row of the table: all ranks of a pipeline index that have the same numbers. */
typedef struct row {
    int rank; /* the first one */
    list stages, ranks, layers;
} row;

typedef struct table {
    row *row; /* [rows]: by their first ranks */
    size_t rows, capacity;
} table;

/* Adds the next rank to the row of its pipeline index that has its numbers, or to a new one. */
static tr_status add_rank(const tr_run_plan *p, int rank, table *t) {
    const tr_mesh *mesh = &p->layout->desc.mesh;
    const int line = mesh->degree[TR_AXIS_DP] * mesh->degree[TR_AXIS_TP];
    const int start = rank / line * line; /* the pipeline is outermost */
    size_t k = t->rows;
    while (k > 0 && t->row[k - 1].rank >= start && !alike(p, t->row[k - 1].rank, rank)) k--;
    if (k == 0 || t->row[k - 1].rank < start) {
        TR_TRY(tr_grow(&t->row, &t->capacity, t->rows + 1, sizeof *t->row));
        k = ++t->rows;
        t->row[k - 1] = (row){.rank = rank};
        list_stages(p, rank, &t->row[k - 1].stages, &t->row[k - 1].layers);
    }
    add_number(&t->row[k - 1].ranks, rank);
    return TR_OK;
}

/* The widths of the table's first columns. */
typedef struct widths {
    int stages, ranks, layers;
} widths;

static void widen(int *width, const list *l) {
    if ((int)l->used > *width) *width = (int)l->used;
}

static void print_row(const tr_run_plan *p, const row *x, widths w) {
    const tr_memory_plan *m = &p->memory[x->rank];
    (void)printf("%-*s %-*s %-*s %11.2f %10.1f %9.1f %9.1f %11.1f (%.1f) %9.1f %6.1f %9.1f\n",
                 w.stages, x->stages.text, w.ranks, x->ranks.text, w.layers, x->layers.text,
                 (double)p->parameters[x->rank] * 1e-6, (double)m->of[TR_MEMORY_PARAMETERS] / MIB,
                 (double)m->of[TR_MEMORY_GRADIENTS] / MIB, (double)m->of[TR_MEMORY_OPTIMIZER] / MIB,
                 (double)m->of[TR_MEMORY_ACTIVATIONS] / MIB, (double)m->live_peak / MIB,
                 (double)m->of[TR_MEMORY_TRANSFERS] / MIB, (double)m->of[TR_MEMORY_DATA] / MIB,
                 (double)m->total / MIB);
}

static tr_status print_memory(const tr_run_plan *p) {
    widths w = {.stages = 6, .ranks = 7, .layers = 11};
    table t = {0};
    tr_status status = TR_OK;
    for (int r = 0; r < p->ranks; r++) TR_TRY_OUT(add_rank(p, r, &t));
    for (size_t k = 0; k < t.rows; k++) {
        widen(&w.stages, &t.row[k].stages);
        widen(&w.ranks, &t.row[k].ranks);
        widen(&w.layers, &t.row[k].layers);
    }
    (void)printf("%-*s %-*s %-*s %11s %10s %9s %9s %11s %s %9s %6s %9s\n", w.stages, "stage",
                 w.ranks, "ranks", w.layers, "layers", "M params", "parameters", "gradients",
                 "optimizer", "activations", "(peak)", "transfers", "data", "MiB");
    for (size_t k = 0; k < t.rows; k++) print_row(p, &t.row[k], w);
out:
    free(t.row);
    return status;
}

/* Prints for each batch of a run with train.batch_warmup what a step takes on the rank that has the
 * largest arena for it. */
static void print_batches(const tr_config *c, const tr_run_plan *p) {
    char work[32], until[32];
    if (p->steps == 1) return;
    (void)printf("\n%-10s %10s %13s %11s   step        bubble\n", "batch", "until step",
                 "micro-batches", "activations");
    for (int k = 0; k < p->steps; k++) {
        const tr_run_step *step = &p->step[k];
        size_t most = 0;
        for (int r = 0; r < step->set->ranks; r++)
            if (step->set->program[r].arena_bytes > most) most = step->set->program[r].arena_bytes;
        const bool last = step->until >= c->train.steps;
        (void)snprintf(until, sizeof until, "%lld",
                       (long long)(last ? c->train.steps : step->until));
        (void)printf("%-10lld %10s %13d %11.1f   %-12s %5.2f%%\n", (long long)step->batch, until,
                     step->set->program[0].micro_batches, (double)most / MIB,
                     tr_text_flop(step->makespan, "FLOP", work, sizeof work),
                     100 * fabs(step->makespan - step->ideal) / step->makespan);
    }
}

/* Returns the time of all steps of the run, in the unit of a step's. */
static double time_of_run(const tr_config *c, const tr_run_plan *p) {
    double sum = 0;
    int64_t done = 0;
    for (int k = 0; k < p->steps && done < c->train.steps; k++) {
        const int64_t end = p->step[k].until < c->train.steps ? p->step[k].until : c->train.steps;
        sum += (double)(end - done) * p->step[k].makespan;
        done = end;
    }
    return sum;
}

/* Returns a part in percent of the whole; a rest from rounding counts as 0. */
static double percent(double part, double whole) {
    const double share = 100 * part / whole;
    return fabs(share) < 1e-9 ? 0 : share;
}

static double share(const tr_run_plan *p, double time) {
    return percent(time, p->time->makespan);
}

static double bubble(const tr_run_plan *p, double total) {
    return percent(total - p->ideal, total);
}

static void print_step(const tr_run_plan *p) {
    const tr_simulation *t = p->time;
    double longest = 0;
    for (int r = 0; r < t->ranks; r++) longest = fmax(longest, t->time[r].span);
    char whole[32], span[32];
    (void)printf(
        "\nstep     %s of a rank from end to end, of which %.2f%% bubble; longest span %s, "
        "%.2f%%\n",
        tr_text_flop(t->makespan, "FLOP", whole, sizeof whole), bubble(p, t->makespan),
        tr_text_flop(longest, "FLOP", span, sizeof span), bubble(p, longest));
}

static void print_shares(const tr_run_plan *p) {
    const tr_simulation *t = p->time;
    (void)printf("%-8s %8s %8s %8s %8s %10s   in %% of the step\n", "pipeline", "busy", "fill",
                 "drain", "waiting", "imbalance");
    for (int r = 0; r < t->ranks; r++)
        (void)printf("%-8d %8.2f %8.2f %8.2f %8.2f %10.2f\n", r, share(p, t->time[r].busy),
                     share(p, t->time[r].fill), share(p, t->time[r].drain),
                     share(p, t->time[r].waiting), share(p, t->time[r].imbalance));
}

/* Prints the time of a step and of the run. given: FLOP/s by --rate, or 0. here: this machine has
 * the config's device. */
static tr_status print_speed(const tr_config *c, tr_device *device, const tr_run_plan *p,
                             double given, bool here) {
    char step[32], run[32], speed[32];
    double rate = given;
    bool busy = false;
    if (given == 0 && !here) {
        (void)printf("time     not known, since this machine has no device %s: give a rank's speed "
                     "with --rate GFLOP/s\n\n",
                     c->device.name);
        return TR_OK;
    }
    if (given == 0) {
        tr_status status = tr_rate_measure(c, device, tr_time_step, &rate, &busy);
        if (status == TR_ERR_FIT) {
            (void)printf("time     not measured, since one layer of the model does not fit here: "
                         "give a rank's speed with --rate GFLOP/s\n\n");
            return TR_OK;
        }
        TR_TRY(status);
        rate = cli_shared_rate(rate, device, p->ranks);
    }
    const double seconds = p->time->makespan / rate;
    const double all_steps = time_of_run(c, p) / rate;
    (void)printf("time     about %s a step, %.0f tok/s, %s for %lld steps: %s a rank (%s), "
                 "without transfers and optimizer\n",
                 cli_duration(seconds, step, sizeof step),
                 (double)(c->train.batch * c->model.context) / seconds,
                 cli_duration(all_steps, run, sizeof run), (long long)c->train.steps,
                 tr_text_flop(rate, "FLOP/s", speed, sizeof speed),
                 given != 0 ? "--rate"
                 : busy     ? "measured here, while other processes ran"
                            : "measured here");
    tr_step_traffic traffic;
    TR_TRY(cli_plan_traffic(c, p, rate, &traffic));
    const double with = traffic.makespan / rate;
    const double update = tr_traffic_update(&traffic) / rate;
    /* A smaller batch's transfers count in proportion to its step, and the optimizer as it is. */
    const double all = all_steps * (with - update) / seconds + update * (double)c->train.steps;
    (void)printf("in all   about %s a step, %.0f tok/s, %s for %lld steps, with transfers and "
                 "the optimizer\n\n",
                 cli_duration(with, step, sizeof step),
                 (double)(c->train.batch * c->model.context) / with,
                 cli_duration(all, run, sizeof run), (long long)c->train.steps);
    return TR_OK;
}

/* Prints what a plan with this mode of recompute takes and costs, and whether it fits; `step`: FLOP
 * of a step with none, which the first call sets. */
static void print_mode(const char *name, const tr_run_plan *p, bool fits, double *step) {
    const tr_memory_plan *m = &p->memory[tr_run_plan_largest(p)];
    char work[32];
    if (*step == 0) *step = p->time->makespan;
    (void)printf("%-10s %11.1f %9.1f   %-12s %+6.1f%%%s\n", name,
                 (double)m->of[TR_MEMORY_ACTIVATIONS] / MIB, (double)m->total / MIB,
                 tr_text_flop(p->time->makespan, "FLOP", work, sizeof work),
                 100 * (p->time->makespan / *step - 1), fits ? "" : "   too large");
}

/* Prints what each mode of train.recompute would take and cost, and the config's if it is a list.
 * A mode that cannot be planned has no line. */
static tr_status print_recompute(const tr_config *c, tr_device *device, const tr_run_plan *p) {
    const bool fits = tr_run_plan_fits_device(p);
    double step = 0;
    bool listed = true;
    tr_config *other;
    (void)printf("\n%-10s %11s %9s   step        of the rank that needs most\n", "recompute",
                 "activations", "MiB");
    TR_TRY(tr_calloc(1, sizeof *other, &other));
    *other = *c;
    tr_run_plan_limit_host(p, other);
    for (tr_recompute mode = TR_RECOMPUTE_NONE; mode < TR_RECOMPUTE_MODES; mode++) {
        const char *name = tr_recompute_name(mode);
        tr_run_plan *plan = NULL;
        if (strcmp(name, c->model.recompute) == 0) {
            listed = false;
            print_mode(name, p, fits, &step);
            continue;
        }
        (void)snprintf(other->model.recompute, sizeof other->model.recompute, "%s", name);
        tr_status status = tr_run_plan_make(other, device, &plan);
        if (status == TR_OK) print_mode(name, plan, tr_run_plan_fits(plan), &step);
        else tr_error_clear();
        tr_run_plan_destroy(plan);
    }
    if (listed) print_mode("as set", p, fits, &step);
    free(other);
    return TR_OK;
}

/* Fails with TR_ERR_FIT, because the rank that needs most exceeds the limit. host: what is said
 * about the host's memory before that, or "". */
static tr_status refuse_rank(const tr_config *c, tr_device *device, const tr_run_plan *p,
                             const char *host) {
    char parts[TR_MEMORY_TEXT], advice[512], more[32], limit[32];
    const int rank = tr_run_plan_largest(p);
    const tr_memory_plan *m = &p->memory[rank];
    list stages, layers;
    (void)fflush(stdout); /* the search for advice may take a while */
    TR_TRY(tr_advice_make(c, p, device, advice, sizeof advice));
    list_stages(p, rank, &stages, &layers);
    tr_memory_text(m, parts);
    return TR_FAIL(
        TR_ERR_FIT,
        "%s%sstage %s (rank %d) needs %s, %s more than the %s that a rank may use (%s); %s", host,
        host[0] ? "; and " : "", stages.text, rank, parts,
        tr_text_memory(m->total - p->limit, more, sizeof more),
        tr_text_memory(p->limit, limit, sizeof limit),
        c->device.memory ? "device.memory" : "free memory", advice);
}

static tr_status judge(const tr_config *c, tr_device *device, const tr_run_plan *p) {
    const int rank = tr_run_plan_largest(p);
    char host[512] = "";
    if (!tr_run_plan_fits_host(p)) TR_TRY(cli_plan_host_excess(c, p, host, sizeof host));
    if (!tr_run_plan_fits_device(p)) return refuse_rank(c, device, p, host);
    if (host[0]) return TR_FAIL(TR_ERR_FIT, "%s", host);
    (void)printf("\nfits     rank %d needs most: %.1f of %.1f MiB\n", rank,
                 (double)p->memory[rank].total / MIB, (double)p->limit / MIB);
    return TR_OK;
}

/* Opens the config's device. For a GPU that this machine does not have, opens the cpu device, and
 * the plan has the scratch of its operators. */
static tr_status open_device(const tr_config *c, const tr_device_options *options, bool *here,
                             tr_device **out) {
    tr_status status = tr_device_open(c->device.name, options, out);
    *here = status == TR_OK;
    if (status != TR_ERR_DEVICE || !tr_config_on_gpu(c)) return status;
    char why[1024];
    (void)snprintf(why, sizeof why, "%s", tr_error_message());
    if (!c->device.memory)
        return TR_FAIL(TR_ERR_DEVICE,
                       "%s; to plan for GPUs of another machine, set device.memory to the memory "
                       "of a rank there",
                       why);
    return tr_device_open("cpu", options, out);
}

tr_status cli_plan(cli_context *cli, int argc, char **argv) {
    (void)cli;
    tr_config config;
    tr_device *device = NULL;
    tr_run_plan *plan = NULL;
    tr_status status = TR_OK;
    plan_request asked;
    bool here;
    TR_TRY(load(argc, argv, &config, &asked));
    if (asked.ranks == 0) TR_TRY(tr_config_check(&config, 0));
    /* Scratch depends on the threads that the operators are prepared for. */
    int64_t ranks = config.parallel.pp * config.parallel.tp * config.parallel.dp;
    if (asked.ranks > 0) ranks = asked.ranks;
    int64_t threads = config.train.threads, cores = tr_cores_count();
    if (threads == 0) threads = cores > ranks ? cores / ranks : 1;
    tr_device_options options = {.threads = (int)threads};
    TR_TRY_OUT(open_device(&config, &options, &here, &device));
    if (asked.ranks > 0) {
        status = cli_plan_search(&config, device, asked.ranks, asked.kept, here, asked.rate);
        goto out;
    }
    TR_TRY_OUT(tr_request_recompute(&config, device));
    TR_TRY_OUT(tr_run_plan_make(&config, device, &plan));
    print_head(&config, plan, here);
    TR_TRY_OUT(print_memory(plan));
    cli_plan_host(&config, plan);
    print_batches(&config, plan);
    print_step(plan);
    TR_TRY_OUT(print_speed(&config, device, plan, asked.rate, here));
    print_shares(plan);
    TR_TRY_OUT(print_recompute(&config, device, plan));
    TR_TRY_OUT(judge(&config, device, plan));
out:
    tr_run_plan_destroy(plan);
    if (device) tr_device_close(device);
    return status;
}
