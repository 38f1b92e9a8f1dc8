/* Measures whether transfers overlap compute: GPipe on two ranks (threads, local transport), eight
 * micro-batches, stages that sleep for F and for B = 2 F, every message delayed by F / 2. The step
 * should take (m + 1) (F + B) plus two delays, not m delays. Prints measured and simulated
 * milliseconds with and without the delay.
 *
 * Then the sums of gradients: two data ranks with one stage of eight layers and two micro-batches;
 * B takes 4 ms a layer, and each layer is a bucket. Every sum is delayed by 3 ms, so all but the
 * last can be hidden. Prints what the delays cost, and their share of all delays but the last. Then
 * the same of gathers of updated parameters, each delayed likewise: the first F, of 4 ms a layer,
 * can hide all but the first. */
#include "base/clock.h"
#include "pipeline/program/run.h"
#include "pipeline/program/simulate.h"
#include "tests/unit/support/generate_order.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RANKS = 2, MICRO_BATCHES = 8, STEPS = 5, BYTES = 4096 };
static const double F = 4e-3;

static void rest(double seconds) {
    struct timespec t = {.tv_nsec = (long)(seconds * 1e9)};
    (void)nanosleep(&t, NULL);
}

static tr_status forward(tr_stage *stage, const tr_stage_io *io) {
    (void)stage;
    (void)io;
    rest(F);
    return TR_OK;
}

static tr_status backward(tr_stage *stage, const tr_stage_io *io) {
    (void)stage;
    (void)io;
    rest(2 * F);
    return TR_OK;
}

static const tr_stage_ops sleeping_ops = {.forward = forward, .backward = backward};

static double constant_delay(void *context, int group, size_t bytes) {
    (void)group;
    (void)bytes;
    return *(const double *)context;
}

typedef struct rank_state {
    tr_world *world;
    const tr_program_set *set;
    const tr_stage_table *table;
    const tr_schedule *schedule;
    int rank;
    double delay, step_s; /* best step */
    tr_status status;
} rank_state;

static tr_status run_rank(rank_state *r) {
    tr_status status = TR_OK;
    tr_device *device = NULL;
    tr_links *links = NULL;
    tr_runner *runner = NULL;
    void *arena = NULL;
    const int line[RANKS] = {0, 1};
    tr_device_options device_options = {.threads = 1};
    tr_stage stage = {.ops = &sleeping_ops, .index = r->rank}, *stages[RANKS] = {NULL, NULL};
    stages[r->rank] = &stage;
    if (r->delay > 0) tr_world_set_delay(r->world, constant_delay, &r->delay);
    TR_TRY_OUT(tr_device_open("ref", &device_options, &device));
    TR_TRY_OUT(tr_links_open(r->world, device, r->table, r->schedule->rank_of, line, RANKS, r->rank,
                             &links));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_ACTIVATIONS, r->set->program[r->rank].arena_bytes,
                               &arena));
    tr_runner_options options = {.device = device,
                                 .links = links,
                                 .program = &r->set->program[r->rank],
                                 .stages = stages,
                                 .arena = arena};
    TR_TRY_OUT(tr_runner_create(&options, &runner));
    r->step_s = 1e9;
    for (int step = 0; step < STEPS; step++) {
        TR_TRY_OUT(tr_world_barrier(r->world));
        double start = tr_now_s();
        TR_TRY_OUT(tr_runner_step(runner));
        TR_TRY_OUT(tr_world_barrier(r->world));
        if (tr_now_s() - start < r->step_s) r->step_s = tr_now_s() - start;
    }
out:
    tr_runner_destroy(runner);
    tr_links_close(links);
    if (arena) tr_device_free(device, arena);
    if (device) tr_device_close(device);
    return status;
}

static void *rank_main(void *argument) {
    rank_state *r = argument;
    r->status = run_rank(r);
    if (r->status != TR_OK) {
        fprintf(stderr, "bench_overlap: rank %d: %s\n", r->rank, tr_error_message());
        tr_world_abort(r->world, (int)r->status);
    }
    tr_world_close(r->world);
    return NULL;
}

