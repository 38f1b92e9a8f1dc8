/* Tests the board and the watchdog: a rank reads what another one wrote, chains of waits lead to
 * the late rank, and exactly one observer reports a lost rank (killed, stopped, without
 * heartbeat). */
#include "base/clock.h"
#include "job/board.h"
#include "job/signals.h"
#include "job/watchdog.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct fixture {
    char name[64];
    tr_board *observer;
} fixture;

static void pause_ms(int ms) {
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000},
                    NULL);
}

static tr_board *join_board(const fixture *f, int ranks, int rank) {
    tr_board *board;
    assert_int_equal(tr_board_open(f->name, ranks, &board), TR_OK);
    if (rank >= 0) assert_int_equal(tr_board_attach(board, rank), TR_OK);
    return board;
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    tr_board_make_name(f->name, sizeof f->name);
    *state = f;
    return (int)tr_board_open(f->name, 4, &f->observer);
}

static int tear_down(void **state) {
    fixture *f = *state;
    tr_board_close(f->observer);
    tr_board_unlink(f->name);
    free(f);
    return 0;
}

static void reads_what_was_written(void **state) {
    const fixture *f = *state;
    tr_board *mine = join_board(f, 4, 2);
    tr_rank_view v;
    tr_board_read(f->observer, 2, &v);
    assert_int_equal(v.state, TR_RANK_ALIVE);
    assert_int_equal(v.pid, getpid());
    assert_int_equal(v.step, -1);
    assert_int_equal(v.stage, -1);
    assert_int_equal(v.micro_batch, -1);
    assert_int_equal(v.action, 0);
    assert_false(v.waiting);

    tr_board_set_step(mine, 1234567890123);
    tr_board_set_action(mine, 3, 70000, 'I');
    tr_board_set_wait(mine, true, "receive of the activations from the stage before it", 1);
    tr_board_read(f->observer, 2, &v);
    assert_true(v.step == 1234567890123);
    assert_int_equal(v.stage, 3);
    assert_int_equal(v.micro_batch, 70000);
    assert_int_equal(v.action, 'I');
    assert_true(v.waiting);
    assert_int_equal(v.wait_peer, 1);
    assert_string_equal(v.wait_what, "receive of the activations from the stage befor");
    char text[256];
    tr_board_describe(f->observer, 2, text, sizeof text);
    assert_non_null(strstr(text, "rank 2 (host "));
    assert_non_null(
        strstr(text, "step 1234567890123, stage 3, micro-batch 70000, input gradient (I) for"));
    assert_non_null(strstr(text, "waits for rank 1 (receive"));
    tr_board_set_wait(mine, false, NULL, 0);
    tr_board_read(f->observer, 2, &v);
    assert_false(v.waiting);
    tr_board_set_action(mine, -1, 17, 'E');
    tr_board_describe(f->observer, 2, text, sizeof text);
    assert_non_null(strstr(text, ", batch 17, evaluation for "));

    tr_board_read(f->observer, 1, &v);
    assert_int_equal(v.state, TR_RANK_ABSENT);
    assert_int_not_equal(tr_board_attach(mine, 2), TR_OK);
    tr_board_close(mine);
}

static void refuses_another_shape(void **state) {
    const fixture *f = *state;
    tr_board *board;
    assert_int_equal(tr_board_open(f->name, 5, &board), TR_ERR_DEVICE);
    assert_null(board);
    assert_int_equal(tr_board_open(f->name, 0, &board), TR_ERR_USAGE);
    assert_int_equal(tr_board_open("/no/such/folder", 1, &board), TR_ERR_DEVICE);
}

static void needs_no_name(void **state) {
    (void)state;
    tr_board *first, *second;
    assert_int_equal(tr_board_open(NULL, 1, &first), TR_OK);
    assert_int_equal(tr_board_open(NULL, 1, &second), TR_OK);
    assert_int_equal(tr_board_attach(first, 0), TR_OK);
    assert_int_equal(tr_board_attach(second, 0), TR_OK); /* they are not the same */
    tr_board_close(first);
    tr_board_close(second);
}

