/* How fast a rank computes: measured on its device in about a second, and remembered. */
#pragma once

#include "device/device.h"
#include "train/config.h"

/* FLOP/s of forward and backward of the config's model on this device, by one rank that has the
 * machine to itself. Times a model of one layer with the config's width, precision and device, and
 * as many tokens as a second allows. The result is remembered under
 * $XDG_CACHE_HOME/trireme (~/.cache/trireme), for a day, or for a minute when other processes kept
 * the CPUs busy; a cache that cannot be read or written costs that
 * second and nothing else. */
tr_status tr_rate_measure(const tr_config *config, tr_device *device, double *flops_per_s);
