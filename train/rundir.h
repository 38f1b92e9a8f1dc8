/* The run directory (log.dir) while a run uses it: rank 0 of the run keeps it locked. */
#pragma once

#include "config/config.h"

/* A directory that is held. The lock is on the file `lock` in it; the kernel frees it when the
 * process ends, however it ends, and an NFS server sees it too. */
typedef struct tr_rundir {
    char path[TR_CONFIG_PATH];
    int fd;    /* of the lock file; -1: not held */
    bool made; /* the directory did not exist before */
} tr_rundir;

/* Takes the directory; `make`: creates it, with its parents, where it is missing. TR_ERR_CONFIG
 * names host and process of the run that holds it; TR_ERR_NOFILE when it is missing and `make` is
 * false; TR_ERR_IO when it cannot be made or opened, or its ckpt cannot be written to. note[256]:
 * empty, or a sentence when the lock does not keep every other job out, since the file system
 * cannot lock. */
tr_status tr_rundir_take(const char *path, bool make, tr_rundir *out, char *note);
/* False when the directory that was taken is no longer at its path: removed, moved or replaced. */
bool tr_rundir_in_place(const tr_rundir *dir);
/* Makes and takes the path again after that. TR_ERR_IO when it cannot be made, or another run has
 * taken it or left checkpoints there; the directory that was moved away is then still held. */
tr_status tr_rundir_restore(tr_rundir *dir);
/* True when the directory contains checkpoints, or what may be some. */
bool tr_rundir_has_checkpoints(const tr_rundir *dir);
/* Frees the directory, and removes it when it was made for this run and nothing was written to it.
 * Does nothing when it is not held. */
void tr_rundir_release(tr_rundir *dir);

/* True when locks on the file system `major`:`minor` count on this host alone, by its mount options
 * (NFS: nolock, local_lock; Lustre: localflock). mounts: the text of /proc/self/mountinfo. */
bool tr_rundir_locks_are_local(FILE *mounts, unsigned major, unsigned minor);
