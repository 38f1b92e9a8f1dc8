/* Tests edges that are not a chain: a stage may read any earlier stages, and generators, the
 * search, lists, estimates and drawings follow the edges as the check and the lowering do. */
#include "pipeline/draw/timeline.h"
#include "pipeline/orders/auto.h"
#include "pipeline/orders/auto_impl.h"
#include "pipeline/orders/estimate.h"
#include "pipeline/orders/generate_impl.h"
#include "pipeline/orders/transfers.h"
#include "support/pipeline_cases.h"
#include "support/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Counts the edges between stages on different ranks. */
static int remote_edges(const tr_schedule *s, const tr_stage_table *t) {
    int remote = 0;
    for (int e = 0; e < t->edges; e++)
        remote += s->rank_of[t->edge[e].from] != s->rank_of[t->edge[e].to];
    return remote;
}

/* Counts the SENDs of a lowered order (tr_lower proves its programs). */
static int count_sends(const tr_schedule *s, const tr_stage_table *t) {
    tr_program_set *set = NULL;
    int sends = 0;
    if (tr_lower(s, t, &set) != TR_OK) fail_msg("%s: %s", s->name, tr_error_message());
    for (int r = 0; r < set->ranks; r++)
        for (int k = 0; k < set->program[r].count; k++)
            sends += set->program[r].instr[k].action.type == TR_ACTION_SEND;
    tr_program_set_destroy(set);
    return sends;
}

/* Counts the bars of SENDs in the drawing of the order's estimate, one for each pair of stages. */
static int count_bars(const tr_schedule *s, const tr_stage_table *t) {
    tr_estimate *e = NULL;
    tr_timeline *line = NULL;
    int sends = 0, receives = 0;
    tr_estimate_options options = {.table = t, .latency = 0.5, .times = true};
    if (tr_estimate_order(s, &options, &e) != TR_OK) fail_msg("%s", tr_error_message());
    assert_int_equal(tr_timeline_of_estimate("x", s, t, e, &line), TR_OK);
    for (size_t k = 0; k < line->count; k++) {
        sends += line->bar[k].track == TR_TRACK_SEND;
        receives += line->bar[k].track == TR_TRACK_RECV;
    }
    assert_int_equal(sends, receives);
    tr_timeline_destroy(line);
    tr_estimate_destroy(e);
    return sends;
}

static void expect_whole(tr_schedule *s, const tr_stage_table *t) {
    int messages = remote_edges(s, t) * s->micro_batches * (s->forward_only ? 1 : 2);
    tr_schedule *listed = NULL;
    if (tr_schedule_check(s, t, NULL) != TR_OK) fail_msg("%s: %s", s->name, tr_error_message());
    assert_int_equal(count_sends(s, t), messages);
    assert_int_equal(count_bars(s, t), messages);
    if (tr_schedule_list_transfers(s, t, &listed) != TR_OK)
        fail_msg("%s: %s", s->name, tr_error_message());
    assert_int_equal(count_sends(listed, t), messages);
    assert_int_equal(count_bars(listed, t), messages);
    tr_schedule_destroy(listed);
    tr_schedule_destroy(s);
}

/* Makes a chain of stages with one more edge, from stage 0 to stage 2. */
static void table_skip(int stages, tr_stage_table *t) {
    test_table_chain(stages, 512, 1024, 768, t);
    if (stages < 3) return;
    free(t->edge);
    assert_int_equal(tr_calloc((size_t)stages, sizeof *t->edge, &t->edge), TR_OK);
    for (int e = 0; e < stages - 1; e++) t->edge[e] = test_edge(e, e + 1, 256, TR_LIFE_FW);
    t->edge[t->edges++] = test_edge(0, 2, 512, TR_LIFE_FW);
}

