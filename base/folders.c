#include "base/folders.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_TRIES = 1000 };

/* Syncs the folder that a folder is in, unless that cannot be read, or was removed meanwhile. */
static int sync_parent(const char *path) {
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    (void)snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash + 1 - path) : 1,
                   slash ? path : ".");
    const int cause = tr_folders_sync(parent);
    return cause == EACCES || cause == ENOENT ? 0 : cause;
}

int tr_folders_make(const char *path, size_t *made, size_t *at) {
    char part[PATH_MAX];
    int tries = 0;
    *at = strlen(path);
    if (*at >= sizeof part) return ENAMETOOLONG;
    for (const char *end = path; *end;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        *at = (size_t)(end - path);
        (void)snprintf(part, sizeof part, "%.*s", (int)*at, path);
        if (mkdir(part, 0777) == 0) {
            if (*made == 0 || *at < *made) *made = *at;
            const int cause = sync_parent(part);
            if (cause) return cause;
        } else if (errno == ENOENT && tries++ < MOST_TRIES) {
            end = path; /* the process that had made a parent removed it: begin again */
        } else if (errno != EEXIST) {
            return errno;
        }
    }
    return 0;
}

void tr_folders_remove(const char *path, size_t made) {
    char part[PATH_MAX];
    size_t length = (size_t)snprintf(part, sizeof part, "%s", path);
    while (made > 0 && length >= made) {
        /* EINVAL: the path ends in "."; ENOENT: making it failed */
        if (rmdir(part) != 0 && errno != EINVAL && errno != ENOENT) return;
        while (length > 0 && part[length - 1] == '/') length--;
        while (length > 0 && part[length - 1] != '/') length--;
        while (length > 0 && part[length - 1] == '/') length--;
        part[length] = '\0';
    }
}

int tr_folders_sync(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    const int error = fsync(fd) == 0 ? 0 : errno;
    (void)close(fd);
    return error == EINVAL ? 0 : error;
}
