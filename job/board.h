/* The board: what every rank of a job on this host is doing, in shared memory that outlives them.
 *
 * Each rank has one slot. Only that rank writes it, with atomic stores (tens of nanoseconds, no
 * lock, no system call). Every other rank's watchdog and `trireme run` read it. The launcher
 * chooses the board's name and passes it in TRIREME_BOARD; under plain mpirun world rank 0 makes
 * one with tr_board_make_name() and broadcasts it. Memory full of zeros is a valid empty board, so
 * the first process creates it and no process waits. Ranks of another host have their own board
 * there; heartbeats between the hosts (job/heartbeat.h) copy them to rank 0's board.
 *
 * Setters accept a NULL board and do nothing, so callers need not check for one. */
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
    TR_RANK_ALIVE,    /* attached; if its process ends now, the rank is lost */
    TR_RANK_FINISHED, /* has announced its end and its exit code */
    TR_RANK_REMOTE,   /* alive on another host, by its last message; the pid is that host's */
} tr_rank_state;

/* One rank's slot as read at one moment. Times are CLOCK_MONOTONIC nanoseconds, which do not count
 * the time that a machine is suspended. */
typedef struct tr_rank_view {
    tr_rank_state state;
    pid_t pid;
    uint64_t pid_start; /* start time in /proc/PID/stat, which tells a reused pid apart */
    bool hidden;        /* the pid is of another PID namespace, as in a container for this rank */
    char host[64];
    int64_t beat_ns;
    int64_t step;                  /* -1: none yet */
    int stage;                     /* -1: none */
    int64_t micro_batch;           /* -1: none */
    char action;                   /* as in tr_board_set_action; 0: between actions */
    int64_t action_ns;             /* when it began */
    int work;                      /* as given to tr_board_begin_work; 0: none yet */
    int64_t work_done, work_total; /* in a unit of its own; total 0: not known */
    bool waiting;
    char wait_what[48];
    int wait_peer; /* world rank, or -1: a group */
    int64_t wait_ns;
    int exit_code;      /* of a finished rank */
    char message[1024]; /* its error message (tr_text_fit); empty when it succeeded */
} tr_rank_view;

/* --- opening ---------------------------------------------------------------------------------- */

/* Writes a new name ("/trireme-...") to name[size]; size >= 64. */
void tr_board_make_name(char *name, size_t size);
/* Opens the board of that name on this host, and creates it if it does not exist. Without a name
 * (NULL) it creates a board for this process alone, which needs no /dev/shm. Fails with
 * TR_ERR_DEVICE when shared memory is unavailable or full, or holds something else under the
 * name. */
tr_status tr_board_open(const char *name, int ranks, tr_board **out);
/* Takes slot `rank` for the calling process; from now on the setters write to it. */
tr_status tr_board_attach(tr_board *board, int rank);
/* Unmaps the board. Its memory stays for the other processes. */
void tr_board_close(tr_board *board);
/* Removes the name. Call it once every rank has opened the board, or when the job is over. */
void tr_board_unlink(const char *name);

int tr_board_ranks(const tr_board *board);
/* Returns a random number that identifies this board: all processes that have it open get the
 * same. */
uint64_t tr_board_id(tr_board *board);
/* Returns the slot that this process attached to, or -1 for an observer. */
int tr_board_rank(const tr_board *board);

/* --- this rank's slot ------------------------------------------------------------------------- */

void tr_board_beat(tr_board *board);
void tr_board_set_step(tr_board *board, int64_t step);
/* Shows an action: F, I, W, B, R (receive), S (send), G (sum of gradients), P (gather of
 * parameters), C (copy to or from the host's memory) or O (optimizer step). T is a token that is
 * drawn, L the reading of a model, E a batch of an evaluation, with its number as `micro_batch`.
 * Without a stage or micro-batch the argument is -1; between actions `action` is 0. */
void tr_board_set_action(tr_board *board, int stage, int64_t micro_batch, char action);
/* Shows that a long piece of work begins. `work` is the caller's number for it; done and total are
 * 0. */
void tr_board_begin_work(tr_board *board, int work);
/* Shows how much of the work is done (bytes of a save, actions of a step); total 0: not known. */
void tr_board_set_work(tr_board *board, int64_t done, int64_t total);
/* Shows the begin or end of a wait. `peer` is a world rank, or -1 for a group; `what` is cut to 47
 * bytes. */
void tr_board_set_wait(tr_board *board, bool begin, const char *what, int peer);
/* Announces the end of this rank; call it before the rank leaves MPI or exits. The first failure
 * (any code except 0 and TR_ERR_STOPPED) becomes the job's exit code. message may be NULL. */
