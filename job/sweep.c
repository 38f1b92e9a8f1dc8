#include "job/sweep.h"

#include "job/board.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char shared_memory[] = "/dev/shm";
/* Tells a job's folder from its board, which is in /dev/shm too. */
static const char folder_suffix[] = ".d";

/* Where mpirun keeps its session files on its own host: Open MPI 4's name and that of 5, which each
 * ignore the other's. */
static const char *const session_variables[] = {"OMPI_MCA_orte_local_tmpdir_base",
                                                "PRTE_MCA_prte_local_tmpdir_base"};
/* The same for all hosts. */
static const char *const common_variables[] = {"OMPI_MCA_orte_tmpdir_base",
                                               "PRTE_MCA_prte_tmpdir_base"};
/* Where ranks keep the segments of their shared memory; Open MPI 5 knows its name of version 4. */
static const char segments_variable[] = "OMPI_MCA_btl_vader_backing_directory";

static bool is_any_set(const char *const variables[2]) {
    return getenv(variables[0]) || getenv(variables[1]);
}

/* Returns the folder that mpirun would use. */
static const char *temporary_folder(void) {
    static const char *const name[] = {"TMPDIR", "TEMP", "TMP"};
    const char *path = NULL;
    for (size_t i = 0; i < sizeof name / sizeof *name && !path; i++) path = getenv(name[i]);
    return path && path[0] == '/' ? path : "/tmp";
}

/* --- boards ----------------------------------------------------------------------------------- */

typedef enum mapping { UNMAPPED, UNKNOWN, MAPPED } mapping;

/* Returns whether a process has the file mapped. UNKNOWN: the process belongs to this user, but may
 * not be inspected, because it is outside the caller's user namespace. */
static mapping mapping_in(const char *process, const char *path) {
    char name[300], *line = NULL;
    size_t room = 0;
    struct stat info;
    bool found = false;
    (void)snprintf(name, sizeof name, "/proc/%s/maps", process);
    FILE *file = fopen(name, "re");
    if (!file)
        return errno == EACCES && stat(name, &info) == 0 && info.st_uid == geteuid() ? UNKNOWN
                                                                                     : UNMAPPED;
    while (!found && getline(&line, &room, file) > 0) found = strstr(line, path) != NULL;
    free(line);
    (void)fclose(file);
    return found ? MAPPED : UNMAPPED;
}

/* Returns whether any process has the file mapped. A process 1 that may not be inspected is the
 * system's, and counts as one that does not. */
static mapping mapping_of(const char *path) {
    DIR *processes = opendir("/proc");
    mapping all = UNMAPPED;
    const struct dirent *process;
    while (processes && all != MAPPED && (process = readdir(processes))) {
        const char *number = process->d_name;
        if (number[0] < '1' || number[0] > '9') continue;
        const mapping own = mapping_in(number, path);
        if (own == UNKNOWN && strcmp(number, "1") == 0) continue;
        if (own > all) all = own;
    }
    if (processes) (void)closedir(processes);
    return all;
}

/* Removes boards that no process has mapped. A job's processes map its board before they do
 * anything else, and it has a name only until all have; those of another container, which are not
 * in this /proc, are given more time than that. */
static void remove_boards(const char *prefix) {
    static const time_t least_s = 600;
    DIR *folder = opendir(shared_memory);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        char path[300];
        struct stat info;
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
        (void)snprintf(path, sizeof path, "%s/%s", shared_memory, entry->d_name);
        if (lstat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
            time(NULL) - info.st_mtime > least_s && mapping_of(path) == UNMAPPED)
            (void)unlink(path);
    }
    if (folder) (void)closedir(folder);
}

/* Removes the board of the job with that folder. */
static void remove_board_of(const char *folder) {
    char name[256];
    const size_t length = strlen(folder), suffix = sizeof folder_suffix - 1;
    if (length <= suffix || strcmp(folder + length - suffix, folder_suffix) != 0) return;
    (void)snprintf(name, sizeof name, "/%.*s", (int)(length - suffix), folder);
    tr_board_unlink(name);
}

/* --- folders ---------------------------------------------------------------------------------- */

/* Opens and locks a folder of this user. Returns -1 when it is not this user's folder, or when a
 * living job holds the lock; with `wait` it waits for the lock, which a sweep may hold for a
 * moment. Children inherit the lock. */
static int lock_folder(const char *path, bool wait) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (fd < 0) return -1;
    bool good = fstat(fd, &info) == 0 && info.st_uid == geteuid() &&
                flock(fd, wait ? LOCK_EX : LOCK_EX | LOCK_NB) == 0;
    if (good) return fd;
    (void)close(fd);
    return -1;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info;
    (void)kind;
    (void)where;
    (void)remove(path);
    return 0;
}

