/* Tests the check: it accepts orders that can run, and names the fault of other orders. */
#include "pipeline/orders/csv.h"
#include "support/pipeline_cases.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Two stages on two ranks with the given rows; expects a failure with `part` in its message. */
static void expect_refusal(const char *row0, const char *row1, int m, const char *part) {
    tr_schedule *s = NULL;
    assert_int_equal(tr_schedule_create("rows", 2, 2, m, NULL, &s), TR_OK);
    assert_true(test_add_row(s, 0, row0));
    assert_true(test_add_row(s, 1, row1));
    assert_int_equal(tr_schedule_check(s, NULL, NULL), TR_ERR_CONFIG);
    if (!strstr(tr_error_message(), part)) fail_msg("'%s' lacks '%s'", tr_error_message(), part);
    tr_schedule_destroy(s);
}

static void test_incomplete_orders(void **state) {
    (void)state;
    expect_refusal("0F0,0B0", "1F0", 1, "no I or B of stage 1, micro-batch 0");
    expect_refusal("0F0,0B0", "1F0,1I0", 1, "no W or B of stage 1, micro-batch 0");
    expect_refusal("0B0", "1F0,1B0", 1, "no F of stage 0, micro-batch 0");
    expect_refusal("0F0,0F0,0B0", "1F0,1B0", 1, "rank 0: 0F0 occurs twice");
    expect_refusal("0F0,0B0", "1F0,1I0,1B0", 1, "rank 1: 1B0 occurs twice");
    expect_refusal("0F0,0B0", "1F0,1B0,1W0", 1, "rank 1: 1W0 occurs twice");
    expect_refusal("0F0,0B0,0F1", "1F0,1B0", 1, "micro-batch 1 does not exist");
    expect_refusal("0F0,0B0", "1F0,1B0,2F0", 1, "stage 2 does not exist");
    expect_refusal("0F0,0B0,1F0", "1F0,1B0", 1, "a stage has one owner");
}

static void test_deadlocks_name_the_cycle(void **state) {
    (void)state;
    expect_refusal("0B0,0F0", "1F0,1B0", 1, "rank 0 at 0B0 waits for 0F0");
    expect_refusal("0F0,0W0,0I0", "1F0,1B0", 1, "rank 0 at 0W0 waits for 0I0");
    /* Rank 0 waits for the gradient of micro-batch 0 before its F1; rank 1 waits for F1 before it
     * computes that gradient. */
    expect_refusal("0F0,0B0,0F1,0B1", "1F0,1F1,1B0,1B1", 2,
                   "rank 0 at 0B0 waits for 1I0 (or B); rank 1 at 1F1 waits for 0F1");
}

static void test_pairs(void **state) {
    (void)state;
    tr_schedule *s = NULL;
    char *text = NULL;
    assert_int_equal(tr_schedule_create("rows", 2, 2, 2, NULL, &s), TR_OK);
    assert_true(test_add_row(s, 0, "0F0,0F1,0B0,0B1"));
    assert_true(test_add_row(s, 1, "1F0,1F1&1B0,1B1"));
    assert_int_equal(tr_schedule_check(s, NULL, NULL), TR_OK);
    assert_int_equal(tr_schedule_print(s, true, &text), TR_OK);
    assert_string_equal(text, "0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n");
    free(text);
    /* Messages of an overlapped pair are sent when both actions have ended: 1F1 does not wait for
     * them, 1B0 does. */
    tr_stage_table t;
    test_table_chain(2, 256, 256, 256, &t);
    tr_program_set *set = NULL;
    assert_int_equal(tr_lower(s, &t, &set), TR_OK);
    static const tr_action_type want[] = {TR_ACTION_RECV, TR_ACTION_F, TR_ACTION_RECV,
                                          TR_ACTION_F,    TR_ACTION_B, TR_ACTION_SEND};
    for (size_t k = 0; k < sizeof want / sizeof want[0]; k++)
        assert_int_equal(set->program[1].instr[k].action.type, want[k]);
    tr_program_set_destroy(set);
    tr_stage_table_free(&t);
    tr_schedule_destroy(s);
    expect_refusal("0F0,0F1,0B0,0B1", "1F0&1B0,1F1,1B1", 2, "1F0 cannot overlap with 1B0");
    expect_refusal("0F0&0F1,0B0,0B1", "1F0,1B0,1F1,1B1", 2, "0F0 cannot overlap with 0F1");
    expect_refusal("0F0,0B0&", "1F0,1B0", 1, "0B0 cannot overlap with nothing");
    expect_refusal("0F0,0F1,0F2&0B0&0F3,0B1,0B2,0B3", "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3", 4,
                   "0F2 cannot overlap with 0B0");
    /* Without the overlap, 0F1 would let 1F1 run, and so 1B0. */
    expect_refusal("0F0,0F1&0B0,0B1", "1F0,1F1,1B0,1B1", 2,
                   "rank 0 at (0F1;0B0)OVERLAP_F_B waits for 1I0 (or B); rank 1 at 1F1 waits for "
                   "0F1");
}

