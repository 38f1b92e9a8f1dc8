/* How fast a rank computes: measured on its device in about a second, and remembered. */
#pragma once

#include "config/config.h"
#include "device/device.h"

/* A step to be timed: one rank that has the machine to itself trains this model. */
typedef struct tr_rate_step {
    tr_model_config model;
    tr_dtype dtype;
    bool deterministic;
    int64_t micro_batch; /* sequences */
    int micro_batches;
} tr_rate_step;

/* Seconds of such a step, the optimizer included. The planner cannot run steps, it only says which
 * ones: tr_time_step of train/ does. */
typedef tr_status (*tr_rate_time_fn)(tr_device *device, const tr_rate_step *step, double *seconds);

/* FLOP/s of forward and backward of the config's model on this device, by one rank that has the
 * machine to itself. Times a model of one layer with the config's width (a wide layer is narrowed:
 * its products are as fast), precision and device, and as many tokens as a second allows. The
 * result is remembered under $XDG_CACHE_HOME/trireme
 * (~/.cache/trireme), for a day, or for a minute when other processes kept the CPUs busy; a cache
 * that cannot be read or written costs that second and nothing else. */
tr_status tr_rate_measure(const tr_config *config, tr_device *device, tr_rate_time_fn time_step,
                          double *flops_per_s);