static void null_board_is_silent(void **state) {
    (void)state;
    tr_board_set_step(NULL, 1);
    tr_board_set_action(NULL, 0, 0, 'F');
    tr_board_set_wait(NULL, true, "x", 0);
    tr_board_finish(NULL, 0, NULL);
    tr_board_request_stop(NULL);
    assert_false(tr_board_stop_requested(NULL));
}

static void waits_lead_to_the_late_rank(void **state) {
    const fixture *f = *state;
    tr_board *b[4];
    for (int r = 0; r < 4; r++) b[r] = join_board(f, 4, r);
    tr_board_set_wait(b[0], true, "receive", 1);
    tr_board_set_wait(b[1], true, "receive", 3);
    tr_board_set_action(b[3], 3, 0, 'F');
    assert_int_equal(tr_board_late_rank(f->observer, 0), 3);
    assert_int_equal(tr_board_late_rank(f->observer, 3), 3);
    /* A wait for a group: of ranks 2 and 3, 3 has worked longer. */
    tr_board_set_action(b[2], 2, 0, 'F');
    tr_board_set_wait(b[1], true, "all-reduce", -1);
    assert_int_equal(tr_board_late_rank(f->observer, 0), 3);
    tr_board_set_wait(b[3], true, "receive", 0); /* now only rank 2 works */
    assert_int_equal(tr_board_late_rank(f->observer, 0), 2);
    tr_board_set_wait(b[1], true, "receive",
                      3); /* 0 -> 1 -> 3 -> 0: the search ends in a circle too */
    (void)tr_board_late_rank(f->observer, 0);
    for (int r = 0; r < 4; r++) tr_board_close(b[r]);
}

/* A rank that was stopped while it waited is the one that the other ranks wait for. */
static void a_silent_rank_is_the_late_one(void **state) {
    const fixture *f = *state;
    tr_board *b[4];
    for (int r = 0; r < 4; r++) b[r] = join_board(f, 4, r);
    tr_board_set_wait(b[0], true, "receive", 2);
    for (int r = 1; r < 4; r++) tr_board_set_wait(b[r], true, "all-reduce", -1);
    assert_int_equal(tr_board_longest_working(f->observer, 0), -1);
    for (int turns = 0; turns < 500 && tr_board_longest_working(f->observer, 0) < 0; turns++) {
        pause_ms(10);
        for (int r = 0; r < 4; r++)
            if (r != 2) tr_board_beat(b[r]);
    }
    tr_board_set_wait(b[1], false, "", -1); /* works, and has a heartbeat */
    tr_board_set_wait(b[2], true, "receive", 3);
    assert_int_equal(tr_board_longest_working(f->observer, 0), 2);
    assert_int_equal(tr_board_late_rank(f->observer, 3), 2);
    tr_board_set_wait(b[3], false, "", -1); /* rank 2 waits for it only on the board */
    assert_int_equal(tr_board_late_rank(f->observer, 0), 2);
    for (int r = 0; r < 4; r++) tr_board_close(b[r]);
}

static void the_first_failure_stays(void **state) {
    const fixture *f = *state;
    tr_board *a = join_board(f, 4, 0), *b = join_board(f, 4, 1);
    int rank;
    assert_int_equal(tr_board_first_failure(a, &rank, NULL), 0);
    assert_int_equal(rank, -1);
    tr_board_finish(b, 65, "the loss is not finite");
    tr_board_finish(a, 77, "rank 1 does not answer");
    assert_int_equal(tr_board_first_failure(f->observer, &rank, NULL), 65);
    assert_int_equal(rank, 1);
    tr_rank_view v;
    tr_board_read(f->observer, 1, &v);
    assert_int_equal(v.state, TR_RANK_FINISHED);
    assert_int_equal(v.exit_code, 65);
    assert_string_equal(v.message, "the loss is not finite");
    assert_true(tr_board_claim_report(a));
    assert_false(tr_board_claim_report(b));
    tr_board_close(a);
    tr_board_close(b);
}

static _Atomic int said;

static void count_report(void *context, const char *sentence) {
    (void)context;
    (void)sentence;
    said++;
}

static void note_end(void *context, int code) {
    atomic_store((_Atomic int *)context, code);
}

