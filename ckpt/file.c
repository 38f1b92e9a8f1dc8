/* Files and directories with every return value checked. */
#include "base/folders.h"
#include "base/input.h"
#include "base/memory.h"
#include "base/output.h"
#include "ckpt/ckpt_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_full(int error) {
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

tr_status tr_io_fail(const char *what, const char *path, int error, int64_t needed) {
    const char *cause = strerror(error);
    if (needed <= 0) return TR_FAIL(TR_ERR_IO, "cannot %s %s: %s", what, path, cause);
    if (!is_full(error))
        return TR_FAIL(TR_ERR_IO, "cannot %s %s: %s (older checkpoints are untouched)", what, path,
                       cause);
    /* The message does not state the free bytes: part of the checkpoint may be written already, and
     * quotas do not show. */
    return TR_FAIL(TR_ERR_IO,
                   "cannot %s %s: %s; a checkpoint of this run takes at least %" PRId64
                   " bytes: %s (older checkpoints are untouched)",
                   what, path, cause, needed,
                   error == EFBIG ? "raise the limit on a file's size (ulimit -f)"
                                  : "make room, or put the run on another file system");
}

tr_status tr_file_write(int fd, const char *path, const void *data, size_t bytes, int64_t offset,
                        int64_t needed) {
    const int error = tr_output_put(fd, data, bytes, offset);
    return error ? tr_io_fail("write", path, error, needed) : TR_OK;
}

tr_status tr_file_read(int fd, const char *path, void *data, size_t bytes, int64_t offset) {
    char *to = data;
    while (bytes > 0) {
        ssize_t n = pread(fd, to, bytes, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return tr_io_fail("read", path, errno, 0);
        if (n == 0)
            return TR_FAIL(TR_ERR_DATA, "%s ends at byte %" PRId64 ": it is truncated", path,
                           offset);
        to += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return TR_OK;
}

tr_status tr_file_open(const char *path, int *fd, int64_t *bytes) {
    const char *kind;
    int result = tr_regular_open(path, O_NOFOLLOW, fd, bytes, &kind);
    if (result == 0) return TR_OK;
    if (result < 0)
        return TR_FAIL(TR_ERR_DATA, "%s is %s, not a regular file: a checkpoint has none", path,
                       kind);
    if (result == ENOENT)
        return TR_FAIL(TR_ERR_DATA, "%s is missing: the checkpoint is incomplete", path);
    if (result == ELOOP)
        return TR_FAIL(TR_ERR_DATA, "%s is a symbolic link: a checkpoint has none", path);
    return tr_io_fail("open", path, result, 0);
}

tr_status tr_file_load(const char *path, int64_t limit, char **data, size_t *bytes) {
    int fd = -1;
    int64_t size = 0;
    char *text = NULL;
    tr_status status;
    TR_TRY_OUT(tr_file_open(path, &fd, &size));
    if (size > limit) {
        status = TR_FAIL(TR_ERR_DATA, "%s has %" PRId64 " bytes, %" PRId64 " are expected", path,
                         size, limit);
        goto out;
    }
    TR_TRY_OUT(tr_calloc((size_t)size + 1, 1, &text));
    TR_TRY_OUT(tr_file_read(fd, path, text, (size_t)size, 0));
    *data = text;
    *bytes = (size_t)size;
    text = NULL;
out:
    free(text);
    if (fd >= 0) (void)close(fd);
    return status;
}

tr_status tr_file_sync_close(int fd, const char *path, int64_t needed) {
    int error = fsync(fd) != 0 ? errno : 0;
    int close_error = close(fd) != 0 ? errno : 0;
    if (error) return tr_io_fail("fsync", path, error, needed);
    if (close_error) return tr_io_fail("close", path, close_error, needed);
    return TR_OK;
}

tr_status tr_file_reserve(int fd, const char *path, int64_t bytes, int64_t needed) {
    int error;
    do error = fallocate(fd, 0, 0, bytes) == 0 ? 0 : errno;
    while (error == EINTR);
    /* Where the file system cannot reserve room, or a container may not, a later write fails. */
    return is_full(error) ? tr_io_fail("reserve room for", path, error, needed) : TR_OK;
}

tr_status tr_file_try(const char *path, int64_t bytes, int64_t needed) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return tr_io_fail("create", path, errno, needed);
    tr_status status = tr_file_reserve(fd, path, bytes, needed);
    (void)close(fd);
    return status;
}

tr_status tr_file_store(const char *path, const void *data, size_t bytes, int64_t needed) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return tr_io_fail("create", path, errno, needed);
    tr_status status = tr_file_write(fd, path, data, bytes, 0, needed);
    if (status != TR_OK) {
        (void)close(fd);
        return status;
    }
    return tr_file_sync_close(fd, path, needed);
}

tr_status tr_directory_sync(const char *path, int64_t needed) {
    const int error = tr_folders_sync(path);
    return error ? tr_io_fail("fsync", path, error, needed) : TR_OK;
}

tr_status tr_directory_make(const char *path) {
    char partial[PATH_MAX];
    size_t made = 0, at;
    const int cause = tr_folders_make(path, &made, &at);
    if (cause == 0) return TR_OK;
    (void)snprintf(partial, sizeof partial, "%.*s", (int)at, path);
    return tr_io_fail("create the directory", partial, cause, 0);
}

void tr_directory_remove(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        if (fd >= 0) (void)close(fd);
        (void)unlink(path); /* a link to a step: removes only the link */
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(fd, entry->d_name, 0);
    (void)closedir(dir);
    (void)rmdir(path);
}
