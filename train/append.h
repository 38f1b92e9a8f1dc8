/* A file that only grows by whole records. */
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct tr_append {
    int fd; /* -1: closed */
    int64_t length;
    char *path;
} tr_append;

/* Opens or creates the file, and cuts it to `keep` bytes (keep < 0: does not). Fails with
 * TR_ERR_IO, path and cause. The caller releases it with tr_append_close. */
tr_status tr_append_open(const char *path, int64_t keep, tr_append *out);
/* Appends a record. After a failure (TR_ERR_IO, for example a full disk) the file has its old
 * length, and a later record can be written. */
tr_status tr_append_write(tr_append *file, const void *record, size_t bytes);
/* Puts the records on the disk; does nothing when the file is closed, or cannot be synced. Fails
 * with TR_ERR_IO. */
tr_status tr_append_sync(const tr_append *file);
/* Cuts the file to `keep` bytes, if it is longer. Fails with TR_ERR_IO. */
tr_status tr_append_cut(tr_append *file, int64_t keep);
/* Closes the file; does nothing when it is closed. */
void tr_append_close(tr_append *file);