static void test_a_skip_goes_everywhere(void **state) {
    (void)state;
    const char *name;
    for (int g = 0, chunks; tr_generate_get(g, &name, &chunks); g++)
        for (int p = 1; p <= 4; p++)
            for (int m = 1; m <= 9; m += 4) {
                tr_schedule_request q = {.name = name, .ranks = p, .micro_batches = m};
                q.chunks = chunks ? chunks : 2;
                tr_stage_table t;
                tr_schedule *s = NULL, *f = NULL;
                table_skip(p * q.chunks, &t);
                q.table = &t;
                if (tr_schedule_make(&q, &s) != TR_OK) fail_msg("%s", tr_error_message());
                assert_int_equal(tr_schedule_forward_of(s, &t, m, &f), TR_OK);
                expect_whole(f, &t);
                expect_whole(s, &t);
                tr_stage_table_free(&t);
            }
}

/* Makes stages 0 to n - 2, which read only data, and a last stage that reads them all: no rank
 * waits for its neighbour. */
static void table_fan(int stages, tr_stage_table *t) {
    test_table_chain(stages, 512, 1024, 768, t);
    for (int e = 0; e < t->edges; e++) t->edge[e] = test_edge(e, stages - 1, 256, TR_LIFE_FW);
}

static double makespan_of(const tr_schedule_request *q, const tr_stage_table *t) {
    tr_estimate_options options = {.table = t, .latency = q->latency};
    tr_schedule *s = NULL;
    tr_estimate *e = NULL;
    if (tr_schedule_make(q, &s) != TR_OK) fail_msg("%s", tr_error_message());
    if (tr_estimate_order(s, &options, &e) != TR_OK) fail_msg("%s", tr_error_message());
    double makespan = e->makespan;
    tr_estimate_destroy(e);
    expect_whole(s, t);
    return makespan;
}

/* With four stages of F = I = W = 1, where the last one reads the other three, all F of the first
 * three can run at once: an order that is made for these edges has no pipeline to fill. */
