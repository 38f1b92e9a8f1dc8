/* A file that only grows by whole records. */
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct tr_append {
    int fd; /* -1: closed */
    int64_t length;
    char *path;
} tr_append;

/* Opens or creates the file; what lies past `keep` bytes is cut off (keep < 0: nothing is).
 * TR_ERR_IO with path and cause. Release with tr_append_close. */
tr_status tr_append_open(const char *path, int64_t keep, tr_append *out);
/* Writes the record whole or not at all: after a failure (TR_ERR_IO, e.g. disk full) the file ends
 * where it did, and a later record can be written. */
tr_status tr_append_write(tr_append *file, const void *record, size_t bytes);
/* Closing a closed file does nothing. */
void tr_append_close(tr_append *file);