void tr_board_finish(tr_board *board, int code, const char *message);

/* --- ranks of other hosts --------------------------------------------------------------------- */

/* Shows a living rank of another host in its slot, with times of this host's clock. Only one thread
 * of the job on this host calls it. Does not change the slot of a rank that attached here. */
void tr_board_show_remote(tr_board *board, int rank, const tr_rank_view *view);
/* Makes the slot ABSENT again, because the messages of the rank's host no longer contain the
 * rank. */
void tr_board_drop_remote(tr_board *board, int rank);
/* Set and return the rank of this host that exchanges heartbeats with other hosts; -1: none
 * does. */
void tr_board_set_leader(tr_board *board, int rank);
int tr_board_leader(const tr_board *board);

/* --- the job ---------------------------------------------------------------------------------- */

/* Records the newest step that is saved; -1: none. */
void tr_board_set_saved(tr_board *board, int64_t step);
/* Returns the newest saved step; false when no rank of this host has set it yet. */
bool tr_board_saved(const tr_board *board, int64_t *step);

/* Asks the job to finish the step, save and exit with 75. The ranks agree on it in every step. */
void tr_board_request_stop(tr_board *board);
/* Makes tr_board_request_stop also set *word to 1 in this process. Sets *word at once when a stop
 * has been requested already. NULL: no word is set any more, and the previous one may be freed. */
void tr_board_set_stop_word(tr_board *board, _Atomic double *word);
/* Sends SIGUSR1 to the living ranks of this host, so that they call tr_board_request_stop too. For
 * a process that is not a rank, after its own tr_board_request_stop. */
void tr_board_tell_ranks(const tr_board *board);
bool tr_board_stop_requested(const tr_board *board);
int64_t tr_board_stop_ns(const tr_board *board);
/* Lets Ctrl-C interrupt what the job does, instead of asking it to stop: for a conversation. */
void tr_board_set_interruptible(tr_board *board);
/* Interrupts the job. Returns false when it is not interruptible, or has not taken the previous
 * interrupt yet. */
bool tr_board_interrupt(tr_board *board);
/* Returns true once for each interrupt. */
bool tr_board_take_interrupt(tr_board *board);
/* Returns true to exactly one caller of a job, which then prints the job's one error message. */
bool tr_board_claim_report(tr_board *board);
/* Tells every rank to exit at once with this code; the first code stays. tr_board_ending returns
 * that code, or 0 while the job continues. */
void tr_board_end_all(tr_board *board, int code);
int tr_board_ending(const tr_board *board);
/* Returns true once a rank has finished without a failure: the run has then saved its state. */
bool tr_board_any_done(const tr_board *board);
/* Returns the exit code of the first rank that failed, with that rank and the time; else 0. */
int tr_board_first_failure(const tr_board *board, int *rank, int64_t *since_ns);
/* Set and return the process that watches this board from outside (`trireme run`); 0: none. */
void tr_board_set_launcher(tr_board *board, pid_t pid);
pid_t tr_board_launcher(const tr_board *board);
/* Set and return the columns of the launcher's terminal, which the ranks cannot query; 0: not
 * known. */
void tr_board_set_columns(tr_board *board, int columns);
int tr_board_columns(const tr_board *board);

/* --- reading ---------------------------------------------------------------------------------- */

void tr_board_read(const tr_board *board, int rank, tr_rank_view *view);
/* Sums done and total over the living ranks that are at this work. Both are 0 when the board is
 * NULL. */
void tr_board_sum_work(const tr_board *board, int work, int64_t *done, int64_t *total);
/* Writes a clause for messages to buf[size]: "rank 1 (host h, pid 42): step 7, stage 1, micro-batch
 * 3, forward (F) for 0.2 s, waits for rank 0 (receive) for 0.1 s". Returns buf. */
const char *tr_board_describe(const tr_board *board, int rank, char *buf, size_t size);
/* Returns the rank that holds `rank` up. Follows the waits from rank to rank and stops at a rank
 * that works, at a cycle, or at a rank without a recent heartbeat (1 s; 3 s on another host): such
 * a rank makes no progress, even if it was itself waiting when it stopped. A wait for a group leads
 * to tr_board_longest_working. Returns `rank` itself when it waits for no rank. */
int tr_board_late_rank(const tr_board *board, int rank);
/* Returns the living rank (except `except`) with the oldest heartbeat, if some rank has no recent
 * heartbeat; else the rank that has worked longest on its action without waiting; or -1. */
int tr_board_longest_working(const tr_board *board, int except);
