#include "train/append.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tr_status cannot(const tr_append *file, const char *verb) {
    return TR_FAIL(TR_ERR_IO, "'%s' cannot be %s: %s", file->path, verb, strerror(errno));
}

tr_status tr_append_open(const char *path, int64_t keep, tr_append *out) {
    *out = (tr_append){.fd = -1};
    TR_TRY(tr_strdup(path, &out->path));
    /* O_NONBLOCK, so that a FIFO of that name does not hang the run. */
    out->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
    struct stat info;
    tr_status status = TR_OK;
    if (out->fd < 0 || fstat(out->fd, &info)) status = cannot(out, "opened");
    else out->length = info.st_size;
    if (status == TR_OK && keep >= 0) status = tr_append_cut(out, keep);
    if (status != TR_OK) tr_append_close(out);
    return status;
}

tr_status tr_append_write(tr_append *file, const void *record, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(file->fd, (const char *)record + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            tr_status status = cannot(file, "written");
            /* Removes a partial record, because the next one must start on a boundary. */
            if (ftruncate(file->fd, file->length)) return cannot(file, "cut back");
            return status;
        }
        done += (size_t)n;
    }
    file->length += (int64_t)bytes;
    return TR_OK;
}

tr_status tr_append_sync(const tr_append *file) {
    if (file->fd < 0 || fsync(file->fd) == 0 || errno == EINVAL) return TR_OK;
    return cannot(file, "synced");
}

tr_status tr_append_cut(tr_append *file, int64_t keep) {
    if (file->length <= keep) return TR_OK;
    if (ftruncate(file->fd, keep)) return cannot(file, "cut");
    file->length = keep;
    return TR_OK;
}

void tr_append_close(tr_append *file) {
    if (file->fd >= 0) (void)close(file->fd);
    free(file->path);
    *file = (tr_append){.fd = -1};
}
