#include "job/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void tr_process_look(pid_t pid, tr_process *out) {
    *out = (tr_process){0};
    char path[64], text[1024];
    (void)snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) (void)close(fd);
    if (got <= 0) {
        /* Without /proc (or with a full table of files) the kernel still knows the pid. */
        if (kill(pid, 0) == 0 || errno == EPERM) out->state = '?';
        return;
    }
    text[got] = '\0';
    /* "pid (name) state ppid ...": the name may hold anything, so the fields count from its end. */
    const char *field = strrchr(text, ')');
    if (!field || field[1] != ' ') return;
    out->state = field[2];
    field += 2;
    for (int i = 3; i < 22; i++) {
        field = strchr(field, ' ');
        if (!field) return;
        field++;
    }
    out->start = strtoull(field, NULL, 10);
}

uint64_t tr_process_space(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

double tr_process_age_s(pid_t pid) {
    tr_process process;
    struct timespec now;
    long ticks_per_s = sysconf(_SC_CLK_TCK);
    tr_process_look(pid, &process);
    if (!process.start || ticks_per_s <= 0 || clock_gettime(CLOCK_BOOTTIME, &now)) return 0;
    double age = (double)now.tv_sec - (double)process.start / (double)ticks_per_s;
    return age > 0 ? age : 0;
}

/* Returns the set of signals that /proc/PID/status has under this name. */
static uint64_t signals_of(pid_t pid, const char *name) {
    char path[64], line[256];
    const size_t length = strlen(name);
    uint64_t set = 0;
    (void)snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, length)) set = strtoull(line + length, NULL, 16);
    if (file) (void)fclose(file);
    return set;
}

uint64_t tr_process_pending(pid_t pid) {
    return signals_of(pid, "ShdPnd:");
}

uint64_t tr_process_handled(pid_t pid) {
    return signals_of(pid, "SigCgt:");
}

/* Children are listed by the thread that made them. */
static int children_of_thread(pid_t pid, const char *thread, pid_t *out, int max) {
    char path[320];
    (void)snprintf(path, sizeof path, "/proc/%ld/task/%s/children", (long)pid, thread);
    FILE *file = fopen(path, "re");
    int n = 0;
    long child;
    while (file && n < max && fscanf(file, "%ld", &child) == 1) out[n++] = (pid_t)child;
    if (file) (void)fclose(file);
    return n;
}

int tr_process_children(pid_t pid, pid_t *out, int max) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    DIR *threads = opendir(path);
    if (!threads) return 0;
    int n = 0;
    for (const struct dirent *thread; n < max && (thread = readdir(threads));)
        if (thread->d_name[0] != '.')
            n += children_of_thread(pid, thread->d_name, out + n, max - n);
    (void)closedir(threads);
    return n;
}

bool tr_process_variable(pid_t pid, const char *name, char *value, size_t size) {
    char path[64], *entry = NULL;
    (void)snprintf(path, sizeof path, "/proc/%ld/environ", (long)pid);
    FILE *file = fopen(path, "re");
    size_t room = 0, length = strlen(name);
    bool found = false;
    while (file && !found && getdelim(&entry, &room, '\0', file) > 0)
        found = strncmp(entry, name, length) == 0 && entry[length] == '=';
    if (found) (void)snprintf(value, size, "%s", entry + length + 1);
    free(entry);
    if (file) (void)fclose(file);
    return found;
}
