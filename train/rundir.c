#include "train/rundir.h"

#include "base/clock.h"
#include "base/folders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

enum { PATH_SIZE = TR_CONFIG_PATH + 8, HOST = 65, JOB = 64, TEXT = HOST + JOB + 64 };
_Static_assert((int)TEXT <= (int)TR_RUNDIR_HOLDER, "a lock file's text is passed to other ranks");

static void lock_path(const char *dir, char path[PATH_SIZE]) {
    (void)snprintf(path, PATH_SIZE, "%s/lock", dir);
}

/* Returns what messages say about where the path comes from. */
static const char *key_of(const tr_rundir *dir) {
    return dir->argument ? "" : " (log.dir)";
}

/* A run that ends may have removed the directory since it was made. A link to nothing stays. */
static bool is_removed_or_directory(const char *path) {
    struct stat info;
    if (stat(path, &info) == 0) return S_ISDIR(info.st_mode);
    return errno == ENOENT && (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode));
}

/* bytes: of the path to what is not a directory. */
static tr_status not_a_directory(const char *path, size_t bytes, const tr_rundir *dir) {
    return TR_FAIL(TR_ERR_DATA, "'%.*s'%s is not a directory: choose another path", (int)bytes,
                   path, key_of(dir));
}

/* Fails for the root folder, in whatever way it is written. An empty variable makes it of "$DIR/",
 * and the files of a run must not fill it. */
static tr_status check_root(const tr_rundir *dir) {
    struct stat a, b;
    if (stat(dir->path, &a) || stat("/", &b) || a.st_dev != b.st_dev || a.st_ino != b.st_ino)
        return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG, "'%s'%s is the root folder: name a directory for this run",
                   dir->path, key_of(dir));
}

/* Makes the directory and its parents; sets dir->made. */
static tr_status make_directory(const char *path, tr_rundir *dir) {
    size_t at;
    if (strlen(path) >= TR_CONFIG_PATH)
        return TR_FAIL(TR_ERR_USAGE,
                       "the run's path has %zu bytes: choose one of fewer than %d bytes",
                       strlen(path), TR_CONFIG_PATH);
    const int cause = tr_folders_make(path, &dir->made, &at);
    if (cause) {
        tr_folders_remove(path, dir->made);
        if (cause == ENOTDIR) {
            while (path[at - 1] != '/') at--;
            while (path[at - 1] == '/') at--;
            return not_a_directory(path, at, dir);
        }
        return TR_FAIL(TR_ERR_IO, "the directory '%.*s' cannot be made: %s%s", (int)at, path,
                       strerror(cause), key_of(dir));
    }
    return is_removed_or_directory(path) ? TR_OK : not_a_directory(path, strlen(path), dir);
}

/* --- the holder ------------------------------------------------------------------------------- */

typedef struct holder {
    char host[HOST];
    long pid;      /* 0: not known */
    char job[JOB]; /* the one with a run that has begun in the directory; "": not known */
} holder;

/* Writes the host and process of the lock's holder, for messages, and which job's run has begun. */
static void write_holder(int fd, const char *job) {
    char host[HOST] = "", text[TEXT];
    (void)gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "host %s\nprocess %ld\n", host, (long)getpid());
    if (*job) n += snprintf(text + n, sizeof text - (size_t)n, "job %.*s\n", JOB - 1, job);
    /* In this order, so that a note which stays is there at all times. */
    if (pwrite(fd, text, (size_t)n, 0) != n || ftruncate(fd, n)) return; /* a full disk */
    (void)fsync(fd); /* so that other hosts see it */
}

/* Reads the text of the lock file; "" when there is none. */
static void read_text(int fd, char text[TEXT]) {
    const ssize_t bytes = pread(fd, text, TEXT - 1, 0);
    text[bytes > 0 ? bytes : 0] = '\0';
}

static holder read_holder(int fd) {
    holder h = {.pid = 0};
    char text[TEXT];
    read_text(fd, text);
    if (sscanf(text, "host %64s process %ld job %63s", h.host, &h.pid, h.job) < 2)
        h = (holder){.pid = 0};
    return h;
}

static holder holder_of(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return (holder){.pid = 0};
    const holder h = read_holder(fd);
    (void)close(fd);
    return h;
}

void tr_rundir_holder(const tr_rundir *dir, char text[TR_RUNDIR_HOLDER]) {
    text[0] = '\0';
    if (dir->fd >= 0) read_text(dir->fd, text);
}

