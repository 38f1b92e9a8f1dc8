/* The room of the ranks for which a run's layers are cut, when the fastest cut does not fit. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"
#include "device/device.h"

/* Sets *room to that of the plan of the run (tr_run_plan.room), malloc'd, for the caller to free;
 * NULL: no cut is nearer to a fit than the fastest. memory: the bytes that this rank may plan, of
 * which the least of all ranks counts. Rank 0 plans, on a device of its own. Collective; the ranks
 * agree on a failure, one of tr_run_plan_make. */
tr_status tr_room_agree(tr_world *world, const tr_config *config, const tr_device_options *device,
                        size_t memory, double **room);
