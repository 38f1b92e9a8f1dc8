/* Files that are written whole. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Creates or empties a file for writing. Does not block when the path is a FIFO. Fails with
 * TR_ERR_IO, or with TR_ERR_DATA where a directory has the name; the message has the path and the
 * cause. */
tr_status tr_output_open(const char *path, FILE **out);
/* Opens `temporary` in the same way for tr_output_replace. The message has `path`, except where
 * something that is not a file has the name `temporary`. */
tr_status tr_output_open_for(const char *path, const char *temporary, FILE **out);
/* Closes the file. Returns `status` if it is a failure. Fails with TR_ERR_IO, path and cause, when
 * a part of the text could not be written. */
tr_status tr_output_close(const char *path, FILE *out, tr_status status);
/* Writes the file to the disk, and closes it like tr_output_close. Fails with TR_ERR_IO also when
 * it cannot be synced. */
tr_status tr_output_sync_close(const char *path, FILE *out, tr_status status);
/* Closes the file, which was opened at `temporary`, and gives it the name `path` once it is on the
 * disk, so that a crash leaves the old file or the whole new one. Removes it after a failure.
 * Fails like tr_output_close, with `path` in the message, and with TR_ERR_DATA where a directory
 * has the name. */
tr_status tr_output_replace(const char *temporary, const char *path, FILE *out, tr_status status);
/* Writes all bytes to their place in a file. Returns 0, or the cause as in errno. */
int tr_output_put(int fd, const void *data, size_t bytes, int64_t at);
