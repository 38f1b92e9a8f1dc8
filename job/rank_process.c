#include "job/rank_process.h"

#include "base/memory.h"
#include "job/signals.h"
#include "job/sweep.h"
#include "job/watchdog.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tr_rank_process {
    tr_world *world;
    tr_board *board;
    tr_watchdog *watchdog;
    tr_heartbeat *heartbeat; /* the world's; NULL where this rank is not its host's leader */
    double deadline_s;
    bool alone;                       /* the board is this process's own, while MPI starts */
    bool begun;                       /* on all ranks */
    _Atomic int peer;                 /* of the last wait; -1: a group */
    _Atomic(tr_world *) looked_after; /* by the watchdog; NULL: none */
};

static void report(void *context, const char *sentence) {
    (void)context;
    tr_signal_say(sentence, tr_signal_refreshes());
}

static void leave(void *context, int code) {
    (void)context;
    _exit(code);
}

static void show_wait(void *context, bool begin, const char *what, int peer) {
    tr_rank_process *process = context;
    if (begin) atomic_store_explicit(&process->peer, peer, memory_order_relaxed);
    tr_board_set_wait(process->board, begin, what, peer);
}

static void show_work(void *context, int64_t done, int64_t total) {
    const tr_rank_process *process = context;
    tr_board_set_work(process->board, done, total);
}

static bool look(void *context, char *sentence, size_t size) {
    tr_rank_process *process = context;
    tr_world *world = atomic_load(&process->looked_after);
    return world && tr_world_look(world, sentence, size);
}

static tr_status start_watchdog(tr_rank_process *process) {
    /* The process that started this rank started the other ranks of this host too. They are not on
     * a board of this process alone. */
    const bool parent = getenv(TR_RANK_VARIABLE) && !process->alone;
    tr_watchdog_options options = {.limits.parent = parent ? getppid() : 0,
                                   .look = look,
                                   .report = report,
                                   .end = leave,
                                   .context = process};
    TR_TRY(tr_watchdog_start(process->board, &options, &process->watchdog));
    return TR_OK;
}

/* Attaches, with the rank that Open MPI's environment names before MPI starts, to the launcher's
 * board. Under plain mpirun the ranks have no common board yet, so each makes one of its own, by
 * which its watchdog notices that MPI does not start and that a signal asked to stop. */
static void enter_board(tr_rank_process *process) {
    const char *name = getenv(TR_BOARD_VARIABLE), *rank = getenv(TR_RANK_VARIABLE),
               *size = getenv("OMPI_COMM_WORLD_SIZE");
    if (!rank || !size || tr_board_open(name, atoi(size), &process->board) != TR_OK) return;
    if (tr_board_attach(process->board, atoi(rank)) == TR_OK) {
        process->alone = !name;
        tr_board_set_wait(process->board, true, TR_RANK_WAITS_FOR_MPI, -1);
        if (process->alone) (void)tr_signals_use(process->board);
        (void)start_watchdog(process);
    } else {
        tr_board_close(process->board);
        process->board = NULL;
    }
}

/* Leaves the board of this process alone, once MPI has started. */
static void leave_own_board(tr_rank_process *process) {
    if (!process->alone) return;
    (void)tr_signals_use(NULL); /* a request that came is passed to the next board */
    tr_watchdog_stop(process->watchdog);
    tr_board_close(process->board);
    process->watchdog = NULL;
    process->board = NULL;
    process->alone = false;
}

/* Takes from the environment what `trireme run` set for mpirun and for the ranks. A rank that
 * inherited the number of mpirun's file would lose its messages. */
static void take_launcher_settings(void) {
    const char *board = getenv(TR_BOARD_VARIABLE);
    if (!board) return;
    tr_job_files_enter(board);
    (void)unsetenv("OPAL_OUTPUT_STDERR_FD");
}

tr_status tr_rank_process_enter(bool prints, tr_rank_process **out) {
    *out = NULL;
    tr_rank_process *process;
    take_launcher_settings();
    tr_signals_take(getenv(TR_BOARD_VARIABLE), prints); /* the launcher may signal soon */
    TR_TRY(tr_calloc(1, sizeof *process, &process));
    process->peer = -1;
    enter_board(process);
    tr_error_clear(); /* tr_rank_process_begin fails with it again */
    *out = process;
    return TR_OK;
}

/* Opens the launcher's board, or one that rank 0 names; a job of one process needs no name, and so
 * no /dev/shm. Every rank returns the same status. */
