/* Tests the progress of long file work: a refreshed line on a terminal, lines in a pipe, and the
 * last line. */
#include "train/meter.h"

#include "job/terminal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* Work that a hook was told of. */
typedef struct told {
    int64_t done, total;
    int waits, peer;
} told;

static void take_work(void *context, int64_t done, int64_t total) {
    told *t = context;
    t->done = done, t->total = total;
}

static void take_wait(void *context, bool begin, const char *what, int peer) {
    (void)begin;
    (void)what;
    told *t = context;
    t->waits++, t->peer = peer;
}

/* Moves the meter's clock. */
static void pass(tr_meter *m, double seconds) {
    m->begin_s -= seconds;
    m->shown_s -= seconds;
}

/* Returns what was written since the last call. */
static const char *text_of(FILE *f, long *from, char text[512]) {
    (void)fseek(f, *from, SEEK_SET);
    text[fread(text, 1, 511, f)] = '\0';
    *from = ftell(f);
    return text;
}

/* Checks a line of half of 400 GB in 2000 s, which may have taken 1 % longer. */
static void half_is(const char *text, bool terminal) {
    double rate, left;
    int begin = 0, end = 0;
    (void)sscanf(text, terminal ? "\rimported %n" : "imported %n", &begin);
    assert_true(begin > 0);
    if (sscanf(text + begin, "200 GB of 400 GB, %lf MB/s, %lf s left%n", &rate, &left, &end) != 2)
        fail_msg("%s", text);
    assert_true(rate <= 100 && rate > 99 && left >= 2000 && left < 2020);
    assert_string_equal(text + begin + end, terminal ? "\033[K" : "\n");
}

/* Checks the last line, of 400 GB in 3000 s. */
static void all_is(const char *text, bool terminal) {
    static const char cleared[] = "\r\033[K";
    double seconds, rate;
    int end = 0;
    if (terminal) assert_memory_equal(text, cleared, sizeof cleared - 1);
    if (terminal) text += sizeof cleared - 1;
    if (sscanf(text, "imported 400 GB in %lf s, %lf MB/s%n", &seconds, &rate, &end) != 2)
        fail_msg("%s", text);
    assert_true(seconds >= 3000 && seconds < 3030 && rate <= 134 && rate > 131);
    assert_string_equal(text + end, "\n");
}

static void shows_bytes_rate_and_time(bool terminal) {
    enum { GB = 1000000000 };
    char text[512];
    long from = 0;
    tr_world *world;
    tr_meter m;
    told t = {0};
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(setenv("OMPI_COMM_WORLD_RANK", "0", 1), 0);
    assert_int_equal(setenv(TR_TERMINAL_VARIABLE, terminal ? "80" : "0", 1), 0);
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    const tr_world_hook before = {
        .wait = take_wait, .work = take_work, .context = &t, .deadline_s = 7};
    tr_world_set_hook(world, &before);
    tr_meter_open(world, f, "imported", (int64_t)400 * GB, &m);
    pass(&m, terminal ? -1 : 0); /* too early for a line */
    tr_world_tell_work(world, 1, 200);
    assert_string_equal(text_of(f, &from, text), "");
    pass(&m, terminal ? 2001 : 2000);
    tr_world_tell_work(world, 100, 200); /* in units of this rank's share */
    half_is(text_of(f, &from, text), terminal);
    /* The hook before hears of everything. */
    const tr_world_hook now = tr_world_get_hook(world);
    now.wait(now.context, true, "work", 3);
    assert_true(t.done == 100 && t.total == 200 && t.waits == 1 && t.peer == 3);
    assert_true(now.deadline_s == 7);
    pass(&m, 1000);
    tr_meter_close(&m, true);
    all_is(text_of(f, &from, text), terminal);
    assert_ptr_equal(tr_world_get_hook(world).context, &t);
    tr_meter_close(&m, true); /* only once */
    assert_string_equal(text_of(f, &from, text), "");
    tr_meter_open(world, f, "imported", (int64_t)400 * GB, &m);
    tr_meter_close(&m, false); /* a failure has no last line */
    assert_string_equal(text_of(f, &from, text), terminal ? "\r\033[K" : "");
    tr_world_close(world);
    (void)fclose(f);
}

static void a_terminal_has_one_line(void **state) {
    (void)state;
    shows_bytes_rate_and_time(true);
}

static void a_pipe_has_lines(void **state) {
    (void)state;
    shows_bytes_rate_and_time(false);
}

/* The other ranks of an import do not write. */
static void only_rank_0_shows_it(void **state) {
    (void)state;
    char text[512];
    long from = 0;
    tr_world *world[2];
    tr_meter m;
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(tr_world_open_local(2, world), TR_OK);
    tr_meter_open(world[1], f, "imported", 400, &m);
    pass(&m, 20);
    tr_world_tell_work(world[1], 100, 200);
    tr_meter_close(&m, true);
    assert_string_equal(text_of(f, &from, text), "");
    (void)fclose(f);
    tr_world_abort(world[0], 1); /* otherwise closing waits for the other rank */
    for (int k = 0; k < 2; k++) tr_world_close(world[k]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_terminal_has_one_line),
        cmocka_unit_test(a_pipe_has_lines),
        cmocka_unit_test(only_rank_0_shows_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