static void expect_order_note(const char *row_0, const char *row_1, const char *note) {
    tr_schedule *s = NULL;
    tr_schedule_report report;
    assert_int_equal(tr_schedule_create("rows", 2, 2, 2, NULL, &s), TR_OK);
    assert_true(test_add_row(s, 0, row_0));
    assert_true(test_add_row(s, 1, row_1));
    assert_int_equal(tr_schedule_check(s, NULL, &report), TR_OK);
    assert_int_equal(report.sums_ascending, !note);
    if (!strstr(report.note, note ? note : "")) fail_msg("%s", report.note);
    tr_schedule_destroy(s);
}

/* The last stage's F may contain its W; the F of other stages may come in any order. */
static void test_order_of_sums_is_a_note(void **state) {
    (void)state;
    expect_order_note("0F0,0F1,0B0,0B1", "1F0,1F1,1I0,1I1,1W0,1W1", NULL);
    expect_order_note("0F0,0F1,0B0,0B1", "1F0,1F1,1I0,1I1,1W1,1W0",
                      "weight gradients of stage 1 in another order (micro-batch 0 after 1)");
    expect_order_note("0F1,0F0,0B0,0B1", "1F0,1F1,1B0,1B1", NULL);
    expect_order_note("0F0,0F1,0B0,0B1", "1F1,1F0,1B0,1B1",
                      "stage 1 (its F computes the head's) in another order");
}

static void test_edges_are_the_tables(void **state) {
    (void)state;
    tr_stage_table t;
    test_table_chain(3, 256, 256, 256, &t);
    t.edge[1] = test_edge(0, 2, 256, TR_LIFE_FI); /* stage 2 needs 0, not 1 */
    tr_schedule *s = NULL;
    assert_int_equal(tr_schedule_create("rows", 1, 3, 1, NULL, &s), TR_OK);
    assert_true(test_add_row(s, 0, "0F0,2F0,2B0,1F0,1B0,0B0"));
    assert_int_equal(tr_schedule_check(s, &t, NULL), TR_OK);
    assert_int_equal(tr_schedule_check(s, NULL, NULL), TR_ERR_CONFIG);
    t.edge[1].to = 3;
    assert_int_equal(tr_schedule_check(s, &t, NULL), TR_ERR_CONFIG);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* A random order with two actions of one rank swapped either is refused or, lowered, runs to its
 * end: check and simulator agree. */
static void test_mutations_are_decided(void **state) {
    (void)state;
    uint64_t seed = tr_test_seed(20261);
    test_random r = {seed};
    int refused = 0, accepted = 0;
    for (int trial = 0; trial < 2000; trial++) {
        int ranks = test_between(&r, 1, 4), stages = ranks * test_between(&r, 1, 2);
        tr_stage_table t;
        test_table_random(&r, stages, test_between(&r, 0, 3), &t);
        tr_schedule *s = test_schedule_random(&r, &t, ranks, test_between(&r, 1, 4));
        if (tr_schedule_check(s, &t, NULL) != TR_OK) fail_msg("%s", tr_error_message());
        for (int swap = test_between(&r, 1, 3); swap > 0; swap--) {
            int rank = test_between(&r, 0, ranks - 1);
            int a = test_between(&r, 0, s->count[rank] - 1);
            int b = test_between(&r, 0, s->count[rank] - 1);
            tr_action kept = s->action[rank][a];
            s->action[rank][a] = s->action[rank][b];
            s->action[rank][b] = kept;
        }
        tr_status status = tr_schedule_check(s, &t, NULL);
        if (status == TR_OK) {
            tr_program_set *set = NULL;
            if (tr_lower(s, &t, &set) != TR_OK) fail_msg("%s", tr_error_message());
            tr_program_set_destroy(set);
            accepted++;
        } else {
            assert_int_equal(status, TR_ERR_CONFIG);
            assert_true(strstr(tr_error_message(), "waits for") ||
                        strstr(tr_error_message(), "cannot overlap"));
            refused++;
        }
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
    print_message("%d refused, %d accepted\n", refused, accepted);
    assert_true(refused > 200 && accepted > 200);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_incomplete_orders),
        cmocka_unit_test(test_deadlocks_name_the_cycle),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_order_of_sums_is_a_note),
        cmocka_unit_test(test_edges_are_the_tables),
        cmocka_unit_test(test_mutations_are_decided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
