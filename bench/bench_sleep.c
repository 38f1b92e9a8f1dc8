/* Compares every schedule on real ranks with its simulation: the runner executes the lowered
 * program over MPI, and stages sleep instead of computing. An action lasts from the later of the
 * planned end of its rank's last action and the last wait of the runner (for an input, or for the
 * end of a send) until its duration is over. The latency of a transfer is measured first, by the
 * same ranks between sleeps. Edges carry tensors that their readers check.
 *
 *   mpirun --bind-to none -n P build/release/bench/bench_sleep [key=value ...] [SCHEDULE ...]
 * keys: m=MICRO_BATCHES (4 P), f= i= w=MILLISECONDS of an action (10), steps=N (3); without a
 * schedule all, those with a choice with two stages a rank. Prints the latency and one row of a
 * table for each: simulated and median measured makespan, their ratio, that of the worst step. */
#include "base/memory.h"
#include "bench/measure.h"
#include "pipeline/orders/make.h"
#include "pipeline/program/run.h"
#include "pipeline/program/simulate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { EDGE_FLOATS = 1024, ROUNDS = 25, MOST_STEPS = 64 };
static const double WAITED_S = 20e-6; /* an instruction this long has waited for another rank */
static const double LEG_S = 10e-3;    /* the sleep in front of a measured transfer */
static const double START_S = 5e-3;   /* from the agreement on a start to the start */

typedef struct settings {
    int micro_batches, steps;
    double f, i, w; /* seconds of an action of one stage */
    const char **schedule;
    int schedules;
} settings;

/* A rank and the times that it sleeps. */
typedef struct bench {
    settings o;
    tr_world *world;
    tr_device *device;
    int ranks, rank;
    double latency;       /* seconds of a transfer */
    double planned;       /* end of this rank's last action */
    double began, waited; /* of the instruction being observed; end of the last wait */
} bench;

static void sleep_until(double when) {
    struct timespec t = {.tv_sec = (time_t)when};
    t.tv_nsec = (long)((when - (double)t.tv_sec) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) continue;
}

static void act(bench *b, double seconds) {
    double start = b->waited > b->planned ? b->waited : b->planned;
    b->planned = start + seconds;
    sleep_until(b->planned);
}

static void observe(void *context, const tr_instr *instr, bool begin) {
    bench *b = context;
    double t = tr_now_s();
    if (begin) b->began = t;
    else if (instr->memory < 0 && t - b->began > WAITED_S) b->waited = t;
}

/* --- stages that sleep ------------------------------------------------------------------------ */

typedef struct sleeping_stage {
    tr_stage stage;
    bench *b;
    const tr_stage_table *t;
} sleeping_stage;

static float value_of(int stage, int micro_batch, bool gradient) {
    return (float)(2 * (stage * 10000 + micro_batch) + gradient);
}

static void fill(void *to, float value) {
    float *x = to;
    for (int k = 0; k < EDGE_FLOATS; k++) x[k] = value;
}

static tr_status expect(const void *from, float value) {
    const float *x = from;
    for (int k = 0; k < EDGE_FLOATS; k++)
        if (x[k] != value)
            return TR_FAIL(TR_ERR_INTERNAL, "a stage reads %g where %g was sent", (double)x[k],
                           (double)value);
    return TR_OK;
}

/* Reads its input, sleeps, writes its output. Stage k's edges are k - 1 (in) and k (out). */
static tr_status forward(tr_stage *stage, const tr_stage_io *io) {
    const sleeping_stage *s = (const sleeping_stage *)stage;
    int k = stage->index;
    if (k > 0) TR_TRY(expect(io->in[k - 1], value_of(k - 1, io->micro_batch, false)));
    act(s->b, s->b->o.f);
    if (k + 1 < s->t->stages) fill(io->out[k], value_of(k, io->micro_batch, false));
    return TR_OK;
}

static tr_status backward_for(tr_stage *stage, const tr_stage_io *io, double seconds) {
    const sleeping_stage *s = (const sleeping_stage *)stage;
    int k = stage->index;
    if (k + 1 < s->t->stages) TR_TRY(expect(io->dout[k], value_of(k + 1, io->micro_batch, true)));
    act(s->b, seconds);
    if (k > 0) fill(io->din[k - 1], value_of(k, io->micro_batch, true));
    return TR_OK;
}

