/* Tests the runner on the local transport (runner_rig.h). */
#include "support/runner_rig.h"
#include "support/generate_order.h"

#include <pthread.h>

static void *rank_main(void *argument) {
    rank_state *r = argument;
    run_case *c = r->c;
    if (run_rank(r) != TR_OK) {
        (void)snprintf(c->message[r->rank], sizeof c->message[r->rank], "%s", tr_error_message());
        c->failure[r->rank] = c->message[r->rank];
        tr_world_abort(c->world[r->rank], TR_ERR_INTERNAL);
    }
    tr_world_close(c->world[r->rank]);
    return NULL;
}

/* Runs the schedule and a forward-only one of three micro-batches over the same channels and
 * compares with the serial evaluation. */
static void expect_serial_results(const tr_schedule *schedule, const tr_stage_table *t, bool slow) {
    tr_schedule *validation = NULL;
    assert_int_equal(tr_schedule_forward_of(schedule, NULL, 3, &validation), TR_OK);
    run_case c = {.t = t, .schedule = {schedule, validation}, .slow = slow};
    for (int k = 0; k < 2; k++)
        if (tr_lower(c.schedule[k], t, &c.set[k]) != TR_OK) fail_msg("%s", tr_error_message());
    assert_int_equal(tr_calloc((size_t)(STEPS * t->stages), sizeof *c.result, &c.result), TR_OK);
    int ranks = schedule->ranks;
    assert_int_equal(tr_world_open_local(ranks, c.world), TR_OK);
    pthread_t thread[MOST_RANKS];
    rank_state state[MOST_RANKS];
    for (int r = 0; r < ranks; r++) {
        state[r] = (rank_state){.c = &c, .rank = r};
        assert_int_equal(pthread_create(&thread[r], NULL, rank_main, &state[r]), 0);
    }
    for (int r = 0; r < ranks; r++) assert_int_equal(pthread_join(thread[r], NULL), 0);
    for (int r = 0; r < ranks; r++)
        if (c.failure[r]) fail_msg("rank %d: %s", r, c.failure[r]);
    expect_results(&c, -1);
    free(c.result);
    for (int k = 0; k < 2; k++) tr_program_set_destroy(c.set[k]);
    tr_schedule_destroy(validation);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_gpipe_and_1f1b(void **state) {
    (void)state;
    static const int ranks[] = {1, 2, 4};
    test_random r = {tr_test_seed(SEED)};
    for (int p = 0; p < 3; p++)
        for (int m = 1; m <= 8; m++)
            for (int n = 0; n < 2; n++) {
                tr_stage_table t;
                tr_schedule *s = NULL;
                test_table_random(&r, ranks[p], 2, &t);
                assert_int_equal(generate_order(n ? "1f1b" : "gpipe", ranks[p], ranks[p], m, &s),
                                 TR_OK);
                expect_serial_results(s, &t, m % 2 == 0);
                tr_schedule_destroy(s);
                tr_stage_table_free(&t);
            }
}

static void test_generated(void **state) {
    (void)state;
    test_random r = {tr_test_seed(4714)};
    for (int n = 0; n < RUNNER_SCHEDULES; n++)
        for (int v = runner_schedules[n].least; v <= runner_schedules[n].most; v++)
            for (int p = 1; p <= MOST_RANKS; p++) {
                tr_stage_table t;
                tr_schedule *s = NULL;
                int m = test_between(&r, 1, 3 * p);
                test_table_random(&r, p * v, p * v > 1 ? 2 : 0, &t);
                assert_int_equal(generate_order(runner_schedules[n].name, p, p * v, m, &s), TR_OK);
                expect_serial_results(s, &t, m % 2 == 0);
                tr_schedule_destroy(s);
                tr_stage_table_free(&t);
            }
}

static void test_v(void **state) {
    (void)state;
    test_random r = {tr_test_seed(SEED) + 1};
    for (int trial = 0; trial < 4; trial++) {
        tr_stage_table t;
        tr_schedule *s = test_schedule_v();
        test_table_random(&r, 4, trial, &t);
        expect_serial_results(s, &t, trial % 2);
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
}

/* Random orders, placements and edges: several stages a rank, I and W apart or together. */
static void test_random_orders(void **state) {
    (void)state;
    test_random r = {tr_test_seed(SEED) + 2};
    for (int trial = 0; trial < 40; trial++) {
        int ranks = test_between(&r, 1, MOST_RANKS), stages = ranks * test_between(&r, 1, 3);
        tr_stage_table t;
        test_table_random(&r, stages, test_between(&r, 0, 4), &t);
        tr_schedule *s = test_schedule_random(&r, &t, ranks, test_between(&r, 1, 6));
        expect_serial_results(s, &t, trial % 2);
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpipe_and_1f1b),
        cmocka_unit_test(test_generated),
        cmocka_unit_test(test_v),
        cmocka_unit_test(test_random_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
