/* Tests the proof that programs end, and the cycle in the message when they do not. */
#include "pipeline/program/prove.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MOST = 9, RANKS = 3 };

typedef struct rows {
    int count[RANKS];
    tr_instr instr[RANKS][MOST];
} rows;

/* Proves the programs of the rows. If there are several, stage 1 reads stage 0. */
static void expect(int ranks, rows *r, const char *want) {
    tr_program program[RANKS] = {{0}};
    tr_edge edge = {.from = 0, .to = 1};
    const tr_stage_table table = {.stages = 3, .edges = ranks > 1, .edge = &edge};
    for (int k = 0; k < ranks; k++)
        program[k] = (tr_program){
            .rank = k, .ranks = ranks, .stages = 3, .count = r->count[k], .instr = r->instr[k]};
    tr_program_set set = {.ranks = ranks, .program = program};
    assert_int_equal(tr_program_prove(&set, &table), want ? TR_ERR_CONFIG : TR_OK);
    if (want) assert_string_equal(tr_error_message(), want);
}

#define INSTR(kind, of, n)                                                                         \
    { .action = {.type = TR_ACTION_##kind, .micro_batch = (n)}, .peer = (of), .message = (n) }
#define STEP          INSTR(F, 0, 0)
#define SEND(to, n)   INSTR(SEND, to, n)
#define RECV(from, n) /* by stage 1 */                                                             \
    {                                                                                              \
        .action = {.stage = 1, .type = TR_ACTION_RECV, .micro_batch = (n)}, .peer = (from),        \
        .message = (n)                                                                             \
    }
#define SENT(to, n, at) /* of the SEND at that place */                                            \
    {                                                                                              \
        .action = {.type = TR_ACTION_WAIT_SENT, .micro_batch = (n)}, .peer = (to), .message = (n), \
        .send = (at)                                                                               \
    }
#define START(group)          INSTR_OF(REDUCE_START, group)
#define WAIT(group)           INSTR_OF(REDUCE_WAIT, group)
#define GATHER(group)         INSTR_OF(GATHER_START, group)
#define GATHERED(group)       INSTR_OF(GATHER_WAIT, group)
#define INSTR_OF(kind, group) INSTR_AT(kind, group, 0)
/* Of a stage, and its micro-batch or bucket. */
#define INSTR_AT(kind, of, n)                                                                      \
    {                                                                                              \
        .action = {.stage = (of), .type = TR_ACTION_##kind, .micro_batch = (n) }                   \
    }
#define END INSTR_AT(FINISH, -1, -1)

static void test_transfers(void **state) {
    (void)state;
    expect(2, &(rows){{3, 2}, {{STEP, SEND(1, 0), SENT(1, 0, 1)}, {RECV(0, 0), INSTR_OF(F, 1)}}},
           NULL);
    expect(2, &(rows){{2, 2}, {{RECV(1, 0), SEND(1, 0)}, {RECV(0, 0), SEND(0, 0)}}},
           "the program cannot run to its end: rank 0 at 1RECV_F0 waits for rank 1; rank 1 at "
           "1RECV_F0 waits for rank 0");
    expect(2, &(rows){{1, 1}, {{STEP}, {RECV(0, 0)}}},
           "the program cannot run to its end: rank 1 at 1RECV_F0 waits for rank 0, and rank 0 has "
           "ended");
    expect(2, &(rows){{1, 1}, {{SEND(1, 0)}, {STEP}}},
           "the program: rank 0 sends 1 messages to rank 1, which takes 0");
    expect(2, &(rows){{2, 2}, {{SEND(1, 0), SEND(1, 1)}, {RECV(0, 1), RECV(0, 0)}}},
           "the program: rank 1, 1RECV_F1: messages of a channel are taken in the order in which "
           "they are "
           "sent");
}

static void test_messages_match(void **state) {
    (void)state;
    const tr_instr f = STEP, b = INSTR_OF(B, 0), send = SEND(1, 0), sent = SENT(1, 0, 1);
    tr_instr other = send;
    expect(2, &(rows){{2, 1}, {{f, send}, {RECV(0, 0)}}},
           "the program: rank 0, 0SEND_F0: nothing waits for its buffer");
    expect(2, &(rows){{4, 1}, {{f, send, sent, sent}, {RECV(0, 0)}}},
           "the program: rank 0, 0WAIT_SENT_F0: its message is waited for twice");
    expect(2, &(rows){{3, 1}, {{send, f, sent}, {RECV(0, 0)}}},
           "the program: rank 0, 0SEND_F0: it has not been computed");
    expect(2, &(rows){{3, 2}, {{f, send, sent}, {INSTR_OF(F, 1), RECV(0, 0)}}},
           "the program: rank 1, 1F0: it lacks an input");
    expect(2, &(rows){{2, 1}, {{INSTR_OF(F, 1), f}, {INSTR_OF(F, 2)}}},
           "the program: rank 0, 1F0: it lacks an input");
    expect(2, &(rows){{3, 1}, {{f, send, SENT(1, 0, 0)}, {RECV(0, 0)}}},
           "the program: rank 0, 0WAIT_SENT_F0: it does not belong to a SEND before it");
    other.action.gradient = true;
    expect(2, &(rows){{3, 1}, {{f, other, sent}, {RECV(0, 0)}}},
           "the program: rank 1, 1RECV_F0: another tensor is sent");
    expect(1, &(rows){{2}, {{b, f}}}, "the program: rank 0, 0B0: it comes twice, or out of order");
    expect(1, &(rows){{3}, {{f, b, INSTR_OF(W, 0)}}},
           "the program: rank 0, 0W0: it comes twice, or out of order");
}

/* A rank waits for a buffer before its receiver can take it; with one buffer more the program would
 * end. */
static void test_waits_for_buffers(void **state) {
    (void)state;
    expect(2,
           &(rows){{6, 2},
                   {{STEP, SEND(1, 0), SENT(1, 0, 1), INSTR_AT(F, 0, 1), SEND(1, 1), SENT(1, 1, 4)},
                    {RECV(0, 0), RECV(0, 1)}}},
           NULL);
    expect(3,
           &(rows){{3, 2, 2},
                   {{SEND(1, 0), SENT(1, 0, 0), SEND(2, 0)},
                    {RECV(2, 0), RECV(0, 0)},
                    {RECV(0, 0), SEND(1, 0)}}},
           "the program cannot run to its end: rank 0 at 0WAIT_SENT_F0 waits for rank 1; rank 1 at "
           "1RECV_F0 waits for rank 2; "
           "rank 2 at 1RECV_F0 waits for rank 0");
}

static void test_reductions_in_one_order(void **state) {
    (void)state;
    expect(3,
           &(rows){{4, 4, 2},
                   {{START(0), START(2), WAIT(0), WAIT(2)},
                    {START(0), START(2), WAIT(2), WAIT(0)},
                    {START(1), WAIT(1)}}},
           NULL);
    expect(
        2,
        &(rows){{4, 4},
                {{START(0), START(1), WAIT(0), WAIT(1)}, {START(1), START(0), WAIT(0), WAIT(1)}}},
        "the program cannot run to its end: rank 0 at 0REDUCE_WAIT0 waits for rank 1; rank 1 at "
        "0REDUCE_WAIT0 waits for rank 0");
    /* Three groups of two ranks each, in a ring. */
    expect(3,
           &(rows){{4, 4, 4},
                   {{START(0), START(2), WAIT(0), WAIT(2)},
                    {START(1), START(0), WAIT(1), WAIT(0)},
                    {START(2), START(1), WAIT(2), WAIT(1)}}},
           "the program cannot run to its end: rank 0 at 0REDUCE_WAIT0 waits for rank 1; rank 1 at "
           "1REDUCE_WAIT0 waits for rank 2; rank 2 at 2REDUCE_WAIT0 waits for rank 0");
    /* A start does not wait, so a message may be sent after it; a wait does. */
    expect(2,
           &(rows){{5, 3},
                   {{STEP, START(0), SEND(1, 0), SENT(1, 0, 2), WAIT(0)},
                    {RECV(0, 0), START(0), WAIT(0)}}},
           NULL);
    expect(2, &(rows){{3, 3}, {{START(0), WAIT(0), SEND(1, 0)}, {RECV(0, 0), START(0), WAIT(0)}}},
           "the program cannot run to its end: rank 0 at 0REDUCE_WAIT0 waits for rank 1; rank 1 at "
           "1RECV_F0 waits for rank 0");
    /* The end of one sum is not that of a later one. */
    expect(2,
           &(rows){{5, 5},
                   {{START(0), START(1), WAIT(1), SEND(1, 0), WAIT(0)},
                    {START(0), RECV(0, 0), START(1), WAIT(0), WAIT(1)}}},
           "the program cannot run to its end: rank 0 at 1REDUCE_WAIT0 waits for rank 1; rank 1 at "
           "1RECV_F0 waits for rank 0");
    /* Sum 1 ends on ranks 0 and 1 when sum 0, which rank 2 starts last, has ended on rank 1. */
    expect(3,
           &(rows){{5, 7, 4},
                   {{STEP, START(1), SEND(2, 0), WAIT(1), SENT(2, 0, 2)},
                    {STEP, START(0), START(1), SEND(2, 0), WAIT(1), WAIT(0), SENT(2, 0, 3)},
                    {RECV(0, 0), RECV(1, 0), START(0), WAIT(0)}}},
           NULL);
    /* Rank 0 waits for rank 2, since rank 1 has started the sum. */
    expect(3,
           &(rows){{3, 3, 4},
                   {{START(0), WAIT(0), SEND(2, 0)},
                    {START(0), RECV(2, 0), WAIT(0)},
                    {RECV(0, 0), START(0), WAIT(0), SEND(1, 0)}}},
           "the program cannot run to its end: rank 2 at 1RECV_F0 waits for rank 0; rank 0 at "
           "0REDUCE_WAIT0 waits for rank 2");
    /* The end of sum 0 is not that of sum 1 on a rank that does not take part in sum 0. */
    expect(3,
           &(rows){{3, 5, 2},
                   {{START(1), WAIT(1), SEND(1, 0)},
                    {START(0), WAIT(0), RECV(0, 0), START(1), WAIT(1)},
                    {START(0), WAIT(0)}}},
           "the program cannot run to its end: rank 1 at 1RECV_F0 waits for rank 0; rank 0 at "
           "1REDUCE_WAIT0 waits for rank 1");
}

/* Two buckets of a stage, and one of the next stage. */
static void test_buckets(void **state) {
    (void)state;
    const tr_instr f = STEP, b = INSTR_OF(B, 0), second = INSTR_AT(REDUCE_START, 0, 1),
                   second_wait = INSTR_AT(REDUCE_WAIT, 0, 1);
    expect(1, &(rows){{7}, {{f, b, START(0), second, WAIT(0), second_wait, END}}}, NULL);
    expect(1, &(rows){{6}, {{f, b, START(0), second, WAIT(0), END}}},
           "the program: rank 0, 0REDUCE_START1: nothing waits for the sum");
    expect(2,
           &(rows){{4, 4},
                   {{second, START(1), second_wait, WAIT(1)},
                    {START(1), second, second_wait, WAIT(1)}}},
           "the program cannot run to its end: rank 0 at 0REDUCE_WAIT1 waits for rank 1; rank 1 at "
           "0REDUCE_WAIT1 waits for rank 0");
    const tr_instr first = INSTR_AT(GATHER_START, 0, 1), first_wait = INSTR_AT(GATHER_WAIT, 0, 1);
    expect(1,
           &(rows){{7}, {{first, GATHER(1), first_wait, STEP, GATHERED(1), INSTR_OF(F, 1), END}}},
           NULL);
}

/* A stage without actions on any rank, which no other check looks at. */
static void test_stages_are_complete(void **state) {
    (void)state;
    tr_instr instr[] = {INSTR_OF(F, 0), INSTR_OF(F, 1)};
    tr_program program = {
        .ranks = 1, .stages = 2, .micro_batches = 1, .forward_only = true, .instr = instr};
    const tr_program_set set = {.ranks = 1, .program = &program};
    const tr_stage_table table = {.stages = 2};
    program.count = 2;
    assert_int_equal(tr_program_prove(&set, &table), TR_OK);
    program.count = 1;
    assert_int_equal(tr_program_prove(&set, &table), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(), "the program: no rank has an action of stage 1");
}

/* FINISH waits for all ranks, each of which arrives once. */
static void test_finish(void **state) {
    (void)state;
    expect(2, &(rows){{2, 1}, {{STEP, END}, {END}}}, NULL);
    expect(
        3, &(rows){{1, 1, 2}, {{END}, {END}, {RECV(0, 0), END}}},
        "the program cannot run to its end: rank 2 at 1RECV_F0 waits for rank 0; rank 0 at FINISH "
        "waits for rank 2");
    expect(
        3, &(rows){{1, 3, 2}, {{END}, {RECV(2, 0), RECV(0, 0), END}, {SEND(1, 0), END}}},
        "the program cannot run to its end: rank 1 at 1RECV_F0 waits for rank 0; rank 0 at FINISH "
        "waits for rank 1");
    expect(2, &(rows){{2, 1}, {{STEP, END}, {STEP}}},
           "the program cannot run to its end: rank 0 at FINISH waits for rank 1, and rank 1 has "
           "ended");
    expect(1, &(rows){{2}, {{END, STEP}}}, "the program: rank 0, 0F0: it comes after FINISH");
}

static void test_reductions_are_complete(void **state) {
    (void)state;
    const tr_instr w = INSTR_OF(W, 0), start = START(0), wait = WAIT(0), end = END;
    expect(1, &(rows){{6}, {{STEP, INSTR_OF(I, 0), w, start, wait, end}}}, NULL);
    expect(1, &(rows){{4}, {{start, w, wait, end}}},
           "the program: rank 0, 0REDUCE_START0: a weight gradient of the stage comes later");
    expect(1, &(rows){{3}, {{w, start, end}}},
           "the program: rank 0, 0REDUCE_START0: nothing waits for the sum");
    expect(1, &(rows){{4}, {{w, wait, start, end}}},
           "the program: rank 0, 0REDUCE_WAIT0: the sum has not started");
    expect(1, &(rows){{4}, {{w, start, end, wait}}},
           "the program: rank 0, 0REDUCE_WAIT0: it comes after FINISH");
    expect(1, &(rows){{5}, {{w, start, start, wait, end}}},
           "the program: rank 0, 0REDUCE_START0: the sum starts twice");
    expect(1, &(rows){{5}, {{w, start, wait, wait, end}}},
           "the program: rank 0, 0REDUCE_START0: the sum is waited for twice");
}

static void test_offload(void **state) {
    (void)state;
    const tr_instr f = INSTR_OF(F, 0), b = INSTR_OF(B, 0), out = INSTR_OF(OFFLOAD, 0),
                   gone = INSTR_OF(OFFLOAD_WAIT, 0), in = INSTR_OF(FETCH, 0),
                   back = INSTR_OF(FETCH_WAIT, 0);
    expect(1, &(rows){{6}, {{f, out, gone, in, back, b}}}, NULL);
    expect(1, &(rows){{6}, {{f, out, gone, in, b, back}}},
           "the program: rank 0, 0B0: what it uses is offloaded");
    expect(1, &(rows){{5}, {{f, out, gone, back, b}}},
           "the program: rank 0, 0FETCH_WAIT0: the offload has another order");
    expect(1, &(rows){{6}, {{out, f, gone, in, back, b}}},
           "the program: rank 0, 0OFFLOAD0: the offload has another order");
    expect(1, &(rows){{6}, {{f, b, out, gone, in, back}}},
           "the program: rank 0, 0OFFLOAD0: the offload has another order");
    expect(1, &(rows){{3}, {{f, out, gone}}},
           "the program: rank 0, 0OFFLOAD0: the offload does not end");
    expect(1, &(rows){{2}, {{f, out}}}, "the program: rank 0, 0OFFLOAD0: the offload does not end");
    expect(1, &(rows){{4}, {{f, out, gone, in}}},
           "the program: rank 0, 0OFFLOAD0: the offload does not end");
    expect(1, &(rows){{3}, {{f, out, b}}}, "the program: rank 0, 0B0: what it uses is offloaded");
    /* Two micro-batches of two stages. */
    const tr_instr other = INSTR_OF(F, 1), f1 = INSTR_AT(F, 0, 1), out1 = INSTR_AT(OFFLOAD, 0, 1),
                   gone1 = INSTR_AT(OFFLOAD_WAIT, 0, 1), in1 = INSTR_AT(FETCH, 0, 1),
                   back1 = INSTR_AT(FETCH_WAIT, 0, 1), b1 = INSTR_AT(B, 0, 1);
    expect(1, &(rows){{8}, {{f1, out1, gone1, f, other, in1, back1, b1}}}, NULL);
    expect(1, &(rows){{9}, {{f1, out1, gone1, f, other, in1, back1, b1, END}}}, NULL);
}

static void test_gathers(void **state) {
    (void)state;
    const tr_instr f = INSTR_OF(F, 0), start = GATHER(0), wait = GATHERED(0), end = END;
    const tr_instr f1 = INSTR_AT(F, 0, 1), f2 = INSTR_AT(F, 0, 2);
    expect(1, &(rows){{8}, {{start, wait, f, f1, start, wait, f2, end}}}, NULL);
    expect(1, &(rows){{4}, {{f, start, wait, end}}},
           "the program: rank 0, 0F0: the values of the stage have not been gathered");
    expect(1, &(rows){{3}, {{start, f, end}}},
           "the program: rank 0, 0F0: the values of the stage have not been gathered");
    expect(1, &(rows){{6}, {{start, wait, f, start, f, wait}}},
           "the program: rank 0, 0F0: the values of the stage have not been gathered");
    expect(1, &(rows){{4}, {{start, start, wait, end}}},
           "the program: rank 0, 0GATHER_START0: the gather before it has not been waited for");
    expect(1, &(rows){{4}, {{start, wait, wait, end}}},
           "the program: rank 0, 0GATHER_WAIT0: the gather has not started");
    expect(1, &(rows){{5}, {{start, wait, f, start, end}}},
           "the program: rank 0, FINISH: a gather has not been waited for");
    /* An action makes the wait before it. */
    const tr_instr b = INSTR_OF(B, 0);
    expect(1, &(rows){{7}, {{start, wait, f, start, wait, b, end}}}, NULL);
    expect(1, &(rows){{3}, {{start, wait, end}}},
           "the program: rank 0, FINISH: a gather has not been waited for");
    expect(1, &(rows){{5}, {{start, wait, start, wait, f}}},
           "the program: rank 0, 0GATHER_START0: the gather before it has not been waited for");
    expect(1, &(rows){{5}, {{start, wait, f, end, start}}},
           "the program: rank 0, 0GATHER_START0: it comes after FINISH");
    /* Two ranks of one group, each time they gather; and among their sums. */
    expect(2, &(rows){{5, 5}, {{start, wait, f, start, wait}, {start, wait, f, start, wait}}},
           NULL);
    expect(2, &(rows){{4, 4}, {{start, START(1), wait, WAIT(1)}, {START(1), start, wait, WAIT(1)}}},
           "the program cannot run to its end: rank 0 at 0GATHER_WAIT0 waits for rank 1; rank 1 at "
           "0GATHER_WAIT0 waits for rank 0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_messages_match),
        cmocka_unit_test(test_waits_for_buffers),
        cmocka_unit_test(test_reductions_in_one_order),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_stages_are_complete),
        cmocka_unit_test(test_finish),
        cmocka_unit_test(test_reductions_are_complete),
        cmocka_unit_test(test_offload),
        cmocka_unit_test(test_gathers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
