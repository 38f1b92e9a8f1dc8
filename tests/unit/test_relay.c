/* Tests the relay from the ranks' output to the launcher's (job/relay.h). */
#include "job/relay.h"
#include "support/must.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void sleep_ms(long ms) {
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Output after a long pause is copied before the relay counts as ended, also while another process
 * keeps the pipe open. */
static void test_output_after_silence(void **state) {
    (void)state;
    int file[2], input;
    tr_relay *relay;
    char line[8];
    assert_int_equal(pipe(file), 0);
    assert_int_equal(fcntl(file[0], F_SETFL, O_NONBLOCK), 0);
    must(tr_relay_open(file[1], NULL, &input, &relay));
    for (int k = 0; k < 3; k++) {
        while (!tr_relay_ended(relay)) sleep_ms(10); /* a second without output */
        assert_int_equal(write(input, "saved\n", 6), 6);
        while (!tr_relay_ended(relay)) sleep_ms(10);
        assert_int_equal(read(file[0], line, sizeof line), 6);
    }
    (void)close(input);
    while (!tr_relay_ended(relay)) sleep_ms(1);
    assert_true(tr_relay_close(relay));
    (void)close(file[0]);
    (void)close(file[1]);
}

/* Open MPI's report of a failed read from a dead rank is dropped, and only that; so is the
 * beginning of one in front of a message. */
static void test_failed_copies(void **state) {
    (void)state;
    static const char text[] = "trireme: lost rank 1\n[host:42] Read -1, expected 4096, errno = 3\n"
                               "[host:42] Read -1, expected 8, errno = 3\n[host:42] kept\n"
                               "[host:42] plm:ssh: Warning: setpgid(7,7) failed in parent with "
                               "errno=Permission denied(13)\n"
                               "[a][[42,1],0][../btl_tcp_frag.c:135:mca_btl_tcp_frag_send] "
                               "trireme: lost rank 2\nmca_btl_tcp_frag_send: writev failed\n"
                               "[kept] trireme: \n[host:42] Read -1, expected 7";
    static const char want[] = "trireme: lost rank 1\n[host:42] kept\ntrireme: lost rank 2\n"
                               "[kept] trireme: \n";
    int file[2], input;
    tr_relay *relay;
    char got[sizeof text];
    assert_int_equal(pipe(file), 0);
    must(tr_relay_open(file[1], NULL, &input, &relay));
    assert_int_equal(write(input, text, sizeof text - 1), sizeof text - 1);
    (void)close(input);
    while (!tr_relay_ended(relay)) sleep_ms(1);
    assert_int_equal(read(file[0], got, sizeof got), sizeof want - 1);
    assert_memory_equal(got, want, sizeof want - 1);
    assert_true(tr_relay_close(relay));
    (void)close(file[0]);
    (void)close(file[1]);
}

/* What mpirun says about itself is dropped once the job has ended early, and nothing else. */
static void test_mpirun_at_the_end(void **state) {
    (void)state;
    char host[64] = "", text[1024], want[1024];
    int file[2], input;
    tr_relay *relay;
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    host[strcspn(host, ".")] = '\0';
    for (int k = 0; k < 2; k++) {
        const int kept = snprintf(want, sizeof want, "[%s:00043] kept\nkept\n", host);
        const int bytes = snprintf(text, sizeof text,
                                   "[%s:00042] *** Process received signal ***\n[%s:00043] kept\n"
                                   "[%s:00042] [ 0] libc.so.6(+0x3c050)[0x7fdc137b4050]\nkept\n",
                                   host, host, host);
        assert_int_equal(pipe(file), 0);
        must(tr_relay_open(file[1], NULL, &input, &relay));
        if (k == 1) tr_relay_drop_from(relay, 42);
        assert_int_equal(write(input, text, (size_t)bytes), bytes);
        (void)close(input);
        while (!tr_relay_ended(relay)) sleep_ms(1);
        (void)close(file[1]);
        char got[sizeof text];
        assert_int_equal(read(file[0], got, sizeof got), k == 1 ? kept : bytes);
        assert_memory_equal(got, k == 1 ? want : text, (size_t)(k == 1 ? kept : bytes));
        assert_true(tr_relay_close(relay));
        (void)close(file[0]);
    }
}

#define ROW "--------------------------------------------------------------------------\n"

/* The notices of Open MPI 5's mpirun are not copied, though they come line by line, but kept as a
 * line each; other rows of dashes and the job's message within a notice are copied. */