static void ends_when_told(void **state) {
    const fixture *f = *state;
    _Atomic int code = 0;
    tr_board *mine = join_board(f, 4, 0);
    tr_watchdog *dog;
    tr_watchdog_options options = {.report = count_report, .end = note_end, .context = &code};
    assert_int_equal(tr_watchdog_start(mine, &options, &dog), TR_OK);
    pause_ms(400);
    assert_int_equal(atomic_load(&code), 0);
    tr_board_end_all(f->observer, 76);
    for (int i = 0; i < 3000 && !atomic_load(&code); i++) pause_ms(20);
    assert_int_equal(atomic_load(&code), 76);
    assert_int_equal(atomic_load(&said), 0);
    tr_watchdog_stop(dog);
    tr_board_close(mine);
}

static void leave(void *context, int code) {
    (void)context;
    _exit(code);
}

/* Starts a rank in a process of its own that writes `step` forever; `beats`: with a watchdog. */
static pid_t start_rank(const fixture *f, int rank, bool beats) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) {
        tr_rank_view v;
        do {
            pause_ms(5);
            tr_board_read(f->observer, rank, &v);
        } while (v.action != 'W');
        return pid;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* the process must not outlive a test that fails */
    tr_board *board;
    tr_watchdog *dog;
    tr_watchdog_options options = {.report = count_report, .end = leave};
    if (tr_board_open(f->name, 4, &board) || tr_board_attach(board, rank)) _exit(70);
    if (beats && tr_watchdog_start(board, &options, &dog)) _exit(70);
    tr_board_set_step(board, 11);
    tr_board_set_action(board, rank, 5, 'W');
    for (;;) (void)pause();
}

enum { none = -2, LOOK_EVERY_MS = 20 };

/* Watches as an observer for `ms` (long where a rank is lost, since it returns at once when it sees
 * that). Counts looks instead of time, so that a pause of this process costs only one. Returns the
 * lost rank, or `none`. */
static int look_for(tr_board *board, tr_watch watch, int ms, char *sentence, size_t size) {
    for (int looks = ms / LOOK_EVERY_MS; looks > 0; looks--) {
        if (tr_watch_look(&watch, board, sentence, size)) return watch.lost;
        pause_ms(LOOK_EVERY_MS);
    }
    return none;
}

static void a_killed_rank_is_reported_once(void **state) {
    const fixture *f = *state;
    pid_t pid = start_rank(f, 1, true), other = start_rank(f, 0, true);
    char sentence[768];
    assert_int_equal(look_for(f->observer, (tr_watch){0}, 700, sentence, sizeof sentence), none);
    tr_board_set_launcher(f->observer, getpid()); /* rank 0 then lets this process report */
    (void)kill(pid, SIGKILL);
    assert_int_equal(look_for(f->observer, (tr_watch){0}, 60000, sentence, sizeof sentence), 1);
    assert_non_null(strstr(sentence, "rank 1 "));
    assert_non_null(strstr(sentence, "step 11, stage 1, micro-batch 5, weight gradient (W) for"));
    assert_non_null(strstr(sentence, "gone"));
    assert_int_equal(look_for(f->observer, (tr_watch){0}, 100, sentence, sizeof sentence), none);
    int status;
    (void)waitpid(pid, &status, 0);
    (void)waitpid(other, &status, 0); /* its own watchdog saw the end of the job and exited */
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), TR_ERR_RANK);
}

/* A rank in a container of its own, for example, is process 1 there, and this one's is another. */
static void a_rank_of_another_pid_namespace_shows_its_heartbeats(void **state) {
    enum { REFUSED = 77 };
    const fixture *f = *state;
    const pid_t maker = fork();
    if (maker == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID)) _exit(REFUSED);
        (void)start_rank(f, 1, true);
        for (;;) (void)pause();
    }
    tr_rank_view v = {0};
    int status;
    char sentence[768];
    while (v.action != 'W') {
        pause_ms(5);
        tr_board_read(f->observer, 1, &v);
        if (waitpid(maker, &status, WNOHANG) == maker) {
            assert_true(WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), REFUSED);
            print_message("a PID namespace cannot be made here\n");
            skip();
        }
    }
    assert_true(v.hidden);
    assert_int_equal(look_for(f->observer, (tr_watch){0}, 700, sentence, sizeof sentence), none);
    tr_watch_kill(f->observer, 1);
    tr_board_tell_ranks(f->observer);
    pause_ms(100);
    assert_int_equal(waitpid(maker, &status, WNOHANG), 0);
    (void)kill(maker, SIGKILL);
    (void)waitpid(maker, &status, 0);
    const tr_watch impatient = {.silent_s = 0.6};
    assert_int_equal(look_for(f->observer, impatient, 60000, sentence, sizeof sentence), 1);
    assert_non_null(strstr(sentence, "no heartbeat for"));
}

