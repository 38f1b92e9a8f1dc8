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

extern uint64_t seed;
extern tr_device *device;

/* Runs a description on host memory; ref works in place there. */
tr_status run_at(tr_op_desc desc, tr_step_state *state, int64_t sample, bool adds, void *const *t,
                 int n);
#define RUN_AT(desc, state, sample, adds, ...)                                                     \
    must(run_at((desc), (state), (sample), (adds), (void *[]){__VA_ARGS__},                        \
                (int)(sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))))
#define RUN(desc, state, sample, ...) RUN_AT(desc, state, sample, false, __VA_ARGS__)
/* Adds to gradients of parameters. */
#define RUN_ADDING(desc, ...) RUN_AT(desc, NULL, 0, true, __VA_ARGS__)

void fill_normal(float *x, int64_t n, uint64_t stream);

void assert_near(double got, double want, double tolerance);

int setup(void **state);

int teardown(void **state);
