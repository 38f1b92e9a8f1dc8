/* The run directory (log.dir), which rank 0 locks during a run. */
#pragma once

#include "config/config.h"

/* A locked directory. The lock is on the file `lock` in it; the kernel frees it when the process
 * ends, however it ends, and an NFS server sees it too. */
typedef struct tr_rundir {
    char path[TR_CONFIG_PATH];
    int fd;          /* of the lock file; -1: not held */
    size_t made;     /* bytes of the path to the first folder that this run created; 0: none */
    bool argument;   /* the path is an argument: messages do not name log.dir */
    const char *job; /* as given */
    bool begun;      /* the job's run had begun there when the directory was locked */
} tr_rundir;

enum { TR_RUNDIR_NOTE = 256 };
/* Locks the directory. `make`: creates it, with its parents, if it is missing. argument: messages
 * do not name log.dir, because the user gave the path as an argument. job: a name of the launcher's
 * job, which its restarts share; NULL: none. Fails with TR_ERR_CONFIG for the root folder, and,
 * with the host and process, when another run has locked the directory; with TR_ERR_NOFILE when it
 * is missing and `make` is false; with TR_ERR_DATA when it or a parent is not a directory; with
 * TR_ERR_IO when it cannot be made or opened, or its ckpt cannot be written to. note: a sentence
 * when the file system cannot lock, so that another job may not be noticed; else it is empty. */
tr_status tr_rundir_take(const char *path, bool make, bool argument, const char *job,
                         tr_rundir *out, char note[TR_RUNDIR_NOTE]);
/* Notes in the lock file that the job's run has begun in the directory, so that a restart of the
 * job continues it, and no other run. A full disk leaves the note out. */
void tr_rundir_begin(const tr_rundir *dir);
enum { TR_RUNDIR_HOLDER = 256 };
/* Writes to text what the lock file says of its holder; "" when it says nothing, as on a full
 * disk. */
void tr_rundir_holder(const tr_rundir *dir, char text[TR_RUNDIR_HOLDER]);
/* Checks on another rank that this path is the directory of the expected holder; "": does not
 * check. Otherwise the rank's host has another file system there, and the first save would fail.
 * Waits up to patience_s, because a network file system may show a new file late. Fails with
 * TR_ERR_CONFIG, or with TR_ERR_IO when the lock file is there and cannot be opened. */
tr_status tr_rundir_check_holder(const char *path, const char *expected, double patience_s);

/* Returns false when the directory was removed, moved or replaced since it was locked. */
bool tr_rundir_in_place(const tr_rundir *dir);
/* Makes and locks the path again after that. Fails with TR_ERR_IO when it cannot be made, or
 * another run has locked it or left checkpoints there; the directory that was moved away then stays
 * locked. */
tr_status tr_rundir_restore(tr_rundir *dir);
/* Returns true when the directory contains checkpoints, or entries that may be checkpoints. */
bool tr_rundir_has_checkpoints(const tr_rundir *dir);
/* Unlocks the directory, and removes it and its parents if this run created them and wrote nothing
 * to them. Does nothing when it is not locked. */
void tr_rundir_release(tr_rundir *dir);

/* Returns true when locks on the file system `major`:`minor` work only within this host, by its
 * mount options (NFS: nolock, local_lock; Lustre: localflock). mounts: the text of
 * /proc/self/mountinfo. */
bool tr_rundir_locks_are_local(FILE *mounts, unsigned major, unsigned minor);
