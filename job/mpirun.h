/* mpirun, started for the launcher. */
#pragma once

#include "job/launch.h"
#include "job/relay.h"

#include <sys/types.h>

/* Starts mpirun with the launch's ranks of this executable (exe) on the board of that name; its
 * output is relayed to this process's stdout and stderr. It has a process group of its own and gets
 * none of the signals that ask a run to stop: it would end the ranks before they have saved. When
 * this process dies, the ranks stop and save. Fails with TR_ERR_DEVICE when mpirun cannot be
 * started; *output may then be open too. */
tr_status tr_mpirun_start(const tr_launch *launch, const char *exe, const char *board, pid_t *pid,
                          tr_relay *output[2]);
/* Returns a signal that asks a run to stop and is pending in that mpirun, which keeps it blocked;
 * or 0. Signals that this process ignores do not count. */
int tr_mpirun_held_signal(pid_t pid);
