#include "train/trace.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/output.h"
#include "pipeline/draw/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUND_TRIPS = 8 };

tr_status tr_tracing_clock(tr_world *world, int64_t *offset_ns) {
    int rank = tr_world_rank(world), size = tr_world_size(world);
    *offset_ns = 0;
    for (int peer = 1; peer < size; peer++) {
        int64_t fastest = INT64_MAX, best = 0;
        for (int k = 0; k < ROUND_TRIPS; k++) {
            int64_t ping = 0, pong = 0;
            /* All ranks are ready now, so the ping is answered at once. */
            TR_TRY(tr_world_barrier(world));
            int64_t begin = tr_now_ns();
            TR_TRY(tr_world_broadcast(world, 0, &ping, sizeof ping));
            pong = tr_now_ns();
            TR_TRY(tr_world_broadcast(world, peer, &pong, sizeof pong));
            int64_t trip = tr_now_ns() - begin;
            if (rank == 0 && trip < fastest) {
                fastest = trip;
                best = begin + trip / 2 - pong;
            }
        }
        if (best <= fastest / 2 && best >= -fastest / 2) best = 0;
        TR_TRY(tr_world_broadcast(world, 0, &best, sizeof best));
        if (rank == peer) *offset_ns = best;
    }
    return TR_OK;
}

/* --- gathering -------------------------------------------------------------------------------- */

/* The header of a rank's data, followed by the world ranks of its line [pp] and its entries. */
typedef struct trace_header {
    int32_t pp_rank, unused;
    int64_t entries;
} trace_header;

/* One rank's part of the gathered data. */
typedef struct trace_part {
    int pp_rank;
    const int32_t *line; /* [pp] */
    const tr_record_entry *entry;
    size_t entries;
} trace_part;

typedef struct tracer {
    int ranks, pp;
    const tr_program_set *programs;
    tr_simulated_links links; /* of the planned steps */
    trace_part *part;         /* [ranks] */
    int steps;                /* highest + 1 */
    int messages;             /* highest number in a step + 1 */
    int64_t first_step;       /* number of step 0 in the run */
    int64_t zero_ns;
    int64_t *begin_ns; /* [steps]: of each step */
} tracer;

static tr_status pack(const tr_mesh *mesh, const tr_record *record, int64_t offset_ns, void **out,
                      size_t *bytes) {
    size_t pp = (size_t)mesh->degree[TR_AXIS_PP];
    size_t line_bytes = (pp + pp % 2) * sizeof(int32_t); /* keeps the entries aligned to 8 bytes */
    char *packed = NULL;
    *bytes = sizeof(trace_header) + line_bytes + record->count * sizeof *record->entry;
    TR_TRY(tr_calloc(*bytes, 1, &packed));
    trace_header header = {.pp_rank = mesh->index[TR_AXIS_PP], .entries = (int64_t)record->count};
    memcpy(packed, &header, sizeof header);
    tr_mesh_line(mesh, TR_AXIS_PP, (int *)(void *)(packed + sizeof header));
    tr_record_entry *entry = (tr_record_entry *)(void *)(packed + sizeof header + line_bytes);
    for (size_t k = 0; k < record->count; k++) {
        entry[k] = record->entry[k];
        entry[k].start_ns += offset_ns;
        entry[k].end_ns += offset_ns;
    }
    *out = packed;
    return TR_OK;
}

static void unpack(tracer *x, const char *all, const size_t *sizes) {
    for (int r = 0; r < x->ranks; r++) {
        trace_header header;
        memcpy(&header, all, sizeof header);
        size_t entries = (size_t)header.entries, bytes = entries * sizeof(tr_record_entry);
        x->part[r] =
            (trace_part){.pp_rank = header.pp_rank,
                         .line = (const int32_t *)(const void *)(all + sizeof header),
                         .entry = (const tr_record_entry *)(const void *)(all + sizes[r] - bytes),
                         .entries = entries};
        all += sizes[r];
    }
}

/* Finds the numbers of steps and messages, and when steps begin. */
static tr_status find_steps(tracer *x) {
    x->zero_ns = INT64_MAX;
    for (int r = 0; r < x->ranks; r++)
        for (size_t k = 0; k < x->part[r].entries; k++) {
            const tr_record_entry *entry = &x->part[r].entry[k];
            if (entry->step >= x->steps) x->steps = entry->step + 1;
            if (entry->message >= x->messages) x->messages = entry->message + 1;
            if (entry->start_ns < x->zero_ns) x->zero_ns = entry->start_ns;
        }
    TR_TRY(tr_calloc((size_t)x->steps, sizeof *x->begin_ns, &x->begin_ns));
    for (int s = 0; s < x->steps; s++) x->begin_ns[s] = INT64_MAX;
    for (int r = 0; r < x->ranks; r++)
        for (size_t k = 0; k < x->part[r].entries; k++) {
            const tr_record_entry *entry = &x->part[r].entry[k];
            if (entry->start_ns < x->begin_ns[entry->step])
                x->begin_ns[entry->step] = entry->start_ns;
        }
    return TR_OK;
}

