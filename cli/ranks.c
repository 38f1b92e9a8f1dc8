#include "cli/ranks.h"

#include <string.h>
#include <xxhash.h>

tr_status cli_on_ranks(cli_context *cli, bool prints, cli_rank_command command, int argc,
                       char **argv) {
    tr_world *world = NULL;
    tr_rank_process *process = NULL;
    tr_status status = tr_rank_process_enter(prints, &process);
    if (status == TR_OK) status = tr_world_open_mpi(&world);
    if (status != TR_OK) {
        (void)tr_rank_process_end(process, status, cli->backtrace, &(bool){false});
        return status;
    }
    status = command(cli, process, world, argc, argv);
    tr_world_close(world);
    return status;
}

/* Returns true for a key of the rank's machine, which ranks may have different. */
static bool is_of_machine(const char *argument) {
    if (strncmp(argument, "--", 2) == 0) argument += 2;
    return strncmp(argument, "device.", 7) == 0 || strncmp(argument, "train.threads=", 14) == 0;
}

tr_status cli_same_arguments(tr_world *world, int argc, char **argv) {
    uint64_t mine = 0;
    for (int i = 1; i < argc; i++)
        if (!is_of_machine(argv[i])) mine = XXH3_64bits_withSeed(argv[i], strlen(argv[i]), mine);
    uint64_t first = mine;
    TR_TRY(tr_world_broadcast(world, 0, &first, sizeof first));
    return tr_world_agree(
        world, mine == first ? TR_OK
                             : TR_FAIL(TR_ERR_USAGE,
                                       "rank %d has other arguments of %s than rank 0: start every "
                                       "rank with the same command",
                                       tr_world_rank(world), argv[0]));
}

void cli_leave(cli_context *cli, tr_rank_process *process, tr_world *world, tr_status status) {
    const bool own = status != TR_OK && !tr_error_is_agreed();
    bool reported;
    (void)tr_rank_process_end(process, status, cli->backtrace, &reported);
    cli->silent |= reported;
    if (status != TR_OK) cli_report(cli, status);
    if (own && tr_world_size(world) > 1) tr_world_abort(world, (int)status);
}
