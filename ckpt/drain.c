#include "ckpt/drain.h"

#include "base/minmax.h"
#include "ckpt/ckpt_impl.h"

#include <errno.h>
#include <fcntl.h>

/* A page, or several that the system keeps as one, stays when it lies on a border of the range:
 * the range begins earlier, so that it includes the border at the end of the last one. */
static void drop(int fd, int64_t at, int64_t bytes) {
    const int64_t begin = tr_max_i64(0, at - TR_CKPT_BLOCK);
    (void)posix_fadvise(fd, begin, at + bytes - begin, POSIX_FADV_DONTNEED);
}

tr_status tr_drain_add(tr_drain *d, int64_t at, int64_t bytes) {
    const unsigned finish =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (bytes < TR_DRAIN_LEAST) return TR_OK;
    const int64_t slot = d->count % TR_DRAIN_PIECES;
    if (d->count >= TR_DRAIN_PIECES) {
        /* The wait reports a failure of the disk, and the fsync after it would not repeat that. */
        if (sync_file_range(d->fd, d->piece[slot].at, d->piece[slot].bytes, finish) == 0)
            drop(d->fd, d->piece[slot].at, d->piece[slot].bytes);
        else if (errno != ENOSYS && errno != EINVAL && errno != ESPIPE)
            return tr_io_fail("write", d->path, errno, d->needed);
    }
    (void)sync_file_range(d->fd, at, bytes, SYNC_FILE_RANGE_WRITE);
    d->piece[slot].at = at;
    d->piece[slot].bytes = bytes;
    d->count++;
    return TR_OK;
}

void tr_drain_drop(int fd, int64_t at, int64_t bytes) {
    if (bytes >= TR_DRAIN_LEAST) drop(fd, at, bytes);
}
