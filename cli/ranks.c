#include "cli/ranks.h"

tr_status cli_on_ranks(cli_context *cli, bool speaks, cli_rank_command command, int argc,
                       char **argv) {
    tr_world *world = NULL;
    tr_rank_process *process = NULL;
    tr_status status = tr_rank_process_enter(speaks, &process);
    if (status == TR_OK) status = tr_world_open_mpi(&world);
    if (status != TR_OK) {
        (void)tr_rank_process_end(process, status, cli->backtrace, &(bool){false});
        return status;
    }
    status = command(cli, process, world, argc, argv);
    tr_world_close(world);
    return status;
}

void cli_leave(cli_context *cli, tr_rank_process *process, tr_world *world, tr_status status) {
    const bool own = status != TR_OK && !tr_error_is_agreed();
    bool reported;
    (void)tr_rank_process_end(process, status, cli->backtrace, &reported);
    cli->silent |= reported;
    if (status != TR_OK) cli_report(cli, status);
    if (own && tr_world_size(world) > 1) tr_world_abort(world, (int)status);
}
