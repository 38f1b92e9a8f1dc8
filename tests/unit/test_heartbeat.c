/* Tests heartbeats between hosts, over the local transport: each thread is a rank, and ranks that
 * share a board are on one host. */
#include "job/heartbeat.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Ranks 0 and 2 are on host 0, ranks 1 and 3 on host 1, rank 4 is alone on host 2. */
enum { RANKS = 5, HOSTS = 3 };
static const int host_of[RANKS] = {0, 1, 0, 1, 2};

typedef struct rank_thread {
    pthread_t thread;
    tr_world *world;
    tr_board *board;
    const char *wrong; /* NULL: all is well */
} rank_thread;

static void pause_ms(int ms) {
    (void)nanosleep(&(struct timespec){.tv_nsec = (long)ms * 1000000}, NULL);
}

/* Exchanges heartbeats (a rank without links only waits) until *stop. */
static bool turn_until(tr_heartbeat *heartbeat, const atomic_bool *stop, tr_heartbeat_end *end) {
    bool told = false;
    while (!atomic_load(stop)) {
        if (heartbeat && tr_heartbeat_turn(heartbeat, end)) told = true;
        pause_ms(5);
    }
    return told;
}

static bool until(bool (*condition)(const tr_board *board), const tr_board *board) {
    for (int i = 0; i < 6000 && !condition(board); i++) pause_ms(10);
    return condition(board);
}

/* Returns true when the board shows every rank of the other hosts in step 9. */
static bool shows_step_9(const tr_board *board) {
    for (int r = 0; r < RANKS; r++) {
        tr_rank_view v;
        tr_board_read(board, r, &v);
        if (host_of[r] == 0 ? v.state != TR_RANK_ALIVE : v.state != TR_RANK_REMOTE || v.step != 9)
            return false;
    }
    return true;
}

static bool shows_rank_0(const tr_board *board) {
    tr_rank_view v;
    tr_board_read(board, 0, &v);
    return v.state == TR_RANK_REMOTE && v.step == 9 && v.wait_peer == 3;
}

static bool lacks_rank_3(const tr_board *board) {
    tr_rank_view v;
    tr_board_read(board, 3, &v);
    return v.state == TR_RANK_ABSENT;
}

static atomic_int ready;
static atomic_bool early, over; /* rank 3 finishes, and the others */

static const char *watch_rank(rank_thread *t) {
    tr_heartbeat *heartbeat;
    int me = tr_world_rank(t->world);
    tr_board *board = t->board;
    if (tr_board_attach(board, me) != TR_OK) return "attach";
    if (tr_heartbeat_open(t->world, board, &heartbeat) != TR_OK) return "open";
    if (!heartbeat != (me == 2 || me == 3)) return "the lowest rank of a host is its leader";
    tr_board_set_step(board, 9);
    tr_board_set_action(board, 2, 40, 'I');
    tr_board_set_wait(board, true, "message 5", 3);
    atomic_fetch_add(&ready, 1);
    tr_heartbeat_end end = {0};
    if (turn_until(heartbeat, me == 3 ? &early : &over, &end))
        return "an end that no rank announced";
    tr_board_finish(board, 0, NULL);
    tr_heartbeat_bye(heartbeat);
    return NULL;
}

static atomic_int told;

/* Rank 1's host announces the end of the job, which reaches rank 0 with its sentence and rank 4
 * without. */
