/* The watchdog: notices a lost rank and ends the job.
 *
 * A thread of each rank writes heartbeats to the board, and looks at the other ranks' heartbeats
 * and processes; `trireme run` looks in the same way (tr_watch_look). A rank of this host is lost
 * when its process is gone and it had not announced its end, when the process has been stopped
 * (SIGSTOP) for 5 s, when there is no heartbeat for 10 s, or when MPI has not started in it for 600
 * s, or for 10 s after a request to stop. A rank in a PID namespace of its own, as in a container,
 * shows only its heartbeats. A rank of another host that the board shows (job/heartbeat.h) is lost
 * when there is no heartbeat for 15 s. The length of an action does not matter, because a separate
 * thread writes the heartbeat. A rank that has not attached to the board shows only its process: it
 * is lost when that has been stopped for 5 s. */
#pragma once

#include "job/board.h"
#include "job/heartbeat.h"

/* The board's text for a rank that waits while MPI starts. */
#define TR_RANK_WAITS_FOR_MPI "MPI to start"
/* The rank's number, in the environment of every process that Open MPI starts as a rank. */
#define TR_RANK_VARIABLE "OMPI_COMM_WORLD_RANK"

typedef struct tr_watchdog tr_watchdog;

/* The state of one observer between two looks. Zero-initialise it, except the limits. */
typedef struct tr_watch {
    double stopped_s;  /* a process stopped for longer is lost; 0: 5 s */
    double silent_s;   /* a rank of this host without a heartbeat for longer is lost; 0: 10 s */
    double remote_s;   /* a rank of another host without a heartbeat for longer is lost; 0: 15 s */
    double starting_s; /* a rank of this host in which MPI starts for longer is lost; 0: 600 s */
    int64_t last_ns, since_ns; /* the last look; nothing is counted from before since_ns */
    bool asked;    /* this observer itself has asked the job to stop (tr_board_request_stop) */
    pid_t parent;  /* of the ranks of this host: mpirun or its daemon; 0: not known, or gone */
    bool suspects; /* since suspect_ns this observer believes that rank `lost` is lost */
    int lost;      /* -1: a rank that has not attached, with an unknown number */
    int64_t suspect_ns;
    /* A stopped child of `parent` that has not attached, since stopped_ns; 0: none. */
    pid_t stopped;
    int64_t stopped_ns;
} tr_watch;

/* Looks once at every rank; the observer calls it a few times a second. The observer's own rank is
 * lost only when MPI does not start in it. When a rank is lost (watch->lost), tells all ranks to
 * end with TR_ERR_RANK (tr_board_end_all). For the first observer that finds the loss it also
 * claims the report, writes the sentence to sentence[size] and returns true.
 *
 * Does not report a missing process once the job is ending, because it was killed on purpose; nor
 * for 3 s after another process asked the job to stop, because mpirun, when it loses a rank of
 * another host, sends the ranks of this host SIGTERM and then SIGKILL; nor for 5 s while MPI starts
 * if the rank's parent is known, because the parent knows how it ended. An observer that did not
 * run for a while (a suspended process) starts counting again. */
bool tr_watch_look(tr_watch *watch, tr_board *board, char *sentence, size_t size);
/* Kills the process of a rank of this host (SIGKILL also ends a stopped process), if it is still
 * the one that attached. Does nothing for rank -1, the caller's rank and ranks of other hosts. */
void tr_watch_kill(const tr_board *board, int rank);
/* Returns true while the process of a rank of this host that attached exists; false when it is in
 * another PID namespace. */
bool tr_watch_lives(const tr_board *board, int rank);
/* Kills the ranks of this host that have not attached to the board: children of watch->parent. */
void tr_watch_kill_unattached(const tr_watch *watch, const tr_board *board);
/* Returns a rank that lost its process while MPI started, or -1. */
int tr_watch_gone_with_mpi(const tr_board *board);
/* Writes what to do after a loss: "; --resume continues after step 40", or nothing when the board
 * does not show what is saved. Returns text. */
const char *tr_watch_remedy(const tr_board *board, char *text, size_t size);
/* Writes the sentence that reports a lost rank and says what can be resumed. `who` is
 * tr_board_describe's text, `why` a clause. */
void tr_watch_say_lost(const tr_board *board, const char *who, const char *why, char *sentence,
                       size_t size);

typedef struct tr_watchdog_options {
    tr_watch limits;
    /* Called on the watchdog's thread in every turn; may be NULL. Returns true, and writes a
     * sentence, when this rank cannot continue; the job then ends. */
    bool (*look)(void *context, char *sentence, size_t size);
    /* Both are called on the watchdog's thread. report prints the job's one sentence. end leaves
     * the process with `code` at once, whatever its other threads do (_exit). */
    void (*report)(void *context, const char *sentence);
    void (*end)(void *context, int code);
    void *context;
} tr_watchdog_options;

/* Starts a thread that writes the heartbeats of the rank that `board` is attached to, and watches
 * the other ranks. The board must outlive the watchdog. */
tr_status tr_watchdog_start(tr_board *board, const tr_watchdog_options *options, tr_watchdog **out);
/* Makes the watchdog's thread also take the turns of a leader's heartbeats between hosts. */
void tr_watchdog_lead(tr_watchdog *watchdog, tr_heartbeat *heartbeat);
/* Ends the thread. Call it after tr_board_finish, since heartbeats stop. NULL is allowed. */
void tr_watchdog_stop(tr_watchdog *watchdog);