/* Returns false when something is left: a dying process may still have made a file. */
static bool remove_folder(const char *path) {
    struct stat info;
    (void)nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    return lstat(path, &info) != 0;
}

/* Removes the folders in `base` that no living job has locked, and the boards of their jobs. */
static void remove_folders(const char *base, const char *prefix) {
    char path[512];
    DIR *folder = opendir(base);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
        int n = snprintf(path, sizeof path, "%s/%s", base, entry->d_name);
        int lock = n < (int)sizeof path ? lock_folder(path, false) : -1;
        if (lock < 0) continue;
        remove_board_of(entry->d_name);
        (void)remove_folder(path);
        (void)close(lock);
    }
    if (folder) (void)closedir(folder);
}

void tr_sweep(void) {
    char prefix[64];
    (void)snprintf(prefix, sizeof prefix, "trireme-%ld-", (long)getuid());
    remove_boards(prefix);
    remove_folders(temporary_folder(), prefix);
    remove_folders(shared_memory, prefix);
}

/* Writes the path of the folder in `base` of the job with that board; false when it does not fit.
 */
static bool write_path(const char *base, const char *board, char *path, size_t size) {
    return snprintf(path, size, "%s%s%s", base, board, folder_suffix) < (int)size;
}

/* Makes and locks the folder in `base` of the job with that board. Without a folder its path is "".
 * Returns the errno for which it cannot be made, or 0. */
static int make_folder(const char *base, const char *board, tr_job_folder *folder) {
    struct stat info;
    int error = 0;
    *folder = (tr_job_folder){.lock = -1};
    if (!write_path(base, board, folder->path, sizeof folder->path)) error = ENAMETOOLONG;
    /* A sweep may remove the folder between its creation and its lock; then it is made again. */
    for (int i = 0; i < 10 && !error; i++) {
        if (mkdir(folder->path, 0700) != 0) {
            error = errno;
            break;
        }
        folder->lock = lock_folder(folder->path, true);
        if (folder->lock >= 0 && stat(folder->path, &info) == 0) return 0;
        if (folder->lock < 0) {
            (void)rmdir(folder->path);
            break;
        }
        (void)close(folder->lock);
    }
    folder->path[0] = '\0';
    return error;
}

tr_status tr_job_files_make(tr_job_files *files, const char *board) {
    files->session.path[0] = files->segments.path[0] = '\0';
    int error = 0;
    if (!is_any_set(session_variables) && !is_any_set(common_variables))
        error = make_folder(temporary_folder(), board, &files->session);
    /* A TMPDIR that does not exist is not among these: mpirun makes it. */
    if (error == EACCES || error == EPERM || error == EROFS || error == ENOSPC || error == EDQUOT ||
        error == ENOTDIR)
        return TR_FAIL(TR_ERR_DEVICE,
                       "mpirun cannot keep its files in '%s': %s; set TMPDIR to a folder that you "
                       "can write",
                       temporary_folder(), strerror(error));
    /* Where TMPDIR is /dev/shm, the folder is there already, and serves both. */
    (void)make_folder(shared_memory, board, &files->segments);
    return TR_OK;
}

void tr_job_files_use(const tr_job_files *files, bool use) {
    /* Otherwise PMIx 5.0.1 keeps what the ranks know of the job in files in TMPDIR itself. */
    if (use) (void)setenv("PMIX_MCA_gds", "hash", 0);
    if (!files->session.path[0]) return;
    for (size_t i = 0; i < sizeof session_variables / sizeof *session_variables; i++) {
        if (use) (void)setenv(session_variables[i], files->session.path, 1);
        else (void)unsetenv(session_variables[i]);
    }
}

void tr_job_files_enter(const char *board) {
    char path[512];
    for (size_t i = 0; i < sizeof session_variables / sizeof *session_variables; i++)
        (void)unsetenv(session_variables[i]);
    if (write_path(shared_memory, board, path, sizeof path) && access(path, W_OK) == 0)
        (void)setenv(segments_variable, path, 0);
}

static void remove_made(tr_job_folder *folder) {
    if (!folder->path[0]) return;
    const struct timespec tick = {.tv_nsec = 10 * 1000000};
    for (int i = 0; i < 500 && !remove_folder(folder->path); i++) (void)nanosleep(&tick, NULL);
    (void)close(folder->lock);
    folder->path[0] = '\0';
}

void tr_job_files_remove(tr_job_files *files) {
    remove_made(&files->session);
    remove_made(&files->segments);
}
