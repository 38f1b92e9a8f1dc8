/* Long files, which are read or written once, pass through the page cache without filling it: the
 * system recycles a few MiB of pages, other files stay in the cache, and the disk writes while the
 * program reads. */
#pragma once

#include "base/status.h"

#include <stdint.h>

enum {
    TR_DRAIN_PIECES = 16,
    TR_DRAIN_LEAST = 1 << 19, /* shorter pieces are left to the system */
};

/* What was written last to one file, and may be on its way to the disk. The caller sets the first
 * three. */
typedef struct tr_drain {
    int fd;
    const char *path;
    int64_t needed; /* as in tr_io_fail */
    struct {
        int64_t at, bytes;
    } piece[TR_DRAIN_PIECES];
    int64_t count; /* of all pieces so far */
} tr_drain;

/* Tells the disk to write bytes [at, at + bytes) of the file, which were written just now. Waits
 * for the piece that came TR_DRAIN_PIECES before it, and drops its pages. Fails with TR_ERR_IO when
 * the disk cannot write that piece. The file still needs an fsync. */
tr_status tr_drain_add(tr_drain *drain, int64_t at, int64_t bytes);

/* Drops the pages of bytes that were read, or written and synced, and are not needed again. */
void tr_drain_drop(int fd, int64_t at, int64_t bytes);
