/* The watchdog: notices that a rank of this host is lost, and sees to it that all end.
 *
 * A thread of each rank beats on the board and looks at the other ranks' beats and processes;
 * `trireme run` looks with the same eyes (tr_watch_look). A rank is lost when its process is gone
 * without having said so, when it has been stopped (SIGSTOP) for 5 s, or when it has not beaten for
 * 10 s. How long an action takes is never judged: the beat comes from a thread of its own. */
#pragma once

#include "comm/board.h"

typedef struct tr_watchdog tr_watchdog;

/* One observer's memory between two looks. Zero-initialise, but for the limits. */
typedef struct tr_watch {
    double stopped_s; /* a rank stopped for longer is lost; 0: 5 s */
    double silent_s;  /* a rank without a beat for longer is lost; 0: 10 s */
    int64_t last_ns, since_ns;
    bool asked;  /* this observer itself has asked the job to stop (tr_board_request_stop) */
    int suspect; /* rank + 1 */
    int64_t suspect_ns;
} tr_watch;

/* One look at every rank but the observer's own, to be repeated a few times a second. When one is
 * lost, tells all ranks to end with TR_ERR_RANK (tr_board_end_all); where nobody has spoken for the
 * job yet, also claims the report, writes the one sentence to sentence[size] and returns the rank.
 * Else -1. Nobody is lost after the job has begun to end: who is killed then is killed on purpose.
 * Nor, for 3 s, a process that is gone after somebody else's request to stop: mpirun sends SIGTERM
 * and then SIGKILL to the ranks of this host when one of another host is lost. An observer that was
 * itself away (suspended) starts to count anew. */
int tr_watch_look(tr_watch *watch, tr_board *board, char *sentence, size_t size);
/* Kills rank's process (SIGKILL ends stopped ones too) if it is still the one that attached. */
void tr_watch_kill(const tr_board *board, int rank);

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
