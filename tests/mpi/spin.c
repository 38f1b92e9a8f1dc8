/* Ranks without a model, for tests/run/watchdog.sh: they open the world, attach to the board and
 * pass a barrier after every action, which only sleeps.
 *
 *   spin run RANKS spin MODE ...      the launcher, with this program as the executable
 *   spin spin steps N SECONDS         N steps with one action of SECONDS each
 *   spin spin fail RANK CODE          RANK fails by itself, in step 2
 *   spin spin crash RANK              RANK dies of SIGSEGV, in step 2
 *   spin spin hang RANK DEADLINE      RANK stays in its action for a minute
 *   spin spin leave CODE              the ranks end with CODE, and leave without telling MPI
 *   spin spin far RANK DEADLINE       many steps; RANK has a board of its own, as on another host
 *   spin spin homeless RANK DEADLINE  RANK finds no board
 *   spin spin early RANK SIGNAL       RANK sends itself the signal before MPI has started
 *   spin spin unborn RANK SIGNAL      RANK sends itself the signal before main; 0: sleeps there
 *
 * Every rank prints "rank R pid P" in its first action, and in modes steps and far "rank R done" at
 * its end. */
#include "job/launch.h"
#include "job/rank_process.h"
#include "job/watchdog.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static void work(double seconds) {
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0) {}
}

/* Sets *stop on every rank to true once one of them has been asked to stop. */
static tr_status agree_to_stop(tr_world *world, tr_rank_process *process, bool *stop) {
    char mine = tr_board_stop_requested(tr_rank_process_board(process)), all[64] = {0};
    TR_TRY(tr_world_gather_all(world, &mine, all, 1));
    *stop = memchr(all, 1, sizeof all) != NULL;
    return TR_OK;
}

/* Runs one action of `seconds` as stage `rank`, then waits for all other ranks. */
static tr_status step(tr_world *world, tr_rank_process *process, int64_t n, double seconds) {
    tr_board *board = tr_rank_process_board(process);
    int rank = tr_world_rank(world);
    tr_board_set_step(board, n);
    tr_board_set_action(board, rank, 40 + rank, 'F');
    if (n == 1) {
        (void)printf("rank %d pid %d\n", rank, (int)getpid());
        (void)fflush(stdout);
    }
    work(seconds);
    tr_board_set_action(board, -1, -1, 0);
    return tr_world_barrier(world);
}

static tr_status steps(tr_world *world, tr_rank_process *process, char **argv) {
    for (int n = 1; n <= atoi(argv[0]); n++) {
        bool stop = false;
        TR_TRY(step(world, process, n, atof(argv[1])));
        TR_TRY(agree_to_stop(world, process, &stop));
        if (stop) return TR_ERR_STOPPED;
    }
    (void)printf("rank %d done\n", tr_world_rank(world));
    return TR_OK;
}

static tr_status misbehave(tr_world *world, tr_rank_process *process, const char *mode,
                           char **argv) {
    bool me = tr_world_rank(world) == atoi(argv[0]);
    TR_TRY(step(world, process, 1, 0.05));
    if (me && strcmp(mode, "fail") == 0) {
        return TR_FAIL((tr_status)atoi(argv[1]), "the loss is not finite");
    }
    if (me && strcmp(mode, "crash") == 0) {
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        tr_board_set_action(tr_rank_process_board(process), 0, 7, 'W');
        (void)signal(SIGSEGV, SIG_DFL);
        (void)raise(SIGSEGV);
    }
    return step(world, process, 2, me ? 60 : 0.05);
}

/* Gives this rank another board than the launcher's. */
static void move_board(const char *suffix) {
    char name[128];
    const char *given = getenv(TR_BOARD_VARIABLE);
    (void)snprintf(name, sizeof name, "%s%s", given ? given : "/trireme", suffix);
    (void)setenv(TR_BOARD_VARIABLE, name, 1);
}

/* glibc passes the arguments of main to constructors too. */
__attribute__((constructor)) static void before_main(int argc, char **argv) {
    const char *rank = getenv(TR_RANK_VARIABLE);
    if (argc < 5 || strcmp(argv[2], "unborn") != 0 || !rank || atoi(rank) != atoi(argv[3])) return;
    if (atoi(argv[4]) == 0) work(60);
    else (void)raise(atoi(argv[4]));
}

int main(int argc, char **argv) {
    if (argc > 3 && strcmp(argv[1], "run") == 0) {
        return tr_launch_run(&(tr_launch){
            .ranks = atoi(argv[2]), .mpirun_options = (char *[]){NULL}, .command = argv + 3});
    }
    if (argc < 4) return TR_ERR_USAGE;
    bool reported;
    const char *mode = argv[2];
    bool far = strcmp(mode, "far") == 0, homeless = strcmp(mode, "homeless") == 0;
    bool limited = far || homeless || strcmp(mode, "hang") == 0;
    const char *rank = getenv(TR_RANK_VARIABLE);
    bool named = rank && atoi(rank) == atoi(argv[3]);
    if ((far || homeless) && named) move_board(far ? "-far" : "/is/no/name");
    tr_world *world;
    tr_rank_process *process;
    tr_status status = tr_rank_process_enter(true, &process);
    if (status != TR_OK) return (int)status;
    if (strcmp(mode, "early") == 0 && named) (void)raise(atoi(argv[4]));
    status = tr_world_open_mpi(&world);
    if (status != TR_OK) return (int)status;
    status = tr_rank_process_begin(process, world, limited ? atof(argv[4]) : 600);
    if (status != TR_OK) {
        if (tr_world_rank(world) == 0) (void)fprintf(stderr, "trireme: %s\n", tr_error_message());
        (void)tr_rank_process_end(process, status, false, &reported);
        tr_world_close(world);
        return (int)status;
    }
    if (strcmp(mode, "steps") == 0) {
        status = steps(world, process, argv + 3);
    } else if (far) {
        status = steps(world, process, (char *[]){"1000", "0.3"});
    } else if (strcmp(mode, "leave") == 0) {
        status = step(world, process, 1, 0.05);
        if (status == TR_OK) status = (tr_status)atoi(argv[3]);
    } else {
        status = misbehave(world, process, mode, argv + 3);
    }
    status = tr_rank_process_end(process, status, false, &reported);
    if (strcmp(mode, "leave") == 0) _exit((int)status);
    if (status != TR_OK && status != TR_ERR_STOPPED) tr_world_abort(world, (int)status);
    tr_world_close(world);
    return (int)status;
}
