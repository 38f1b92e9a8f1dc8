/* trireme plan --search: the layouts of RANKS ranks with the shortest steps. */
#pragma once

#include "config/config.h"
#include "device/device.h"

/* Returns the keys among the arguments "key=value" that the search keeps
 * (tr_search_request.kept). */
unsigned cli_plan_kept(const char *const *overrides, int count);

/* Prints the best layout of each mesh, and the best one's keys. here: this machine has the config's
 * device, and measures its speed unless rate, in FLOP/s, is not 0. Fails with TR_ERR_FIT when none
 * fits. */
tr_status cli_plan_search(const tr_config *config, tr_device *device, int ranks, unsigned kept,
                          bool here, double rate);

/* Returns the FLOP/s of one rank while all ranks compute and share this machine's CPUs. */
double cli_shared_rate(double alone, const tr_device *device, int ranks);