/* A message mentions --resume when a step was saved. */
static void a_loss_names_the_saved_step(void **state) {
    const fixture *f = *state;
    char sentence[256];
    tr_board *mine = join_board(f, 4, 1);
    tr_watch_say_lost(f->observer, "rank 1", "why", sentence, sizeof sentence);
    assert_string_equal(sentence, "lost rank 1; why. All ranks end");
    assert_string_equal(tr_signal_abort_text(f->observer),
                        "aborted by a second signal, without saving");
    tr_board_set_saved(mine, -1);
    assert_string_equal(tr_signal_abort_text(f->observer),
                        "aborted by a second signal; nothing was saved: start again");
    tr_watch_say_lost(f->observer, "rank 1", "why", sentence, sizeof sentence);
    assert_string_equal(sentence,
                        "lost rank 1; why. All ranks end; nothing was saved: start again");
    tr_board_set_saved(mine, 40);
    tr_watch_say_lost(f->observer, "rank 1", "why", sentence, sizeof sentence);
    assert_string_equal(sentence,
                        "lost rank 1; why. All ranks end; --resume continues after step 40");
    assert_string_equal(tr_signal_abort_text(f->observer),
                        "aborted by a second signal, without saving; --resume continues from the "
                        "last checkpoint");
    tr_board_close(mine);
}

static void a_rank_that_said_goodbye_is_not_lost(void **state) {
    const fixture *f = *state;
    tr_board *mine = join_board(f, 4, 3);
    tr_board_finish(mine, 0, NULL);
    char sentence[768];
    tr_watch watch = {.silent_s = 0.1};
    assert_int_equal(look_for(f->observer, watch, 300, sentence, sizeof sentence), none);
    tr_board_close(mine);
}

static void a_rank_in_which_mpi_does_not_start_is_lost(void **state) {
    const fixture *f = *state;
    tr_board *mine = join_board(f, 4, 3);
    char sentence[768];
    tr_watch watch = {.starting_s = 0.3, .silent_s = 3600};
    tr_board_set_wait(mine, true, "another rank", -1);
    assert_int_equal(look_for(f->observer, watch, 600, sentence, sizeof sentence), none);
    tr_board_set_wait(mine, true, TR_RANK_WAITS_FOR_MPI, -1);
    watch.starting_s = 0; /* 600 s */
    assert_int_equal(look_for(f->observer, watch, 600, sentence, sizeof sentence), none);
    watch.starting_s = 0.3;
    assert_int_equal(look_for(f->observer, watch, 60000, sentence, sizeof sentence), 3);
    assert_non_null(strstr(sentence, "lost rank 3 "));
    assert_non_null(strstr(sentence, "MPI does not start"));
    tr_board_close(mine);
}

/* Under plain mpirun a rank has a board alone. Each rank reports a second after the one before
 * it. */
static void a_rank_alone_notices_that_mpi_does_not_start(void **state) {
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        tr_board *board;
        char sentence[768];
        tr_watch watch = {.starting_s = 0.3, .silent_s = 0.1};
        assert_int_equal(tr_board_open(NULL, 4, &board), TR_OK);
        assert_int_equal(tr_board_attach(board, rank), TR_OK);
        assert_int_equal(look_for(board, watch, 600, sentence, sizeof sentence), none);
        watch.silent_s = 3600; /* no watchdog writes heartbeats here */
        tr_board_set_wait(board, true, TR_RANK_WAITS_FOR_MPI, -1);
        const int64_t begin = tr_now_ns();
        assert_int_equal(look_for(board, watch, 60000, sentence, sizeof sentence), rank);
        assert_true(tr_since_s(begin) >= 0.3 + rank);
        assert_non_null(strstr(sentence, "MPI does not start"));
        tr_watch_kill(board, rank); /* does not end the caller */
        tr_board_close(board);
    }
}