static double seconds_of(const tracer *x, int64_t ns) {
    return 1e-9 * (double)(ns - x->zero_ns);
}

static tr_track track_of(tr_action_type type) {
    return type == TR_ACTION_SEND   ? TR_TRACK_SEND
           : type == TR_ACTION_RECV ? TR_TRACK_RECV
                                    : TR_TRACK_COMPUTE;
}

static tr_status make_timeline(const tracer *x, const char *title, tr_timeline **out) {
    const tr_program *first = &x->programs->program[0];
    TR_TRY(tr_timeline_create(title, x->ranks, first->stages, first->micro_batches, 1, out));
    (*out)->first_step = x->first_step;
    return TR_OK;
}

static tr_status make_measured(const tracer *x, tr_timeline **out) {
    TR_TRY(make_timeline(x, "measured", out));
    for (int r = 0; r < x->ranks; r++) {
        const trace_part *part = &x->part[r];
        for (size_t k = 0; k < part->entries; k++) {
            const tr_record_entry *entry = &part->entry[k];
            tr_track track = track_of((tr_action_type)entry->kind);
            bool transfer = track != TR_TRACK_COMPUTE;
            TR_TRY(tr_timeline_add(
                *out,
                (tr_bar){.rank = r,
                         .track = track,
                         .action = {.stage = entry->stage,
                                    .type = (tr_action_type)entry->kind,
                                    .micro_batch = entry->micro_batch,
                                    .gradient = entry->gradient},
                         .peer = transfer ? part->line[entry->peer] : -1,
                         .message = transfer ? entry->step * x->messages + entry->message : -1,
                         .step = entry->step,
                         .start = seconds_of(x, entry->start_ns),
                         .end = seconds_of(x, entry->end_ns)}));
        }
    }
    return tr_timeline_finish(*out, 0);
}

/* --- the plan --------------------------------------------------------------------------------- */

/* Measures the mean times of each stage's actions in a step. A B counts as I, unless the step has I
 * and W, too. */
static tr_status measure_costs(const tracer *x, int step, tr_stage_cost *cost) {
    enum { KINDS = TR_COMPUTE_TYPES };
    int stages = x->programs->program[0].stages;
    double *sum = NULL, *count = NULL;
    size_t cells = (size_t)stages * KINDS;
    TR_TRY(tr_calloc(2 * cells, sizeof *sum, &sum));
    count = sum + cells;
    for (int r = 0; r < x->ranks; r++)
        for (size_t k = 0; k < x->part[r].entries; k++) {
            const tr_record_entry *entry = &x->part[r].entry[k];
            if (entry->step != step || entry->kind >= KINDS) continue;
            size_t cell = (size_t)entry->stage * KINDS + (size_t)entry->kind;
            sum[cell] += 1e-9 * (double)(entry->end_ns - entry->start_ns);
            count[cell] += !entry->goes_on;
        }
    for (int s = 0; s < stages; s++) {
        double mean[KINDS];
        for (int k = 0; k < KINDS; k++) {
            size_t cell = (size_t)s * KINDS + (size_t)k;
            mean[k] = count[cell] > 0 ? sum[cell] / count[cell] : 0;
        }
        bool split = mean[TR_ACTION_I] > 0;
        cost[s] = (tr_stage_cost){.f = mean[TR_ACTION_F],
                                  .i = split ? mean[TR_ACTION_I] : mean[TR_ACTION_B],
                                  .w = split ? mean[TR_ACTION_W] : 0};
    }
    free(sum);
    return TR_OK;
}

static int compare_sends(const void *a, const void *b) {
    const tr_bar *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->peer != y->peer) return x->peer < y->peer ? -1 : 1;
    return (x->message > y->message) - (x->message < y->message);
}

/* Finds the seconds of the fastest message from its SEND to the end of its RECV; 0 without
 * messages. */
static tr_status fastest_message(const tr_timeline *measured, double *out) {
    tr_bar *sends = NULL;
    size_t n = 0;
    double fastest = INFINITY;
    TR_TRY(tr_calloc(measured->count, sizeof *sends, &sends));
    for (size_t k = 0; k < measured->count; k++)
        if (measured->bar[k].track == TR_TRACK_SEND) sends[n++] = measured->bar[k];
    if (n) qsort(sends, n, sizeof *sends, compare_sends);
    for (size_t k = 0; k < measured->count; k++) {
        const tr_bar *receive = &measured->bar[k];
        if (receive->track != TR_TRACK_RECV || !n) continue;
        tr_bar key = {.rank = receive->peer, .peer = receive->rank, .message = receive->message};
        const tr_bar *send = bsearch(&key, sends, n, sizeof *sends, compare_sends);
        if (send) fastest = fmin(fastest, fmax(receive->end - send->start, 0));
    }
    free(sends);
    *out = isfinite(fastest) ? fastest : 0;
    return TR_OK;
}

