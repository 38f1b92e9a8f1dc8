/* The life of a rank as a process: its place on the board, its watchdog, its signals, its last
 * word.
 *
 * Every command that runs as ranks is framed by tr_life_enter, before the world is opened, and
 * tr_life_end. */
#pragma once

#include "cli/cli.h"
#include "comm/board.h"
#include "comm/comm.h"

typedef struct tr_life tr_life;

/* Where `trireme run` has started this process: takes its place on the launcher's board and starts
 * the watchdog, so that a rank which is lost while MPI starts is missed too. What fails here fails
 * again in tr_life_begin, which says so. From now on signals that ask to stop do not end the
 * process (cli/signals.h). One life per process. */
tr_status tr_life_enter(const cli_context *cli, tr_life **out);
/* Collective, with the same status everywhere. Attaches to the board of the launcher
 * (TRIREME_BOARD) or, under plain mpirun and for a single process, to one of this job's own; starts
 * the watchdog; makes the world show its waits there and fail those of more than deadline_s (0:
 * never); hands requests to stop to the board, also one that came before. */
tr_status tr_life_begin(tr_life *life, tr_world *world, double deadline_s);
tr_board *tr_life_board(tr_life *life);
/* The end of a rank with `status`, before tr_world_close or tr_world_abort: where it is an error,
 * exactly one rank of the host prints this thread's sentence; for TR_ERR_RANK with the rank that is
 * late and what that one does. After it main stays silent (cli->silent), and the rank may leave;
 * waits keep their deadline. Where the life has not begun the agreed failure is main's to say. A
 * life of NULL changes nothing. Returns the exit code. */
tr_status tr_life_end(tr_life *life, cli_context *cli, tr_status status);