static tr_status measure(double delay) {
    tr_status status = TR_OK;
    tr_stage_cost cost[RANKS];
    for (int k = 0; k < RANKS; k++) cost[k] = (tr_stage_cost){.f = F, .i = F, .w = F};
    tr_edge edge = {.from = 0, .to = 1, .bytes = BYTES, .life = TR_LIFE_FW};
    tr_stage_table table = {.stages = RANKS, .cost = cost, .edges = 1, .edge = &edge};
    tr_schedule *schedule = NULL;
    tr_program_set *set = NULL;
    tr_simulation *simulation = NULL;
    TR_TRY_OUT(generate_order("gpipe", RANKS, RANKS, MICRO_BATCHES, &schedule));
    TR_TRY_OUT(tr_lower(schedule, &table, &set));
    TR_TRY_OUT(tr_simulate(set, cost, &(tr_simulated_links){.near.latency = delay}, &simulation));
    tr_world *world[RANKS];
    TR_TRY_OUT(tr_world_open_local(RANKS, world));
    pthread_t thread[RANKS];
    rank_state state[RANKS];
    for (int r = 0; r < RANKS; r++) {
        state[r] = (rank_state){.world = world[r],
                                .set = set,
                                .table = &table,
                                .schedule = schedule,
                                .rank = r,
                                .delay = delay};
        if (pthread_create(&thread[r], NULL, rank_main, &state[r]) != 0) abort();
    }
    for (int r = 0; r < RANKS; r++) {
        (void)pthread_join(thread[r], NULL);
        if (status == TR_OK) status = state[r].status;
    }
    printf("delay %4.1f ms: measured %7.2f ms, simulated %7.2f ms\n", delay * 1e3,
           state[0].step_s * 1e3, simulation->makespan * 1e3);
out:
    tr_simulation_destroy(simulation);
    tr_program_set_destroy(set);
    tr_schedule_destroy(schedule);
    return status;
}

/* --- sums of gradients, gathers of parameters ------------------------------------------------- */

enum { LAYERS = 8, SUMS_STEPS = 5, ELEMENTS = 1 << 12 };
static const double LAYER = 4e-3, SUM_DELAY = 3e-3;

typedef struct data_rank {
    tr_world *world;
    const tr_program_set *set;
    tr_device *device;
    tr_group *group;
    float *gradient;                      /* [LAYERS][ELEMENTS] */
    tr_gather_range range[LAYERS][RANKS]; /* the same, each half from its rank */
    int64_t ticket[LAYERS];
    int rank;
    double delay, step_s;
    tr_status status;
} data_rank;

static tr_status layers_forward(tr_stage *stage, const tr_stage_io *io) {
    (void)stage;
    for (int k = LAYERS - 1; k >= 0; k--) {
        if (io->need) TR_TRY(io->need(io->need_context, k));
        rest(LAYER);
    }
    return TR_OK;
}

static tr_status layers_backward(tr_stage *stage, const tr_stage_io *io) {
    (void)stage;
    for (int k = 0; k < LAYERS; k++) {
        rest(LAYER);
        if (io->complete) TR_TRY(io->complete(io->complete_context, k));
    }
    return TR_OK;
}

static const tr_stage_ops layers_ops = {.forward = layers_forward, .backward = layers_backward};

static tr_status start_sum(void *context, int stage, int bucket) {
    (void)stage;
    data_rank *r = context;
    return tr_group_start(r->group, tr_device_compute(r->device),
                          r->gradient + (size_t)bucket * ELEMENTS, ELEMENTS, TR_F32, TR_REDUCE_SUM,
                          &r->ticket[bucket]);
}

static tr_status wait_for_sum(void *context, int stage, int bucket) {
    (void)stage;
    data_rank *r = context;
    return tr_group_wait(r->group, tr_device_compute(r->device), r->ticket[bucket]);
}

static tr_status start_gather(void *context, int stage, int bucket, void *memory) {
    (void)stage;
    (void)memory;
    data_rank *r = context;
    tr_gather_range *range = r->range[bucket];
    for (int k = 0; k < RANKS; k++)
        range[k] = (tr_gather_range){.data = r->gradient + (size_t)bucket * ELEMENTS +
                                             (size_t)k * (ELEMENTS / RANKS),
                                     .bytes = sizeof(float) * (ELEMENTS / RANKS),
                                     .rank = k};
    return tr_group_gather(r->group, tr_device_compute(r->device), range, RANKS,
                           &r->ticket[bucket]);
}

static tr_status wait_for_gather(void *context, int stage, int bucket, void *memory) {
    (void)memory;
    return wait_for_sum(context, stage, bucket);
}

