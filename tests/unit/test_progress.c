/* Tests the lines that a run shows: of steps and of long work, for a pipe and for terminals of any
 * width. The test sets the clock, except in the thread. */
#include "train/progress.h"

#include "base/clock.h"
#include "job/terminal.h"
#include "support/seed.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MICRO_BATCHES = 8 };

static tr_progress_state state_of(int64_t step) {
    return (tr_progress_state){.step = step,
                               .steps = 25,
                               .loss = 3.28164,
                               .grad_norm = 0.94,
                               .lr = 2.9e-4,
                               .tokens_per_s = 18432,
                               .val_loss = step < 20 ? NAN : 3.31,
                               .noise_scale = NAN,
                               .memory = (size_t)61 << 20,
                               .memory_planned = (size_t)139 << 20};
}

static void show(tr_progress *p, int64_t step, double now_s) {
    tr_progress_state s = state_of(step);
    tr_progress_show(p, &s, now_s);
}

static FILE *open_progress(const tr_board *board, bool terminal, tr_progress *p) {
    FILE *f = tmpfile();
    assert_non_null(f);
    const tr_progress_options options = {
        .file = f, .every = 10, .micro_batches = MICRO_BATCHES, .board = board};
    tr_progress_open(&options, 100, p);
    assert_false(p->terminal);
    p->terminal = terminal;
    return f;
}

/* Returns what was written, and closes both. */
static const char *text_of(tr_progress *p, FILE *f, char text[8192]) {
    tr_progress_close(p);
    rewind(f);
    text[fread(text, 1, 8191, f)] = '\0';
    (void)fclose(f);
    return text;
}

static int count(const char *text, const char *word) {
    int n = 0;
    for (const char *c = text; (c = strstr(c, word)); c++) n++;
    return n;
}

/* --- the words -------------------------------------------------------------------------------- */

static const tr_activity step_13 = {.phase = TR_ACTIVITY_STEP,
                                    .step = 13,
                                    .micro_batch = 2,
                                    .micro_batches = MICRO_BATCHES,
                                    .done = 6,
                                    .total = 24,
                                    .seconds = 10};

static void activity_says(tr_activity a, const char *want) {
    char line[TR_LINE_SIZE];
    assert_string_equal(tr_line_activity(&a, 0, line), want);
}

static void every_phase_has_its_words(void **state) {
    (void)state;
    tr_activity a = step_13;
    activity_says(a, "now      step 13, micro-batch 3 of 8, about 30 s left");
    a.first = true;
    a.step = 1;
    activity_says(a, "now      warming up: step 1, micro-batch 3 of 8, about 30 s left");
    a.micro_batch = -1; /* the optimizer */
    a.done = a.total;
    activity_says(a, "now      warming up: step 1, for 10 s");
    activity_says((tr_activity){.phase = TR_ACTIVITY_PREPARE, .seconds = 240},
                  "now      preparing operators and memory, for 4 min");
    activity_says((tr_activity){.phase = TR_ACTIVITY_DRAW, .done = 1, .total = 5, .seconds = 50},
                  "now      drawing parameters: 20 %, about 3 min left");
    activity_says((tr_activity){.phase = TR_ACTIVITY_DRAW, .total = 5},
                  "now      drawing parameters: 0 %");
    a = (tr_activity){.phase = TR_ACTIVITY_SAVE,
                      .step = 20,
                      .done = (int64_t)312 << 20,
                      .total = (int64_t)1040 << 20,
                      .seconds = 2};
    activity_says(a, "now      saving step 20: 312 of 1040 MiB, 156 MiB/s, about 5 s left");
    a.done = a.total;
    activity_says(a, "now      saving step 20: 1040 of 1040 MiB, 520 MiB/s, waiting for the disk");
    a.phase = TR_ACTIVITY_LOAD;
    a.done = (int64_t)20 << 30;
    a.total = (int64_t)80 << 30;
    a.seconds = 2;
    activity_says(a, "now      loading the checkpoint: 20.0 of 80.0 GiB, 10 GiB/s, about 6 s left");
    a.total = a.done = 0;
    activity_says(a, "now      loading the checkpoint, for 2 s");
    a = (tr_activity){.phase = TR_ACTIVITY_VALIDATE, .done = 1, .total = 100, .seconds = 100};
    activity_says(a, "now      validating: 1 %, about 2.8 h left");
}

