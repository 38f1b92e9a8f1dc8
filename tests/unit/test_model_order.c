/* Tests the orders that are made for a model: auto, and those under a memory cap. */
#include "partition/request.h"
#include "partition/run_plan.h"
#include "pipeline/orders/csv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const tr_device_options one_thread = {.threads = 1};

static void read_config(tr_config *config, int count, const char *const *overrides) {
    static const char model[] =
        "data.path: x\n"
        "model: {layers: 4, width: 32, heads: 4, context: 16, vocab: 4099}\n"
        "train: {batch: 16, micro_batch: 2, threads: 1}\n";
    assert_int_equal(tr_config_parse(model, strlen(model), "model.yaml", overrides, count, config),
                     TR_OK);
}

/* The order of auto has at most as many stages as the model has layers, is the same every time, and
 * is not slower by estimate than a named schedule. */
static void test_auto_is_made_for_the_model(void **state) {
    (void)state;
    static const char *const layouts[][2] = {{"parallel.pp=2", "model.layers=4"},
                                             {"parallel.pp=4", "model.layers=5"},
                                             {"parallel.pp=2", "model.layers=6"}};
    tr_device *device;
    assert_int_equal(tr_device_open("ref", &one_thread, &device), TR_OK);
    for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
        double makespan[3];
        char *text[2];
        tr_config config;
        for (int n = 0; n < 3; n++) {
            static const char *const names[] = {"parallel.schedule=auto", "parallel.schedule=1f1b",
                                                "parallel.schedule=zb-h1"};
            tr_run_plan *plan;
            read_config(&config, 3, (const char *[]){layouts[k][0], layouts[k][1], names[n]});
            assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
            makespan[n] = plan->time->makespan;
            tr_run_plan_destroy(plan);
        }
        assert_true(makespan[0] <= makespan[1] && makespan[0] <= makespan[2]);
        read_config(&config, 3,
                    (const char *[]){layouts[k][0], layouts[k][1], "parallel.schedule=auto"});
        for (int n = 0; n < 2; n++) {
            tr_schedule *s;
            tr_schedule_report report;
            assert_int_equal(tr_request_schedule(&config, &s, &report), TR_OK);
            assert_true(report.sums_ascending && s->stages <= config.model.layers);
            assert_int_equal(tr_schedule_print(s, false, &text[n]), TR_OK);
            tr_schedule_destroy(s);
        }
        assert_string_equal(text[0], text[1]);
        free(text[0]);
        free(text[1]);
    }
    tr_device_close(device);
}

/* auto stays within device.memory: where 1f1b just fits, auto is faster; with a quarter less for
 * activations, auto fits, and 1f1b only with a slower cut; when activations are offloaded, auto is
 * faster there. */
static void test_auto_keeps_to_the_memory(void **state) {
    (void)state;
    tr_device *device;
    tr_config config;
    tr_run_plan *plan, *other;
    char limit[64];
    const char *overrides[] = {"parallel.schedule=1f1b", "parallel.pp=4",   "model.layers=12",
                               "model.context=64",       "model.vocab=256", "train.batch=32"};
    enum { OVERRIDES = sizeof overrides / sizeof *overrides };
    assert_int_equal(tr_device_open("ref", &one_thread, &device), TR_OK);
    read_config(&config, OVERRIDES, overrides);
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    const tr_memory_plan *most = &plan->memory[tr_run_plan_largest(plan)];
    for (int part = 0; part <= 4; part += 4) {
        const char *with_limit[OVERRIDES + 1];
        memcpy(with_limit, overrides, sizeof overrides);
        (void)snprintf(limit, sizeof limit, "device.memory=%zu",
                       most->total - (part ? most->of[TR_MEMORY_ACTIVATIONS] / (size_t)part : 0));
        with_limit[OVERRIDES] = limit;
        read_config(&config, OVERRIDES + 1, with_limit);
        assert_int_equal(tr_run_plan_make_fastest(&config, device, &other), TR_OK);
        assert_int_equal(tr_run_plan_fits(other), part == 0);
        tr_run_plan_destroy(other);
        assert_int_equal(tr_run_plan_make(&config, device, &other), TR_OK); /* with another cut */
        const double of_1f1b = other->time->makespan;
        tr_run_plan_destroy(other);
        with_limit[0] = "parallel.schedule=auto";
        read_config(&config, OVERRIDES + 1, with_limit);
        assert_int_equal(tr_run_plan_make(&config, device, &other), TR_OK);
        assert_true(tr_run_plan_fits(other));
        const double makespan = other->time->makespan;
        assert_true(makespan < of_1f1b);
        tr_run_plan_destroy(other);
        if (!part) continue;
        (void)strcpy(config.device.name, "guarded");
        (void)strcpy(config.device.offload, "activations");
        assert_int_equal(tr_run_plan_make(&config, device, &other), TR_OK);
        assert_true(tr_run_plan_fits(other) && other->time->makespan < makespan);
        tr_run_plan_destroy(other);
    }
    tr_run_plan_destroy(plan);
    tr_device_close(device);
}

