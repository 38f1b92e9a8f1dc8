/* Tests simulated times: of orders, of messages and their landing buffers, of sums, gathers and
 * copies; and that a program which could block is refused. */
#include "pipeline/draw/timeline.h"
#include "support/generate_order.h"
#include "support/lowered.h"
#include "support/pipeline_cases.h"

#include <math.h>
#include <stdio.h>

/* GPipe and 1F1B: (m + p - 1)(F + I + W) at equal costs; m and min(m, p - i) micro-batches. */
static void test_formulas(void **state) {
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 12; m++)
            for (int n = 0; n < 2; n++) {
                tr_stage_table t;
                tr_schedule *s = NULL;
                test_table_chain(p, 4096, 8192, 2048, &t);
                assert_int_equal(generate_order(n ? "1f1b" : "gpipe", p, p, m, &s), TR_OK);
                tr_program_set *set = lowered(s, &t);
                tr_simulation *sim = simulated(set, &t, 0);
                assert_true(sim->makespan == 3.0 * (m + p - 1));
                for (int i = 0; i < p; i++) {
                    assert_true(sim->time[i].busy == 3.0 * m);
                    int want = n ? (m < p - i ? m : p - i) : m;
                    assert_int_equal(sim->in_flight[i], want);
                    /* One rank sends nothing: its memory is the blocks of micro-batches in flight,
                     * and that of B. */
                    if (p == 1)
                        assert_int_equal(set->program[i].live_peak_bytes,
                                         (size_t)want * (4096 + 8192) + 1024 + 1024);
                }
                tr_simulation_destroy(sim);
                tr_program_set_destroy(set);
                tr_schedule_destroy(s);
                tr_stage_table_free(&t);
            }
}

