/* What a killed job leaves behind on the launcher's host, and its removal.
 *
 * Each job of `trireme run`, and each of its questions to hosts, has a folder in TMPDIR (or /tmp),
 * named like its board and ".d". mpirun keeps its session files there. The launcher and mpirun hold
 * a lock on the folder: the kernel frees it when the last of the two is dead, however it died. So a
 * folder without a lock belongs to a dead job, and the next `trireme run` of the same user removes
 * the folder, the job's board and the shared memory of its ranks. A job that was killed while it
 * began may have left a board and no folder, since a batch system gave it another TMPDIR or plain
 * mpirun started it: boards that no process has mapped are removed, too. Nothing else is removed.
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>

typedef struct tr_job_folder {
    char path[512]; /* "": there is none */
    const char *board;
    int lock;
} tr_job_folder;

/* Removes the folders, boards and shared memory of this user's dead jobs. Does not fail or wait. */
void tr_sweep(void);
/* Makes and locks the job's folder, named like its board ("/trireme-...") and ".d". mpirun is
 * started afterwards and inherits the lock. Without a folder (it cannot be locked, or the user has
 * chosen mpirun's folder) mpirun uses its own. Fails with TR_ERR_DEVICE, and makes none, when
 * TMPDIR cannot be written, because mpirun could not keep its files there either. The string
 * `board` must outlive the folder. */
tr_status tr_job_folder_make(tr_job_folder *folder, const char *board);
/* With `use`, makes each mpirun that is started from now on keep its session files in the folder,
 * if there is one. Without, lets later ones use their own. */
void tr_job_folder_use(const tr_job_folder *folder, bool use);
/* Removes the folder and the shared memory of the job's ranks, which have ended or been killed.
 * Waits up to 5 s for the last of them to die. Memory that is still in use then stays until the
 * next tr_sweep. */
void tr_job_folder_remove(tr_job_folder *folder);