static void test_notices(void **state) {
    (void)state;
    static const char *const lines[] = {
        ROW,
        "kept\n",
        ROW,
        ROW,
        "prterun detected that one or more processes exited with\n",
        "thus causing the job to be terminated.\n",
        "\n",
        "   Process name: [prterun-a-7@1,2]\n",
        "trireme: lost rank 2\n",
        ROW,
        "kept\n",
        ROW,
        "prterun noticed that process rank 1 with PID 9 on node a exited on\n",
        "signal 9 (Killed).\n",
        ROW,
        ROW};
    static const char want[] =
        ROW "kept\n" ROW "trireme: lost rank 2\nkept\n" ROW "trireme: late\n";
    static const char first[] = "exited with thus causing the job to be terminated.     Process "
                                "name: [prterun-a-7@1,2] ",
                      second[] = "prterun noticed that process rank 1 with PID 9 on node a exited "
                                 "on signal 9 (Killed). ";
    static const char aborted[] = ROW "MPI_ABORT was invoked on rank 0\n" ROW,
                      late[] = "\0trireme: late\n"; /* the NUL is the notice's */
    int file[2], kept[2], input;
    tr_relay *relay;
    char got[2048] = "";
    assert_int_equal(pipe(file), 0);
    assert_int_equal(pipe(kept), 0);
    must(tr_relay_open(file[1], NULL, &input, &relay));
    tr_relay_keep_notices(relay, kept[1]);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const ssize_t length = (ssize_t)strlen(lines[i]);
        assert_int_equal(write(input, lines[i], (size_t)length), length);
        if (i % 2 == 0) sleep_ms(20);
    }
    assert_int_equal(write(input, aborted, sizeof aborted), sizeof aborted); /* with its NUL */
    assert_int_equal(write(input, aborted, sizeof aborted - 1), sizeof aborted - 1);
    sleep_ms(20);
    assert_int_equal(write(input, late, sizeof late - 1), sizeof late - 1);
    (void)close(input);
    while (!tr_relay_ended(relay)) sleep_ms(1);
    assert_int_equal(read(file[0], got, sizeof got), sizeof want - 1);
    assert_memory_equal(got, want, sizeof want - 1);
    memset(got, 0, sizeof got);
    assert_true(read(kept[0], got, sizeof got - 1) > 0);
    char *end = strchr(got, '\n');
    assert_non_null(end);
    assert_non_null(strstr(got, first));
    assert_true(strstr(got, first) < end);
    assert_non_null(strstr(end, second));
    assert_non_null(strstr(end, "MPI_ABORT"));
    assert_true(tr_relay_close(relay));
    for (int i = 0; i < 2; i++) {
        (void)close(file[i]);
        (void)close(kept[i]);
    }
}

/* A sentence about a loss is noticed also when it comes in several parts, and nothing else is. */
static void test_a_loss_in_parts(void **state) {
    (void)state;
    static const char *const text[] = {"step 3\ntrireme: lost rank 1\n", "trireme: lot rank 1\n"};
    for (size_t k = 0; k < 2; k++)
        for (size_t part = 1; part < 20; part++) {
            int file[2], input;
            tr_relay *relay;
            assert_int_equal(pipe(file), 0);
            must(tr_relay_open(file[1], NULL, &input, &relay));
            for (size_t at = 0, n; at < strlen(text[k]); at += n) {
                char got[64];
                n = strlen(text[k]) - at < part ? strlen(text[k]) - at : part;
                assert_int_equal(write(input, text[k] + at, n), n);
                assert_int_equal(read(file[0], got, n), n);
            }
            (void)close(input);
            while (!tr_relay_ended(relay)) sleep_ms(1);
            if (tr_relay_printed_loss(relay) != (k == 0)) fail_msg("parts of %zu bytes", part);
            assert_true(tr_relay_close(relay));
            (void)close(file[0]);
            (void)close(file[1]);
        }
}

/* A relay that ends the unfinished line of another one keeps that other one in use until it is
 * closed itself. */
static void test_a_shared_line(void **state) {
    (void)state;
    static const char want[] = "half\nwhole\n";
    int file[2], input[2];
    tr_relay *out, *err;
    char got[sizeof want];
    assert_int_equal(pipe(file), 0);
    must(tr_relay_open(file[1], NULL, &input[0], &out));
    must(tr_relay_open(file[1], out, &input[1], &err));
    assert_int_equal(write(input[0], "half", 4), 4);
    (void)close(input[0]);
    while (!tr_relay_ended(out)) sleep_ms(1);
    assert_false(tr_relay_close(err)); /* its pipe is open */
    assert_int_equal(write(input[1], "whole\n", 6), 6);
    (void)close(input[1]);
    while (!tr_relay_ended(err)) sleep_ms(1);
    assert_true(tr_relay_close(err));
    assert_true(tr_relay_close(out));
    assert_true(tr_relay_close(NULL));
    assert_int_equal(read(file[0], got, sizeof got), sizeof want - 1);
    assert_memory_equal(got, want, sizeof want - 1);
    (void)close(file[0]);
    (void)close(file[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_output_after_silence),
                                       cmocka_unit_test(test_mpirun_at_the_end),
                                       cmocka_unit_test(test_notices),
                                       cmocka_unit_test(test_a_loss_in_parts),
                                       cmocka_unit_test(test_failed_copies),
                                       cmocka_unit_test(test_a_shared_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
