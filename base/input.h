/* Files that a user names: a config, a schedule, training data.
 *
 * They are opened without blocking and must be regular files. A FIFO without a writer or an endless
 * device would hang every rank, and only one rank could read a pipe. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Opens a regular file for reading; passes `flags` (O_NOFOLLOW) to open as well. Returns 0, or the
 * errno of open. Returns -1 when the path is not a regular file, and *kind says what it is: "a
 * directory", "a pipe". *fd is open only after 0. */
int tr_regular_open(const char *path, int flags, int *fd, int64_t *bytes, const char **kind);

/* Returns true when the path exists. A link that leads nowhere exists, too: it fails when it is
 * opened, instead of being passed over. */
bool tr_input_exists(const char *path);

/* Returns the number in the first four bytes of a regular file, little-endian; 0 when there is no
 * such file, or it is shorter. */
uint32_t tr_input_magic(const char *path);

/* Returns the status for a path that a user named and open refused with that errno: TR_ERR_NOFILE
 * only when the path does not exist, TR_ERR_IO when the system is at fault, else TR_ERR_DATA. */
tr_status tr_input_refused(int error);

/* Opens a regular file that a user named; `what` is its name in messages ("the config file"). Fails
 * as tr_input_refused says, and with TR_ERR_DATA when it is not a regular file; the message has the
 * path and the cause. */
tr_status tr_input_open(const char *what, const char *path, int *fd, int64_t *bytes);

/* Fails like tr_input_refused for a model's path that a user named and stat refused with that
 * errno; the message names the path, the cause, `key` (the config's key in brackets, or "") and a
 * remedy. A path that does not exist and has one slash may be a published model's name. */
tr_status tr_input_no_model(const char *path, int error, const char *key);

/* Opens a regular file that the program itself wrote, for reading line by line. When the file does
 * not exist, sets *out to NULL and succeeds. Fails with TR_ERR_IO; the message has the path and the
 * cause. */
tr_status tr_input_stream(const char *path, FILE **out);

/* The size limit of a file, and the status to fail with when the file is larger. */
typedef struct tr_input_limit {
    int64_t mib;
    tr_status failure;
} tr_input_limit;

/* Reads the whole file into *text (malloc'd, a 0 byte appended; the caller frees it). Fails with
 * TR_ERR_NOFILE or TR_ERR_DATA like tr_input_open, with limit.failure when the file is larger, and
 * with TR_ERR_IO when it cannot be read. */
tr_status tr_input_load(const char *what, const char *path, tr_input_limit limit, char **text,
                        size_t *length);
