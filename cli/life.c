#include "cli/life.h"

#include "base/memory.h"
#include "cli/signals.h"
#include "comm/watchdog.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tr_life {
    tr_world *world;
    tr_board *board;
    tr_watchdog *watchdog;
    tr_heartbeat *heartbeat; /* the world's; NULL where this rank is not its host's leader */
    double deadline_s;
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
    tr_life *life = context;
    if (begin) atomic_store_explicit(&life->peer, peer, memory_order_relaxed);
    tr_board_set_wait(life->board, begin, what, peer);
}

static void show_work(void *context, int64_t done, int64_t total) {
    const tr_life *life = context;
    tr_board_set_work(life->board, done, total);
}

static bool look(void *context, char *sentence, size_t size) {
    tr_life *life = context;
    tr_world *world = atomic_load(&life->looked_after);
    return world && tr_world_look(world, sentence, size);
}

static tr_status start_watchdog(tr_life *life) {
    /* The process that started this rank started the other ranks of this host too. */
    tr_watchdog_options options = {.limits.parent = getenv(TR_RANK_VARIABLE) ? getppid() : 0,
                                   .look = look,
                                   .report = report,
                                   .end = leave,
                                   .context = life};
    TR_TRY(tr_watchdog_start(life->board, &options, &life->watchdog));
    return TR_OK;
}

/* The launcher's board, by what Open MPI says of this rank before MPI has started. */
static void enter_board(tr_life *life) {
    const char *name = getenv(TR_BOARD_VARIABLE), *rank = getenv(TR_RANK_VARIABLE),
               *size = getenv("OMPI_COMM_WORLD_SIZE");
    if (!name || !rank || !size || tr_board_open(name, atoi(size), &life->board) != TR_OK) return;
    if (tr_board_attach(life->board, atoi(rank)) == TR_OK) {
        tr_board_set_wait(life->board, true, TR_WAIT_MPI, -1);
        (void)start_watchdog(life);
    } else {
        tr_board_close(life->board);
        life->board = NULL;
    }
}

tr_status tr_life_enter(const cli_context *cli, tr_life **out) {
    *out = NULL;
    tr_life *life;
    tr_signals_take(getenv(TR_BOARD_VARIABLE), !cli->silent); /* the launcher may signal soon */
    TR_TRY(tr_calloc(1, sizeof *life, &life));
    life->peer = -1;
    enter_board(life);
    tr_error_clear(); /* tr_life_begin meets it again */
    *out = life;
    return TR_OK;
}

/* The launcher's board, or one that rank 0 names; every rank returns the same status. */
static tr_status join_board(tr_life *life) {
    char name[64] = "";
    const char *given = getenv(TR_BOARD_VARIABLE);
    if (given) {
        (void)snprintf(name, sizeof name, "%s", given);
    } else {
        if (tr_world_rank(life->world) == 0) tr_board_make_name(name, sizeof name);
        TR_TRY(tr_world_broadcast(life->world, 0, name, sizeof name));
    }
    tr_status mine = TR_OK;
    if (!life->board) {
        mine = tr_board_open(name, tr_world_size(life->world), &life->board);
        if (mine == TR_OK) mine = tr_board_attach(life->board, tr_world_rank(life->world));
    }
    /* After the agreement every rank has opened the board, so its name is removed on each host
     * where no launcher does that. */
    mine = tr_world_agree(life->world, mine);
    if (!given || (life->board && !tr_board_launcher(life->board))) tr_board_unlink(name);
    return mine;
}

/* Ends a life that did not begin on some rank; main prints why. A rank with a place on the board
 * must not look lost when it exits. */
static void forsake(tr_life *life, tr_status status) {
    tr_signals_use(NULL);
    if (life->board) (void)tr_board_claim_report(life->board);
    tr_board_finish(life->board, (int)status, tr_error_message());
    tr_watchdog_stop(life->watchdog);
    /* A heartbeat uses the board until the world is closed. */
    if (life->board && !life->heartbeat) tr_board_close(life->board);
    free(life);
}

tr_status tr_life_begin(tr_life *life, tr_world *world, double deadline_s) {
    life->world = world;
    life->deadline_s = deadline_s;
    tr_board_set_wait(life->board, false, NULL, -1);
    TR_TRY(join_board(life));
    tr_signals_use(life->board);
    TR_TRY(tr_world_agree(world, life->watchdog ? TR_OK : start_watchdog(life)));
    TR_TRY(tr_world_agree(world, tr_heartbeat_open(world, life->board, &life->heartbeat)));
    if (life->heartbeat) tr_watchdog_lead(life->watchdog, life->heartbeat);
    tr_world_set_hook(world, &(tr_world_hook){.wait = show_wait,
                                              .work = show_work,
                                              .context = life,
                                              .deadline_s = deadline_s});
    atomic_store(&life->looked_after, world);
    life->begun = true;
    return TR_OK;
}

tr_board *tr_life_board(tr_life *life) {
    return life->board;
}

/* The sentence of this thread's failure, with the rank that is late where one is: this rank's wait
 * is over, so the search starts at the one it waited for. */
static void last_word(const tr_life *life, tr_status status, char *text, size_t size) {
    (void)snprintf(text, size, "%s", tr_error_message());
    if (status != TR_ERR_RANK) return;
    char late[256];
    int me = tr_world_rank(life->world), peer = atomic_load(&life->peer);
    int rank = peer >= 0 ? tr_board_late_rank(life->board, peer)
                         : tr_board_longest_working(life->board, me);
    if (rank < 0 || rank == me) return;
    size_t used = strlen(text);
    (void)snprintf(text + used, size - used, "; late is %s",
                   tr_board_describe(life->board, rank, late, sizeof late));
}

tr_status tr_life_end(tr_life *life, cli_context *cli, tr_status status) {
    if (!life) return status;
    if (!life->begun) {
        forsake(life, status);
        return status;
    }
    char text[768] = "";
    if (status != TR_OK && status != TR_ERR_STOPPED) {
        last_word(life, status, text, sizeof text);
        if (tr_board_claim_report(life->board)) {
            report(NULL, text);
            if (cli->trace) (void)fprintf(stderr, "  at %s\n", tr_error_trace());
        }
        cli->silent = true;
    }
    tr_board_finish(life->board, (int)status, text);
    tr_watchdog_stop(life->watchdog);
    tr_heartbeat_bye(life->heartbeat);
    /* The deadline still counts: this rank must not wait forever for one that never closes the
     * world. */
    tr_world_set_hook(life->world, &(tr_world_hook){.deadline_s = life->deadline_s});
    /* The board stays mapped: a signal may still want to write its request. */
    free(life);
    return status;
}
