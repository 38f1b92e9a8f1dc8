/* Tests what the optimizer's step is expected to take, against sums by hand. */
#include "support/plan_config.h"

#include "device/speed.h"
#include "partition/optim_cost.h"
#include "partition/run_plan.h"
#include "partition/traffic.h"
#include "partition/whole.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MOST_KEYS = 5, WIDTH = 128, MLP = 512, LAYERS = 4 };

/* Opens a model of which no parameter leaves a gap in memory, with these keys. */
static tr_whole open_model(const char *const *keys, tr_config *config) {
    const char *all[MOST_KEYS + 2] = {"model.vocab=4096", "model.width=128"};
    int count = 2;
    tr_whole whole;
    for (int k = 0; k < MOST_KEYS && keys[k]; k++) all[count++] = keys[k];
    read_config(config, count, all);
    assert_int_equal(tr_whole_open(config, &whole), TR_OK);
    return whole;
}

static tr_optim_cost cost_of(const tr_layout *l, int dp_rank) {
    tr_mesh mesh = l->desc.mesh;
    mesh.index[TR_AXIS_DP] = dp_rank;
    return tr_optim_cost_of(l->model, &l->placement, &mesh, l->desc.zero, l->desc.optimizer);
}

/* Of each parameter: its gradient for the norm and for the step, every state and what is stepped
 * twice, and a BF16 value; with directions 12 bytes to write and read them and to read what is
 * stepped, and 8 for both norms. What is stepped is a value of 2 bytes without masters. With
 * device.offload the device takes only norms, and not those of masters. */
static void test_bytes(void **state) {
    (void)state;
    static const struct {
        const char *keys[MOST_KEYS + 1];
        double bytes;
    } cases[] = {
        {{"train.precision=fp32"}, 4 + 4 + 2 * (4 + 4) + 2 * 4},
        {{"train.precision=bf16"}, 4 + 4 + 2 * (4 + 4) + 2 * 4 + 2},
        {{"train.precision=bf16", "optim.moments=bf16"}, 4 + 4 + 2 * (2 + 2) + 2 * 4 + 2},
        {{"train.precision=bf16", "optim.moments=bf16", "optim.gradients=bf16",
          "optim.master=none"},
         2 + 2 + 2 * (2 + 2) + 2 * 2},
        {{"train.precision=bf16", "optim.name=lion"}, 4 + 4 + 2 * 4 + 2 * 4 + 2},
        {{"train.precision=fp32", "optim.name=sgd", "optim.momentum=0"}, 4 + 4 + 2 * 4},
        {{"train.precision=fp32", "optim.name=lamb"}, 4 + 4 + 2 * (4 + 4) + 2 * 4 + 12 + 8},
        {{"train.precision=bf16", "optim.name=lamb"}, 4 + 4 + 2 * (4 + 4) + 2 * 4 + 2 + 12 + 8},
        {{"train.precision=bf16", "optim.name=lamb", "optim.master=none"},
         4 + 4 + 2 * (4 + 4) + 2 * 2 + 8 + 2 + 4 + 2},
        {{"train.precision=fp32", "device.name=guarded", "device.offload=optimizer"}, 4},
        {{"train.precision=bf16", "optim.name=lamb", "device.name=guarded",
          "device.offload=optimizer"},
         4 + 4},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tr_config config;
        tr_whole whole = open_model(cases[k].keys, &config);
        const double expected = cases[k].bytes * (double)tr_model_parameters(whole.layout->model);
        const tr_optim_cost cost = cost_of(whole.layout, 0);
        if (cost.bytes != expected || cost.flops != 0)
            fail_msg("case %zu: %.17g bytes instead of %.17g, %g FLOP", k, cost.bytes, expected,
                     cost.flops);
        tr_whole_close(&whole);
    }
}

/* The host reads and writes what the device does not: with directions it also takes the norms of
 * masters. */
static void test_host(void **state) {
    (void)state;
    static const struct {
        const char *keys[MOST_KEYS + 1];
        double bytes;
    } cases[] = {
        {{"train.precision=bf16"}, 4 + 2 * (4 + 4) + 2 * 4 + 2},
        {{"train.precision=bf16", "optim.name=lamb"}, 4 + 2 * (4 + 4) + 2 * 4 + 2 + 12 + 4},
        {{"train.precision=fp32", "optim.name=lamb"}, 4 + 2 * (4 + 4) + 2 * 4 + 12},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tr_config config;
        const char *keys[MOST_KEYS + 1] = {"device.name=guarded", "device.offload=optimizer"};
        for (int i = 0; cases[k].keys[i]; i++) keys[i + 2] = cases[k].keys[i];
        tr_whole whole = open_model(keys, &config);
        const double expected = cases[k].bytes * (double)tr_model_parameters(whole.layout->model);
        const double host = tr_traffic_host_steps(&config, whole.layout).host;
        if (host != expected) fail_msg("case %zu: %.17g bytes instead of %.17g", k, host, expected);
        tr_whole_close(&whole);
    }
}

/* Returns the FLOPs of five steps for a matrix with this shorter and longer side: two products with
 * the matrix, and the square of the first one's result. */
static double products_of(double side, double length) {
    return 5 * (2 * 2 * side * side * length + 2 * side * side * side);
}

