/* Tests time and memory of orders against the lowered program's times, the formulas, and a paper's
 * rates. */
#include "pipeline/orders/estimate.h"
#include "pipeline/program/simulate.h"
#include "support/generate_order.h"
#include "support/pipeline_cases.h"
#include "support/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static tr_estimate *estimate(const tr_schedule *s, tr_estimate_options options) {
    tr_estimate *e = NULL;
    if (tr_estimate_order(s, &options, &e) != TR_OK) fail_msg("%s", tr_error_message());
    return e;
}

static int actions_of(const tr_schedule *s) {
    return s->stages * s->micro_batches * 3;
}

/* Fails unless the parts of every rank's step add up (sums of n terms) and each is at least 0. */
static void expect_split(const tr_rank_time *time, int ranks, double makespan, int n) {
    double tolerance = 8 * n * 2.3e-16 * makespan;
    for (int r = 0; r < ranks; r++) {
        const tr_rank_time *t = &time[r];
        double idle = t->fill + t->drain + t->waiting + t->imbalance;
        assert_true(fabs(makespan - t->busy - idle) <= tolerance);
        assert_true(t->fill >= 0 && t->drain >= 0 && t->waiting >= 0 && t->imbalance >= 0);
        assert_true(t->span == t->last - t->first);
    }
}

/* Fails unless the order and its lowered program take the same times; `exact` false: actions of the
 * program may be later, but without transfers not its end. */
static void expect_equal(const tr_schedule *s, const tr_stage_table *t, double c, bool exact) {
    tr_program_set *set = NULL;
    tr_simulation *sim = NULL;
    tr_estimate *e = estimate(s, (tr_estimate_options){.table = t, .latency = c, .times = true});
    assert_int_equal(tr_lower(s, t, &set), TR_OK);
    assert_int_equal(tr_simulate(set, t->cost, &(tr_simulated_links){.near.latency = c}, &sim),
                     TR_OK);
    double tolerance = exact ? 1e-12 * sim->makespan : INFINITY;
    for (int r = 0; r < s->ranks; r++) {
        const tr_program *p = &set->program[r];
        for (int k = 0, action = 0; k < p->count; k++) {
            if (p->instr[k].memory < 0) continue;
            double late = sim->instr[r][k].start - e->start[r][action++];
            assert_true(late >= -1e-12 * sim->makespan && late <= tolerance);
        }
        assert_true(fabs(sim->time[r].busy - e->time[r].busy) <= 1e-12 * sim->makespan);
    }
    if (c == 0) assert_true(fabs(sim->makespan - e->makespan) <= 1e-12 * sim->makespan);
    expect_split(sim->time, s->ranks, sim->makespan, actions_of(s));
    expect_split(e->time, s->ranks, e->makespan, actions_of(s));
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_estimate_destroy(e);
}

