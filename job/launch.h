/* The launcher: starts ranks of this executable under mpirun, stays their parent, watches the
 * board, and starts the job again after a lost rank if it was asked to. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Set for the ranks of a restart: the name of the board of the job that was started first. */
#define TR_RESTART_VARIABLE "TRIREME_RESTARTED"
/* Set for every rank: the seconds from the launcher's start to that of mpirun. A rank on another
 * host cannot see the launcher's process. */
#define TR_ELAPSED_VARIABLE "TRIREME_ELAPSED"

typedef struct tr_launch {
    int ranks;
    const char *hostfile;  /* NULL: this host */
    char **mpirun_options; /* NULL-terminated; passed to mpirun unchanged */
    char **command;        /* NULL-terminated: the arguments of every rank */
    bool saves;            /* the command takes steps, and saves when it is asked to stop */
    bool shows;            /* its results go to stdout: it ends when no process reads that */
    bool reads;            /* rank 0 reads this process's stdin */
    int restarts;          /* how often the job is started again after a lost rank (77) */
    char **again;          /* the arguments of every rank then; unused without restarts */
    const char *first;     /* of a restart: the name of the first job's board; else NULL */
    /* Chooses the ranks of a restart on hosts with `slots` slots, maybe fewer than before: sets
     * *ranks and changes `again`, and writes what is different to text[size], or "". Returns false,
     * with a reason in text, when no number fits. */
    bool (*fit)(void *context, int slots, int *ranks, char *text, size_t size);
    void *fit_context;
} tr_launch;

/* Returns true when the job may use several hosts: the user gave a hostfile, or options for mpirun,
 * which may name hosts. */
static inline bool tr_launch_spans_hosts(const tr_launch *launch) {
    return launch->hostfile || launch->mpirun_options[0];
}

/* Runs the job to its end and returns its exit code: the code of the first rank that failed, 75
 * after a stop with a checkpoint, 77 when a rank was lost or ended by a signal and no restart is
 * left. A job is started again only when its ranks on this host are dead, and not after a signal;
 * hosts of the hostfile that do not answer any more are left out, and the rest may have too few
 * slots (`fit`). SIGTERM, SIGINT, SIGHUP and SIGUSR1 become "finish the step, save, exit 75"; a
 * second SIGINT or SIGTERM aborts the job. The caller's thread keeps them blocked: one that comes
 * when the job has ended does not change the process's exit code. Prints at most one error, and
 * none when a rank has printed the job's error already. */
int tr_launch_run(const tr_launch *launch);
