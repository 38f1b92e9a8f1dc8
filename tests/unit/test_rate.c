/* Tests the rate that two timed steps give, also when other processes disturb one of them. */
#include "partition/rate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static double taken[2]; /* seconds of a step with one micro-batch and with two */
static double load;
static bool busy; /* as the last measurement says */

/* Replaces the C library's, since a test cannot choose the machine's load. */
int getloadavg(double *loads, int count) {
    assert_int_equal(count, 1);
    *loads = load;
    return 1;
}

static tr_status fake_time(tr_device *device, const tr_rate_step *step, double *seconds) {
    (void)device;
    *seconds = taken[step->micro_batches - 1];
    return TR_OK;
}

static double measure(const char *text, tr_rate_time_fn time) {
    static tr_config config;
    tr_device *device;
    double rate = 0;
    assert_int_equal(tr_config_parse(text, strlen(text), "none", NULL, 0, &config), TR_OK);
    assert_int_equal(tr_device_open("ref", &(tr_device_options){.threads = 1}, &device), TR_OK);
    assert_int_equal(tr_rate_measure(&config, device, time, &rate, &busy), TR_OK);
    tr_device_close(device);
    return rate;
}

/* Returns the rate for steps that take this many seconds. */
static double rate_of(double one, double two) {
    taken[0] = one, taken[1] = two;
    return measure("", fake_time);
}

static void near(double got, double want) {
    if (!(fabs(got - want) <= 1e-12 * want)) fail_msg("%.17g, not %.17g", got, want);
}

static void a_disturbed_step_is_not_a_slow_device(void **state) {
    (void)state;
    const double step_of_one = rate_of(1, 2);
    assert_true(step_of_one > 0);
    near(rate_of(1, 16) / step_of_one, 1);
    /* The optimizer takes a quarter of the first step, as it can where that is short. */
    near(rate_of(1e-6, 1.75e-6) / step_of_one, 1e6 / 0.75);
    near(rate_of(1e-6, 0.5e-6) / step_of_one, 1e6);
    /* No optimizer takes almost a second for a small layer. */
    for (double two = 0.5; two < 1.2; two += 0.1) {
        const double rate = rate_of(1, two) / step_of_one;
        assert_true(rate >= 1 && rate < 1.1);
    }
}

static int64_t first, most; /* tokens of the first micro-batch, and of the largest */
static bool fits;           /* larger ones than the first */

/* A fast device, on which each micro-batch takes as long as 100 tokens besides its own. */
static tr_status fast_time(tr_device *device, const tr_rate_step *step, double *seconds) {
    const int64_t tokens = step->micro_batch * step->model.context;
    (void)device;
    if (first == 0) first = tokens;
    if (tokens > most) most = tokens;
    if (tokens > first && !fits) return TR_FAIL(TR_ERR_FIT, "too large");
    *seconds = step->micro_batches * (double)(tokens + 100) * 1e-6;
    return TR_OK;
}

/* A fast device is measured with a larger micro-batch, if that fits. */
static void a_fast_device_has_a_larger_micro_batch(void **state) {
    (void)state;
    static const char wide[] = "model: {width: 768, heads: 12, context: 16}\n"
                               "train: {batch: 1024, micro_batch: 1024}\n";
    fits = false;
    first = most = 0;
    const double small = measure(wide, fast_time);
    assert_true(most > 2 * first);
    fits = true;
    const double large = measure(wide, fast_time);
    const double expected =
        (double)most / (double)(most + 100) / ((double)first / (double)(first + 100));
    near(large / small, expected);
}

static tr_model_config narrowed; /* of the first step */
static int64_t sequences;

static tr_status keep_model(tr_device *device, const tr_rate_step *step, double *seconds) {
    (void)device;
    narrowed = step->model;
    sequences = step->micro_batch;
    *seconds = step->micro_batches;
    return TR_OK;
}

/* A model that is too large for a short step is measured with a narrower one, with heads of the
 * same size that its key heads divide, and with one short sequence. */
static void a_large_model_is_narrowed(void **state) {
    (void)state;
    static const char text[] = "model: {family: llama, width: %d, heads: %d, kv_heads: %d, "
                               "context: 65536}\n"
                               "train: {batch: 4, micro_batch: 4}\n";
    static const struct {
        int heads, kv_heads;
    } cases[] = {{64, 8}, {96, 3}, {96, 6}, {64, 64}, {80, 20}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char config[256];
        (void)snprintf(config, sizeof config, text, 128 * cases[k].heads, cases[k].heads,
                       cases[k].kv_heads);
        (void)measure(config, keep_model);
        assert_true(narrowed.heads < cases[k].heads && narrowed.width == 128 * narrowed.heads);
        assert_true(narrowed.heads % narrowed.kv_heads == 0);
        assert_true(narrowed.heads % 2 || narrowed.width * narrowed.mlp_width <= 32 << 20);
        assert_true(sequences == 1 && narrowed.context < 65536 && narrowed.context >= 16);
    }
}

/* A busy machine's rate says so, also when it is remembered, and an idle one's takes its place. */
static void a_busy_machine_is_named(void **state) {
    (void)state;
    char folder[] = "/tmp/test_rate_XXXXXX", file[64];
    assert_non_null(mkdtemp(folder));
    assert_int_equal(setenv("XDG_CACHE_HOME", folder, 1), 0);
    load = 1.1;
    const double slow = rate_of(2, 4);
    assert_true(busy);
    load = 0.3;
    near(rate_of(1, 2), slow);
    assert_true(busy);
    (void)snprintf(file, sizeof file, "%s/trireme/rates", folder);
    assert_int_equal(unlink(file), 0);
    const double fast = rate_of(1, 2);
    assert_true(!busy && fast > 1.9 * slow);
    load = 1.1;
    near(rate_of(2, 4), fast);
    assert_false(busy);
    assert_int_equal(unlink(file), 0);
    (void)snprintf(file, sizeof file, "%s/trireme", folder);
    assert_int_equal(rmdir(file), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_disturbed_step_is_not_a_slow_device),
                                       cmocka_unit_test(a_fast_device_has_a_larger_micro_batch),
                                       cmocka_unit_test(a_large_model_is_narrowed),
                                       cmocka_unit_test(a_busy_machine_is_named)};
    /* No cache, so that every call measures. */
    if (setenv("XDG_CACHE_HOME", "/dev/null", 1) != 0) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
