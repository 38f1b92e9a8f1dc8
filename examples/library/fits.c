/* Prints what a rank takes, and how much of a step is bubble, with 1, 2, 4, ... pipeline ranks: a
 * program that calls the library (docs/library.md).
 *
 * usage: fits CONFIG [key=value ...] */
#include "config/config.h"
#include "device/device.h"
#include "partition/run_plan.h"

#include <stdio.h>

static const double MIB = 1 << 20;

/* Plans the config on its pipeline ranks, and prints a line. */
static tr_status print_plan(const tr_config *config, tr_device *device) {
    tr_run_plan *plan;
    TR_TRY(tr_config_check(config, 0));
    TR_TRY(tr_run_plan_make(config, device, &plan));
    const tr_memory_plan *most = &plan->memory[tr_run_plan_largest(plan)];
    (void)printf("%5lld %12.1f %8s %8.2f\n", (long long)config->parallel.pp,
                 (double)most->total / MIB, tr_run_plan_fits(plan) ? "yes" : "no",
                 100 * (1 - plan->ideal / plan->time->makespan));
    tr_run_plan_destroy(plan);
    return TR_OK;
}

static tr_status print_plans(tr_config *config) {
    const tr_device_options options = {.threads = 1};
    tr_device *device;
    tr_status status = TR_OK;
    TR_TRY(tr_device_open(config->device.name, &options, &device));
    (void)printf("%5s %12s %8s %8s\n", "ranks", "MiB a rank", "fits", "bubble %");
    for (int64_t pp = 1; pp <= config->model.layers && status == TR_OK; pp *= 2) {
        config->parallel.pp = pp;
        status = print_plan(config, device);
    }
    tr_device_close(device);
    return status;
}

int main(int argc, char **argv) {
    static tr_config config;
    if (argc < 2) {
        (void)fprintf(stderr, "usage: fits CONFIG [key=value ...]\n");
        return TR_ERR_USAGE;
    }
    tr_status status = tr_config_load(argv[1], (const char *const *)argv + 2, argc - 2, &config);
    if (status == TR_OK) status = print_plans(&config);
    if (status == TR_OK && fflush(stdout) != 0)
        status = TR_FAIL(TR_ERR_IO, "stdout cannot be written");
    if (status != TR_OK) (void)fprintf(stderr, "fits: %s\n", tr_error_message());
    return (int)status;
}
