/* mpirun as a child of the launcher. */
#pragma once

#include "job/launch.h"
#include "job/relay.h"

#include <sys/types.h>

/* Fails with TR_ERR_DEVICE when a limit of this process is too low for mpirun and the launch's
 * ranks on this host: without the check mpirun reports an internal error, and waits for ever.
 * Raises the limit of open files to what they need, as far as the system allows. */
tr_status tr_mpirun_check_limits(const tr_launch *launch);
/* Starts mpirun, which starts the launch's ranks of this executable (exe) with the board of that
 * name, and relays its output to this process's stdout and stderr. mpirun has its own process group
 * and does not get the signals that ask a run to stop, because it would kill the ranks before they
 * have saved. When this process dies, the ranks stop and save. Fails with TR_ERR_DEVICE when mpirun
 * cannot be started; the caller closes *output even then. */
tr_status tr_mpirun_start(const tr_launch *launch, const char *exe, const char *board, pid_t *pid,
                          tr_relay *output[2]);
/* Returns a signal that asks a run to stop and is pending in that mpirun, which keeps it blocked;
 * or 0. Signals that this process ignores do not count. */
int tr_mpirun_held_signal(pid_t pid);
