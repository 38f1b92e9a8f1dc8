/* Shared by the tests of gradients: operators of ref on host memory, and differences. */
#pragma once

#include "support/op_check.h"

/* The five-point central difference is sum of weight[j] L(x + offset[j] h) / 12h, with this h; x +
 * 2h is exact for what tr_op_random_floats returns. */
#define TR_DIFFERENCE_STEP 0x1p-5
enum { TR_DIFFERENCE_POINTS = 4 };
extern const double tr_difference_weight[TR_DIFFERENCE_POINTS];
extern const int tr_difference_offset[TR_DIFFERENCE_POINTS];

/* A prepared operator with its scratch. */
typedef struct tr_op_runner {
    tr_device *device;
    tr_op *op;
    tr_op_args args;
} tr_op_runner;

tr_op_runner tr_op_runner_open(tr_device *device, const tr_op_desc *desc, tr_op_data *data);
void tr_op_runner_run(tr_op_runner *runner);
void tr_op_runner_close(tr_op_runner *runner);

/* Returns the sum of y[i] * dy[i]. */
double tr_op_weighted_sum(const float *y, const float *dy, int64_t n);
/* Returns random multiples of 2^-16, the same for the same seed and stream. The caller frees
 * them. */
float *tr_op_random_floats(uint64_t seed, uint64_t stream, int64_t n);
