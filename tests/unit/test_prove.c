/* Tests the proof that programs end, and the cycle in the message when they do not. */
#include "pipeline/program/prove.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 8, RANKS = 3 };

typedef struct rows {
    int count[RANKS];
    tr_instr instr[RANKS][MOST];
} rows;

/* Proves the programs of the rows. In collectives 0 to 2 are stages and 3 is the end of the
 * step. */
static void expect(int ranks, rows *r, const char *want) {
    tr_program program[RANKS] = {{0}};
    for (int k = 0; k < ranks; k++)
        program[k] = (tr_program){
            .rank = k, .ranks = ranks, .stages = 3, .count = r->count[k], .instr = r->instr[k]};
    tr_program_set set = {.ranks = ranks, .program = program};
    assert_int_equal(tr_program_prove(&set), want ? TR_ERR_CONFIG : TR_OK);
    if (want) assert_string_equal(tr_error_message(), want);
}

#define INSTR(kind, of, n)                                                                         \
    { .action = {.type = TR_ACTION_##kind, .micro_batch = (n)}, .peer = (of), .message = (n) }
#define STEP          INSTR(F, 0, 0)
#define SEND(to, n)   INSTR(SEND, to, n)
#define RECV(from, n) INSTR(RECV, from, n)
#define SENT(to, n)   INSTR(WAIT_SENT, to, n)
#define MEET(group)                                                                                \
    {                                                                                              \
        .action = {.stage = (group), .type = TR_ACTION_REDUCE, .micro_batch = -1 }                 \
    }

static void test_transfers(void **state) {
    (void)state;
    expect(2, &(rows){{3, 3}, {{STEP, SEND(1, 0), RECV(1, 0)}, {SEND(0, 0), RECV(0, 0), STEP}}},
           NULL);
    expect(2, &(rows){{2, 2}, {{RECV(1, 0), SEND(1, 0)}, {RECV(0, 0), SEND(0, 0)}}},
           "the program cannot run to its end: rank 0 at 0RECV_F0 waits for rank 1; rank 1 at "
           "0RECV_F0 waits for rank 0");
    expect(2, &(rows){{1, 1}, {{STEP}, {RECV(0, 0)}}},
           "the program cannot run to its end: rank 1 at 0RECV_F0 waits for rank 0, and rank 0 has "
           "ended");
    expect(2, &(rows){{1, 1}, {{SEND(1, 0)}, {STEP}}},
           "the program: rank 0 sends 1 messages to rank 1, which takes 0");
    expect(2, &(rows){{2, 2}, {{SEND(1, 0), SEND(1, 1)}, {RECV(0, 1), RECV(0, 0)}}},
           "the program: rank 1, 0RECV_F1: messages of a channel are taken in the order in which "
           "they are "
           "sent");
}

/* A rank waits for a buffer before its receiver can take it; with one buffer more the program would
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
           "the program cannot run to its end: rank 0 at 0WAIT_SENT_F0 waits for rank 1; rank 1 at "
           "0RECV_F0 waits for rank 2; "
           "rank 2 at 0RECV_F0 waits for rank 0");
}

static void test_groups_are_met_in_one_order(void **state) {
    (void)state;
    expect(3, &(rows){{2, 2, 2}, {{MEET(0), MEET(2)}, {MEET(0), MEET(2)}, {MEET(1), MEET(2)}}},
           NULL);
    expect(3, &(rows){{2, 2, 1}, {{MEET(0), MEET(1)}, {MEET(1), MEET(0)}, {MEET(2)}}},
           "the program cannot run to its end: rank 1 at 1REDUCE_GRAD waits for rank 0; rank 0 at "
           "0REDUCE_GRAD waits for rank 1");
    /* Three groups of two ranks each, in a ring. */
    expect(3, &(rows){{2, 2, 2}, {{MEET(0), MEET(2)}, {MEET(1), MEET(0)}, {MEET(2), MEET(1)}}},
           "the program cannot run to its end: rank 0 at 0REDUCE_GRAD waits for rank 1; rank 1 at "
           "1REDUCE_GRAD waits for rank 2; "
           "rank 2 at 2REDUCE_GRAD waits for rank 0");
    /* A collective and a message wait for each other. */
    expect(2, &(rows){{2, 2}, {{MEET(0), SEND(1, 0)}, {RECV(0, 0), MEET(0)}}},
           "the program cannot run to its end: rank 0 at 0REDUCE_GRAD waits for rank 1; rank 1 at "
           "0RECV_F0 waits for rank 0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_waits_for_buffers),
        cmocka_unit_test(test_groups_are_met_in_one_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
