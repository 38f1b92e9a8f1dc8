/* What a killed job leaves behind on the launcher's host, and its removal.
 *
 * Each job of `trireme run`, and each of its questions to hosts, has a folder in TMPDIR (or /tmp)
 * and one in /dev/shm, both named like its board and ".d". mpirun keeps its session files in the
 * first one, and the ranks the segments of their shared memory in the second: Open MPI names a
 * segment by host name and process number, which two containers may have in common. The launcher
 * and mpirun hold a lock on both folders: the kernel frees it when the last of the two is dead,
 * however it died. So a folder without a lock belongs to a dead job, and the next `trireme run` of
 * the same user removes the folder and the job's board. A job that was killed while it began may
 * have left a board and no folder, as plain mpirun does: boards that no process has mapped are
 * removed, too. Nothing else is removed.
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>

typedef struct tr_job_folder {
    char path[512]; /* "": there is none */
    int lock;
} tr_job_folder;

typedef struct tr_job_files {
    tr_job_folder session, segments;
} tr_job_files;

/* Removes the folders and boards of this user's dead jobs. Does not fail or wait. */
void tr_sweep(void);
/* Makes and locks the job's folders, named like its board ("/trireme-...") and ".d". mpirun is
 * started afterwards and inherits the locks. Where a folder cannot be made or locked, or the user
 * has chosen mpirun's, Open MPI uses its own places. Fails with TR_ERR_DEVICE, and makes none, when
 * TMPDIR cannot be written, because mpirun could not keep its files there either. */
tr_status tr_job_files_make(tr_job_files *files, const char *board);
/* With `use`, makes each mpirun that is started from now on keep its session files in the folder,
 * if there is one, and none elsewhere. Without, lets later ones use their own folder. */
void tr_job_files_use(const tr_job_files *files, bool use);
/* Makes MPI, which this rank has not started yet, keep its segments in the folder of the job with
 * that board, if this host has the folder and the user has chosen no other. Removes the variables
 * of tr_job_files_use: a rank with them would not start, because mpirun gives it another folder. */
void tr_job_files_enter(const char *board);
/* Removes the folders; the ranks have ended or been killed. Waits up to 5 s for the last of them to
 * die. What is left then stays until the next tr_sweep. */
void tr_job_files_remove(tr_job_files *files);
