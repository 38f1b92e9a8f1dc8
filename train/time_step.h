/* The time of a training step, for the planner. */
#pragma once

#include "partition/rate.h"

/* Measures the seconds of the fastest of some steps, after one for warm-up. Takes at least a
 * quarter of a second. A tr_rate_time_fn. */
tr_status tr_time_step(tr_device *device, const tr_rate_step *step, double *seconds);
