/* Files that a user names: a config, a schedule, training data.
 *
 * They are opened without blocking and must be regular files. A FIFO without a writer or an endless
 * device in their place would hang every rank, and a pipe can be read by one rank only. */
#pragma once

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

/* Opens a regular file for reading; `flags` are added to open's (O_NOFOLLOW). Returns 0, or the
 * errno of open. Returns -1 when the path is not a regular file, and *kind says what it is: "a
 * directory", "a pipe". *fd is open after 0 only. */
int tr_regular_open(const char *path, int flags, int *fd, int64_t *bytes, const char **kind);

/* Opens a regular file that a user named; `what` is its name in messages ("the config file"). Fails
 * with TR_ERR_NOFILE, path and cause when it cannot be opened or is not a regular file. */
tr_status tr_input_open(const char *what, const char *path, int *fd, int64_t *bytes);

/* Opens a regular file of the program's own for reading line by line. *out is NULL, and the call
 * succeeds, when there is no such file. Fails with TR_ERR_IO, path and cause. */
tr_status tr_input_stream(const char *path, FILE **out);

/* The size limit of a file, and the status of a file that is larger. */
typedef struct tr_input_limit {
    int64_t mib;
    tr_status failure;
} tr_input_limit;

/* Reads the whole file into *text (malloc'd, a 0 byte appended; the caller frees it). TR_ERR_NOFILE
 * as tr_input_open has it, limit.failure for a larger file, TR_ERR_IO when it cannot be read. */
tr_status tr_input_load(const char *what, const char *path, tr_input_limit limit, char **text,
                        size_t *length);