static void a_narrow_line_keeps_what_matters(void **state) {
    (void)state;
    char line[TR_LINE_SIZE];
    tr_progress_state s = state_of(20);
    s.eta_s = 2467;
    const struct {
        int columns;
        const char *want;
    } cases[] = {
        {0, "step 20/25 loss 3.2816 val 3.3100 gnorm 0.940 lr 2.90e-04 18.4k tok/s mem 61/139 MiB "
            "eta 00:41:07"},
        {90, "step 20/25 loss 3.2816 val 3.3100 gnorm 0.940 18.4k tok/s mem 61/139 MiB eta "
             "00:41:07"},
        {79, "step 20/25 loss 3.2816 val 3.3100 18.4k tok/s mem 61/139 MiB eta 00:41:07"},
        {70, "step 20/25 loss 3.2816 val 3.3100 gnorm 0.940 18.4k tok/s eta 00:41:07"},
        {59, "step 20/25 loss 3.2816 val 3.3100 18.4k tok/s eta 00:41:07"},
        {48, "step 20/25 loss 3.2816 18.4k tok/s eta 00:41:07"},
        {45, "step 20/25 loss 3.2816 eta 00:41:07"},
        {35, "step 20/25 loss 3.2816 eta 00:41:07"},
        {34, "step 20/25 loss 3.2816 18.4k tok/s"},
        {32, "step 20/25 loss 3.2816"},
        {20, "step 20/25 loss 3.28"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        assert_string_equal(tr_line_step(&s, NULL, cases[k].columns, false, line), cases[k].want);
    s.noise_scale = 51234;
    assert_string_equal(
        tr_line_step(&s, NULL, 100, false, line),
        "step 20/25 loss 3.2816 val 3.3100 noise 51.2k tok 18.4k tok/s mem 61/139 MiB "
        "eta 00:41:07");
    s.noise_scale = NAN;
    s.flops_per_s = 4.1234e13;
    assert_string_equal(tr_line_step(&s, NULL, 0, false, line),
                        "step 20/25 loss 3.2816 val 3.3100 gnorm 0.940 lr 2.90e-04 18.4k tok/s "
                        "41.2 TFLOP/s mem 61/139 MiB eta 00:41:07");
    assert_string_equal(tr_line_step(&s, NULL, 90, false, line),
                        "step 20/25 loss 3.2816 val 3.3100 gnorm 0.940 18.4k tok/s mem 61/139 MiB "
                        "eta 00:41:07");
    s.flops_per_s = 0;
    assert_string_equal(tr_line_step(&s, NULL, 40, true, line),
                        "step 20/25 loss \x1b[1m3.2816\x1b[0m eta 00:41:07");
    assert_string_equal(tr_line_step(&s, NULL, 20, true, line), "step 20/25 loss 3.28");
    assert_string_equal(tr_line_step(&s, &step_13, 80, false, line),
                        "step 20/25 loss 3.2816 eta 00:41:07 | step 13, micro-batch 3/8, 30 s "
                        "left");
    assert_string_equal(tr_line_step(&s, &step_13, 59, false, line),
                        "step 20/25 loss 3.2816 eta 00:41:07 | step 13: 25 %");
}

/* Returns a random number in [from, to]. */
static int between(uint64_t *random, int from, int to) {
    return from - 1 + (int)tr_up_to(random, to - from + 1);
}

static void no_line_is_wider_than_its_columns(void **state) {
    (void)state;
    char line[TR_LINE_SIZE];
    uint64_t r = tr_test_seed(1177);
    for (int trial = 0; trial < 2000; trial++) {
        tr_progress_state s = {.step = (int64_t)exp10(between(&r, 0, 12)),
                               .steps = (int64_t)exp10(between(&r, 0, 12)),
                               .loss = exp10(between(&r, -9, 300)),
                               .grad_norm = exp10(between(&r, -9, 300)),
                               .lr = exp10(between(&r, -9, 3)),
                               .tokens_per_s = exp10(between(&r, 0, 12)),
                               .val_loss = NAN,
                               .noise_scale = exp10(between(&r, -9, 300)),
                               .memory = (size_t)1 << between(&r, 0, 45),
                               .memory_planned = (size_t)1 << between(&r, 0, 45),
                               .eta_s = exp10(between(&r, 0, 9))};
        tr_activity a = {.phase = (tr_activity_phase)between(&r, 1, TR_ACTIVITY_PHASES - 1),
                         .step = s.step,
                         .micro_batch = between(&r, -1, 99),
                         .micro_batches = 100,
                         .done = between(&r, 0, 50),
                         .total = between(&r, 0, 50),
                         .seconds = exp10(between(&r, -3, 9))};
        int columns = between(&r, 1, 200);
        assert_true(strlen(tr_line_step(&s, &a, columns, false, line)) <= (size_t)columns);
        assert_true(strlen(tr_line_step(&s, NULL, columns, false, line)) <= (size_t)columns);
        assert_true(strlen(tr_line_activity(&a, columns, line)) <= (size_t)columns);
    }
}

/* --- a pipe ----------------------------------------------------------------------------------- */

static void a_pipe_gets_lines_without_codes(void **state) {
    (void)state;
    tr_progress p;
    char text[8192];
    FILE *f = open_progress(NULL, false, &p);
    tr_progress_start(&p, 0, 100);
    for (int64_t step = 1; step <= 25; step++) show(&p, step, 100 + 2 * (double)step);
    assert_string_equal(
        text_of(&p, f, text),
        "step 1/25 loss 3.2816 gnorm 0.940 lr 2.90e-04 18.4k tok/s mem 61/139 MiB eta 00:00:48\n"
        "step 10/25 loss 3.2816 gnorm 0.940 lr 2.90e-04 18.4k tok/s mem 61/139 MiB eta 00:00:30\n"
        "step 20/25 loss 3.2816 val 3.3100 gnorm 0.940 lr 2.90e-04 18.4k tok/s mem 61/139 MiB eta "
        "00:00:10\n"
        "step 25/25 loss 3.2816 val 3.3100 gnorm 0.940 lr 2.90e-04 18.4k tok/s mem 61/139 MiB eta "
        "00:00:00\n");
}

/* Updates the progress four times a second from `from` to `to`. */
static void look(tr_progress *p, double from, double to) {
    for (double now = from; now < to - 1e-9; now += 0.25) tr_progress_tick(p, now);
}

static void long_work_in_a_pipe_is_a_line_in_ten_seconds(void **state) {
    (void)state;
    tr_progress p;
    char text[8192];
    FILE *f = open_progress(NULL, false, &p);
    look(&p, 100, 130); /* no phase, so no line */
    tr_progress_phase(&p, TR_ACTIVITY_DRAW, 0, 130);
    look(&p, 130, 152);
    tr_progress_start(&p, 0, 152);
    tr_progress_phase(&p, TR_ACTIVITY_STEP, 1, 152); /* the first */
    look(&p, 152, 164);
    show(&p, 1, 164);
    for (int64_t step = 2; step <= 5; step++) { /* none is long enough for a line */
        tr_progress_phase(&p, TR_ACTIVITY_STEP, step, 164 + 9 * (double)(step - 2));
        look(&p, 164 + 9 * (double)(step - 2), 164 + 9 * (double)(step - 1));
        show(&p, step, 164 + 9 * (double)(step - 1));
    }
    tr_progress_phase(&p, TR_ACTIVITY_STEP, 6, 200);
    look(&p, 200, 221);
    show(&p, 6, 221);
    tr_progress_phase(&p, TR_ACTIVITY_SAVE, 6, 221);
    look(&p, 221, 231);
    tr_progress_phase(&p, TR_ACTIVITY_NONE, 6, 231);
    look(&p, 231, 300);
    assert_string_equal(
        text_of(&p, f, text),
        "now      drawing parameters\n"
        "now      drawing parameters, for 10 s\n"
        "now      drawing parameters, for 20 s\n"
        "now      warming up: step 1, for 8 s\n"
        "step 1/25 loss 3.2816 gnorm 0.940 lr 2.90e-04 18.4k tok/s mem 61/139 MiB eta 00:04:48\n"
        "now      step 6, for 10 s\n"
        "now      step 6, for 20 s\n"
        "now      saving step 6, for 9 s\n");
}

/* --- a terminal ------------------------------------------------------------------------------- */

/* On a terminal the line is rewritten in place, and stays complete above a warning. */
static void a_terminal_gets_one_refreshed_line(void **state) {
    (void)state;
    tr_progress p;
    char text[8192];
    FILE *f = open_progress(NULL, true, &p);
    tr_progress_start(&p, 0, 100);
    for (int64_t step = 1; step <= 25; step++) {
        show(&p, step, 100 + 0.06 * (double)step); /* every second step gets a line */
        if (step == 13) {
            tr_progress_hold(&p);
            (void)fputs("warning\n", f);
            tr_progress_release(&p);
        }
    }
    (void)text_of(&p, f, text);
    assert_int_equal(count(text, "\r"), 13);
    assert_int_equal(count(text, "\n"), 3);
    assert_non_null(strstr(text, "\x1b[K\nwarning\n\rstep 15/25 "));
    assert_null(strstr(text, "\x1b[1m"));
}

static void a_terminal_shows_what_goes_on(void **state) {
    (void)state;
    tr_progress p;
    char text[8192];
    FILE *f = open_progress(NULL, true, &p);
    tr_progress_phase(&p, TR_ACTIVITY_DRAW, 0, 100);
    look(&p, 100, 101.5);
    assert_int_equal(ftell(f), 0);
    look(&p, 101.5, 102.5);
    tr_progress_start(&p, 0, 102.5);
    tr_progress_phase(&p, TR_ACTIVITY_STEP, 1, 102.5);
    look(&p, 102.5, 103);
    show(&p, 1, 103);
    tr_progress_phase(&p, TR_ACTIVITY_STEP, 2, 103);
    look(&p, 103, 105);
    show(&p, 2, 105);
    look(&p, 105, 200); /* nothing changes */
    assert_string_equal(text_of(&p, f, text),
                        "\rnow      drawing parameters, for 2 s\x1b[K"
                        "\rnow      drawing parameters, for 2 s\x1b[K"
                        "\rnow      warming up: step 1\x1b[K"
                        "\rstep 1/25 loss 3.2816 gnorm 0.940 18.4k tok/s mem 61/139 MiB eta "
                        "00:00:12\x1b[K"
                        "\rstep 1/25 loss 3.2816 18.4k tok/s mem 61/139 MiB eta 00:00:11 | step "
                        "2, for 2 s\x1b[K"
                        "\rstep 2/25 loss 3.2816 gnorm 0.940 18.4k tok/s mem 61/139 MiB eta "
                        "00:00:46\x1b[K\n");
}

/* Each first step of a process takes a minute, the others a second. */
static void the_first_step_does_not_count_in_the_time_left(void **state) {
    (void)state;
    for (int64_t done = 0; done <= 10; done += 5) {
        tr_progress p;
        char text[8192];
        FILE *f = open_progress(NULL, false, &p);
        tr_progress_start(&p, done, 100);
        for (int64_t step = done + 1; step <= 25; step++) {
            show(&p, step, 160 + (double)(step - done - 1));
            const double left = (double)(25 - step) * (step == done + 1 ? 60 : 1);
            assert_true(fabs(p.state.eta_s - left) < 1e-9);
        }
        /* A run that goes back has its first step again. */
        show(&p, done + 1, 300);
        show(&p, done + 2, 302);
        assert_true(fabs(p.state.eta_s - 2 * (double)(23 - done)) < 1e-9);
        (void)text_of(&p, f, text);
    }
}

/* --- the board -------------------------------------------------------------------------------- */

static void the_board_tells_how_far_it_is(void **state) {
    (void)state;
    tr_progress p;
    char name[64], text[8192];
    tr_board *board[2];
    tr_board_make_name(name, sizeof name);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(tr_board_open(name, 3, &board[r]), TR_OK);
        assert_int_equal(tr_board_attach(board[r], r), TR_OK);
    }
    tr_board_unlink(name);
    FILE *f = open_progress(board[0], false, &p);
    tr_progress_phase(&p, TR_ACTIVITY_STEP, 1, 100);
    for (int r = 0; r < 2; r++) {
        tr_board_begin_work(board[r], TR_ACTIVITY_STEP);
        tr_board_set_work(board[r], 6 - r, 20 + r);
        tr_board_set_action(board[r], r, 4 - r, 'F');
    }
    tr_progress_tick(&p, 130);
    tr_board_begin_work(board[1], TR_ACTIVITY_SAVE); /* which has gone further */
    tr_board_set_work(board[1], 5, 1000000);
    tr_progress_tick(&p, 140);
    tr_board_end_all(board[0],
                     TR_ERR_RANK); /* the observer that ends the job prints the last line */
    tr_progress_tick(&p, 160);
    show(&p, 1, 161);
    assert_string_equal(text_of(&p, f, text),
                        "now      warming up: step 1, micro-batch 5 of 8, about 82 s left\n"
                        "now      warming up: step 1, micro-batch 5 of 8, about 93 s left\n");
    for (int r = 0; r < 2; r++) tr_board_close(board[r]);
}

static void the_launcher_tells_the_columns(void **state) {
    (void)state;
    tr_progress p;
    char name[64], text[8192];
    tr_board *board;
    tr_board_make_name(name, sizeof name);
    assert_int_equal(tr_board_open(name, 1, &board), TR_OK);
    assert_int_equal(tr_board_attach(board, 0), TR_OK);
    tr_board_unlink(name);
    FILE *f = open_progress(board, true, &p);
    p.columns = 80;
    tr_progress_start(&p, 0, 100);
    show(&p, 1, 101);
    tr_board_set_columns(board, 41);
    show(&p, 2, 102);
    tr_board_set_columns(board, 0); /* no terminal any more: lines as before */
    show(&p, 3, 103);
    (void)text_of(&p, f, text);
    assert_non_null(strstr(text, "\rstep 1/25 loss 3.2816 gnorm"));
    assert_non_null(strstr(text, "\rstep 2/25 loss 3.2816 eta 00:00:23\x1b[K"));
    assert_non_null(strstr(text, "\rstep 3/25 loss 3.2816 gnorm"));
    tr_board_close(board);
}

/* Returns 1 when the line would be refreshed, 0 when it would be written again each interval. */
static int refreshes_on(const char *terminal) {
    FILE *f = fopen(terminal, "r+");
    assert_non_null(f);
    tr_progress p;
    tr_progress_open(&(tr_progress_options){.file = f, .every = 10}, 0, &p);
    int refreshes = p.terminal;
    tr_progress_close(&p);
    (void)fclose(f);
    return refreshes;
}

/* mpirun gives each rank a pseudo-terminal even when its own output is a pipe. */
static void a_rank_believes_its_launcher_alone(void **state) {
    (void)state;
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0) skip();
    assert_int_equal(grantpt(terminal) || unlockpt(terminal), 0);
    char name[64];
    (void)snprintf(name, sizeof name, "%s", ptsname(terminal));
    (void)setenv("TERM", "xterm", 1);
    (void)unsetenv("PMIX_RANK");
    (void)unsetenv("OMPI_COMM_WORLD_RANK");
    (void)setenv(TR_TERMINAL_VARIABLE, "0", 1); /* the variable has no effect without a launcher */
    assert_int_equal(refreshes_on(name), 1);
    assert_int_equal(refreshes_on("/dev/null"), 0);
    (void)setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    assert_int_equal(refreshes_on(name), 0);
    (void)setenv(TR_TERMINAL_VARIABLE, "132", 1);
    assert_int_equal(refreshes_on("/dev/null"), 1); /* for example a pipe of srun */
    (void)unsetenv("OMPI_COMM_WORLD_RANK");
    (void)setenv("PMIX_RANK", "0", 1);
    assert_int_equal(refreshes_on("/dev/null"), 1);
    (void)unsetenv(TR_TERMINAL_VARIABLE);
    assert_int_equal(refreshes_on(name), 0);
    (void)unsetenv("PMIX_RANK");
    (void)close(terminal);
}

