/* The messages of mpirun itself about its ranks: which one ended first, and how.
 *
 * mpirun kills all ranks when one has ended, and on another host no process may be left that saw
 * the first one end. mpirun knows which one it was, and prints that when the last rank has ended.
 * Its own messages (not those of the ranks) go to memory that only the launcher reads: Open MPI 4
 * writes them there itself, and those of Open MPI 5 the relay takes out of the output (relay.h).
 * Where its words are others, heartbeats still show that a rank of another host is lost. */
#pragma once

#include <stdint.h>

typedef struct tr_mpirun_log {
    int fd;              /* -1: none */
    long at;             /* read up to here */
    int64_t aborting_ns; /* when mpirun began to end the ranks; 0: it has not */
    int rank;            /* the rank that ended first, and too early; -1: not known */
    int signal;          /* the signal that ended it; 0: it left with an exit code */
    char node[256]; /* the host of that rank, or a host that does not answer, as mpirun names it; or
                       "" */
    char program[512], lacking[256]; /* a program that a host cannot start, and the host; or "" */
} tr_mpirun_log;

/* Opens the log, and sets the environment for an mpirun that is started after it. */
void tr_mpirun_log_open(tr_mpirun_log *log);
/* Reads the new messages. */
void tr_mpirun_log_read(tr_mpirun_log *log);
void tr_mpirun_log_close(tr_mpirun_log *log);
