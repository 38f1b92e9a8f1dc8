/* A process as /proc/PID/stat shows it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct tr_process {
    char state;     /* 'R', 'S', 'D', 'T' stopped, 'Z' ended and not yet collected, ...; 0: there is
                       none */
    uint64_t start; /* start time in clock ticks since boot: with the pid it names one process */
} tr_process;

/* Looks without waiting; a process that is not there, or not readable, has state 0. */
void tr_process_look(pid_t pid, tr_process *out);
/* The children of a process into out[max], in the order of /proc; returns how many there are, at
 * most max. 0 where the kernel does not list them. */
int tr_process_children(pid_t pid, pid_t *out, int max);
/* Seconds since the process began; 0 when that is not known. */
double tr_process_age_s(pid_t pid);
/* The signals that have been sent to a process and wait because it blocks them: bit n - 1 for
 * signal n. */
uint64_t tr_process_pending(pid_t pid);
/* The value that a variable of the process's environment had when its program began, into
 * value[size]; false where it has none or may not be read. */
bool tr_process_variable(pid_t pid, const char *name, char *value, size_t size);
