/* Measures the runner's time per action: one rank with stages that do nothing, so that all of the
 * time is the runner's. Prints nanoseconds per action, the best of several rounds. */
#include "base/clock.h"
#include "pipeline/program/run.h"
#include "tests/unit/support/generate_order.h"

#include <stdio.h>

enum { MICRO_BATCHES = 256, STEPS = 200, ROUNDS = 5 };
static const double ACTIONS = 2 * MICRO_BATCHES * STEPS;

static tr_status nothing(tr_stage *stage, const tr_stage_io *io) {
    (void)stage;
    (void)io;
    return TR_OK;
}

static const tr_stage_ops nothing_ops = {
    .forward = nothing, .grad_input = nothing, .grad_weight = nothing, .backward = nothing};

static tr_status measure(const char *name, tr_device *device) {
    tr_stage_cost cost = {.f = 1, .i = 1, .w = 1, .bytes = {[TR_LIFE_FI] = 1024}};
    tr_piece piece = {.life = TR_LIFE_FI, .bytes = 1024};
    cost.pieces = 1;
    cost.piece = &piece;
    tr_stage_table table = {.stages = 1, .cost = &cost};
    tr_stage stage = {.ops = &nothing_ops}, *stages[] = {&stage};
    tr_schedule *schedule = NULL;
    tr_program_set *set = NULL;
    void *arena = NULL;
    tr_runner *runner = NULL;
    tr_status status = TR_OK;
    TR_TRY_OUT(generate_order(name, 1, 1, MICRO_BATCHES, &schedule));
    TR_TRY_OUT(tr_lower(schedule, &table, &set));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_ACTIVATIONS, set->program[0].arena_bytes, &arena));
    tr_runner_options options = {
        .device = device, .program = &set->program[0], .stages = stages, .arena = arena};
    TR_TRY_OUT(tr_runner_create(&options, &runner));
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double start = tr_now_s();
        for (int step = 0; step < STEPS; step++) TR_TRY_OUT(tr_runner_step(runner));
        double seconds = (tr_now_s() - start) / ACTIONS;
        if (seconds < best) best = seconds;
    }
    printf("%-6s %8.1f ns per action\n", name, best * 1e9);
out:
    tr_runner_destroy(runner);
    if (arena) tr_device_free(device, arena);
    tr_program_set_destroy(set);
    tr_schedule_destroy(schedule);
    return status;
}

int main(void) {
    tr_device *device = NULL;
    tr_device_options options = {.threads = 1};
    tr_status status = tr_device_open("ref", &options, &device);
    if (status == TR_OK) status = measure("gpipe", device);
    if (status == TR_OK) status = measure("1f1b", device);
    if (status != TR_OK) fprintf(stderr, "bench_runner: %s\n", tr_error_message());
    if (device) tr_device_close(device);
    return (int)status;
}
