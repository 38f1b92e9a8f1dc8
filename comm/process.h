/* A process as /proc/PID/stat shows it. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

typedef struct tr_process {
    char state;     /* 'R', 'S', 'D', 'T' stopped, 'Z' ended and not yet collected, ...; 0: there is
                       none */
    uint64_t start; /* start time in clock ticks since boot: with the pid it names one process */
} tr_process;

/* Looks without waiting; a process that is not there, or not readable, has state 0. */
void tr_process_look(pid_t pid, tr_process *out);