static tr_status run_data_rank(data_rank *r) {
    tr_status status = TR_OK;
    tr_runner *runner = NULL;
    void *arena = NULL;
    const int ranks[RANKS] = {0, 1};
    const tr_program *program = &r->set->program[0];
    tr_stage stage = {.ops = &layers_ops}, *stages[] = {&stage};
    if (r->delay > 0) tr_world_set_delay(r->world, constant_delay, &r->delay);
    TR_TRY_OUT(tr_device_open("ref", &(tr_device_options){.threads = 1}, &r->device));
    TR_TRY_OUT(tr_group_open(r->world, r->device, ranks, RANKS, 0, 1 << 20, &r->group));
    TR_TRY_OUT(tr_device_alloc(r->device, TR_MEMORY_GRADIENTS, sizeof(float) * LAYERS * ELEMENTS,
                               (void **)&r->gradient));
    TR_TRY_OUT(tr_device_alloc(r->device, TR_MEMORY_ACTIVATIONS, program->arena_bytes, &arena));
    tr_runner_options options = {.device = r->device,
                                 .program = program,
                                 .stages = stages,
                                 .arena = arena,
                                 .hooks = {.reduce_start = start_sum,
                                           .reduce_wait = wait_for_sum,
                                           .gather_start = start_gather,
                                           .gather_wait = wait_for_gather,
                                           .context = r}};
    TR_TRY_OUT(tr_runner_create(&options, &runner));
    r->step_s = 1e9;
    for (int step = 0; step < SUMS_STEPS; step++) {
        TR_TRY_OUT(tr_world_barrier(r->world));
        double start = tr_now_s();
        TR_TRY_OUT(tr_runner_step(runner));
        if (tr_now_s() - start < r->step_s) r->step_s = tr_now_s() - start;
    }
out:
    tr_runner_destroy(runner);
    tr_group_close(r->group);
    if (r->gradient) tr_device_free(r->device, r->gradient);
    if (arena) tr_device_free(r->device, arena);
    if (r->device) tr_device_close(r->device);
    return status;
}

static void *data_rank_main(void *argument) {
    data_rank *r = argument;
    r->status = run_data_rank(r);
    if (r->status != TR_OK) {
        fprintf(stderr, "bench_overlap: data rank %d: %s\n", r->rank, tr_error_message());
        tr_world_abort(r->world, (int)r->status);
    }
    tr_world_close(r->world);
    return NULL;
}

/* Measures the best step with every sum delayed, or every gather. */
static tr_status measure_collectives(bool gathers, double delay, double *step_s) {
    tr_status status = TR_OK;
    tr_bucket bucket[LAYERS];
    const size_t bytes = sizeof(float) * ELEMENTS;
    for (int k = 0; k < LAYERS; k++)
        bucket[k] = (tr_bucket){.bytes = gathers ? 0 : bytes,
                                .w = (k + 1.0) / LAYERS,
                                .b = (k + 1.0) / LAYERS,
                                .f = 1 - (k + 1.0) / LAYERS,
                                .updated = gathers ? bytes : 0,
                                .gathered = gathers ? bytes : 0};
    tr_stage_cost cost = {.f = LAYERS * LAYER,
                          .i = LAYERS * LAYER / 2,
                          .w = LAYERS * LAYER / 2,
                          .buckets = LAYERS,
                          .bucket = bucket};
    tr_stage_table table = {.stages = 1, .cost = &cost};
    const tr_simulated_links links = {.sum.latency = delay, .gather.latency = delay};
    tr_schedule *schedule = NULL;
    tr_program_set *set = NULL;
    tr_simulation *simulation = NULL;
    tr_world *world[RANKS];
    pthread_t thread[RANKS];
    data_rank rank[RANKS];
    TR_TRY_OUT(generate_order("gpipe", 1, 1, 2, &schedule));
    TR_TRY_OUT(tr_lower(schedule, &table, &set));
    TR_TRY_OUT(tr_simulate(set, &cost, &links, &simulation));
    TR_TRY_OUT(tr_world_open_local(RANKS, world));
    for (int r = 0; r < RANKS; r++) {
        rank[r] = (data_rank){.world = world[r], .set = set, .rank = r, .delay = delay};
        if (pthread_create(&thread[r], NULL, data_rank_main, &rank[r]) != 0) abort();
    }
    for (int r = 0; r < RANKS; r++) {
        (void)pthread_join(thread[r], NULL);
        if (status == TR_OK) status = rank[r].status;
    }
    *step_s = rank[0].step_s;
    printf("%s delayed %4.1f ms: measured %7.2f ms, simulated %7.2f ms\n",
           gathers ? "gathers" : "sums", delay * 1e3, *step_s * 1e3, simulation->makespan * 1e3);
out:
    tr_simulation_destroy(simulation);
    tr_program_set_destroy(set);
    tr_schedule_destroy(schedule);
    return status;
}

static tr_status measure_all(bool gathers) {
    double plain, delayed;
    TR_TRY(measure_collectives(gathers, 0, &plain));
    TR_TRY(measure_collectives(gathers, SUM_DELAY, &delayed));
    double cost = delayed - plain - SUM_DELAY, hidden = (LAYERS - 1) * SUM_DELAY;
    printf("beyond the %s bucket's delay: %.2f ms of %.0f ms, %.1f%%\n", gathers ? "first" : "last",
           cost * 1e3, hidden * 1e3, 100 * cost / hidden);
    return TR_OK;
}

int main(void) {
    tr_status status = measure(0);
    if (status == TR_OK) status = measure(F / 2);
    for (int gathers = 0; gathers < 2 && status == TR_OK; gathers++)
        status = measure_all(gathers != 0);
    if (status != TR_OK) fprintf(stderr, "bench_overlap: %s\n", tr_error_message());
    return (int)status;
}