/* --- the thread ------------------------------------------------------------------------------- */

static void the_thread_speaks_while_the_caller_works(void **state) {
    (void)state;
    tr_progress p;
    char text[8192];
    FILE *f = open_progress(NULL, false, &p);
    tr_progress_phase(&p, TR_ACTIVITY_DRAW, 0, tr_now_s() - 3600);
    tr_progress_watch(&p);
    assert_true(p.watched);
    for (int tries = 0; lseek(fileno(f), 0, SEEK_END) == 0 && tries < 6000; tries++)
        (void)usleep(10000);
    assert_string_equal(text_of(&p, f, text), "now      drawing parameters, for 60 min\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_phase_has_its_words),
        cmocka_unit_test(a_narrow_line_keeps_what_matters),
        cmocka_unit_test(no_line_is_wider_than_its_columns),
        cmocka_unit_test(a_pipe_gets_lines_without_codes),
        cmocka_unit_test(long_work_in_a_pipe_is_a_line_in_ten_seconds),
        cmocka_unit_test(a_terminal_gets_one_refreshed_line),
        cmocka_unit_test(a_terminal_shows_what_goes_on),
        cmocka_unit_test(the_first_step_does_not_count_in_the_time_left),
        cmocka_unit_test(the_board_tells_how_far_it_is),
        cmocka_unit_test(the_launcher_tells_the_columns),
        cmocka_unit_test(a_rank_believes_its_launcher_alone),
        cmocka_unit_test(the_thread_speaks_while_the_caller_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
