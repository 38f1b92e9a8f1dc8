/* Lists of events that end, and the cycle that is named when they do not. */
#include "pipeline/program/prove.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 8 };

typedef struct rows {
    int count[3];
    tr_event event[3][MOST];
} rows;

static int count(const void *context, int rank) {
    return ((const rows *)context)->count[rank];
}

static tr_event event(const void *context, int rank, int index) {
    return ((const rows *)context)->event[rank][index];
}

static void print(const void *context, int rank, int index, char *text, size_t size) {
    static const char *const names[] = {"STEP", "SEND", "RECV", "SENT", "MEET"};
    tr_event e = event(context, rank, index);
    (void)snprintf(text, size, "%s %d", names[e.kind], e.number);
}

static void expect(int ranks, const rows *r, const char *want) {
    tr_event_lists lists = {.name = "rows",
                            .ranks = ranks,
                            .meetings = 3,
                            .count = count,
                            .event = event,
                            .print = print,
                            .context = r};
    assert_int_equal(tr_prove_ends(&lists), want ? TR_ERR_CONFIG : TR_OK);
    if (want) assert_string_equal(tr_error_message(), want);
}

#define STEP                                                                                       \
    { TR_EVENT_STEP, 0, 0 }
#define SEND(to, n)                                                                                \
    { TR_EVENT_SEND, (to), (n) }
#define RECV(from, n)                                                                              \
    { TR_EVENT_RECV, (from), (n) }
#define SENT(to, n)                                                                                \
    { TR_EVENT_SENT, (to), (n) }
#define MEET(group)                                                                                \
    { TR_EVENT_MEET, 0, (group) }

static void test_transfers(void **state) {
    (void)state;
    expect(2, &(rows){{3, 3}, {{STEP, SEND(1, 0), RECV(1, 0)}, {SEND(0, 0), RECV(0, 0), STEP}}},
           NULL);
    expect(2, &(rows){{2, 2}, {{RECV(1, 0), SEND(1, 0)}, {RECV(0, 0), SEND(0, 0)}}},
           "rows deadlocks: rank 0 at RECV 0 waits for rank 1; rank 1 at RECV 0 waits for rank 0");
    expect(2, &(rows){{1, 1}, {{STEP}, {RECV(0, 0)}}},
           "rows deadlocks: rank 1 at RECV 0 waits for rank 0, which has ended");
    expect(2, &(rows){{1, 1}, {{SEND(1, 0)}, {STEP}}},
           "rows: rank 0 sends 1 messages to rank 1, which takes 0");
    expect(2, &(rows){{2, 2}, {{SEND(1, 0), SEND(1, 1)}, {RECV(0, 1), RECV(0, 0)}}},
           "rows: rank 1, RECV 1: messages of a channel are taken in the order in which they are "
           "sent");
}

/* A buffer that is waited for before its receiver can take it: with one buffer between it would
 * end. */
static void test_waits_for_buffers(void **state) {
    (void)state;
    expect(2, &(rows){{3, 2}, {{SEND(1, 0), SENT(1, 0), SEND(1, 1)}, {RECV(0, 0), RECV(0, 1)}}},
           NULL);
    expect(3,
           &(rows){{3, 2, 2},
                   {{SEND(1, 0), SENT(1, 0), SEND(2, 0)},
                    {RECV(2, 0), RECV(0, 0)},
                    {RECV(0, 0), SEND(1, 0)}}},
           "rows deadlocks: rank 0 at SENT 0 waits for rank 1; rank 1 at RECV 0 waits for rank 2; "
           "rank 2 at RECV 0 waits for rank 0");
}

static void test_groups_are_met_in_one_order(void **state) {
    (void)state;
    expect(3, &(rows){{2, 2, 2}, {{MEET(0), MEET(2)}, {MEET(0), MEET(2)}, {MEET(1), MEET(2)}}},
           NULL);
    expect(3, &(rows){{2, 2, 1}, {{MEET(0), MEET(1)}, {MEET(1), MEET(0)}, {MEET(2)}}},
           "rows deadlocks: rank 1 at MEET 1 waits for rank 0; rank 0 at MEET 0 waits for rank 1");
    /* Three groups of two ranks each, in a ring. */
    expect(3, &(rows){{2, 2, 2}, {{MEET(0), MEET(2)}, {MEET(1), MEET(0)}, {MEET(2), MEET(1)}}},
           "rows deadlocks: rank 0 at MEET 0 waits for rank 1; rank 1 at MEET 1 waits for rank 2; "
           "rank 2 at MEET 2 waits for rank 0");
    /* A collective against a message. */
    expect(2, &(rows){{2, 2}, {{MEET(0), SEND(1, 0)}, {RECV(0, 0), MEET(0)}}},
           "rows deadlocks: rank 0 at MEET 0 waits for rank 1; rank 1 at RECV 0 waits for rank 0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_waits_for_buffers),
        cmocka_unit_test(test_groups_are_met_in_one_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
