#include "job/mpirun_log.h"

#include "base/clock.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Returns a file number so high that no daemon of mpirun uses it: daemons may inherit the variable
 * but not the file, and their messages must not go to another file. */
static int far_number(void) {
    struct rlimit limit;
    rlim_t most = 8192;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < most) most = limit.rlim_cur;
    return (int)most - 1;
}

void tr_mpirun_log_open(tr_mpirun_log *log) {
    *log = (tr_mpirun_log){.rank = -1};
    int fd = memfd_create("mpirun", MFD_CLOEXEC);
    log->fd = fd >= 0 ? fcntl(fd, F_DUPFD, far_number()) : -1; /* inherited by mpirun */
    if (fd >= 0) (void)close(fd);
    if (log->fd < 0) return;
    char number[16];
    (void)snprintf(number, sizeof number, "%d", log->fd);
    (void)setenv("OPAL_OUTPUT_STDERR_FD", number, 1);
}

static void take_line(tr_mpirun_log *log, const char *line) {
    const char *noticed = strstr(line, "noticed that process rank "),
               *detected = strstr(line, "Process name: ["),
               *daemon = strstr(line, "Remote daemon: [");
    if (strstr(line, "the job has been aborted") && !log->aborting_ns)
        log->aborting_ns = tr_now_ns();
    (void)sscanf(line, "Executable: %511[^\n]", log->program);
    (void)sscanf(line, "Node: %255s", log->lacking);
    if (log->rank >= 0) return;
    if (noticed)
        (void)sscanf(noticed,
                     "noticed that process rank %d with PID %*d on node %255s exited on signal %d",
                     &log->rank, log->node, &log->signal);
    else if (detected && sscanf(detected, "Process name: [[%*u,%*u],%d]", &log->rank) != 1)
        (void)sscanf(detected, "Process name: [%*[^]@]@%*u,%d]", &log->rank);
    else if (daemon &&
             sscanf(daemon, "Remote daemon: [[%*u,%*u],%*u] on node %255s", log->node) != 1)
        (void)sscanf(daemon, "Remote daemon: [%*[^]@]@%*u,%*u] on node %255s", log->node);
}

void tr_mpirun_log_read(tr_mpirun_log *log) {
    char text[4096];
    while (log->fd >= 0) {
        ssize_t got = pread(log->fd, text, sizeof text - 1, log->at);
        if (got <= 0) return;
        text[got] = '\0';
        char *end = strrchr(text, '\n');
        if (!end && got < (ssize_t)sizeof text - 1) return; /* the line is not complete yet */
        log->at += end ? end + 1 - text : got;
        if (end) *end = '\0';
        char *rest = NULL;
        for (char *l = strtok_r(text, "\n", &rest); l; l = strtok_r(NULL, "\n", &rest))
            take_line(log, l);
    }
}

void tr_mpirun_log_close(tr_mpirun_log *log) {
    if (log->fd >= 0) (void)close(log->fd);
    log->fd = -1;
}
