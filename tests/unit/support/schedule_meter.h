/* Evaluates an order independently of the program, by definition: when each action runs, and how
 * much memory each rank holds. Costs and memory are of one micro-batch on a rank's whole share. */
#pragma once

#include "pipeline/orders/generate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct meter {
    double makespan;
    double span; /* longest of the ranks' */
    double peak; /* highest of the ranks' */
} meter;

typedef struct meter_walk {
    const tr_schedule *s;
    double *forward, *input, *weight; /* [stages * micro_batches]: end, or -1 */
    int *next;                        /* [ranks] */
    double *now, *first;              /* [ranks] */
} meter_walk;

/* Returns the peak of a rank's memory, which changes only at the ends of its actions. These do not
 * overlap, so the order is enough. */
double meter_peak(const tr_schedule *s, int r, const tr_stage_cost *share);

meter meter_measure(const tr_schedule *s, const tr_stage_cost *share, double latency);
