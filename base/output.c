#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static tr_status cannot(const char *path, int cause) {
    if (cause == EISDIR)
        return TR_FAIL(TR_ERR_DATA,
                       "'%s' cannot be written, because it is a directory: remove it, or choose "
                       "another place",
                       path);
    return TR_FAIL(TR_ERR_IO, "'%s' cannot be written: %s", path, strerror(cause));
}

tr_status tr_output_open_for(const char *path, const char *temporary, FILE **out) {
    int fd =
        open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (*out) return TR_OK;
    int cause = errno;
    if (fd >= 0) (void)close(fd);
    return cannot(access(temporary, F_OK) == 0 ? temporary : path, cause);
}

tr_status tr_output_open(const char *path, FILE **out) {
    return tr_output_open_for(path, path, out);
}

/* Syncs what was written, unless the file system cannot. */
static bool sync_file(FILE *out) {
    return fsync(fileno(out)) == 0 || errno == EINVAL;
}

static tr_status close_file(const char *path, FILE *out, bool sync, tr_status status) {
    errno = 0;
    bool failed =
        fflush(out) != 0 || ferror(out) != 0 || (sync && status == TR_OK && !sync_file(out));
    int cause = errno; /* 0: an earlier write failed, and its cause is not known */
    if (fclose(out) != 0 && !failed) {
        failed = true;
        cause = errno;
    }
    if (status != TR_OK || !failed) return status;
    return cause ? cannot(path, cause)
                 : TR_FAIL(TR_ERR_IO, "'%s' cannot be written: is the disk full?", path);
}

tr_status tr_output_close(const char *path, FILE *out, tr_status status) {
    return close_file(path, out, false, status);
}

tr_status tr_output_sync_close(const char *path, FILE *out, tr_status status) {
    return close_file(path, out, true, status);
}

tr_status tr_output_replace(const char *temporary, const char *path, FILE *out, tr_status status) {
    status = tr_output_sync_close(path, out, status);
    if (status == TR_OK && rename(temporary, path) != 0) status = cannot(path, errno);
    if (status != TR_OK) (void)unlink(temporary);
    return status;
}

int tr_output_put(int fd, const void *data, size_t bytes, int64_t at) {
    const char *from = data;
    while (bytes > 0) {
        const ssize_t n = pwrite(fd, from, bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : ENOSPC;
        from += n;
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}
