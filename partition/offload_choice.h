/* Values of device.offload for a layout that does not fit without them: the advice and the search
 * over layouts try the same ones. */
#pragma once

#include "config/config.h"
#include "device/device.h"

/* What is tried, the cheapest first: the optimizer's state, activations of all stages, and both. */
enum { TR_OFFLOAD_CHOICES = 3 };
extern const tr_config_offloads tr_offload_choices[TR_OFFLOAD_CHOICES];

/* Returns true when the config's device has memory of its own, and the choice keeps in the host's
 * memory what device.offload already keeps there, and more. */
bool tr_offload_adds(const tr_config *config, const tr_config_offloads *choice);

/* When the config fits with the activations of all its stages in the host's memory: sets
 * device.offload of *config to as few neighbouring stages as are needed (tr_run_plan_try), by
 * halving the stages after them, and then those before them. stages: of its order. */
tr_status tr_offload_narrow(tr_config *config, tr_device *device, int stages);
