/* The beginning and the end of a command that runs on several ranks. */
#pragma once

#include "cli/cli.h"
#include "comm/comm.h"
#include "job/rank_process.h"

/* A command on one rank. It ends with cli_leave. */
typedef tr_status (*cli_rank_command)(cli_context *cli, tr_rank_process *process, tr_world *world,
                                      int argc, char **argv);

/* Makes this process a rank of its job, opens the world, runs the command and closes the world.
 * prints: as in tr_rank_process_enter. */
tr_status cli_on_ranks(cli_context *cli, bool prints, cli_rank_command command, int argc,
                       char **argv);

/* Fails with TR_ERR_USAGE when a rank has other arguments than rank 0, except for train.threads and
 * keys of `device`: ranks with different work would wait for each other. Collective. */
tr_status cli_same_arguments(tr_world *world, int argc, char **argv);

/* Ends the process as a rank, and reports a failure. A rank that fails by itself aborts the job; a
 * failure that all ranks agreed on shuts down cleanly. */
void cli_leave(cli_context *cli, tr_rank_process *process, tr_world *world, tr_status status);
