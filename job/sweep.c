#include "job/sweep.h"

#include "job/board.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char shared_memory[] = "/dev/shm", segment_prefix[] = "vader_segment.";
/* Tells a job's folder from its board, since TMPDIR may be /dev/shm. */
static const char folder_suffix[] = ".d";

/* Returns the folder that mpirun would use. */
static const char *temporary_folder(void) {
    static const char *const name[] = {"TMPDIR", "TEMP", "TMP"};
    const char *path = NULL;
    for (size_t i = 0; i < sizeof name / sizeof *name && !path; i++) path = getenv(name[i]);
    return path && path[0] == '/' ? path : "/tmp";
}

/* --- shared memory of ranks ------------------------------------------------------------------- */

/* Open MPI numbers the job of an mpirun in the upper half of 32 bits, and writes the number in
 * decimal to FOLDER/ompi.HOST.UID/pid.N/contact.txt. Returns 0 when it cannot be read. */
static uint32_t read_job_number(const char *file) {
    char text[64] = "";
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    (void)close(fd);
    unsigned long number = got > 0 ? strtoul(text, NULL, 10) : 0;
    return number <= UINT32_MAX ? (uint32_t)number & 0xffff0000u : 0;
}

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

/* Returns true when "vader_segment.HOST.UID.JOB.RANK" belongs to this user and the job of that
 * number. */
static bool is_segment_of(const char *name, uint32_t number) {
    if (strncmp(name, segment_prefix, sizeof segment_prefix - 1) != 0) return false;
    int dots = 0;
    const char *at = name + strlen(name);
    while (at > name && dots < 3) dots += *--at == '.'; /* the host's name may contain dots */
    unsigned user, job;
    int rank;
    return dots == 3 && sscanf(at, ".%u.%x.%d", &user, &job, &rank) == 3 && user == geteuid() &&
           (job & 0xffff0000u) == number;
}

/* Removes the job's segments. Returns false when a process still has one mapped; that one stays. */
static bool remove_segments(uint32_t number) {
    DIR *folder = opendir(shared_memory);
    const struct dirent *entry;
    bool all = true;
    while (folder && (entry = readdir(folder))) {
        char path[300];
        struct stat info;
        if (!is_segment_of(entry->d_name, number)) continue;
        (void)snprintf(path, sizeof path, "%s/%s", shared_memory, entry->d_name);
        if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) continue;
        /* A killed rank may take a moment to die, and a later job may have got the same number. */
        const bool mapped = mapping_of(path) == MAPPED;
        if (!mapped) (void)unlink(path);
        all &= !mapped;
    }
    if (folder) (void)closedir(folder);
    return all;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info;
    (void)kind;
    (void)where;
    (void)remove(path);
    return 0;
}

/* Removes a job's folder and the segments that its session files point to. Returns false, and keeps
 * the folder, while a process has one of the segments mapped. */
static bool remove_job(const char *path) {
    char pattern[600];
    glob_t found = {0};
    bool all = true;
    (void)snprintf(pattern, sizeof pattern, "%s/ompi.*/pid.*/contact.txt", path);
    (void)glob(pattern, GLOB_NOSORT, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        uint32_t number = read_job_number(found.gl_pathv[i]);
        if (number && !remove_segments(number)) all = false;
    }
    globfree(&found);
    if (all) (void)nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    return all;
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

void tr_sweep(void) {
    char prefix[64], path[512];
    const char *base = temporary_folder();
    (void)snprintf(prefix, sizeof prefix, "trireme-%ld-", (long)getuid());
    remove_boards(prefix);
    DIR *folder = opendir(base);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
        int n = snprintf(path, sizeof path, "%s/%s", base, entry->d_name);
        int lock = n < (int)sizeof path ? lock_folder(path, false) : -1;
        if (lock < 0) continue;
        remove_board_of(entry->d_name);
        (void)remove_job(path);
        (void)close(lock);
    }
    if (folder) (void)closedir(folder);
}

tr_status tr_job_folder_make(tr_job_folder *folder, const char *board) {
    *folder = (tr_job_folder){.board = board, .lock = -1};
    int error = 0;
    int n = snprintf(folder->path, sizeof folder->path, "%s%s%s", temporary_folder(), board,
                     folder_suffix);
    bool fits = n < (int)sizeof folder->path;
    bool chosen = getenv("OMPI_MCA_orte_tmpdir_base") || getenv("OMPI_MCA_orte_local_tmpdir_base");
    /* A sweep may remove the folder between its creation and its lock; then it is made again. */
    for (int i = 0; i < 10 && fits && !chosen && folder->lock < 0; i++) {
        struct stat info;
        if (mkdir(folder->path, 0700) != 0) {
            error = errno;
            break;
        }
        folder->lock = lock_folder(folder->path, true);
        if (folder->lock < 0) break;
        if (stat(folder->path, &info) == 0) continue;
        (void)close(folder->lock);
        folder->lock = -1;
    }
    if (folder->lock >= 0) return TR_OK;
    if (fits && !chosen && !error) (void)rmdir(folder->path);
    folder->path[0] = '\0';
    /* A TMPDIR that does not exist is not among these: mpirun makes it. */
    if (error != EACCES && error != EPERM && error != EROFS && error != ENOSPC && error != EDQUOT)
        return TR_OK;
    return TR_FAIL(TR_ERR_DEVICE,
                   "mpirun cannot keep its files in '%s': %s; set TMPDIR to a folder that you can "
                   "write",
                   temporary_folder(), strerror(error));
}

void tr_job_folder_use(const tr_job_folder *folder, bool use) {
    static const char variable[] = "OMPI_MCA_orte_local_tmpdir_base";
    if (!folder->path[0]) return;
    if (use) (void)setenv(variable, folder->path, 1);
    else (void)unsetenv(variable);
}

void tr_job_folder_remove(tr_job_folder *folder) {
    if (!folder->path[0]) return;
    const struct timespec tick = {.tv_nsec = 10 * 1000000};
    for (int i = 0; i < 500 && !remove_job(folder->path); i++) (void)nanosleep(&tick, NULL);
    (void)close(folder->lock);
    folder->path[0] = '\0';
}