static void test_equals_the_lowered_program(void **state) {
    (void)state;
    test_random r = {tr_test_seed(55101)};
    for (int trial = 0; trial < 300; trial++) {
        int ranks = test_between(&r, 1, 5), stages = ranks * test_between(&r, 1, 3);
        tr_stage_table t;
        test_table_random(&r, stages, test_between(&r, 0, 4), &t);
        tr_schedule *s = test_schedule_random(&r, &t, ranks, test_between(&r, 1, 8)), *f = NULL;
        assert_int_equal(tr_schedule_forward_of(s, NULL, 5, &f), TR_OK);
        expect_equal(s, &t, 0, true);
        expect_equal(s, &t, 1.5, false);
        expect_equal(f, &t, 0, stages > ranks); /* ranks keep pace with a slow one after them */
        tr_schedule_destroy(f);
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
    /* Orders that take their messages in order of arrival take equal times with transfers too. */
    for (int p = 1; p <= 6; p++)
        for (int m = 1; m <= 12; m++)
            for (int n = 0; n < 2; n++) {
                tr_stage_table t;
                tr_schedule *s = NULL;
                test_table_chain(p, 256, 256, 256, &t);
                assert_int_equal(generate_order(n ? "1f1b" : "gpipe", p, p, m, &s), TR_OK);
                expect_equal(s, &t, 0.25, true);
                tr_schedule_destroy(s);
                tr_stage_table_free(&t);
            }
}

static void test_formulas(void **state) {
    (void)state;
    for (int p = 1; p <= 9; p++)
        for (int m = 1; m <= 20; m++)
            for (int n = 0; n < 2; n++) {
                tr_schedule *s = NULL;
                assert_int_equal(generate_order(n ? "1f1b" : "gpipe", p, p, m, &s), TR_OK);
                tr_estimate *e = estimate(
                    s,
                    (tr_estimate_options){.share = {.f = 2, .i = 3, .w = 1, .m_b = 2, .m_w = 1}});
                assert_true(e->makespan == 6.0 * (m + p - 1));
                for (int i = 0; i < p; i++) {
                    assert_true(e->peak[i] == 2.0 * (n && p - i < m ? p - i : m));
                    assert_true(e->time[i].fill == 2.0 * i && e->time[i].drain == 4.0 * i);
                    assert_true(e->time[i].imbalance == 0);
                    assert_true(e->time[i].waiting == 6.0 * (p - 1 - i));
                }
                tr_estimate_destroy(e);
                tr_schedule_destroy(s);
            }
}

/* A W later than its I keeps m_W; two stages a rank hold half each; the slow rank explains gaps. */
static void test_memory_and_imbalance(void **state) {
    (void)state;
    tr_schedule *s = NULL;
    assert_int_equal(tr_schedule_create("delayed", 1, 2, 2, NULL, &s), TR_OK);
    assert_true(test_add_row(s, 0, "0F0,1F0,1I0,0I0,0F1,1F1,1I1,0I1,0W0,0W1,1W0,1W1"));
    tr_estimate *e = estimate(s, (tr_estimate_options){.share = {.m_b = 1, .m_w = 0.75}});
    assert_true(e->peak[0] == 0.75 + 1);
    assert_true(e->makespan == 6 && e->time[0].busy == 6);
    tr_estimate_destroy(e);
    tr_schedule_destroy(s);

    tr_stage_table t;
    test_table_chain(2, 256, 256, 256, &t);
    t.cost[0] = (tr_stage_cost){.f = 2, .i = 2, .w = 2, .bytes = {256, 256, 256}};
    assert_int_equal(generate_order("gpipe", 2, 2, 4, &s), TR_OK);
    e = estimate(s, (tr_estimate_options){.table = &t});
    /* Rank 1 (work 12 of 24): three gaps of 1 between its F; its B need nothing. */
    assert_true(e->time[1].imbalance == 3 && e->time[1].waiting == 0);
    assert_true(e->time[0].imbalance == 0 && e->time[0].waiting == 3);
    assert_true(e->makespan == 27);
    tr_estimate_destroy(e);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

static void test_blocked_orders(void **state) {
    (void)state;
    tr_schedule *s = NULL;
    tr_estimate *e = NULL;
    tr_estimate_options options = {.times = true};
    assert_int_equal(tr_schedule_create("x", 2, 2, 1, NULL, &s), TR_OK);
    assert_true(test_add_row(s, 0, "0B0,0F0") && test_add_row(s, 1, "1F0,1B0"));
    assert_int_equal(tr_estimate_order(s, &options, &e), TR_ERR_CONFIG);
    assert_non_null(
        strstr(tr_error_message(), "cannot run to its end: rank 0 at 0B0 waits for 0F0"));
    tr_schedule_destroy(s);
    assert_int_equal(tr_schedule_create("x", 2, 2, 1, NULL, &s), TR_OK);
    assert_true(test_add_row(s, 0, "0F1"));
    assert_int_equal(tr_estimate_order(s, &options, &e), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "0F1"));
    tr_schedule_destroy(s);
    assert_null(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_lowered_program),
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_memory_and_imbalance),
        cmocka_unit_test(test_blocked_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