static tr_status join_board(tr_rank_process *process) {
    char name[64] = "";
    const char *given = getenv(TR_BOARD_VARIABLE);
    if (!given && tr_world_size(process->world) == 1) {
        TR_TRY(tr_board_open(NULL, 1, &process->board));
        TR_TRY(tr_board_attach(process->board, 0));
        return TR_OK;
    }
    if (given) {
        (void)snprintf(name, sizeof name, "%s", given);
    } else {
        if (tr_world_rank(process->world) == 0) tr_board_make_name(name, sizeof name);
        TR_TRY(tr_world_broadcast(process->world, 0, name, sizeof name));
    }
    tr_status mine = TR_OK;
    if (!process->board) {
        mine = tr_board_open(name, tr_world_size(process->world), &process->board);
        if (mine == TR_OK) mine = tr_board_attach(process->board, tr_world_rank(process->world));
    }
    /* After the agreement every rank has opened the board, so its name is removed on each host
     * where no launcher does that. */
    mine = tr_world_agree(process->world, mine);
    if (!given || (process->board && !tr_board_launcher(process->board))) tr_board_unlink(name);
    return mine;
}

/* Ends the process when tr_rank_process_begin failed on some rank; the caller prints why. A rank
 * that has attached to the board must not look lost when it exits. */
static void end_early(tr_rank_process *process, tr_status status) {
    (void)tr_signals_use(NULL);
    if (process->board) (void)tr_board_claim_report(process->board);
    tr_board_finish(process->board, (int)status, tr_error_message());
    tr_watchdog_stop(process->watchdog);
    /* Heartbeats use the board until the world is closed. */
    if (process->board && !process->heartbeat) tr_board_close(process->board);
    free(process);
}

tr_status tr_rank_process_begin(tr_rank_process *process, tr_world *world, double deadline_s) {
    process->world = world;
    process->deadline_s = deadline_s;
    leave_own_board(process);
    tr_board_set_wait(process->board, false, NULL, -1);
    TR_TRY(join_board(process));
    tr_status threads = tr_signals_use(process->board);
    if (threads == TR_OK && !process->watchdog) threads = start_watchdog(process);
    TR_TRY(tr_world_agree(world, threads));
    TR_TRY(tr_world_agree(world, tr_heartbeat_open(world, process->board, &process->heartbeat)));
    if (process->heartbeat) tr_watchdog_lead(process->watchdog, process->heartbeat);
    tr_world_set_hook(world, &(tr_world_hook){.wait = show_wait,
                                              .work = show_work,
                                              .context = process,
                                              .deadline_s = deadline_s});
    atomic_store(&process->looked_after, world);
    process->begun = true;
    return TR_OK;
}

tr_board *tr_rank_process_board(tr_rank_process *process) {
    return process->board;
}

/* Writes the sentence of this thread's failure, with the late rank if there is one. This rank's
 * wait is over, so the search starts at the rank that it waited for. */
static void make_sentence(const tr_rank_process *process, tr_status status, char *text,
                          size_t size) {
    (void)snprintf(text, size, "%s%s", tr_error_message(), tr_error_remedy(status));
    if (status != TR_ERR_RANK) return;
    char late[256];
    int me = tr_world_rank(process->world), peer = atomic_load(&process->peer);
    int rank = peer >= 0 ? tr_board_late_rank(process->board, peer)
                         : tr_board_longest_working(process->board, me);
    if (rank < 0 || rank == me) return;
    size_t used = strlen(text);
    (void)snprintf(text + used, size - used, "; late is %s",
                   tr_board_describe(process->board, rank, late, sizeof late));
}

tr_status tr_rank_process_end(tr_rank_process *process, tr_status status, bool backtrace,
                              bool *reported) {
    *reported = false;
    if (!process) return status;
    if (!process->begun) {
        end_early(process, status);
        return status;
    }
    char text[2048] = "";
    if (status != TR_OK && status != TR_ERR_STOPPED) {
        make_sentence(process, status, text, sizeof text);
        /* All ranks have an agreed failure, and rank 0's host prints it. */
        const bool elsewhere = tr_error_is_agreed() && tr_board_leader(process->board) > 0;
        if (tr_board_claim_report(process->board) && !elsewhere) {
            report(NULL, text);
            if (backtrace) (void)fprintf(stderr, "  at %s\n", tr_error_trace());
        }
        *reported = true;
    }
    tr_board_finish(process->board, (int)status, text);
    tr_watchdog_stop(process->watchdog);
    tr_heartbeat_bye(process->heartbeat);
    /* The deadline stays: this rank must not wait forever for one that does not close the world. */
    tr_world_set_hook(process->world, &(tr_world_hook){.deadline_s = process->deadline_s});
    /* The board stays mapped, because the thread that takes signals may still write to it. */
    free(process);
    return status;
}
