/* The hosts of a job, as its hostfile lists them, and which of them answer. */
#pragma once

#include "base/status.h"

enum { TR_JOB_HOST_NAME = 256 };

typedef struct tr_job_host {
    char *line; /* of the file; it may say more, such as a user's name */
    char name[TR_JOB_HOST_NAME];
    int slots; /* ranks that may run there; 0: the file does not say */
    bool answers;
} tr_job_host;

typedef struct tr_hosts {
    tr_job_host *host;
    int count;
} tr_hosts;

/* Reads a hostfile of Open MPI: a host on each line, with slots=N (also cpu=N or count=N), and # or
 * // before remarks. All hosts answer. Fails with TR_ERR_DATA on a line that is longer than 4 KiB,
 * like fopen with TR_ERR_NOFILE, and with TR_ERR_IO. The caller frees *out with tr_hosts_free,
 * after a failure too. */
tr_status tr_hosts_read(const char *path, tr_hosts *out);
/* Asks every host at the same time: those on which mpirun (with these options) cannot run a command
 * within `limit_s` seconds do not answer. Fails like tr_hosts_write when mpirun cannot be given a
 * hostfile. */
tr_status tr_hosts_ask(tr_hosts *hosts, char *const *mpirun_options, double limit_s);
/* Returns the slots of the hosts that answer; 0 when one of them has no slots=N. */
int tr_hosts_slots(const tr_hosts *hosts);
/* Writes the names of those that answer, or do not, to text[size]: "a, b and 2 more". */
void tr_hosts_text(const tr_hosts *hosts, bool answers, char *text, size_t size);
/* Writes the lines of the hosts that answer to a new temporary file, and its path to path[size].
 * The caller removes it. Fails with TR_ERR_IO. */
tr_status tr_hosts_write(const tr_hosts *hosts, char *path, size_t size);
void tr_hosts_free(tr_hosts *hosts);
