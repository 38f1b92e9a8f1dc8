/* The board: what every rank of a job on this host is doing, in shared memory that outlives them.
 *
 * One slot a rank, written by that rank alone with atomic stores (tens of nanoseconds, no lock, no
 * system call: updates are async-signal-safe), read by every other rank's watchdog and by `trireme
 * run`. The launcher chooses the name and hands it on in TRIREME_BOARD; under plain mpirun world
 * rank 0 makes one with tr_board_make_name() and broadcasts it. Memory full of zeros is a valid
 * empty board, so the first process creates it and none waits. Ranks of another host have a board
 * of their own there; heartbeats between the hosts (job/heartbeat.h) copy them to rank 0's board.
 *
 * Setters accept a NULL board and do nothing, so that callers need not ask whether there is one. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define TR_BOARD_VARIABLE "TRIREME_BOARD"

typedef struct tr_board tr_board;

typedef enum tr_rank_state {
    TR_RANK_ABSENT,   /* not attached: not started yet, or on another host */
    TR_RANK_ALIVE,    /* attached; its end would be a loss */
    TR_RANK_FINISHED, /* said that it ends, with an exit code */
    TR_RANK_REMOTE,   /* alive on another host, by its last message; the pid is of that host */
} tr_rank_state;

/* One rank's slot as read at one moment. Times are CLOCK_MONOTONIC nanoseconds: a suspended machine
 * makes no rank late. */
typedef struct tr_rank_view {
    tr_rank_state state;
    pid_t pid;
    uint64_t
        pid_start; /* start time of the process (/proc/PID/stat), so that a reused pid is known */
    char host[64];
    int64_t beat_ns;
    int64_t step;                  /* -1: none yet */
    int stage;                     /* -1: none */
    int64_t micro_batch;           /* -1: none */
    char action;                   /* F, I, W, B, ...; 0: between actions */
    int64_t action_ns;             /* when it began */
    int work;                      /* as given to tr_board_begin_work; 0: none yet */
    int64_t work_done, work_total; /* in a unit of its own; total 0: not known */
    bool waiting;
    char wait_what[48];
    int wait_peer; /* world rank, or -1: a group */
    int64_t wait_ns;
    int exit_code;     /* of a finished rank */
    char message[512]; /* its sentence; empty when it ended well */
} tr_rank_view;

/* --- opening ---------------------------------------------------------------------------------- */

/* A fresh name ("/trireme-...") into name[size]; size >= 64. */
void tr_board_make_name(char *name, size_t size);
/* Opens the board of that name on this host, creating it where nobody has yet. TR_ERR_DEVICE when
 * shared memory is unavailable, full, or holds something else under the name. */
tr_status tr_board_open(const char *name, int ranks, tr_board **out);
/* Takes slot `rank` for the calling process; the setters write there from now on. */
tr_status tr_board_attach(tr_board *board, int rank);
/* Unmaps. The board's memory stays for its other users. */
void tr_board_close(tr_board *board);
/* Removes the name, once every rank has opened the board or the job is over. */
void tr_board_unlink(const char *name);

int tr_board_ranks(const tr_board *board);
/* A random number, the same for all processes that have this board open and for no others. */
uint64_t tr_board_id(tr_board *board);
/* The slot this process attached to, or -1 for an observer. */
int tr_board_rank(const tr_board *board);

/* --- this rank's slot ------------------------------------------------------------------------- */

void tr_board_beat(tr_board *board);
void tr_board_set_step(tr_board *board, int64_t step);
/* stage and micro_batch -1 where there is none; action 0 between actions. */
void tr_board_set_action(tr_board *board, int stage, int64_t micro_batch, char action);
/* Begins a piece of work that may be long; `work` is the caller's name for it, nothing is done yet.
 */
void tr_board_begin_work(tr_board *board, int work);
/* How much of it is done (bytes of a save, actions of a step); total 0: not known. */
void tr_board_set_work(tr_board *board, int64_t done, int64_t total);
/* Begin or end of a wait; peer is a world rank or -1. `what` is cut to 47 bytes. */
void tr_board_set_wait(tr_board *board, bool begin, const char *what, int peer);
/* Announces the end of this rank: to be called before it leaves MPI or exits. A failure (any code
 * but 0 and TR_ERR_STOPPED) becomes the job's code when it is the first. message may be NULL. */
