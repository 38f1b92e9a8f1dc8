/* A rank as a process: its place on the board, its watchdog, its signals, and the one message about
 * the error that ends it.
 *
 * Every command that runs as ranks calls tr_rank_process_enter before it opens the world, and
 * tr_rank_process_end before it closes the world. */
#pragma once

#include "comm/comm.h"
#include "job/board.h"

typedef struct tr_rank_process tr_rank_process;

/* Takes this rank's place on the launcher's board, where `trireme run` has started the process, and
 * starts the watchdog, so that a rank which is lost while MPI starts is noticed too. What fails
 * here fails again in tr_rank_process_begin, which reports it. From now on signals that ask to stop
 * do not end the process (job/signals.h). speaks: without a launcher, this rank prints what a
 * signal does. Once per process. */
tr_status tr_rank_process_enter(bool speaks, tr_rank_process **out);
/* Collective, with the same status everywhere. Attaches to the board of the launcher
 * (TRIREME_BOARD) or, under plain mpirun and for a single process, to one of this job's own; starts
 * the watchdog; makes the world show its waits there and fail those of more than deadline_s (0:
 * never); hands requests to stop to the board, also one that came before. */
tr_status tr_rank_process_begin(tr_rank_process *process, tr_world *world, double deadline_s);
tr_board *tr_rank_process_board(tr_rank_process *process);
/* Ends the rank with `status`, before tr_world_close or tr_world_abort, and frees the process (NULL
 * is fine). For an error, exactly one rank of the host prints this thread's sentence, with its
 * backtrace on request, and for TR_ERR_RANK with the rank that is late and what that one does;
 * *reported (set here) tells the caller to stay silent. When the process has not begun, the caller
 * reports. Waits keep their deadline. Returns status. */
tr_status tr_rank_process_end(tr_rank_process *process, tr_status status, bool backtrace,
                              bool *reported);
