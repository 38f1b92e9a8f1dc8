/* What a killed job leaves behind on the launcher's host, and its removal.
 *
 * Each job of `trireme run` has a folder in TMPDIR (or /tmp), named like its board. mpirun keeps
 * its session files there. The launcher and mpirun hold a lock on the folder: the kernel frees it
 * when the last of the two is dead, however it died. So a folder without a lock belongs to a dead
 * job, and the next `trireme run` of the same user removes the folder, the job's board and the
 * shared memory of its ranks. Nothing is removed that no such folder points to. */
#pragma once

#include "base/status.h"

#include <stddef.h>

typedef struct tr_job_folder {
    char path[512]; /* "": there is none */
    const char *board;
    int lock;
} tr_job_folder;

/* Removes what dead jobs of this user left. Never fails, never waits. */
void tr_sweep(void);
/* Makes and locks the folder of the job whose board has that name ("/trireme-..."), and tells
 * mpirun, which is to be started after it and inherits the lock. Without a folder (TMPDIR cannot be
 * written or locked, or the user has chosen mpirun's folder) mpirun uses its own. board must
 * outlive it. */
void tr_job_folder_make(tr_job_folder *folder, const char *board);
/* Removes the folder and the shared memory of the job's ranks, which have ended or have been
 * killed: waits up to 5 s for the last of them to die. What is in use even then stays, and the next
 * tr_sweep removes it. */
void tr_job_folder_remove(tr_job_folder *folder);
