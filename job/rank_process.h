/* A rank as a process: its place on the board, its watchdog, its signals, and the one message about
 * the error that ends it.
 *
 * Every command that runs as ranks calls tr_rank_process_enter before it opens the world, and
 * tr_rank_process_end before it closes the world. */
#pragma once

#include "comm/comm.h"
#include "job/board.h"

typedef struct tr_rank_process tr_rank_process;

/* Attaches to the launcher's board if `trireme run` started this process, and starts the watchdog,
 * so that a rank lost while MPI starts is noticed too. Under plain mpirun the watchdog ends the
 * process (77) when MPI does not start. A failure here happens again in
 * tr_rank_process_begin, which reports it. From now on signals that ask to stop do not end the
 * process (job/signals.h). prints: without a launcher, this rank prints what a signal does. Call it
 * once per process. */
tr_status tr_rank_process_enter(bool prints, tr_rank_process **out);
/* Attaches to the launcher's board (TRIREME_BOARD) or, under plain mpirun and for a single process,
 * to a board of this job. Starts the watchdog. Makes the world show its waits on the board, and
 * fail a wait that takes more than deadline_s (0: no deadline). Passes requests to stop to the
 * board, including one that came earlier. Collective; returns the same status on every rank. */
tr_status tr_rank_process_begin(tr_rank_process *process, tr_world *world, double deadline_s);
tr_board *tr_rank_process_board(tr_rank_process *process);
/* Ends the rank with `status` and frees the process (NULL is allowed); call it before
 * tr_world_close or tr_world_abort. For an error, exactly one rank of the host prints this thread's
 * sentence, with the backtrace if asked for; of an error that all ranks agreed on (tr_world_agree)
 * only one of rank 0's host does. For TR_ERR_RANK the sentence also names the late rank and what
 * that rank does. *reported tells the caller not to print. When tr_rank_process_begin has not
 * succeeded, the caller reports. Waits keep their deadline. Returns status. */
tr_status tr_rank_process_end(tr_rank_process *process, tr_status status, bool backtrace,
                              bool *reported);
