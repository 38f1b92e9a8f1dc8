/* The folder of an export: written next to its target, and renamed when all is in it. */
#pragma once

#include "base/status.h"

#include <limits.h>

typedef struct tr_export_folder {
    char target[PATH_MAX];    /* its path, without links if it exists */
    char temporary[PATH_MAX]; /* its path while it is written; "": not made, or no longer there */
    size_t made;              /* of the target's parents (tr_folders_make) */
    int lock;                 /* of a file in it, which shows that this process lives; -1: none */
} tr_export_folder;

/* Makes the folder under its temporary name, <path>.tmp-<number>, and the missing parents. Removes
 * the folders of earlier exports to this path that were killed, where the file system has locks.
 * Fails with TR_ERR_USAGE, before anything is written, when `path` has entries, cannot be a
 * folder's name, or is the current folder or a mount point, which a rename cannot replace; and with
 * TR_ERR_IO. */
tr_status tr_export_folder_make(const char *path, tr_export_folder *out);
/* Syncs the folder and gives it its name. Fails with TR_ERR_IO. */
tr_status tr_export_folder_publish(tr_export_folder *folder);
/* Removes the folder, and the parents that were made for it, unless it has its name. Keeps this
 * thread's error. */
void tr_export_folder_remove(tr_export_folder *folder);
