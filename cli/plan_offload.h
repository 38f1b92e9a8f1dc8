/* The lines of the command plan about device.offload. */
#pragma once

#include "partition/run_plan.h"

/* Prints the bytes in a host's memory, what the optimizer's steps there take, and whether the
 * order offloads no activations; nothing without the key. */
void cli_plan_offload(const tr_config *config, const tr_run_plan *plan);
