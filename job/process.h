/* A process as /proc/PID/stat shows it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct tr_process {
    char state;     /* 'R', 'S', 'D', 'T' stopped, 'Z' ended and not yet collected, ...; 0: no such
                       process */
    uint64_t start; /* start time in clock ticks since boot: with the pid it names one process */
} tr_process;

/* Reads /proc/PID/stat without waiting. The state is 0 when the process does not exist or its file
 * cannot be read. */
void tr_process_look(pid_t pid, tr_process *out);
/* Returns a number for the PID namespace of this process, in which its numbers of processes hold; 0
 * when not known. */
uint64_t tr_process_space(void);
/* Fills out[max] with the children of a process, in the order of /proc, and returns their number,
 * at most max. Returns 0 when the kernel does not list children. */
int tr_process_children(pid_t pid, pid_t *out, int max);
/* Returns the seconds since the process began; 0 when not known. */
double tr_process_age_s(pid_t pid);
/* Return the signals that are pending in a process because it blocks them, and those that it
 * handles: bit n - 1 for signal n. */
uint64_t tr_process_pending(pid_t pid);
uint64_t tr_process_handled(pid_t pid);
/* Copies the value that a variable of the process's environment had when its program began to
 * value[size]. Returns false when the variable is not set or the environment cannot be read. */
bool tr_process_variable(pid_t pid, const char *name, char *value, size_t size);
