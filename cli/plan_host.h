/* What the command plan says about the host's memory: device.offload, checkpoint.background. */
#pragma once

#include "partition/run_plan.h"

/* Prints the bytes in a host's memory, what the optimizer's steps there take, and whether the
 * order offloads no activations; nothing without the keys. */
void cli_plan_host(const tr_config *config, const tr_run_plan *plan);

/* Writes "device.offload optimizer keeps" to text[size], with the keys that are set, and returns
 * it. */
const char *cli_plan_keeper(const tr_config *config, char *text, size_t size);
/* Writes a sentence to text[size] about a plan that exceeds the limit of a host's memory: by how
 * much, and which changes of this config take less of it. */
tr_status cli_plan_host_excess(const tr_config *config, const tr_run_plan *plan, char *text,
                               size_t size);