static tr_status grad_input(tr_stage *stage, const tr_stage_io *io) {
    return backward_for(stage, io, ((const sleeping_stage *)stage)->b->o.i);
}

static tr_status grad_weight(tr_stage *stage, const tr_stage_io *io) {
    const sleeping_stage *s = (const sleeping_stage *)stage;
    (void)io;
    act(s->b, s->b->o.w);
    return TR_OK;
}

static tr_status backward(tr_stage *stage, const tr_stage_io *io) {
    const settings *o = &((const sleeping_stage *)stage)->b->o;
    return backward_for(stage, io, o->i + o->w);
}

static const tr_stage_ops sleeping_ops = {
    .forward = forward, .grad_input = grad_input, .grad_weight = grad_weight, .backward = backward};

/* --- the latency of a transfer ---------------------------------------------------------------- */

/* Measures half of a round: one rank sleeps, sends and sleeps again, as in a pipeline; the other
 * takes the message, sleeps and sends back. Sleeps that the other rank waits for are subtracted. */
static tr_status exchange(bench *b, tr_channel *to, tr_channel *from, float *tensor, bool first,
                          double *seconds) {
    tr_stream *stream = tr_device_compute(b->device);
    const size_t bytes = EDGE_FLOATS * sizeof(float);
    double taken = tr_now_s(), planned = taken;
    for (int k = 0; k < ROUNDS; k++) {
        int64_t ticket;
        if (!first) TR_TRY(tr_channel_take(from, stream, tensor, bytes));
        if (!first) taken = tr_now_s();
        planned = taken + LEG_S;
        sleep_until(planned);
        TR_TRY(tr_channel_send(to, stream, tensor, bytes, &ticket));
        sleep_until(planned + LEG_S / 2);
        if (first) {
            TR_TRY(tr_channel_take(from, stream, tensor, bytes));
            taken = tr_now_s();
            seconds[k] = (taken - planned - LEG_S) / 2;
        }
        TR_TRY(tr_channel_wait_sent(to, stream, ticket));
    }
    return TR_OK;
}

/* Measures all pairs of ranks at once, as in a pipeline, and takes the mean of the pairs'
 * medians. */
static tr_status measure_latency(bench *b) {
    tr_status status = TR_OK;
    tr_channel *to = NULL, *from = NULL;
    float *tensor = NULL;
    double seconds[ROUNDS], mine = 0, *all = NULL;
    bool first = b->rank % 2 == 0;
    int peer = first ? b->rank + 1 : b->rank - 1;
    TR_TRY_OUT(tr_calloc((size_t)b->ranks, sizeof *all, &all));
    TR_TRY_OUT(tr_calloc(EDGE_FLOATS, sizeof *tensor, &tensor));
    TR_TRY_OUT(tr_world_barrier(b->world));
    if (peer < b->ranks) {
        const size_t bytes = EDGE_FLOATS * sizeof(float);
        TR_TRY_OUT(tr_channel_open(b->world, b->device, peer, true, bytes, &to));
        TR_TRY_OUT(tr_channel_open(b->world, b->device, peer, false, bytes, &from));
        TR_TRY_OUT(exchange(b, to, from, tensor, first, seconds));
        if (first) mine = bench_median(seconds, ROUNDS);
    }
    TR_TRY_OUT(tr_world_gather_all(b->world, &mine, all, sizeof mine));
    for (int r = 0; r + 1 < b->ranks; r += 2) b->latency += all[r] / (b->ranks / 2);
out:
    tr_channel_close(to);
    tr_channel_close(from);
    if (status == TR_OK) status = tr_world_barrier(b->world);
    free(tensor);
    free(all);
    return status;
}

/* --- one schedule ----------------------------------------------------------------------------- */

static tr_status make_table(const bench *b, int stages, tr_stage_table *t) {
    const size_t bytes = EDGE_FLOATS * sizeof(float);
    *t = (tr_stage_table){.stages = stages, .edges = stages - 1};
    TR_TRY(tr_calloc((size_t)stages, sizeof *t->cost, &t->cost));
    TR_TRY(tr_calloc((size_t)stages, sizeof *t->edge, &t->edge));
    for (int k = 0; k < stages; k++) {
        t->cost[k] = (tr_stage_cost){.f = b->o.f, .i = b->o.i, .w = b->o.w};
        t->edge[k] = (tr_edge){.from = k, .to = k + 1, .bytes = bytes, .life = TR_LIFE_FW};
    }
    return TR_OK;
}

