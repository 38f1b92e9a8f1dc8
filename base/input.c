#include "base/input.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

int tr_regular_open(const char *path, int flags, int *fd, int64_t *bytes, const char **kind) {
    struct stat info;
    *kind = "";
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
    /* A socket fails to open with ENXIO, and strerror(ENXIO) does not mention sockets. */
    if (*fd < 0 && errno == ENXIO && stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        *kind = kind_of(info.st_mode);
        return -1;
    }
    if (*fd < 0) return errno;
    int result = fstat(*fd, &info) != 0 ? errno : S_ISREG(info.st_mode) ? 0 : -1;
    if (result == 0) {
        *bytes = info.st_size;
        return 0;
    }
    if (result < 0) *kind = kind_of(info.st_mode);
    (void)close(*fd);
    *fd = -1;
    return result;
}

bool tr_input_exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

uint32_t tr_input_magic(const char *path) {
    unsigned char byte[4] = {0};
    const char *kind;
    int64_t bytes;
    int fd;
    if (tr_regular_open(path, 0, &fd, &bytes, &kind) != 0) return 0;
    const bool whole = read(fd, byte, sizeof byte) == (ssize_t)sizeof byte;
    (void)close(fd);
    return whole ? (uint32_t)byte[0] | (uint32_t)byte[1] << 8 | (uint32_t)byte[2] << 16 |
                       (uint32_t)byte[3] << 24
                 : 0;
}

tr_status tr_input_refused(int error) {
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG: return TR_ERR_NOFILE;
    case EIO:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ESTALE:
    case ETIMEDOUT: return TR_ERR_IO;
    default: return TR_ERR_DATA;
    }
}

tr_status tr_input_open(const char *what, const char *path, int *fd, int64_t *bytes) {
    enum { MOST_SHOWN = 512 }; /* the cause follows the path */
    const char *kind, *more = strlen(path) > MOST_SHOWN ? "..." : "";
    int result = tr_regular_open(path, 0, fd, bytes, &kind);
    if (result > 0)
        return TR_FAIL(tr_input_refused(result), "%s '%.*s%s' cannot be opened: %s", what,
                       MOST_SHOWN, path, more,
                       result == ENOENT && tr_input_exists(path)
                           ? "it is a link to a file that does not exist"
                           : strerror(result));
    if (result < 0)
        return TR_FAIL(TR_ERR_DATA, "%s '%.*s%s' is %s: name a regular file", what, MOST_SHOWN,
                       path, more, kind);
    return TR_OK;
}

tr_status tr_input_no_model(const char *path, int error, const char *key) {
    const char *slash = strchr(path, '/');
    const bool published = error == ENOENT && slash && slash > path && *path != '.' && slash[1] &&
                           !strchr(slash + 1, '/');
    char fetch[1200] = "name the folder of a model of transformers, which has a config.json";
    if (published)
        (void)snprintf(fetch, sizeof fetch,
                       "`hf download %.512s --local-dir %.512s` fetches a published model", path,
                       path);
    return TR_FAIL(tr_input_refused(error), "the model '%.512s' cannot be opened: %s%s; %s", path,
                   strerror(error), key, fetch);
}

tr_status tr_input_stream(const char *path, FILE **out) {
    const char *kind;
    int fd;
    int64_t bytes;
    *out = NULL;
    int result = tr_regular_open(path, 0, &fd, &bytes, &kind);
    if (result == ENOENT) return TR_OK;
    if (result == 0) {
        *out = fdopen(fd, "r");
        if (*out) return TR_OK;
        result = errno;
        (void)close(fd);
    }
    if (result < 0)
        return TR_FAIL(TR_ERR_IO, "'%s' is %s, not a regular file: remove it", path, kind);
    return TR_FAIL(TR_ERR_IO, "'%s' cannot be read: %s", path, strerror(result));
}

static tr_status too_large(const char *what, const char *path, tr_input_limit limit) {
    bool whole_gib = limit.mib % 1024 == 0;
    return TR_FAIL(limit.failure,
                   "%s '%s' is larger than the limit of %" PRId64 " %s: name another file", what,
                   path, whole_gib ? limit.mib / 1024 : limit.mib, whole_gib ? "GiB" : "MiB");
}

/* Reads up to `most` bytes or to the end; a file of /proc has more than its size says. */
static tr_status read_all(int fd, const char *what, const char *path, int64_t expected, size_t most,
                          char **text, size_t *length) {
    size_t capacity = 0;
    *length = 0;
    TR_TRY(tr_grow(text, &capacity, (size_t)expected + 2,
                   1)); /* the loop then finds the end without growing */
    while (*length < most) {
        TR_TRY(tr_grow(text, &capacity, *length + 2, 1)); /* room for a byte and the 0 byte */
        size_t room = capacity - 1 - *length, left = most - *length;
        ssize_t n = read(fd, *text + *length, room < left ? room : left);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return TR_FAIL(TR_ERR_IO, "%s '%s' cannot be read: %s", what, path, strerror(errno));
        if (n == 0) break;
        *length += (size_t)n;
    }
    (*text)[*length] = '\0';
    return TR_OK;
}

tr_status tr_input_load(const char *what, const char *path, tr_input_limit limit, char **text,
                        size_t *length) {
    int fd;
    int64_t bytes, most = limit.mib << 20;
    TR_TRY(tr_input_open(what, path, &fd, &bytes));
    *text = NULL;
    *length = 0;
    tr_status status = bytes > most ? too_large(what, path, limit) : TR_OK;
    if (status == TR_OK) status = read_all(fd, what, path, bytes, (size_t)most + 1, text, length);
    if (status == TR_OK && *length > (size_t)most) status = too_large(what, path, limit);
    (void)close(fd);
    if (status != TR_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}