static void a_stopped_rank_is_lost_and_killed(void **state) {
    const fixture *f = *state;
    pid_t pid = start_rank(f, 2, true);
    char sentence[768];
    (void)kill(pid, SIGSTOP);
    tr_watch watch = {.stopped_s = 0.7};
    assert_int_equal(look_for(f->observer, watch, 60000, sentence, sizeof sentence), 2);
    assert_non_null(strstr(sentence, "stopped"));
    tr_watch_kill(f->observer, 2);
    int status;
    (void)waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status));
}

/* A child that stops itself at once, as a rank that is stopped before its main; number NULL: before
 * it has become a rank's program. */
static pid_t start_stopped(const char *number) {
    pid_t pid = fork();
    if (pid) return pid;
    if (number) {
        (void)setenv(TR_RANK_VARIABLE, number, 1);
        (void)execlp("sh", "sh", "-c", "kill -STOP $$", (char *)NULL);
    } else {
        (void)raise(SIGSTOP);
    }
    _exit(70);
}

static void a_rank_stopped_before_it_began_is_lost(void **state) {
    const fixture *f = *state;
    char sentence[768];
    tr_watch watch = {.stopped_s = 0.5, .parent = getpid()};
    const char *number[] = {"3", NULL};
    const char *wording[] = {"lost rank 3 (pid ", "lost rank (pid "};
    for (int i = 0; i < 2; i++) {
        /* A job ends only once, so each case has a new board. */
        char name[64];
        tr_board *board;
        (void)snprintf(name, sizeof name, "%.50s-%d", f->name, i);
        assert_int_equal(tr_board_open(name, 4, &board), TR_OK);
        tr_board_unlink(name);
        pid_t pid = start_stopped(number[i]);
        assert_int_equal(
            look_for(board, (tr_watch){.stopped_s = 0.5}, 800, sentence, sizeof sentence),
            none); /* no child of this process */
        assert_int_equal(look_for(board, watch, 60000, sentence, sizeof sentence), i == 0 ? 3 : -1);
        assert_non_null(strstr(sentence, wording[i]));
        assert_non_null(strstr(sentence, "before it began; its process has been stopped"));
        assert_int_equal(tr_board_ending(board), TR_ERR_RANK);
        tr_watch_kill_unattached(&watch, board);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        tr_board_close(board);
    }
}

static void silence_is_judged_by_the_beat_alone(void **state) {
    const fixture *f = *state;
    pid_t busy = start_rank(f, 0, true);
    char sentence[768];
    /* Longer than a pause of this process that the watch notices. */
    tr_watch watch = {.silent_s = 3.5};
    assert_int_equal(look_for(f->observer, watch, 5000, sentence, sizeof sentence), none);
    pid_t silent = start_rank(f, 1, false);
    assert_int_equal(look_for(f->observer, watch, 60000, sentence, sizeof sentence), 1);
    assert_non_null(strstr(sentence, "no heartbeat for"));
    (void)kill(silent, SIGKILL);
    (void)waitpid(silent, NULL, 0);
    (void)waitpid(busy, NULL, 0);
}

/* A rank of another host: its pid is not of this host, and its limit is longer. */
static void a_remote_rank_is_judged_by_its_heartbeat(void **state) {
    const fixture *f = *state;
    tr_rank_view shown = {.pid = getpid(), .host = "elsewhere", .step = 7, .stage = 1};
    shown.beat_ns = tr_now_ns();
    tr_board_show_remote(f->observer, 3, &shown);
    tr_watch_kill(f->observer, 3); /* would end this process */
    tr_rank_view v;
    tr_board_read(f->observer, 3, &v);
    assert_int_equal(v.state, TR_RANK_REMOTE);
    assert_int_equal(v.step, 7);
    char sentence[768];
    tr_watch patient = {.silent_s = 0.1, .remote_s = 3600};
    tr_watch watch = {.silent_s = 3600, .remote_s = 0.5};
    assert_int_equal(look_for(f->observer, patient, 300, sentence, sizeof sentence), none);
    assert_int_equal(look_for(f->observer, watch, 60000, sentence, sizeof sentence), 3);
    assert_non_null(strstr(sentence, "lost rank 3 (host elsewhere, pid "));
    assert_non_null(strstr(sentence, "no heartbeat for"));
    tr_board_drop_remote(f->observer, 3);
    tr_board_read(f->observer, 3, &v);
    assert_int_equal(v.state, TR_RANK_ABSENT);
}