static void test_products(void **state) {
    (void)state;
    tr_config config;
    tr_whole whole = open_model((const char *[MOST_KEYS + 1]){"optim.name=muon"}, &config);
    const double attention = products_of(WIDTH, 3 * WIDTH) + products_of(WIDTH, WIDTH);
    const double layer = attention + 2 * products_of(WIDTH, MLP);
    const tr_optim_cost cost = cost_of(whole.layout, 0);
    assert_true(cost.flops == LAYERS * layer);
    /* Time is in FLOPs at the rate; without one, at the device's usual rate. */
    const tr_device_speed *speed = tr_device_speed_of("cpu");
    const double rate = 3e9, moving = cost.bytes / speed->memory_bytes;
    assert_true(fabs(tr_optim_time(&config, cost, rate) / (cost.flops + moving * rate) - 1) <
                1e-12);
    assert_true(tr_optim_time(&config, cost, 0) ==
                tr_optim_time(&config, cost, speed->flops_per_s));
    tr_whole_close(&whole);
}

/* With parallel.zero the data ranks divide the step: their parts add up to the whole one. */
static void test_divided(void **state) {
    (void)state;
    static const char *const names[] = {"optim.name=adamw", "optim.name=lamb", "optim.name=muon"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (int zero = 0; zero < 2; zero++) {
            tr_config config;
            tr_optim_cost sum = {0};
            tr_whole alone = open_model((const char *[MOST_KEYS + 1]){names[k]}, &config);
            const tr_optim_cost one = cost_of(alone.layout, 0);
            tr_whole_close(&alone);
            tr_whole whole = open_model(
                (const char *[MOST_KEYS + 1]){names[k], "parallel.dp=4",
                                              zero ? "parallel.zero=1" : "parallel.zero=0"},
                &config);
            for (int dp = 0; dp < 4; dp++) {
                const tr_optim_cost own = cost_of(whole.layout, dp);
                sum.bytes += own.bytes;
                sum.flops += own.flops;
            }
            tr_whole_close(&whole);
            assert_true(sum.flops == (zero ? 1 : 4) * one.flops);
            if (zero) assert_true(fabs(sum.bytes / one.bytes - 1) < 1e-2); /* gaps in memory */
            else assert_true(sum.bytes == 4 * one.bytes);
        }
}

/* Returns the seconds in which these sums travel. What stays exposed is what the products do not
 * hide, and at least the last sum; of a single matrix all. */
static double check_sums(const tr_config *config, const tr_mesh *mesh, tr_optim_cost cost) {
    assert_int_equal(cost.turns, 2);
    const double moving = tr_optim_sums_of(config, mesh, cost, 1).moving;
    cost.flops = moving / 4; /* at 1 FLOP/s */
    tr_optim_sums sums = tr_optim_sums_of(config, mesh, cost, 1);
    assert_true(sums.moving == moving && fabs(sums.exposed / moving - 0.75) < 1e-12);
    cost.turns = 1;
    assert_true(tr_optim_sums_of(config, mesh, cost, 1).exposed == moving);
    cost.turns = 2;
    cost.flops = 2 * moving;
    sums = tr_optim_sums_of(config, mesh, cost, 1);
    assert_true(fabs(sums.exposed * cost.sums / moving - 1) < 1e-12);
    return moving;
}

/* Tensor ranks sum each product of a matrix with itself, on the side that they do not divide: in
 * gpt2 the width, 5 times for each of a layer's four matrices, in FP32. */
static void test_sums(void **state) {
    (void)state;
    static const char *const zero[] = {"parallel.zero=0", "parallel.zero=1"};
    for (int k = 0; k < 2; k++) {
        tr_config config;
        tr_whole whole =
            open_model((const char *[MOST_KEYS + 1]){"optim.name=muon", "parallel.tp=2",
                                                     "parallel.dp=2", "device.link=2", zero[k]},
                       &config);
        double sums = 0, bytes = 0, time = 0;
        for (int dp = 0; dp < 2; dp++) {
            const tr_optim_cost own = cost_of(whole.layout, dp);
            sums += own.sums;
            bytes += own.sum_bytes;
            time += check_sums(&config, &whole.layout->desc.mesh, own);
        }
        const double copies = k == 0 ? 2 : 1; /* data ranks share the matrices among them */
        assert_true(sums == copies * 5 * 4 * LAYERS);
        assert_true(bytes == sums * WIDTH * WIDTH * 4);
        /* Two ranks send all of a product at 2 GB/s in two rounds. */
        const double seconds = bytes / 2e9 + sums * 2 * config.device.link_latency * 1e-6;
        assert_true(fabs(time / seconds - 1) < 1e-12);
        tr_whole_close(&whole);
    }
}

/* A planned step has these sums. */
static void test_sums_are_priced(void **state) {
    (void)state;
    static const char *const names[] = {"optim.name=muon", "optim.name=adamw"};
    double rest[2];
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device), TR_OK);
    for (int k = 0; k < 2; k++) {
        tr_config config;
        tr_run_plan *plan;
        tr_step_traffic t;
        const char *keys[] = {names[k], "parallel.tp=2", "parallel.pp=2", "device.link=2"};
        read_config(&config, 4, keys);
        assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
        assert_int_equal(tr_traffic_step(&config, plan->layout, 1e9, &t), TR_OK);
        const tr_traffic sums = t.of[TR_TRAFFIC_PRODUCTS];
        /* Of the rank that has more layers. */
        if (k == 0) assert_in_range(sums.count, 5 * 4 * LAYERS / 2, 5 * 4 * (LAYERS - 1));
        else assert_int_equal(sums.count, 0);
        assert_true((sums.moving > 0) == (k == 0) && (sums.exposed > 0) == (k == 0));
        assert_true(tr_traffic_update(&t) == t.updating + sums.exposed);
        rest[k] = t.makespan - tr_traffic_update(&t);
        tr_run_plan_destroy(plan);
    }
    assert_true(fabs(rest[0] / rest[1] - 1) < 1e-9);
    tr_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),    cmocka_unit_test(test_host),
        cmocka_unit_test(test_products), cmocka_unit_test(test_divided),
        cmocka_unit_test(test_sums),     cmocka_unit_test(test_sums_are_priced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
