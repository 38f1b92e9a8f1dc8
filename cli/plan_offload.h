/* What the command plan says about device.offload. */
#pragma once

#include "partition/run_plan.h"

/* Prints the bytes in a host's memory, what the optimizer's steps there take, and whether the
 * order offloads no activations; nothing without the key. */
void cli_plan_offload(const tr_config *config, const tr_run_plan *plan);

/* Writes a sentence to text[size] about a plan that exceeds the limit of a host's memory: by how
 * much, and which changes of this config take less of it. */
tr_status cli_plan_host_excess(const tr_config *config, const tr_run_plan *plan, char *text,
                               size_t size);