/* Runs one step and measures from a start that all ranks agree on to the last rank's end. */
static tr_status take_step(bench *b, tr_runner *runner, double *makespan) {
    double start = 0, *all;
    TR_TRY(tr_calloc((size_t)b->ranks, sizeof *all, &all));
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_world_barrier(b->world));
    start = tr_now_s() + START_S;
    TR_TRY_OUT(tr_world_broadcast(b->world, 0, &start, sizeof start));
    b->planned = start;
    b->waited = 0;
    sleep_until(start);
    TR_TRY_OUT(tr_runner_step(runner));
    double end = tr_now_s();
    TR_TRY_OUT(tr_world_gather_all(b->world, &end, all, sizeof end));
    *makespan = 0;
    for (int r = 0; r < b->ranks; r++)
        if (all[r] - start > *makespan) *makespan = all[r] - start;
out:
    free(all);
    return status;
}

static tr_status take_steps(bench *b, const tr_schedule *s, const tr_stage_table *t,
                            const tr_program_set *set, double *makespan) {
    tr_status status = TR_OK;
    tr_links *links = NULL;
    tr_runner *runner = NULL;
    tr_stage **stages = NULL;
    sleeping_stage *stage = NULL;
    void *arena = NULL;
    int *line = NULL;
    const tr_program *program = &set->program[b->rank];
    TR_TRY_OUT(tr_calloc((size_t)b->ranks, sizeof *line, &line));
    TR_TRY_OUT(tr_calloc((size_t)s->stages, sizeof(tr_stage *), &stages));
    TR_TRY_OUT(tr_calloc((size_t)s->stages, sizeof *stage, &stage));
    for (int r = 0; r < b->ranks; r++) line[r] = r;
    for (int k = 0; k < s->stages; k++) {
        stage[k] = (sleeping_stage){.stage = {.ops = &sleeping_ops, .index = k}, .b = b, .t = t};
        stages[k] = s->rank_of[k] == b->rank ? &stage[k].stage : NULL;
    }
    TR_TRY_OUT(tr_links_open(b->world, b->device, t, s->rank_of, line, b->ranks, b->rank, &links));
    TR_TRY_OUT(tr_device_alloc(b->device, TR_MEMORY_ACTIVATIONS, program->arena_bytes, &arena));
    tr_runner_options options = {.device = b->device,
                                 .links = links,
                                 .program = program,
                                 .stages = stages,
                                 .arena = arena,
                                 .hooks = {.observe = observe, .context = b}};
    TR_TRY_OUT(tr_runner_create(&options, &runner));
    for (int k = 0; k < b->o.steps; k++) TR_TRY_OUT(take_step(b, runner, &makespan[k]));
out:
    tr_runner_destroy(runner);
    tr_links_close(links);
    if (arena) tr_device_free(b->device, arena);
    free(stage);
    free(stages);
    free(line);
    return status;
}

static tr_status make_schedule(const bench *b, const char *name, tr_schedule **out) {
    bool chosen =
        !strcmp(name, "auto") || !strcmp(name, "bfs") || !strncmp(name, "interleaved", 11);
    tr_schedule_request request = {
        .name = name, .ranks = b->ranks, .micro_batches = b->o.micro_batches, .chunks = 2};
    if (!chosen) { /* as many as it is made with */
        request.chunks = 0;
        TR_TRY(tr_schedule_make(&request, out));
        request.chunks = (*out)->stages / b->ranks;
        tr_schedule_destroy(*out);
    }
    double v = request.chunks;
    request.share = (tr_stage_cost){.f = v * b->o.f, .i = v * b->o.i, .w = v * b->o.w};
    request.latency = b->latency;
    if (!strcmp(name, "auto")) {
        request.share.m_b = 1;
        request.share.m_w = 0.94;
        request.cap = b->ranks;
    }
    TR_TRY(tr_schedule_make(&request, out));
    return TR_OK;
}