/* auto measures the owners of whole tensors on the run's mesh, where tensor ranks share key
 * heads. */
static void test_auto_with_shared_key_heads(void **state) {
    (void)state;
    static const char *const names[] = {"optim.name=muon", "optim.name=adafactor"};
    for (int k = 0; k < 2; k++) {
        tr_config config;
        tr_schedule *s;
        tr_schedule_report report;
        const char *const overrides[] = {
            "model.family=llama",  "model.kv_heads=2",       "parallel.pp=2",
            "parallel.dp=2",       "parallel.tp=4",          "parallel.zero=1",
            "device.memory=64MiB", "parallel.schedule=auto", names[k]};
        read_config(&config, sizeof overrides / sizeof *overrides, overrides);
        if (tr_request_schedule(&config, &s, &report) != TR_OK)
            fail_msg("%s: %s", names[k], tr_error_message());
        tr_schedule_destroy(s);
    }
}

/* Returns the most that a rank's activations take under a schedule, and how long a step takes. */
static size_t activations_of(const char *name, tr_device *device, double *makespan) {
    char schedule[64];
    tr_config config;
    tr_run_plan *plan;
    (void)snprintf(schedule, sizeof schedule, "parallel.schedule=%s", name);
    read_config(&config, 6,
                (const char *[]){schedule, "parallel.pp=4", "model.layers=16", "model.context=128",
                                 "model.vocab=256", "train.batch=64"});
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    size_t most = 0;
    for (int r = 0; r < plan->ranks; r++) {
        const size_t own = plan->memory[r].of[TR_MEMORY_ACTIVATIONS];
        if (own > most) most = own;
    }
    *makespan = plan->time->makespan;
    tr_run_plan_destroy(plan);
    return most;
}

/* The orders under a memory cap count what W still holds: of four ranks v-min and v-half take less
 * than 1f1b, zb-1p about as much and zb-2p twice that. W after W delayed to the end of the step
 * would take as much as gpipe. Each is faster than 1f1b, or takes less memory. */
static void test_capped_orders_keep_to_their_memory(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double most; /* of the activations of 1f1b, which include the scratch of an action */
    } caps[] = {{"v-min", 0.9}, {"v-half", 0.9}, {"zb-1p", 1.5}, {"zb-2p", 2.7}, {"1f1b-v", 1.2}};
    tr_device *device;
    double time, own_time;
    assert_int_equal(tr_device_open("ref", &one_thread, &device), TR_OK);
    const size_t held = activations_of("1f1b", device, &time);
    for (size_t k = 0; k < sizeof caps / sizeof *caps; k++) {
        const size_t own = activations_of(caps[k].name, device, &own_time);
        print_message("%s: %.2f of the activations of 1f1b, %.2f of its step\n", caps[k].name,
                      (double)own / (double)held, own_time / time);
        assert_true((double)own < caps[k].most * (double)held);
        assert_true(own < held || own_time < time);
    }
    tr_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_is_made_for_the_model),
        cmocka_unit_test(test_auto_keeps_to_the_memory),
        cmocka_unit_test(test_auto_with_shared_key_heads),
        cmocka_unit_test(test_capped_orders_keep_to_their_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