tr_status tr_rundir_check_holder(const char *dir, const char *expected, double patience_s) {
    const double end_s = tr_now_s() + patience_s;
    char path[PATH_SIZE], here[HOST] = "", text[TEXT];
    int cause;
    lock_path(dir, path);
    for (;;) {
        errno = 0;
        int fd = expected[0] ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
        cause = errno;
        text[0] = '\0';
        if (fd >= 0) {
            read_text(fd, text);
            (void)close(fd);
        }
        if (!strcmp(text, expected)) return TR_OK;
        if (tr_now_s() >= end_s) break;
        (void)nanosleep(&(struct timespec){.tv_nsec = 100 * 1000000}, NULL);
    }
    (void)gethostname(here, sizeof here - 1);
    if (cause && cause != ENOENT && cause != ENOTDIR)
        return TR_FAIL(TR_ERR_IO, "'%s' cannot be opened on host %s: %s (log.dir)", path, here,
                       strerror(cause));
    return TR_FAIL(TR_ERR_CONFIG,
                   "'%s' (log.dir) on host %s is not the directory of this run: choose one in a "
                   "file system that all hosts share, and give its full path",
                   dir, here);
}

/* Fails with the name of the lock's holder. A holder locks the file before it writes its name;
 * until then the file is empty or names an earlier holder. */
static tr_status held(const tr_rundir *dir, const char *path) {
    const char *remedy =
        dir->argument ? "name another directory" : "choose another directory with log.dir=...";
    char here[HOST] = "";
    holder h;
    (void)gethostname(here, sizeof here - 1);
    for (int tries = 0;; tries++) {
        h = holder_of(path);
        bool dead = !strcmp(h.host, here) && h.pid > 0 && kill((pid_t)h.pid, 0) && errno == ESRCH;
        if ((h.pid > 0 && !dead) || tries == 100) break;
        (void)nanosleep(&(struct timespec){.tv_nsec = 10 * 1000000}, NULL);
    }
    if (h.pid <= 0)
        return TR_FAIL(TR_ERR_CONFIG,
                       "'%s' is in use by another run: wait until that run ends, or %s", dir->path,
                       remedy);
    return TR_FAIL(TR_ERR_CONFIG,
                   "'%s' is in use by process %ld on host %s: wait until that run ends, or %s",
                   dir->path, h.pid, h.host, remedy);
}

/* --- the lock --------------------------------------------------------------------------------- */

bool tr_rundir_locks_are_local(FILE *mounts, unsigned major, unsigned minor) {
    char *line = NULL;
    size_t size = 0;
    bool local = false;
    while (getline(&line, &size, mounts) > 0) {
        unsigned a, b;
        const char *type = strstr(line, " - ");
        if (sscanf(line, "%*d %*d %u:%u", &a, &b) != 2 || a != major || b != minor || !type)
            continue;
        bool nfs = !strncmp(type, " - nfs", 6), lustre = !strncmp(type, " - lustre", 9);
        local = (nfs && (strstr(type, ",nolock") || strstr(type, "local_lock=all") ||
                         strstr(type, "local_lock=posix"))) ||
                (lustre && strstr(type, "localflock"));
    }
    free(line);
    return local;
}

static void note_local_locks(const char *dir, int fd, char note[TR_RUNDIR_NOTE]) {
    struct stat info;
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    if (!mounts) return;
    if (!fstat(fd, &info) &&
        tr_rundir_locks_are_local(mounts, major(info.st_dev), minor(info.st_dev)))
        (void)snprintf(note, TR_RUNDIR_NOTE,
                       "the file system of '%.120s' locks only within this host: a second job on "
                       "another host would not be noticed, so start only one",
                       dir);
    (void)fclose(mounts);
}

/* Tries to lock. The lock belongs to the open file, not to the process, so that closing another
 * descriptor of the file does not free it. *free_now is false when another run holds it. */
static tr_status try_lock(const char *dir, int fd, bool *free_now, char *note) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int failed;
    *free_now = true;
    do failed = fcntl(fd, F_OFD_SETLK, &whole);
    while (failed && errno == EINTR);
    if (!failed) {
        note_local_locks(dir, fd, note);
    } else if (errno == EACCES || errno == EAGAIN) {
        *free_now = false;
    } else if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL) {
        (void)snprintf(note, TR_RUNDIR_NOTE,
                       "the file system of '%.120s' cannot lock (%s): a second job in the "
                       "directory would not be noticed, so start only one",
                       dir, strerror(errno));
    } else {
        return TR_FAIL(TR_ERR_IO, "'%s/lock' cannot be locked: %s", dir, strerror(errno));
    }
    return TR_OK;
}