static const char *end_rank(rank_thread *t) {
    tr_heartbeat *heartbeat;
    int me = tr_world_rank(t->world);
    if (tr_board_attach(t->board, me) != TR_OK) return "attach";
    if (tr_heartbeat_open(t->world, t->board, &heartbeat) != TR_OK) return "open";
    atomic_fetch_add(&ready, 1);
    if (!heartbeat) return NULL;
    tr_heartbeat_end end = {0};
    if (me == 1) tr_heartbeat_tell(heartbeat, 77, "lost rank 3");
    for (int i = 0; i < 12000 && atomic_load(&told) < 3; i++) {
        if (tr_heartbeat_turn(heartbeat, &end)) {
            if (me == 0) tr_heartbeat_tell(heartbeat, end.code, "");
            atomic_fetch_add(&told, 1);
        }
        pause_ms(5);
    }
    tr_heartbeat_bye(heartbeat);
    if (end.code != 77) return "the code";
    if (strcmp(end.sentence, me == 0 ? "lost rank 3" : "") != 0) return "the sentence";
    return NULL;
}

static const char *(*body)(rank_thread *t);

static void *rank_main(void *argument) {
    rank_thread *t = argument;
    t->wrong = body(t);
    if (t->wrong) tr_world_abort(t->world, 1);
    tr_world_close(t->world);
    return NULL;
}

/* Runs `run` on every rank, and `meanwhile` with the board of each host. */
static void run_ranks(const char *(*run)(rank_thread *t), void (*meanwhile)(tr_board **host)) {
    tr_world *world[RANKS];
    tr_board *observer[HOSTS];
    rank_thread rank[RANKS];
    char name[HOSTS][80];
    body = run;
    atomic_store(&ready, 0);
    atomic_store(&told, 0);
    atomic_store(&early, false);
    atomic_store(&over, false);
    assert_int_equal(tr_world_open_local(RANKS, world), TR_OK);
    for (int h = 0; h < HOSTS; h++) {
        tr_board_make_name(name[h], 64);
        assert_int_equal(tr_board_open(name[h], RANKS, &observer[h]), TR_OK);
    }
    for (int r = 0; r < RANKS; r++) {
        rank[r] = (rank_thread){.world = world[r]};
        assert_int_equal(tr_board_open(name[host_of[r]], RANKS, &rank[r].board), TR_OK);
        assert_int_equal(pthread_create(&rank[r].thread, NULL, rank_main, &rank[r]), 0);
    }
    if (meanwhile) meanwhile(observer);
    for (int r = 0; r < RANKS; r++) (void)pthread_join(rank[r].thread, NULL);
    for (int h = 0; h < HOSTS; h++) tr_board_unlink(name[h]);
    for (int r = 0; r < RANKS; r++) {
        if (rank[r].wrong) print_error("rank %d: %s\n", r, rank[r].wrong);
        assert_null(rank[r].wrong);
        tr_board_close(rank[r].board);
    }
    for (int h = 0; h < HOSTS; h++) tr_board_close(observer[h]);
}

static void watch_boards(tr_board **host) {
    bool first = until(shows_step_9, host[0]);
    bool second = until(shows_rank_0, host[1]), third = until(shows_rank_0, host[2]);
    tr_rank_view v, hidden;
    tr_board_read(host[0], 3, &v);
    tr_board_read(host[1], 2, &hidden); /* rank 2 is neither on this host nor rank 0 */
    int late = tr_board_late_rank(host[0], 4);
    atomic_store(&early, true); /* rank 1's messages leave rank 3 out from then on */
    bool dropped = until(lacks_rank_3, host[0]);
    atomic_store(&over, true);
    assert_true(dropped);
    assert_true(first);
    assert_true(second);
    assert_true(third);
    assert_int_equal(v.stage, 2);
    assert_int_equal(v.micro_batch, 40);
    assert_int_equal(v.action, 'I');
    assert_string_equal(v.wait_what, "message 5");
    assert_int_equal(hidden.state, TR_RANK_ABSENT);
    assert_int_equal(late, 3); /* rank 4 waits for rank 3, which waits for itself: a circle */
}

static void boards_show_other_hosts(void **state) {
    (void)state;
    run_ranks(watch_rank, watch_boards);
}

static void an_end_travels(void **state) {
    (void)state;
    run_ranks(end_rank, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boards_show_other_hosts),
        cmocka_unit_test(an_end_travels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
