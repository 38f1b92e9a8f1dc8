/* The speed of a rank, measured on its device in a few seconds, and remembered. */
#pragma once

#include "config/config.h"
#include "device/device.h"
#include "partition/optim_row.h"

/* A step to time: a single rank trains this model on an otherwise idle machine. */
typedef struct tr_rate_step {
    tr_model_config model;
    tr_dtype dtype;
    bool deterministic;
    bool documents;      /* see tr_model_shape */
    int64_t micro_batch; /* sequences */
    int micro_batches;
    tr_optim_config optimizer;
} tr_rate_step;

/* Measures the seconds of such a step, with the optimizer. partition/ cannot run steps, so the
 * caller passes tr_time_step of train/. */
typedef tr_status (*tr_rate_time_fn)(tr_device *device, const tr_rate_step *step, double *seconds);

/* Measures the FLOP/s of forward and backward of the config's model on this device, by a single
 * rank on an otherwise idle machine. Times a model of one layer with the config's width (a wide
 * layer is narrowed on a host device: its products are as fast there), precision and device, and as
 * many tokens, up to a micro-batch, as take about 0.2 s. The result is remembered under
 * $XDG_CACHE_HOME/trireme (~/.cache/trireme), for a day, or for a minute when other processes kept
 * the CPUs busy, which *busy says; if that cache cannot be read or written, every call measures. */
tr_status tr_rate_measure(const tr_config *config, tr_device *device, tr_rate_time_fn time_step,
                          double *flops_per_s, bool *busy);