static bool same_file(int fd, const char *path) {
    struct stat a, b;
    return !fstat(fd, &a) && !stat(path, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static tr_status open_lock(const tr_rundir *dir, const char *path, int *fd) {
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (*fd >= 0) return TR_OK;
    if (errno == ENOENT || errno == ENOTDIR)
        return TR_FAIL(TR_ERR_NOFILE, "there is no directory '%s'%s", dir->path, key_of(dir));
    if (errno == EISDIR)
        return TR_FAIL(TR_ERR_DATA, "'%s' is a directory: remove it, or choose another directory%s",
                       path, key_of(dir));
    return TR_FAIL(TR_ERR_IO, "'%s' cannot be opened: %s%s", path, strerror(errno), key_of(dir));
}

/* Checks that checkpoints can be saved, which would otherwise fail at the first save, perhaps hours
 * later. */
static tr_status check_checkpoints(const tr_rundir *dir) {
    char path[PATH_SIZE];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s/ckpt", dir->path);
    if (stat(path, &info)) return TR_OK; /* it is made with the first checkpoint */
    if (!S_ISDIR(info.st_mode))
        return TR_FAIL(
            TR_ERR_DATA,
            "checkpoints cannot be saved in '%s', which is not a directory%s: remove it, "
            "or choose another directory",
            path, key_of(dir));
    if (access(path, W_OK | X_OK) == 0) return TR_OK;
    return TR_FAIL(TR_ERR_IO, "checkpoints cannot be saved in '%s': %s%s", path, strerror(errno),
                   key_of(dir));
}

/* Sets out->begun, and becomes the holder of the lock. */
static void take_over(tr_rundir *out) {
    const holder before = read_holder(out->fd);
    out->begun = out->job && *out->job && !strcmp(before.job, out->job);
    write_holder(out->fd, out->begun ? out->job : "");
}

tr_status tr_rundir_take(const char *dir, bool make, bool argument, const char *job, tr_rundir *out,
                         char note[TR_RUNDIR_NOTE]) {
    char path[PATH_SIZE];
    note[0] = '\0';
    *out = (tr_rundir){.fd = -1, .argument = argument, .job = job};
    (void)snprintf(out->path, sizeof out->path, "%s", dir);
    lock_path(dir, path);
    TR_TRY(check_root(out));
    /* A run that ends may remove the directory between two of these calls; then they are
     * repeated. */
    for (int tries = 0; tries < 1000; tries++) {
        int fd;
        bool taken;
        if (make) TR_TRY(make_directory(dir, out));
        tr_status status = open_lock(out, path, &fd);
        if (status == TR_ERR_NOFILE && make) continue;
        TR_TRY(status);
        status = try_lock(dir, fd, &taken, note);
        if (status == TR_OK && taken && same_file(fd, path)) {
            status = check_checkpoints(out);
            if (status != TR_OK) {
                (void)close(fd);
                TR_TRY(status);
            }
            out->fd = fd;
            take_over(out);
            return TR_OK;
        }
        (void)close(fd);
        TR_TRY(status);
        if (!taken) return held(out, path);
    }
    return TR_FAIL(TR_ERR_IO, "'%s' is removed again and again: choose another directory%s", dir,
                   key_of(out));
}

void tr_rundir_begin(const tr_rundir *dir) {
    if (dir->fd >= 0 && dir->job) write_holder(dir->fd, dir->job);
}

bool tr_rundir_in_place(const tr_rundir *dir) {
    char path[PATH_SIZE];
    lock_path(dir->path, path);
    return dir->fd < 0 || same_file(dir->fd, path);
}

/* Returns true when the directory exists and has a visible entry other than `except`. */
static bool has_entries(const char *path, const char *except) {
    DIR *directory = opendir(path);
    if (!directory) return false;
    bool found = false;
    for (struct dirent *e; (e = readdir(directory));)
        found = found || (e->d_name[0] != '.' && strcmp(e->d_name, except));
    (void)closedir(directory);
    return found;
}

bool tr_rundir_has_checkpoints(const tr_rundir *dir) {
    char path[PATH_SIZE];
    (void)snprintf(path, sizeof path, "%s/ckpt", dir->path);
    return has_entries(path, "");
}

void tr_rundir_release(tr_rundir *dir) {
    char path[PATH_SIZE];
    if (dir->fd < 0) return;
    lock_path(dir->path, path);
    bool empty = tr_rundir_in_place(dir) && !has_entries(dir->path, "lock");
    if (empty) (void)unlink(path); /* while it is locked: no other run has written there */
    (void)close(dir->fd);
    if (empty) tr_folders_remove(dir->path, dir->made);
    dir->fd = -1;
}

tr_status tr_rundir_restore(tr_rundir *dir) {
    char note[TR_RUNDIR_NOTE];
    tr_rundir again;
    tr_status status = tr_rundir_take(dir->path, true, dir->argument, dir->job, &again, note);
    if (status == TR_OK && tr_rundir_has_checkpoints(&again)) {
        tr_rundir_release(&again);
        status = TR_FAIL(TR_ERR_IO, "'%s' now contains another run", dir->path);
    }
    if (status != TR_OK) return TR_FAIL(TR_ERR_IO, "%s", tr_error_message());
    (void)close(dir->fd);
    dir->fd = again.fd;
    tr_rundir_begin(dir);
    return TR_OK;
}
