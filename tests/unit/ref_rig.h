/* Shared by the tests of ref's operators: the device, a seed, and runs on host memory. */
#pragma once

#include "base/philox.h"
#include "support/op_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

static uint64_t seed;
static tr_device *device;

/* Runs a description on host memory; ref works in place there. */
static inline tr_status run_at(tr_op_desc desc, tr_step_state *state, int64_t sample, bool adds,
                               void *const *t, int n) {
    tr_op *op;
    tr_op_args args = {.state = state, .sample = sample, .adds = adds};
    must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &op));
    tr_op_data_operands(&desc, t, n, args.t);
    must(tr_device_alloc(device, TR_MEMORY_DATA, op->scratch_bytes, &args.scratch));
    tr_status status = tr_op_run(op, tr_device_compute(device), &args);
    tr_device_free(device, args.scratch);
    tr_op_release(op);
    return status;
}
#define RUN_AT(desc, state, sample, adds, ...)                                                     \
    must(run_at((desc), (state), (sample), (adds), (void *[]){__VA_ARGS__},                        \
                (int)(sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))))
#define RUN(desc, state, sample, ...) RUN_AT(desc, state, sample, false, __VA_ARGS__)
/* Adds to gradients of parameters. */
#define RUN_ADDING(desc, ...) RUN_AT(desc, NULL, 0, true, __VA_ARGS__)

static inline void fill_normal(float *x, int64_t n, uint64_t stream) {
    for (int64_t i = 0; i < n; i++) x[i] = tr_normal(seed, stream, (uint64_t)i);
}

static inline void assert_near(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.17g is not near %.17g", got, want);
}

static int setup(void **state) {
    (void)state;
    return (int)tr_op_open_ref(&device);
}

static int teardown(void **state) {
    (void)state;
    tr_device_close(device);
    return 0;
}
