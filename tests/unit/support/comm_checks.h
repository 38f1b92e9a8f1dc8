/* Checks of a world, the same for every transport and device: all-reduces bit for bit against sums
 * in rank order, channels, the control plane. Every rank calls comm_checks_on with its world; a
 * failed check prints a line and returns false. For test_comm_local.c and mpi/comm.c. */
#pragma once

#include "comm/comm.h"
#include "support/comm_values.h"

bool checks_open(tr_world *world, const char *device, uint32_t seed, checks *k);

/* Runs the checks on the device of this name; messages of two streams only where the device
 * computes on the host. */
bool comm_checks_on(tr_world *world, const char *device, bool nccl, uint32_t seed);

/* Runs the check that comes last, because afterwards the world is unusable if the device does not
 * compute on the host. */
bool comm_checks_last(tr_world *world, const char *device, uint32_t seed);