static void *write_waits(void *argument) {
    tr_board *board = argument;
    for (int i = 0; i < 2000; i++) {
        tr_board_set_wait(board, true, i & 1 ? "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" : "bbbb",
                          i & 1);
        tr_board_set_action(board, i & 1, i & 1, i & 1 ? 'F' : 'B');
        if (i % 16 == 0) pause_ms(1);
    }
    return NULL;
}

/* A reader never sees parts of two updates together. */
static void readers_see_whole_updates(void **state) {
    const fixture *f = *state;
    tr_board *mine = join_board(f, 4, 0);
    tr_board_set_wait(mine, true, "bbbb", 0);
    tr_board_set_action(mine, 0, 0, 'B');
    pthread_t writer;
    assert_int_equal(pthread_create(&writer, NULL, write_waits, mine), 0);
    for (int i = 0; i < 3000; i++) {
        tr_rank_view v;
        tr_board_read(f->observer, 0, &v);
        const char *whole = v.wait_peer ? "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" : "bbbb";
        assert_string_equal(v.wait_what, whole);
        assert_int_equal(v.stage, v.action == 'F');
        assert_int_equal(v.micro_batch, v.action == 'F');
    }
    (void)pthread_join(writer, NULL);
    tr_board_close(mine);
}

/* A signal while the board for requests changes: none is lost, and no board or word is used that is
 * closed. Returns the exit code of the child. */
static int change_boards(const fixture *f, int trial) {
    char name[64];
    (void)snprintf(name, sizeof name, "%.50s-%d", f->name, trial);
    tr_signals_take(false, false);
    for (int i = 0; i < 4; i++) {
        tr_board *board;
        _Atomic double *word = calloc(1, sizeof *word);
        if (!word || tr_board_open(name, 1, &board) != TR_OK) return 70;
        tr_board_unlink(name);
        if (i > 0) {
            if (tr_signals_use(board) != TR_OK) return 70;
            tr_board_set_stop_word(board, word);
        }
        (void)kill(getpid(), SIGHUP);
        if (i == 0) {
            for (int64_t end = tr_now_ns() + trial * 1000; tr_now_ns() < end;) continue;
            if (tr_signals_use(board) != TR_OK) return 70;
            for (int ms = 0; ms < 60000 && !tr_board_stop_requested(board); ms++) pause_ms(1);
            if (!tr_board_stop_requested(board)) return 1;
        } else {
            pause_ms(i - 1);
        }
        tr_board_set_stop_word(board, NULL);
        free((void *)word);
        (void)tr_signals_use(NULL);
        tr_board_close(board);
    }
    return 0;
}

static void a_signal_may_come_while_boards_change(void **state) {
    const fixture *f = *state;
    for (int trial = 0; trial < 100; trial++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) _exit(change_boards(f, trial));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
}

#define board_test(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void) {
    (void)signal(SIGHUP, SIG_DFL); /* nohup ignores it */
    const struct CMUnitTest tests[] = {
        board_test(reads_what_was_written),
        board_test(refuses_another_shape),
        board_test(needs_no_name),
        board_test(null_board_is_silent),
        board_test(waits_lead_to_the_late_rank),
        board_test(a_silent_rank_is_the_late_one),
        board_test(the_first_failure_stays),
        board_test(ends_when_told),
        board_test(a_killed_rank_is_reported_once),
        board_test(a_rank_of_another_pid_namespace_shows_its_heartbeats),
        board_test(a_loss_names_the_saved_step),
        board_test(a_rank_that_said_goodbye_is_not_lost),
        board_test(a_rank_in_which_mpi_does_not_start_is_lost),
        board_test(a_rank_alone_notices_that_mpi_does_not_start),
        board_test(a_stopped_rank_is_lost_and_killed),
        board_test(a_rank_stopped_before_it_began_is_lost),
        board_test(silence_is_judged_by_the_beat_alone),
        board_test(a_remote_rank_is_judged_by_its_heartbeat),
        board_test(readers_see_whole_updates),
        board_test(a_signal_may_come_while_boards_change),
    };
    return cmocka_run_group_tests_name("board", tests, NULL, NULL);
}