void tr_board_finish(tr_board *board, int code, const char *message);

/* --- ranks of other hosts --------------------------------------------------------------------- */

/* Shows a living rank of another host in its slot, with times of this host's clock. One thread of
 * the job on this host calls it. Does nothing to the slot of a rank that attached here. */
void tr_board_show_remote(tr_board *board, int rank, const tr_rank_view *view);
/* Makes the slot ABSENT again: the messages of the rank's host no longer contain it. */
void tr_board_drop_remote(tr_board *board, int rank);
/* The rank of this host that exchanges heartbeats with other hosts; -1: none does. */
void tr_board_set_leader(tr_board *board, int rank);
int tr_board_leader(const tr_board *board);

/* --- the job ---------------------------------------------------------------------------------- */

/* The newest step that is saved; -1: none. */
void tr_board_set_saved(tr_board *board, int64_t step);
/* Returns the newest saved step; false when no rank of this host has set it yet. */
bool tr_board_saved(const tr_board *board, int64_t *step);

/* "Finish the step, save, exit 75". Async-signal-safe. Ranks agree on it in every step. */
void tr_board_request_stop(tr_board *board);
/* From now on tr_board_request_stop also sets *word to 1 when this process calls it. Sets *word at
 * once when a stop has been requested already. NULL: sets no word any more. */
void tr_board_set_stop_word(tr_board *board, _Atomic double *word);
/* After tr_board_request_stop in a process that is not a rank: sends SIGUSR1 to the living ranks of
 * this host, so that they call tr_board_request_stop too. */
void tr_board_tell_ranks(const tr_board *board);
bool tr_board_stop_requested(const tr_board *board);
int64_t tr_board_stop_ns(const tr_board *board);
/* True for exactly one caller of a job: the one that prints the job's one error message. */
bool tr_board_claim_report(tr_board *board);
/* Tells every rank to end at once with this code; the first code stays. tr_board_ending: 0 while
 * the job goes on. */
void tr_board_end_all(tr_board *board, int code);
int tr_board_ending(const tr_board *board);
/* True once a rank has finished without a failure: the run has saved its state. Async-signal-safe.
 */
bool tr_board_any_done(const tr_board *board);
/* Code of the first rank that finished with a failure, with that rank and the time; else 0.
 */
int tr_board_first_failure(const tr_board *board, int *rank, int64_t *since_ns);
/* The process that watches this board from outside (`trireme run`), 0 when there is none. */
void tr_board_set_launcher(tr_board *board, pid_t pid);
pid_t tr_board_launcher(const tr_board *board);
/* Columns of the launcher's terminal, which the ranks cannot ask for; 0: not known. */
void tr_board_set_columns(tr_board *board, int columns);
int tr_board_columns(const tr_board *board);

/* --- reading ---------------------------------------------------------------------------------- */

void tr_board_read(const tr_board *board, int rank, tr_rank_view *view);
/* The sums over the living ranks that are at this work; 0 and 0 where the board is NULL. */
void tr_board_sum_work(const tr_board *board, int work, int64_t *done, int64_t *total);
/* One clause for messages, in buf[size]: "rank 1 (host h, pid 42): step 7, stage 1, micro-batch 3,
 * action F for 0.2 s, waits for rank 0 (receive) for 0.1 s". Returns buf. */
const char *tr_board_describe(const tr_board *board, int rank, char *buf, size_t size);
/* The rank that `rank` waits for in the end. Follows the waits from rank to rank and stops at a
 * rank that works, at a circle, or at a rank without a recent heartbeat (1 s; 3 s on another host):
 * that one makes no progress, even if it was stopped in a wait of its own. A wait for a group leads
 * to tr_board_longest_working. Returns `rank` itself when it waits for no rank. */
int tr_board_late_rank(const tr_board *board, int rank);
/* The living rank (except `except`) with the oldest heartbeat, if one has no recent heartbeat; else
 * the rank that has worked longest on its action without a wait; or -1. */
int tr_board_longest_working(const tr_board *board, int except);