/* GPipe with two ranks and messages of F / 2: a step takes two delays longer, not m. */
static void test_latency_is_hidden(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    test_table_chain(2, 256, 256, 256, &t);
    assert_int_equal(generate_order("gpipe", 2, 2, 8, &s), TR_OK);
    tr_program_set *set = lowered(s, &t);
    tr_simulation *sim = simulated(set, &t, 0.5);
    assert_true(sim->makespan == 3.0 * 9 + 2 * 0.5);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* A channel has two landing buffers: while a slow rank computes, two messages have arrived, and
 * each further one arrives when the one two before it has been taken. */
static void test_messages_wait_for_landing_buffers(void **state) {
    (void)state;
    enum { MESSAGES = 6, SLOW = 10 };
    tr_stage_table t;
    tr_schedule *s = NULL;
    test_table_chain(2, 256, 256, 256, &t);
    t.cost[1].f = SLOW;
    assert_int_equal(generate_order("gpipe", 2, 2, MESSAGES, &s), TR_OK);
    tr_program_set *set = lowered(s, &t);
    tr_simulation *sim = simulated(set, &t, 0);
    double taken[MESSAGES], arrived[MESSAGES];
    int sends = 0, receives = 0;
    for (int k = 0; k < set->program[0].count; k++)
        if (set->program[0].instr[k].action.type == TR_ACTION_SEND)
            arrived[sends++] = sim->instr[0][k].complete;
    for (int k = 0; k < set->program[1].count; k++)
        if (set->program[1].instr[k].action.type == TR_ACTION_RECV)
            taken[receives++] = sim->instr[1][k].end;
    assert_int_equal(sends, MESSAGES);
    assert_int_equal(receives, MESSAGES);
    for (int k = 0; k < MESSAGES; k++) {
        assert_true(taken[k] == 1 + SLOW * k);
        assert_true(arrived[k] == (k < 3 ? k + 1 : taken[k - 2]));
    }
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* Rank 0 has `count` gathers: gather i travels from begins[i] to ends[i], and its wait begins at
 * starts[i]. */
static void check_gathers(const tr_program_set *set, const tr_simulation *sim, int count,
                          const double *begins, const double *starts, const double *ends) {
    int n = 0, waits = 0;
    for (int k = 0; k < set->program[0].count; k++) {
        const tr_action_type type = set->program[0].instr[k].action.type;
        const tr_instr_time *time = &sim->instr[0][k];
        if (type == TR_ACTION_GATHER_START) {
            assert_true(fabs(time->begin - begins[n]) < 1e-9);
            assert_true(fabs(time->complete - ends[n++]) < 1e-9);
        }
        if (type != TR_ACTION_GATHER_WAIT) continue;
        assert_true(fabs(time->start - starts[waits]) < 1e-9);
        assert_true(fabs(time->end - ends[waits++]) < 1e-9);
    }
    assert_int_equal(n, count);
    assert_int_equal(waits, count);
}

/* One stage and micro-batch: F takes 1 and B 2, and B completes the buckets after 1/4, 1/2 and all
 * of its time. */
static void test_reductions_have_a_link(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    const tr_simulated_links links = {.sum = {.latency = 0.1, .per_byte = 0.01}};
    const tr_bucket bucket[] = {{.bytes = 50, .w = 0, .b = 0.25},
                                {.bytes = 0, .w = 0, .b = 0.25},
                                {.bytes = 100, .w = 0, .b = 0.5},
                                {.bytes = 50, .w = 1, .b = 1}};
    const double begins[] = {1.5, 2.1, 3.2}, ends[] = {2.1, 3.2, 3.8};
    test_table_chain(1, 256, 256, 256, &t);
    t.cost[0].buckets = 4;
    t.cost[0].bucket = t.bucket = calloc(4, sizeof *t.bucket);
    assert_non_null(t.bucket);
    memcpy(t.bucket, bucket, sizeof bucket);
    assert_int_equal(generate_order("gpipe", 1, 1, 1, &s), TR_OK);
    tr_program_set *set = lowered(s, &t);
    tr_simulation *sim = NULL;
    assert_int_equal(tr_simulate(set, t.cost, &links, &sim), TR_OK);
    int n = 0;
    for (int k = 0; k < set->program[0].count; k++) {
        const tr_instr_time *time = &sim->instr[0][k];
        if (set->program[0].instr[k].action.type != TR_ACTION_REDUCE_START) continue;
        assert_true(fabs(time->begin - begins[n]) < 1e-9);
        assert_true(fabs(time->complete - ends[n++]) < 1e-9);
    }
    assert_int_equal(n, 3);
    assert_true(fabs(sim->makespan - 3.8) < 1e-9 && fabs(sim->exposed[0] - 0.8) < 1e-9);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* Two stages of a rank and one micro-batch: each F takes 1 and each B 2. The first F waits before
 * both of its layers, the second one after a quarter of its time. */
static void gathers_have_a_link(bool divided) {
    tr_stage_table t;
    tr_schedule *s = NULL;
    const tr_simulated_links links = {.gather = {.latency = 0.1, .per_byte = 0.01}};
    const tr_bucket bucket[] = {{.f = 0.5, .updated = 60, .gathered = 100},
                                {.f = 0, .updated = 50, .gathered = 50},
                                {.f = 0.25, .updated = 200, .gathered = 200}};
    const double begins[] = {0, 0.6, 1.7}, starts[] = {0, 1.1, 2.45}, ends[] = {0.6, 1.7, 3.8};
    test_table_chain(2, 256, 256, 256, &t);
    t.cost[0].bucket = t.bucket = calloc(3, sizeof *t.bucket);
    assert_non_null(t.bucket);
    memcpy(t.bucket, bucket, sizeof bucket);
    for (int k = 0; k < 3 && divided; k++) {
        t.bucket[k].values = bucket[k].updated;
        t.bucket[k].updated = 0;
    }
    t.cost[0].buckets = 2;
    t.cost[1].bucket = t.bucket + 2;
    t.cost[1].buckets = 1;
    assert_int_equal(generate_order("bfs", 1, 2, 1, &s), TR_OK);
    tr_program_set *set = lowered(s, &t);
    tr_simulation *sim = NULL;
    tr_timeline *timeline = NULL;
    assert_int_equal(tr_simulate(set, t.cost, &links, &sim), TR_OK);
    check_gathers(set, sim, 3, begins, starts, ends);
    assert_true(fabs(sim->exposed[0] - 2.55) < 1e-9 && fabs(sim->time[0].busy - 6) < 1e-9);
    assert_true(fabs(sim->makespan - 8.55) < 1e-9);
    /* A drawing has each part of an F, and the waits between them. */
    static const double bars[][2] = {{0, 0.6},    {0.6, 1.1},  {1.1, 1.7},  {1.7, 2.2},
                                     {2.2, 2.45}, {2.45, 3.8}, {3.8, 4.55}, {4.55, 6.55}};
    assert_int_equal(tr_timeline_of_simulation("program", set, sim, 0, &timeline), TR_OK);
    int n = 0;
    for (size_t k = 0; k < timeline->count; k++) {
        const tr_bar *bar = &timeline->bar[k];
        if (bar->track != TR_TRACK_COMPUTE || n == sizeof bars / sizeof *bars) continue;
        assert_true(fabs(bar->start - bars[n][0]) < 1e-9 && fabs(bar->end - bars[n][1]) < 1e-9);
        assert_true(tr_bar_waits(bar) == (n == 0 || n == 2 || n == 5));
        n++;
    }
    assert_int_equal(n, sizeof bars / sizeof *bars);
    tr_timeline_destroy(timeline);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

static void test_updated_values_have_a_link(void **state) {
    (void)state;
    gathers_have_a_link(false);
}

static void test_divided_values_have_a_link(void **state) {
    (void)state;
    gathers_have_a_link(true);
}

/* Three stages of a rank and one micro-batch: each F takes 1 and each B 2. The values of the first
 * stage are gathered before its F, and again, the last layer's first, during the B before its B. */
static void test_gradients_wait_layer_by_layer(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    const tr_simulated_links links = {.gather = {.per_byte = 0.01}};
    const tr_bucket bucket[] = {{.f = 0.5, .b = 0.5, .values = 250, .gathered = 250},
                                {.f = 0, .b = 1, .values = 100, .gathered = 100}};
    const double begins[] = {0, 1, 8, 10.5}, starts[] = {0, 1.5, 10, 11.5};
    const double ends[] = {1, 3.5, 10.5, 11.5};
    test_table_chain(3, 256, 256, 256, &t);
    t.cost[0].bucket = t.bucket = calloc(2, sizeof *t.bucket);
    assert_non_null(t.bucket);
    memcpy(t.bucket, bucket, sizeof bucket);
    t.cost[0].buckets = 2;
    assert_int_equal(generate_order("bfs", 1, 3, 1, &s), TR_OK);
    tr_program_set *set = lowered(s, &t);
    tr_simulation *sim = NULL;
    assert_int_equal(tr_simulate(set, t.cost, &links, &sim), TR_OK);
    check_gathers(set, sim, 4, begins, starts, ends);
    assert_true(fabs(sim->exposed[0] - 3.5) < 1e-9 && fabs(sim->time[0].busy - 9) < 1e-9);
    assert_true(fabs(sim->makespan - 12.5) < 1e-9);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* One stage and four micro-batches: each F takes 1, each B 2, and a copy as much as an F, behind
 * which it hides, or twice as much: then every F but the first waits for the copy behind it. */
static void test_copies_have_links(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    test_table_chain(1, 256, 256, 256, &t);
    t.cost[0].offload = true;
    assert_int_equal(generate_order("gpipe", 1, 1, 4, &s), TR_OK);
    tr_program_set *set = lowered(s, &t);
    for (int slow = 0; slow < 2; slow++) {
        static const double begins[2][2][4] = {{{1, 2, 3, 4}, {3, 4, 6, 8}},
                                               {{1, 3, 5, 7}, {5, 7, 9, 11}}};
        const tr_simulated_links links = {.copy.per_byte = (1 + slow) / 512.0};
        tr_simulation *sim = NULL;
        int n = 0;
        assert_int_equal(tr_simulate(set, t.cost, &links, &sim), TR_OK);
        for (int k = 0; k < set->program[0].count; k++) {
            const tr_action a = set->program[0].instr[k].action;
            const tr_instr_time *time = &sim->instr[0][k];
            if (a.type != TR_ACTION_OFFLOAD && a.type != TR_ACTION_FETCH) continue;
            assert_true(time->begin == begins[slow][a.type == TR_ACTION_FETCH][a.micro_batch]);
            assert_true(time->complete == time->begin + 1 + slow);
            n++;
        }
        assert_int_equal(n, 8);
        assert_true(sim->copying[0] == 3 * slow && sim->makespan == 12 + 3 * slow);
        tr_simulation_destroy(sim);
    }
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* One micro-batch through three stages, of which two are on the first host: F, I and W take 1 and
 * messages 256 bytes. */
static void test_messages_have_links(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    tr_simulation *sim = NULL;
    const tr_simulated_links links = {.near = {.latency = 0.1, .per_byte = 0.001},
                                      .far = {.latency = 0.5, .per_byte = 0.01},
                                      .line = 1,
                                      .host = 2};
    const double near = 0.1 + 0.001 * 256, far = 0.5 + 0.01 * 256;
    test_table_chain(3, 256, 256, 256, &t);
    assert_int_equal(generate_order("gpipe", 3, 1, 1, &s), TR_OK);
    tr_program_set *set = lowered(s, &t);
    assert_int_equal(tr_simulate(set, t.cost, &links, &sim), TR_OK);
    assert_true(fabs(sim->makespan - (9 + 2 * near + 2 * far)) < 1e-9);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* A wait for a message that is sent only after the wait is found and named. */
static void test_waits_can_deadlock(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    test_table_chain(2, 256, 256, 256, &t);
    assert_int_equal(generate_order("gpipe", 2, 2, 4, &s), TR_OK);
    tr_program_set *set = lowered(s, &t);
    tr_program *p = &set->program[0];
    int wait = p->count - 1, third = 0;
    while (!(p->instr[wait].action.type == TR_ACTION_WAIT_SENT && p->instr[wait].message == 3))
        wait--;
    while (!(p->instr[third].action.type == TR_ACTION_SEND && p->instr[third].message == 2))
        third++;
    tr_instr kept = p->instr[wait];
    for (int k = wait; k > third; k--) p->instr[k] = p->instr[k - 1];
    p->instr[third] = kept;
    tr_simulation *sim = NULL;
    assert_int_equal(tr_simulate(set, t.cost, NULL, &sim), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "rank 0 at 0WAIT_SENT_F3 waits for rank 1"));
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* Returns the most address space that this process has had. */
static long peak_kib(void) {
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (kib < 0 && fgets(line, sizeof line, f)) (void)sscanf(line, "VmPeak: %ld kB", &kib);
    assert_int_equal(fclose(f), 0);
    assert_true(kib > 0);
    return kib;
}

/* A rank exchanges messages with a few others, so memory grows as the ranks do, not as their
 * pairs: a table of 1024 x 1024 channels takes 24 MiB. */
static void test_many_ranks_need_little_memory(void **state) {
    (void)state;
    enum { RANKS = 1024, MOST_KIB = 20 << 10 };
    tr_stage_table t;
    tr_schedule *s = NULL;
    tr_simulation *sim = NULL;
    test_table_chain(RANKS, 256, 256, 256, &t);
    assert_int_equal(generate_order("1f1b", RANKS, 1, 1, &s), TR_OK);
    const long before = peak_kib();
    tr_program_set *set = lowered(s, &t);
    assert_int_equal(tr_simulate(set, t.cost, NULL, &sim), TR_OK);
    const long grown = peak_kib() - before;
    if (grown > MOST_KIB) fail_msg("%d ranks took %ld KiB", RANKS, grown);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_latency_is_hidden),
        cmocka_unit_test(test_messages_wait_for_landing_buffers),
        cmocka_unit_test(test_reductions_have_a_link),
        cmocka_unit_test(test_updated_values_have_a_link),
        cmocka_unit_test(test_divided_values_have_a_link),
        cmocka_unit_test(test_gradients_wait_layer_by_layer),
        cmocka_unit_test(test_copies_have_links),
        cmocka_unit_test(test_messages_have_links),
        cmocka_unit_test(test_waits_can_deadlock),
        cmocka_unit_test(test_many_ranks_need_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