/* Copies the line's plan of a step for every world rank. */
static tr_status copy_plan(const tracer *x, const tr_timeline *line, int step, double begin,
                           tr_timeline *planned) {
    for (int r = 0; r < x->ranks; r++)
        for (size_t k = 0; k < line->count; k++) {
            tr_bar bar = line->bar[k];
            if (bar.rank != x->part[r].pp_rank) continue;
            bar.rank = r;
            bar.step = step;
            if (bar.peer >= 0) {
                bar.peer = x->part[r].line[bar.peer];
                bar.message += step * x->messages;
            }
            bar.start += begin;
            bar.end += begin;
            TR_TRY(tr_timeline_add(planned, bar));
        }
    return TR_OK;
}

/* Plans a step that begins with the measured one, but not before *free_at, and sets *free_at to its
 * end. */
static tr_status plan_step(const tracer *x, int step, double *free_at, tr_timeline *planned) {
    tr_status status = TR_OK;
    tr_stage_cost *cost = NULL;
    tr_simulation *simulation = NULL;
    tr_timeline *line = NULL;
    double begin = fmax(seconds_of(x, x->begin_ns[step]), *free_at);
    TR_TRY_OUT(tr_calloc((size_t)x->programs->program[0].stages, sizeof *cost, &cost));
    TR_TRY_OUT(measure_costs(x, step, cost));
    TR_TRY_OUT(tr_simulate(x->programs, cost, &x->links, &simulation));
    TR_TRY_OUT(tr_timeline_of_simulation("planned", x->programs, simulation, 1, &line));
    TR_TRY_OUT(copy_plan(x, line, step, begin, planned));
    *free_at = begin + line->makespan;
out:
    tr_timeline_destroy(line);
    tr_simulation_destroy(simulation);
    free(cost);
    return status;
}

static tr_status make_planned(tracer *x, const tr_timeline *measured, tr_timeline **out) {
    double free_at = 0;
    TR_TRY(fastest_message(measured, &x->links.near.latency));
    TR_TRY(make_timeline(x, "planned", out));
    for (int s = 0; s < x->steps; s++)
        if (x->begin_ns[s] != INT64_MAX) TR_TRY(plan_step(x, s, &free_at, *out));
    return tr_timeline_finish(*out, 0);
}

static tr_status make_timelines(tracer *x, const char *all, const size_t *sizes,
                                tr_timeline **measured, tr_timeline **planned) {
    TR_TRY(tr_calloc((size_t)x->ranks, sizeof *x->part, &x->part));
    unpack(x, all, sizes);
    TR_TRY(find_steps(x));
    if (!x->steps) return TR_OK;
    TR_TRY(make_measured(x, measured));
    return make_planned(x, *measured, planned);
}

tr_status tr_tracing_gather(tr_world *world, const tr_mesh *mesh, const tr_program_set *programs,
                            const tr_simulated_links *links, const tr_record *record,
                            int64_t first_step, tr_timeline **measured, tr_timeline **planned) {
    tr_status status = TR_OK;
    void *mine = NULL, *all = NULL;
    size_t bytes = 0, *sizes = NULL;
    int64_t offset_ns = 0;
    tracer x = {.ranks = tr_world_size(world),
                .pp = mesh->degree[TR_AXIS_PP],
                .programs = programs,
                .links = {.sum = links->sum, .gather = links->gather, .copy = links->copy},
                .first_step = first_step};
    *measured = *planned = NULL;
    TR_TRY(tr_tracing_clock(world, &offset_ns));
    status = pack(mesh, record, offset_ns, &mine, &bytes);
    if (status == TR_OK) status = tr_calloc((size_t)x.ranks, sizeof *sizes, &sizes);
    /* All ranks agree first, so that they do not wait for a rank without memory. */
    TR_TRY_OUT(tr_world_agree(world, status));
    TR_TRY_OUT(tr_world_gather_all_v(world, mine, bytes, &all, sizes));
    if (tr_world_rank(world) == 0) TR_TRY_OUT(make_timelines(&x, all, sizes, measured, planned));
out:
    if (status != TR_OK) {
        tr_timeline_destroy(*measured);
        tr_timeline_destroy(*planned);
        *measured = *planned = NULL;
    }
    free(x.begin_ns);
    free(x.part);
    free(sizes);
    free(all);
    free(mine);
    return status;
}

tr_status tr_tracing_write(const char *path, const tr_timeline *measured,
                           const tr_timeline *planned) {
    const tr_timeline *both[] = {planned, measured};
    TR_TRY(tr_draw_check(both, 2));
    FILE *file;
    TR_TRY(tr_output_open(path, &file));
    return tr_output_close(path, file, tr_draw_trace(both, 2, file));
}
