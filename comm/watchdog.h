/* The watchdog: notices that a rank of this host is lost, and sees to it that all end.
 *
 * A thread of each rank beats on the board and looks at the other ranks' beats and processes;
 * `trireme run` looks with the same eyes (tr_watch_look). A rank is lost when its process is gone
 * without having said so, when it has been stopped (SIGSTOP) for 5 s, or when it has not beaten for
 * 10 s. How long an action takes is never judged: the beat comes from a thread of its own. Of a
 * rank without a place on the board the process alone is seen: stopped for 5 s, it is lost too. */
#pragma once

#include "comm/board.h"

/* What a rank waits for, as its place on the board shows it, while MPI starts. */
#define TR_WAIT_MPI "MPI to start"
/* Its number, in the environment of every process that Open MPI starts as a rank. */
#define TR_RANK_VARIABLE "OMPI_COMM_WORLD_RANK"

typedef struct tr_watchdog tr_watchdog;

/* One observer's memory between two looks. Zero-initialise, but for the limits. */
typedef struct tr_watch {
    double stopped_s; /* a rank stopped for longer is lost; 0: 5 s */
    double silent_s;  /* a rank without a beat for longer is lost; 0: 10 s */
    int64_t last_ns, since_ns;
    bool asked; /* this observer itself has asked the job to stop (tr_board_request_stop) */
    /* Whose children the ranks of this host are (mpirun or its daemon); 0: not known, or gone. */
    pid_t parent;
    bool suspects; /* since suspect_ns, that `lost` is lost */
    int lost; /* a rank; -1: one that has no place on the board and whose number is not known */
    int64_t suspect_ns;
    pid_t stopped; /* a child of `parent` without a place on the board; 0: none. Since stopped_ns */
    int64_t stopped_ns;
} tr_watch;

/* One look at every rank but the observer's own, to be repeated a few times a second. When one is
 * lost (watch->lost), tells all ranks to end with TR_ERR_RANK (tr_board_end_all); where nobody has
 * spoken for the job yet, also claims the report, writes the one sentence to sentence[size] and
 * returns true. Nobody is lost after the job has begun to end: who is killed then is killed on
 * purpose. Nor, for 3 s, a process that is gone after somebody else's request to stop: mpirun sends
 * SIGTERM and then SIGKILL to the ranks of this host when one of another host is lost. Nor, for
 * 5 s, one that is gone while MPI starts and has a parent, who knows how it ended. An observer
 * that was itself away (suspended) starts to count anew. */
bool tr_watch_look(tr_watch *watch, tr_board *board, char *sentence, size_t size);
/* Kills rank's process (SIGKILL ends stopped ones too) if it is still the one that attached; rank
 * -1 is nobody. */
void tr_watch_kill(const tr_board *board, int rank);
/* Kills the ranks of this host that have no place on the board: children of watch->parent. */
void tr_watch_kill_unattached(const tr_watch *watch, const tr_board *board);
/* A rank that was there while MPI started and is gone since, or -1. */
int tr_watch_gone_with_mpi(const tr_board *board);

typedef struct tr_watchdog_options {
    tr_watch limits;
    /* Both are called on the watchdog's thread. report: this process speaks for the job and shows
     * the sentence. end: the process has to leave with `code` now, whatever its other threads do
     * (_exit). */
    void (*report)(void *context, const char *sentence);
    void (*end)(void *context, int code);
    void *context;
} tr_watchdog_options;

/* Starts beating for the rank that `board` is attached to, and watching. The board must outlive it.
 */
tr_status tr_watchdog_start(tr_board *board, const tr_watchdog_options *options, tr_watchdog **out);
/* Ends the thread; to be called after tr_board_finish, else this rank falls silent. NULL is fine.
 */
void tr_watchdog_stop(tr_watchdog *watchdog);
