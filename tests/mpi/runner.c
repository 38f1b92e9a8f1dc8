/* Tests the runner between processes: every schedule, and random orders over stages with several
 * tensors an edge and edges between stages that are not neighbours (runner_rig.h). */
#include "support/runner_rig.h"
#include "tests/unit/support/generate_order.h"

static tr_world *world;

/* Runs this rank's part of the schedule and of a forward-only one over the same channels. */
static void expect_serial_results(const tr_schedule *schedule, const tr_stage_table *t) {
    int rank = tr_world_rank(world);
    tr_schedule *validation = NULL;
    assert_int_equal(tr_schedule_forward_of(schedule, NULL, 3, &validation), TR_OK);
    run_case c = {.t = t, .schedule = {schedule, validation}};
    for (int k = 0; k < 2; k++)
        if (tr_lower(c.schedule[k], t, &c.set[k]) != TR_OK) fail_msg("%s", tr_error_message());
    assert_int_equal(tr_calloc((size_t)(STEPS * t->stages), sizeof *c.result, &c.result), TR_OK);
    c.world[rank] = world;
    rank_state state = {.c = &c, .rank = rank};
    tr_status status = run_rank(&state);
    if (status != TR_OK) fail_msg("%s: %s", schedule->name, tr_error_message());
    expect_results(&c, rank);
    /* A message of the next case must not match a receive of this one. */
    assert_int_equal(tr_world_agree(world, status), TR_OK);
    free(c.result);
    for (int k = 0; k < 2; k++) tr_program_set_destroy(c.set[k]);
    tr_schedule_destroy(validation);
}

static void test_generated(void **state) {
    (void)state;
    test_random r = {tr_test_seed(4714)};
    int p = tr_world_size(world);
    for (int n = 0; n < RUNNER_SCHEDULES; n++)
        for (int v = runner_schedules[n].least; v <= runner_schedules[n].most; v++) {
            tr_stage_table t;
            tr_schedule *s = NULL;
            test_table_random(&r, p * v, 3, &t);
            assert_int_equal(
                generate_order(runner_schedules[n].name, p, p * v, test_between(&r, 1, 3 * p), &s),
                TR_OK);
            expect_serial_results(s, &t);
            tr_schedule_destroy(s);
            tr_stage_table_free(&t);
        }
}

static void test_random_orders(void **state) {
    (void)state;
    test_random r = {tr_test_seed(SEED)};
    int p = tr_world_size(world);
    for (int trial = 0; trial < 20; trial++) {
        tr_stage_table t;
        test_table_random(&r, p * test_between(&r, 1, 3), test_between(&r, 1, 5), &t);
        tr_schedule *s = test_schedule_random(&r, &t, p, test_between(&r, 1, 6));
        expect_serial_results(s, &t);
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
}

int main(void) {
    if (tr_world_open_mpi(&world) != TR_OK) {
        (void)fprintf(stderr, "%s\n", tr_error_message());
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_generated),
                                       cmocka_unit_test(test_random_orders)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed) tr_world_abort(world, 1); /* the other ranks wait for this one's messages */
    tr_world_close(world);
    return failed;
}