static tr_status measure(bench *b, const char *name) {
    tr_status status = TR_OK;
    tr_schedule *s = NULL;
    tr_stage_table t = {0};
    tr_program_set *set = NULL;
    tr_simulation *simulation = NULL;
    double makespan[MOST_STEPS];
    TR_TRY_OUT(make_schedule(b, name, &s));
    TR_TRY_OUT(make_table(b, s->stages, &t));
    TR_TRY_OUT(tr_lower(s, &t, &set));
    TR_TRY_OUT(
        tr_simulate(set, t.cost, &(tr_simulated_links){.near.latency = b->latency}, &simulation));
    TR_TRY_OUT(take_steps(b, s, &t, set, makespan));
    double middle = bench_median(makespan, b->o.steps), planned = simulation->makespan;
    if (b->rank == 0)
        printf("| %s | %d | %d | %d | %.1f | %.1f | %.4f | %.4f |\n", name, b->ranks,
               b->o.micro_batches, s->stages / b->ranks, planned * 1e3, middle * 1e3,
               middle / planned, makespan[b->o.steps - 1] / planned);
out:
    tr_simulation_destroy(simulation);
    tr_program_set_destroy(set);
    free(t.cost);
    free(t.edge);
    tr_schedule_destroy(s);
    return status;
}

/* --- the run ---------------------------------------------------------------------------------- */

static tr_status run(bench *b) {
    bool trains;
    if (tr_world_host_rank(b->world) != b->rank)
        return TR_FAIL(TR_ERR_CONFIG, "the ranks' clocks are compared: start them on one host");
    TR_TRY(measure_latency(b));
    if (b->rank == 0) printf("latency %.1f us\n", b->latency * 1e6);
    for (int k = 0; k < b->o.schedules; k++) TR_TRY(measure(b, b->o.schedule[k]));
    if (b->o.schedules) return TR_OK;
    const char *name;
    for (int k = 0; (name = tr_schedule_name(k, &trains)); k++)
        if (trains) TR_TRY(measure(b, name));
    return TR_OK;
}

static tr_status parse(settings *o, int argc, char **argv) {
    TR_TRY(tr_calloc((size_t)argc, sizeof(char *), &o->schedule));
    for (int k = 1; k < argc; k++) {
        char *value = strchr(argv[k], '=');
        size_t length = value ? (size_t)(value - argv[k]) : 0;
        double number = value ? strtod(value + 1, NULL) : 0;
        if (!value) o->schedule[o->schedules++] = argv[k];
        else if (number <= 0 || number > 1e6)
            return TR_FAIL(TR_ERR_CONFIG, "%s: the value must be above 0 and at most 1e6", argv[k]);
        else if (length == 1 && *argv[k] == 'm') o->micro_batches = (int)number;
        else if (length == 1 && *argv[k] == 'f') o->f = number * 1e-3;
        else if (length == 1 && *argv[k] == 'i') o->i = number * 1e-3;
        else if (length == 1 && *argv[k] == 'w') o->w = number * 1e-3;
        else if (length == 5 && !strncmp(argv[k], "steps", 5) && number <= (int)MOST_STEPS)
            o->steps = (int)number;
        else
            return TR_FAIL(TR_ERR_CONFIG, "%s: the keys are m, f, i, w and steps (at most %d)",
                           argv[k], (int)MOST_STEPS);
    }
    return TR_OK;
}

int main(int argc, char **argv) {
    bench b = {.o = {.steps = 3, .f = 10e-3, .i = 10e-3, .w = 10e-3}};
    tr_device_options device = {.threads = 1};
    /* Sleeps then end within a microsecond of their time. */
    (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    tr_status status = parse(&b.o, argc, argv);
    if (status == TR_OK) status = tr_world_open_mpi(&b.world);
    if (status == TR_OK) status = tr_device_open("ref", &device, &b.device);
    if (status == TR_OK) {
        b.ranks = tr_world_size(b.world);
        b.rank = tr_world_rank(b.world);
        if (!b.o.micro_batches) b.o.micro_batches = 4 * b.ranks;
        status = run(&b);
    }
    if (status != TR_OK) fprintf(stderr, "bench_sleep: %s\n", tr_error_message());
    if (status != TR_OK && b.world) tr_world_abort(b.world, (int)status);
    if (b.device) tr_device_close(b.device);
    tr_world_close(b.world);
    free(b.o.schedule);
    return (int)status;
}
