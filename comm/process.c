#include "comm/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