static void test_orders_are_made_for_the_edges(void **state) {
    (void)state;
    enum { P = 4, M = 8 };
    tr_stage_table t;
    table_fan(P, &t);
    tr_schedule_request q = {.ranks = P, .micro_batches = M, .chunks = 1, .table = &t, .cap = M};
    q.share = (tr_stage_cost){.m_b = 1, .m_w = 1};
    static const char *const names[] = {"zb-1p", "zb-2p", "auto"};
    for (int n = 0; n < 3; n++) {
        q.name = names[n];
        double makespan = makespan_of(&q, &t);
        /* The last rank starts after one F, does 3 M, and no rank does more. */
        if (makespan > 3 * M + 1) fail_msg("%s takes %g", q.name, makespan);
    }
    q.name = "forward";
    assert_true(makespan_of(&q, &t) == M + 1);
    tr_auto_report report;
    tr_schedule *s = NULL;
    q.name = "auto";
    assert_int_equal(tr_schedule_auto(&q, &report, &s), TR_OK);
    assert_true(report.bound == 3 * M + 1 && report.makespan == report.bound);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* Repair leaves an order as it is that runs with these edges but not with a chain of the stages:
 * stage 1, which does not read stage 0, runs F before it and its backward after it. An edge from 0
 * to 1 makes it move both. */
static void test_repair_knows_the_edges(void **state) {
    (void)state;
    static const int rank_of[] = {0, 0, 1}, stage[] = {1, 0, 0, 1};
    for (int chain = 0; chain <= 1; chain++) {
        tr_stage_table t;
        tr_schedule *s = NULL;
        int moved = 0;
        if (chain) test_table_chain(3, 512, 1024, 768, &t);
        else table_fan(3, &t);
        assert_int_equal(tr_schedule_create("any", 2, 3, 1, rank_of, &s), TR_OK);
        for (int k = 0; k < 4; k++)
            assert_int_equal(tr_generate_add(s, stage[k], k < 2 ? TR_ACTION_F : TR_ACTION_B, 0),
                             TR_OK);
        assert_int_equal(tr_generate_add(s, 2, TR_ACTION_F, 0), TR_OK);
        assert_int_equal(tr_generate_add(s, 2, TR_ACTION_B, 0), TR_OK);
        assert_int_equal(tr_generate_repair(s, &t), TR_OK);
        for (int k = 0; k < 4; k++) moved += s->action[0][k].stage != stage[k];
        assert_int_equal(moved, chain ? 4 : 0);
        expect_whole(s, &t);
        tr_stage_table_free(&t);
    }
}

static void test_list_scheduling_knows_the_edges(void **state) {
    (void)state;
    enum { P = 4, M = 8 };
    tr_stage_table t;
    table_fan(P, &t);
    for (int whole = 0; whole < 2; whole++) {
        tr_schedule_request q = {
            .ranks = P, .micro_batches = M, .table = &t, .share = {.m_b = 1, .m_w = 1}};
        tr_auto_shape shape;
        tr_schedule *s = NULL;
        int order[3 * P * M];
        double makespan;
        int64_t steps = 0;
        assert_int_equal(tr_auto_shape_open(&q, 1, false, whole, &shape), TR_OK);
        tr_auto_rule rule = tr_auto_first_rule(&shape);
        rule.first = TR_AUTO_INPUTS;
        assert_int_equal(tr_auto_list(&shape, &rule, NULL, INFINITY, order, &makespan, &steps),
                         TR_OK);
        if (tr_auto_schedule(&shape, "fan", order, &s) != TR_OK) fail_msg("%s", tr_error_message());
        /* Rank 0 runs F until the last rank's first gradient arrives: in a chain of four it would
         * run four more. */
        int forwards = 0;
        while (s->action[0][forwards].type == TR_ACTION_F) forwards++;
        assert_int_equal(forwards, whole ? 4 : 3);
        tr_auto_shape_close(&shape);
        expect_whole(s, &t);
    }
    tr_stage_table_free(&t);
}

static tr_status describe(void *context, int stages, tr_stage_table *t) {
    (void)context;
    table_skip(stages, t);
    for (int k = 0; k < stages; k++) t->cost[k].f = t->cost[k].i = t->cost[k].w = 4.0 / stages;
    return TR_OK;
}

/* The search may choose other numbers of stages, each with its own edges. */
static void test_the_search_asks_for_edges(void **state) {
    (void)state;
    tr_schedule_request q = {.name = "auto",
                             .ranks = 4,
                             .micro_batches = 6,
                             .share = {.f = 1, .i = 1, .w = 1},
                             .latency = 0.1,
                             .describe = describe};
    tr_schedule *s = NULL;
    tr_auto_report report;
    if (tr_schedule_auto(&q, &report, &s) != TR_OK) fail_msg("%s", tr_error_message());
    tr_stage_table t;
    table_skip(s->stages, &t);
    assert_true(report.makespan >= report.bound * (1 - 1e-9));
    expect_whole(s, &t);
    tr_stage_table_free(&t);
}

static void test_random_edges(void **state) {
    (void)state;
    test_random r = {tr_mix64(tr_test_seed(90210))};
    const char *name;
    for (int trial = 0; trial < 150; trial++) {
        int chunks, p = test_between(&r, 1, 4);
        if (!tr_generate_get(test_between(&r, 0, 15), &name, &chunks)) continue;
        tr_schedule_request q = {.name = name,
                                 .ranks = p,
                                 .micro_batches = test_between(&r, 1, 8),
                                 .chunks = chunks ? chunks : test_between(&r, 1, 3)};
        tr_stage_table t;
        tr_schedule *s = NULL;
        test_table_random(&r, p * q.chunks, test_between(&r, 0, 4), &t);
        /* Some edges of the chain are replaced by others. */
        for (int e = 0; e + 1 < p * q.chunks; e++)
            if (test_between(&r, 0, 2) == 0) t.edge[e].from = test_between(&r, 0, e);
        q.table = &t;
        if (tr_schedule_make(&q, &s) != TR_OK) fail_msg("%s: %s", name, tr_error_message());
        int pairs = count_bars(s, &t), messages = count_sends(s, &t);
        assert_true(pairs <= messages);
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_skip_goes_everywhere),
        cmocka_unit_test(test_orders_are_made_for_the_edges),
        cmocka_unit_test(test_repair_knows_the_edges),
        cmocka_unit_test(test_list_scheduling_knows_the_edges),
        cmocka_unit_test(test_the_search_asks_for_edges),
        cmocka_unit_test(test_random_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
