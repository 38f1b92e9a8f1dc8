/* Tests the rate that two timed steps give, also when other processes disturb one of them. */
#include "partition/rate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double taken[2]; /* seconds of a step with one micro-batch and with two */

static tr_status fake_time(tr_device *device, const tr_rate_step *step, double *seconds) {
    (void)device;
    *seconds = taken[step->micro_batches - 1];
    return TR_OK;
}

/* Returns the rate for steps that take so many seconds. */
static double rate_of(double one, double two) {
    static tr_config config;
    tr_device *device;
    double rate = 0;
    taken[0] = one, taken[1] = two;
    assert_int_equal(tr_config_parse("", 0, "none", NULL, 0, &config), TR_OK);
    assert_int_equal(tr_device_open("ref", &(tr_device_options){.threads = 1}, &device), TR_OK);
    assert_int_equal(tr_rate_measure(&config, device, fake_time, &rate), TR_OK);
    tr_device_close(device);
    return rate;
}

static void near(double got, double want) {
    if (!(fabs(got - want) <= 1e-12 * want)) fail_msg("%.17g, not %.17g", got, want);
}

static void a_disturbed_step_is_not_a_slow_device(void **state) {
    (void)state;
    const double step_of_one = rate_of(1, 1);
    assert_true(step_of_one > 0);
    /* The optimizer takes a quarter of the first step. */
    near(rate_of(1, 1.75) / step_of_one, 1 / 0.75);
    near(rate_of(1, 16) / step_of_one, 1);
    near(rate_of(1, 0.5) / step_of_one, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_disturbed_step_is_not_a_slow_device)};
    /* No cache, so that every call measures. */
    if (setenv("XDG_CACHE_HOME", "/dev/null", 1) != 0) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
