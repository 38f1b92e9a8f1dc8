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
    tr_relay_close(relay);
    (void)close(file[0]);
    (void)close(file[1]);
}

/* Open MPI's report of a failed read from a dead rank is dropped, and only that; so is the
 * beginning of one in front of a message. */
static void test_failed_copies(void **state) {
    (void)state;
    static const char text[] = "trireme: lost rank 1\n[host:42] Read -1, expected 4096, errno = 3\n"
                               "[host:42] Read -1, expected 8, errno = 3\n[host:42] kept\n"
                               "[host:42] plm:rsh: Warning: setpgid(7,7) failed in parent with "
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
    tr_relay_close(relay);
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
        tr_relay_close(relay);
        (void)close(file[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_output_after_silence),
                                       cmocka_unit_test(test_mpirun_at_the_end),
                                       cmocka_unit_test(test_failed_copies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
