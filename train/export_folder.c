#include "train/export_folder.h"

#include "base/folders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file that is locked: a folder without it is not from an export. */
#define LOCK "/.trireme-export"

enum { TRIES = 100 };

static tr_status fail_io(const char *what, const char *path) {
    return TR_FAIL(TR_ERR_IO, "cannot %s '%s': %s", what, path, strerror(errno));
}

/* --- the target ------------------------------------------------------------------------------- */

/* Fails when the folder has entries. */
static tr_status check_folder(const char *folder) {
    DIR *dir = opendir(folder);
    bool empty = true;
    if (!dir && errno == ENOENT) return TR_OK;
    if (!dir && errno == ENOTDIR)
        return TR_FAIL(TR_ERR_DATA, "'%.200s' is not a folder: name a new folder", folder);
    if (!dir) return fail_io("open", folder);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        empty = empty && (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."));
    (void)closedir(dir);
    if (empty) return TR_OK;
    return TR_FAIL(TR_ERR_USAGE, "'%s' exists and is not empty: name a new folder", folder);
}

/* Fails when a new folder cannot take the place of `path`, an empty folder. */
static tr_status check_replaceable(const char *path) {
    struct stat info, here;
    struct statx more;
    if (stat(path, &info) == 0 && stat(".", &here) == 0 && info.st_dev == here.st_dev &&
        info.st_ino == here.st_ino)
        return TR_FAIL(TR_ERR_USAGE,
                       "'%s' is the current folder, which an export cannot replace: name a new "
                       "folder in it",
                       path);
    if (statx(AT_FDCWD, path, 0, 0, &more) == 0 &&
        (more.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0)
        return TR_FAIL(TR_ERR_USAGE,
                       "'%s' is where a file system is mounted, which an export cannot replace: "
                       "name a new folder in it",
                       path);
    return TR_OK;
}

/* Sets the target: an existing folder by its path without links, a new one without slashes at its
 * end. */
static tr_status find_target(const char *folder, tr_export_folder *f) {
    TR_TRY(check_folder(folder));
    if (realpath(folder, f->target)) return check_replaceable(f->target);
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') length--;
    const char *last = folder + length;
    while (last > folder && last[-1] != '/') last--;
    const size_t bytes = (size_t)(folder + length - last);
    struct stat info;
    char name[PATH_MAX];
    (void)snprintf(name, sizeof name, "%.*s", (int)length, folder);
    if (length == 0 || length >= PATH_MAX - 100 || (bytes == 1 && !strncmp(last, ".", 1)) ||
        (bytes == 2 && !strncmp(last, "..", 2)) || lstat(name, &info) == 0)
        return TR_FAIL(TR_ERR_USAGE, "'%.200s' cannot be the name of a folder: name a new folder",
                       folder);
    memcpy(f->target, name, sizeof f->target);
    return TR_OK;
}

/* --- the temporary folder --------------------------------------------------------------------- */

static void remove_folder(const char *folder) {
    char path[PATH_MAX];
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        (void)snprintf(path, sizeof path, "%.*s/%.255s", PATH_MAX - 300, folder, entry->d_name);
        (void)unlink(path);
    }
    if (dir) (void)closedir(dir);
    (void)rmdir(folder);
}

/* Opens and locks a folder's file. Returns its descriptor; -1: it has none, or a living export
 * holds the lock. */
static int lock_folder(const char *folder, int flags) {
    char path[PATH_MAX];
    struct stat info;
    (void)snprintf(path, sizeof path, "%.*s" LOCK, PATH_MAX - 32, folder);
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0666);
    if (fd < 0) return -1;
    /* The export of another process may have removed it before it was locked. */
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 && info.st_nlink > 0) return fd;
    (void)close(fd);
    return -1;
}

/* Splits a path into its parent, with the slash or empty, and the name after it. */
static const char *split(const char *path, char parent[PATH_MAX]) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    (void)snprintf(parent, PATH_MAX, "%.*s", (int)(name - path), path);
    return name;
}

/* Removes the folders of exports to this target that were killed. */
static void remove_leftovers(const tr_export_folder *f) {
    char parent[PATH_MAX], path[PATH_MAX];
    const char *name = split(f->target, parent), *end = ".tmp-";
    const size_t length = strlen(name), more = strlen(end);
    DIR *dir = opendir(*parent ? parent : ".");
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        if (strncmp(entry->d_name, name, length) || strncmp(entry->d_name + length, end, more))
            continue;
        const char *number = entry->d_name + length + more;
        if (!*number || number[strspn(number, "0123456789")]) continue;
        (void)snprintf(path, sizeof path, "%.*s%.255s", PATH_MAX - 300, parent, entry->d_name);
        const int lock = lock_folder(path, 0);
        if (lock < 0) (void)rmdir(path); /* it was killed before it made the file: an empty one */
        if (lock < 0) continue;
        remove_folder(path);
        (void)close(lock);
    }
    if (dir) (void)closedir(dir);
}

tr_status tr_export_folder_make(const char *path, tr_export_folder *f) {
    char name[PATH_MAX];
    size_t at;
    *f = (tr_export_folder){.lock = -1};
    TR_TRY(find_target(path, f));
    (void)split(f->target, name);
    errno = tr_folders_make(name, &f->made, &at);
    name[at] = '\0';
    if (errno) return fail_io("make", name);
    remove_leftovers(f);
    for (int n = 0;; n++) { /* a process of another host or container may have this number */
        (void)snprintf(name, sizeof name, "%.*s.tmp-%ld", PATH_MAX - 32, f->target,
                       (long)getpid() + n);
        const bool made = mkdir(name, 0777) == 0;
        if (!made && (errno != EEXIST || n == TRIES)) return fail_io("make", name);
        if (!made) continue;
        f->lock = lock_folder(name, O_CREAT | O_EXCL);
        /* Another export may have taken the folder for a leftover; without locks none does. */
        struct stat info;
        if (f->lock >= 0 || (errno != EWOULDBLOCK && stat(name, &info) == 0) || n == TRIES) break;
    }
    memcpy(f->temporary, name, sizeof f->temporary);
    return TR_OK;
}

static tr_status sync_folder(const char *path) {
    errno = tr_folders_sync(path);
    return errno == 0 ? TR_OK : fail_io("sync", path);
}

static void unlock(tr_export_folder *f) {
    if (f->lock >= 0) (void)close(f->lock);
    f->lock = -1;
}

tr_status tr_export_folder_publish(tr_export_folder *f) {
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%.*s" LOCK, PATH_MAX - 32, f->temporary);
    (void)unlink(path);
    TR_TRY(sync_folder(f->temporary));
    if (rename(f->temporary, f->target) != 0) return fail_io("rename to", f->target);
    f->temporary[0] = '\0';
    f->made = 0;
    unlock(f);
    (void)split(f->target, path);
    return sync_folder(*path ? path : ".");
}

void tr_export_folder_remove(tr_export_folder *f) {
    tr_error error;
    tr_error_save(&error);
    if (f->temporary[0]) remove_folder(f->temporary);
    f->temporary[0] = '\0';
    unlock(f);
    char parent[PATH_MAX];
    (void)split(f->target, parent);
    tr_folders_remove(parent, f->made);
    tr_error_restore(&error);
}
