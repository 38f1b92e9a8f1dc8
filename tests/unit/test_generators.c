/* Tests generators: times and memory of their orders agree with published numbers and with their
 * papers' formulas at every size; one order with a golden file; orders of every size can be checked
 * and lowered. */
#include "pipeline/orders/csv.h"
#include "support/pipeline_cases.h"
#include "support/schedule_meter.h"

#include <math.h>
#include <stdio.h>

/* Relative rounding error of a sum of a few thousand doubles of similar size stays below this. */
static const double tolerance = 1e-9;

static const tr_stage_cost unit = {.f = 1, .i = 1, .w = 1, .m_b = 1};

static tr_schedule *make(const tr_schedule_request *request) {
    tr_schedule *s = NULL;
    if (tr_schedule_make(request, &s) != TR_OK) fail_msg("%s", tr_error_message());
    return s;
}

static meter measure(const tr_schedule_request *request) {
    tr_schedule *s = make(request);
    tr_stage_cost share = request->share;
    tr_share_complete(&share);
    meter result = meter_measure(s, &share, request->latency);
    tr_schedule_destroy(s);
    return result;
}

/* --- Zero Bubble, Tables 5 and 6 -------------------------------------------------------------- */

typedef struct published {
    tr_schedule_request request;
    int interleaved_chunks;
    double f1b1, interleaved, h1, h2, zb_1p, zb_2p;
} published;

/* m_W / m_B with m_B = 34h + 5as and m_W = 32h of the models of Table 3 at s = 1024. */
static double weight_memory(const char *model) {
    static const struct {
        const char *name;
        double h, a;
    } models[] = {{"1.5B", 2304, 24}, {"6.2B", 4096, 32}, {"14.6B", 5120, 40}, {"28.3B", 6144, 48}};
    for (size_t k = 0; k < sizeof models / sizeof models[0]; k++) {
        if (strcmp(models[k].name, model) != 0) continue;
        return 32 * models[k].h / (34 * models[k].h + 5 * models[k].a * 1024);
    }
    fail_msg("no model %s", model);
    return 0;
}

static int read_table(published *rows, int most) {
    FILE *file = fopen(TRIREME_TEST_DATA "/zb_table5_6.csv", "r");
    assert_non_null(file);
    char line[256], model[16];
    int n = 0;
    assert_non_null(fgets(line, sizeof line, file));
    while (n < most && fgets(line, sizeof line, file)) {
        published *row = &rows[n++];
        *row = (published){0};
        tr_schedule_request *q = &row->request;
        assert_int_equal(sscanf(line, "%15[^,],%d,%d,%lf,%lf,%lf,%lf,%d,%lf,%lf,%lf,%lf,%lf,%lf",
                                model, &q->ranks, &q->micro_batches, &q->share.f, &q->share.i,
                                &q->share.w, &q->latency, &row->interleaved_chunks, &row->f1b1,
                                &row->interleaved, &row->h1, &row->h2, &row->zb_1p, &row->zb_2p),
                         14);
        q->share.m_b = 1;
        q->share.m_w = weight_memory(model);
    }
    (void)fclose(file);
    return n;
}

static double ideal(const tr_schedule_request *q) {
    return q->micro_batches * (q->share.f + q->share.i + q->share.w);
}

static double bubble_span(const tr_schedule_request *q, const meter *m) {
    return (m->span - ideal(q)) / m->span;
}

static meter measure_named(published *row, const char *name, int chunks) {
    row->request.name = name;
    row->request.chunks = chunks;
    return measure(&row->request);
}

static void expect_rate(published *row, const char *name, double want) {
    meter m = measure_named(row, name, 1);
    double got = bubble_span(&row->request, &m);
    if (fabs(round(got * 1e4) - round(want * 1e4)) > 0.5)
        fail_msg("%s, p %d, m %d: %.4f, not %.4f", name, row->request.ranks,
                 row->request.micro_batches, got, want);
}

/* Fails unless the rate is at most the published one, to its four decimals, in at most `cap`
 * micro-batches' memory. */
static void expect_at_most(published *row, const char *name, double most, double cap) {
    meter m = measure_named(row, name, 1);
    double got = bubble_span(&row->request, &m);
    if (round(got * 1e4) > round(most * 1e4) + 0.5 || m.peak > cap * (1 + tolerance))
        fail_msg("%s, p %d, m %d: %.4f, more than %.4f, or %.3f micro-batches, more than %.0f",
                 name, row->request.ranks, row->request.micro_batches, got, most, m.peak, cap);
}

static void test_published_rates(void **state) {
    (void)state;
    published rows[16];
    int n = read_table(rows, 16);
    assert_int_equal(n, 12);
    for (int k = 0; k < n; k++) {
        expect_rate(&rows[k], "1f1b", rows[k].f1b1);
        expect_rate(&rows[k], "zb-h1", rows[k].h1);
        expect_rate(&rows[k], "zb-h2", rows[k].h2);
        expect_at_most(&rows[k], "zb-1p", rows[k].zb_1p, rows[k].request.ranks);
        expect_at_most(&rows[k], "zb-2p", rows[k].zb_2p, 2 * rows[k].request.ranks);
        const tr_schedule_request *q = &rows[k].request;
        int v = rows[k].interleaved_chunks, p = q->ranks;
        meter m = measure_named(&rows[k], "interleaved", v);
        double whole = q->share.f + q->share.i + q->share.w;
        double over = (p - 1) * whole / v + (2 * p * v - 2) * q->latency;
        assert_true(fabs(m.makespan - ideal(q) - over) < tolerance * m.makespan);
    }
}

/* --- formulas --------------------------------------------------------------------------------- */

static const tr_stage_cost profiles[] = {{.f = 1, .i = 1, .w = 1},
                                         {.f = 1, .i = 1.4, .w = 0.6},
                                         {.f = 18.513, .i = 18.086, .w = 9.331},
                                         {.f = 10.408, .i = 10.204, .w = 7.703}};
enum { PROFILES = sizeof profiles / sizeof profiles[0] };

static void expect_near(const tr_schedule_request *q, const char *what, double got, double want) {
    if (fabs(got - want) > tolerance * ideal(q))
        fail_msg("%s, p %d, m %d, v %d: %s %.6f, not %.6f", q->name, q->ranks, q->micro_batches,
                 q->chunks, what, got, want);
}

static void expect_most(const tr_schedule_request *q, const char *what, double got, double most) {
    if (got > most + tolerance * (1 + most))
        fail_msg("%s, p %d, m %d, v %d: %s %.6f, more than %.6f", q->name, q->ranks,
                 q->micro_batches, q->chunks, what, got, most);
}

/* Whole backwards: (p - 1)(F + B) / v; memory m, min(m, p) and, with loops of groups of N,
 * ((v - 1) N + 2 (p - 1) + 1) / v. */
static void test_formulas_of_whole_backwards(void **state) {
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 24; m++)
            for (int k = 0; k < PROFILES; k++) {
                tr_stage_cost c = profiles[k];
                double whole = c.f + c.i + c.w;
                tr_schedule_request q = {
                    .name = "gpipe", .ranks = p, .micro_batches = m, .share = c};
                meter r = measure(&q);
                expect_near(&q, "bubble", r.makespan - ideal(&q), (p - 1) * whole);
                expect_near(&q, "peak", r.peak, m);
                q.name = "1f1b";
                r = measure(&q);
                expect_near(&q, "bubble", r.makespan - ideal(&q), (p - 1) * whole);
                expect_near(&q, "peak", r.peak, m < p ? m : p);
                for (q.chunks = 1; q.chunks <= 4 && m >= p; q.chunks++) {
                    q.name = "bfs";
                    r = measure(&q);
                    expect_near(&q, "bubble", r.makespan - ideal(&q), (p - 1) * whole / q.chunks);
                    expect_near(&q, "peak", r.peak, m);
                }
                for (q.chunks = 2; q.chunks <= 4 && m % p == 0; q.chunks++) {
                    q.name = "interleaved";
                    r = measure(&q);
                    expect_near(&q, "bubble", r.makespan - ideal(&q), (p - 1) * whole / q.chunks);
                    double peak = (q.chunks - 1) * p + 2 * (p - 1) + 1;
                    if (peak > q.chunks * m) peak = q.chunks * m;
                    expect_near(&q, "peak", r.peak, peak / q.chunks);
                }
            }
}

/* Interleaved in groups of any size N: the memory of N, and for N >= p and a last group of 0 or at
 * least p the bubble of N = p. */
static void test_interleaved_groups(void **state) {
    (void)state;
    for (int p = 1; p <= 6; p++)
        for (int m = 1; m <= 24; m++)
            for (int n = 1; n <= m; n++)
                for (int v = 2; v <= 4; v++) {
                    tr_schedule_request q = {.name = "interleaved",
                                             .ranks = p,
                                             .micro_batches = m,
                                             .chunks = v,
                                             .group = n,
                                             .share = unit};
                    meter r = measure(&q);
                    if (n < p || (m % n && m % n < p)) continue;
                    expect_near(&q, "bubble", r.makespan - ideal(&q), (p - 1) * 3.0 / v);
                    double peak = (v - 1) * n + 2 * (p - 1) + 1;
                    expect_most(&q, "peak", r.peak, peak / v);
                }
}

/* With I and W apart, from 2p micro-batches on. */
static void test_formulas_of_zero_bubble(void **state) {
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int m = 2 * p; m <= 4 * p + 3; m++)
            for (int k = 0; k < PROFILES; k++) {
                tr_stage_cost c = profiles[k];
                tr_schedule_request q = {
                    .name = "zb-h1", .ranks = p, .micro_batches = m, .share = c};
                meter r = measure(&q);
                /* W fits into the gaps of the drain where it is at most F and I. */
                if (c.w <= c.f && c.w <= c.i)
                    expect_near(&q, "bubble", r.span - ideal(&q), (p - 1) * (c.f + c.i - c.w));
                expect_near(&q, "peak", r.peak, p);
                q.name = "zb-h2";
                r = measure(&q);
                if (c.w <= c.f && c.w <= c.i)
                    expect_near(&q, "bubble", r.span - ideal(&q), (p - 1) * (c.f + c.i - 2 * c.w));
                expect_near(&q, "peak", r.peak, 2 * p - 1);
            }
}

static void test_formulas_at_unit_costs(void **state) {
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int m = 2 * p; m <= 4 * p + 3; m++) {
            tr_schedule_request q = {.ranks = p, .micro_batches = m, .share = unit};
            q.share.m_w = 0.94;
            meter r;
            q.name = "interleaved-zb";
            for (q.chunks = 2; q.chunks <= 4 && m % p == 0; q.chunks++) {
                r = measure(&q);
                expect_near(&q, "bubble", r.makespan - ideal(&q), (p - 1.0) / q.chunks);
                expect_most(&q, "peak", r.peak, p);
            }
            q.chunks = 2;
            q.name = "zbv";
            r = measure(&q);
            expect_near(&q, "span", r.span, ideal(&q));
            expect_near(&q, "bubble", r.makespan - ideal(&q), (p - 1) / 2.0);
            expect_most(&q, "peak", r.peak, p);
            q.name = "dualpipev";
            r = measure(&q);
            /* (PP / 2 - 1)(F&B + B - 3 W) of chunks of a half, PP = 2 p. */
            expect_near(&q, "bubble", r.makespan - ideal(&q), (p - 1) * (3 + 2 - 3) / 2.0);
            expect_most(&q, "peak", r.peak, p + 0.5);
        }
}

/* Schedules that are made for a memory limit, at unit costs and with little or most of the memory
 * kept for W: V-Half and V-Min have at most 1/2 and 2/3 of 1F1B's bubble (V-Half on an odd number
 * of ranks, where its memory is rounded down, 1.5 more); ZB-1p and ZB-2p have at most the bubble of
 * their rules. */
static void test_schedules_for_a_memory(void **state) {
    (void)state;
    static const double kept[] = {0, 0.94, 1};
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 4 * p; m += p > 4 ? p - 1 : 1)
            for (int k = 0; k < 3; k++) {
                tr_schedule_request q = {.ranks = p, .micro_batches = m, .share = unit};
                q.share.m_w = kept[k];
                double whole = 3.0 * (p - 1);
                meter r;
                q.name = "v-half";
                r = measure(&q);
                expect_most(&q, "peak", r.peak, (p + 2) / 2);
                if (m >= 2 * p)
                    expect_most(&q, "bubble", r.makespan - ideal(&q), whole / 2 + p % 2 * 1.5);
                q.name = "v-min";
                r = measure(&q);
                expect_most(&q, "peak", r.peak, (p + 4) / 3);
                if (m >= 2 * p) expect_most(&q, "bubble", r.makespan - ideal(&q), whole * 2 / 3);
                q.name = "zb-1p";
                r = measure(&q);
                expect_most(&q, "peak", r.peak, p);
                if (m >= 2 * p) expect_most(&q, "span", r.span, ideal(&q) + p - 1);
                q.name = "zb-2p";
                r = measure(&q);
                expect_most(&q, "peak", r.peak, 2 * p);
                if (m >= 2 * p) expect_most(&q, "span", r.span, ideal(&q));
            }
}

/* 1F1B-V: 3p / 4 micro-batches in halves, and a bubble that is linear in p and contains the
 * published one, 16.5 units on eight ranks. */
static void test_1f1b_v(void **state) {
    (void)state;
    for (int p = 1; p <= 24; p += p < 8 ? 1 : 4)
        for (int m = p < 8 ? 1 : 2 * p; m <= 3 * p; m += p > 4 ? p : 1) {
            tr_schedule_request q = {
                .name = "1f1b-v", .ranks = p, .micro_batches = m, .share = unit};
            meter r = measure(&q);
            expect_most(&q, "peak", r.peak, p < 4 ? p : ceil(1.5 * p) / 2);
            double most = fmin(3.0 * (p - 1), 2.25 * p - (p % 4 == 2 ? 0.5 : 1.5));
            if (m >= 2 * p) expect_most(&q, "bubble", r.makespan - ideal(&q), most);
        }
}

/* The same for more ranks, where the generator tries fewer orders. */
static void test_v_of_many_ranks(void **state) {
    (void)state;
    for (int p = 12; p <= 48; p *= 2) {
        tr_schedule_request q = {.ranks = p, .micro_batches = 2 * p + 5, .share = unit};
        q.share.m_w = 0.94;
        q.name = "v-half";
        meter r = measure(&q);
        expect_most(&q, "peak", r.peak, (p + 2) / 2);
        expect_most(&q, "bubble", r.makespan - ideal(&q), 3.0 * (p - 1) / 2);
        q.name = "v-min";
        r = measure(&q);
        expect_most(&q, "peak", r.peak, (p + 4) / 3);
        expect_most(&q, "bubble", r.makespan - ideal(&q), 3.0 * (p - 1) * 2 / 3);
    }
}

/* Memory rank by rank, i = 0 ... p - 1: 1F1B min(m, p - i); ZB-H1 (p - i) mb + i mw; ZB-H2
 * (2 (p - i) - 1) mb + 2 i mw (Zero Bubble, Table 2); ZB-V the same on all. */
static void test_memory_of_every_rank(void **state) {
    (void)state;
    const tr_stage_cost share = {.m_b = 1, .m_w = 0.5};
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 4 * p; m++)
            for (int n = 0; n < 4; n++) {
                static const char *const names[] = {"1f1b", "zb-h1", "zb-h2", "zbv"};
                tr_schedule_request q = {
                    .name = names[n], .ranks = p, .micro_batches = m, .share = unit};
                if (n && m < 2 * p) continue;
                tr_schedule *s = make(&q);
                for (int i = 0; i < p; i++) {
                    double got = meter_peak(s, i, &share);
                    double want = n == 0   ? fmin(m, p - i)
                                  : n == 1 ? p - i + 0.5 * i
                                  : n == 2 ? 2 * (p - i) - 1 + i
                                           : p;
                    if (n < 3) expect_near(&q, "peak of a rank", got, want);
                    else expect_most(&q, "peak of a rank", got, want);
                }
                tr_schedule_destroy(s);
            }
}

/* A cap below the schedule's own memory is kept too, and a cap below one micro-batch is refused,
 * whether the micro-batch takes more memory before its I or after it. Schedules with B hold nothing
 * after it. */
static void test_caps_hold(void **state) {
    (void)state;
    static const char *const names[] = {"zb-1p", "zb-2p", "v-half", "v-min", "1f1b-v"};
    enum { NAMES = sizeof names / sizeof *names };
    static const double kept[] = {1.5, 2.25, 4};
    for (int n = 0; n < NAMES; n++)
        for (int k = 0; k < 3; k++)
            for (int cap = 0; cap <= 6; cap++) {
                bool whole = strcmp(names[n], "1f1b-v") == 0;
                double one = whole ? 2 : fmax(2, kept[k]), most = cap ? cap * one : 8 * one;
                tr_schedule_request q = {.name = names[n],
                                         .ranks = 4,
                                         .micro_batches = 7,
                                         .share = {.f = 1, .i = 1.1, .w = 0.7, .m_b = 2},
                                         .latency = 0.1,
                                         .cap = cap * one};
                q.share.m_w = kept[k];
                expect_most(&q, "peak", measure(&q).peak, most);
                q.cap = one - 0.1;
                tr_schedule *s = NULL;
                char words[64];
                (void)snprintf(words, sizeof words, "one micro-batch takes %g", one);
                assert_int_equal(tr_schedule_make(&q, &s), TR_ERR_CONFIG);
                assert_non_null(strstr(tr_error_message(), words));
            }
}

/* --- golden file ------------------------------------------------------------------------------ */

static void test_dualpipev_is_the_golden_file(void **state) {
    (void)state;
    tr_schedule *want = NULL;
    const char *path = TRIREME_TEST_DATA "/pytorch_csv/dualpipev_4rank_10mb.csv";
    assert_int_equal(tr_schedule_load(path, &want), TR_OK);
    tr_schedule_request q = {.name = "dualpipev", .ranks = 4, .micro_batches = 10};
    tr_schedule *got = make(&q);
    assert_int_equal(got->stages, want->stages);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(got->count[r], want->count[r]);
        for (int k = 0; k < got->count[r]; k++) {
            tr_action a = got->action[r][k], b = want->action[r][k];
            if (a.stage != b.stage || a.type != b.type || a.micro_batch != b.micro_batch ||
                a.overlap != b.overlap)
                fail_msg("rank %d, action %d", r, k);
        }
    }
    tr_schedule_destroy(got);
    tr_schedule_destroy(want);
}

/* --- every size ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int least, most; /* chunks */
} all[] = {{"gpipe", 1, 1},     {"1f1b", 1, 1},  {"interleaved", 1, 4},    {"bfs", 1, 4},
           {"zb-h1", 1, 1},     {"zb-h2", 1, 1}, {"interleaved-zb", 1, 4}, {"zbv", 2, 2},
           {"dualpipev", 2, 2}, {"zb-1p", 1, 1}, {"zb-2p", 1, 1},          {"v-half", 2, 2},
           {"v-min", 2, 2},     {"1f1b-v", 2, 2}};
enum { ALL = sizeof all / sizeof all[0] };

static void expect_runs(const tr_schedule_request *q) {
    tr_schedule *s = make(q);
    tr_schedule_report report;
    tr_program_set *set = NULL;
    tr_stage_table t;
    if (tr_schedule_check(s, NULL, &report) != TR_OK)
        fail_msg("p %d, m %d, v %d: %s", q->ranks, q->micro_batches, q->chunks, tr_error_message());
    if (!report.sums_ascending) fail_msg("%s", report.note);
    test_table_chain(s->stages, 256, 256, 256, &t);
    /* Lowering all sizes would take a minute, so only some are lowered. */
    if (q->micro_batches <= 6 || q->micro_batches == 17)
        if (tr_lower(s, &t, &set) != TR_OK) fail_msg("%s", tr_error_message());
    tr_program_set_destroy(set);
    tr_stage_table_free(&t);
    tr_schedule_destroy(s);
}

static void test_every_size_runs(void **state) {
    (void)state;
    for (int n = 0; n < ALL; n++)
        for (int v = all[n].least; v <= all[n].most; v++)
            for (int p = 1; p <= 8; p++)
                for (int m = 1; m <= 20; m++) {
                    tr_schedule_request q = {
                        .name = all[n].name, .ranks = p, .micro_batches = m, .chunks = v};
                    expect_runs(&q);
                }
}

static void test_errors_say_what_is_wrong(void **state) {
    (void)state;
    tr_schedule *s = NULL;
    tr_schedule_request q = {.name = "zbw", .ranks = 2, .micro_batches = 2};
    assert_int_equal(tr_schedule_make(&q, &s), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "unknown schedule 'zbw': use one of gpipe, "));
    assert_non_null(strstr(tr_error_message(), "interleaved-zb, zbv"));
    q.name = "zbv";
    q.chunks = 3;
    assert_int_equal(tr_schedule_make(&q, &s), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "two stages a rank"));
    q.chunks = 2;
    q.share.f = -1;
    assert_int_equal(tr_schedule_make(&q, &s), TR_ERR_CONFIG);
    q.share.f = 0;
    q.micro_batches = 0;
    assert_int_equal(tr_schedule_make(&q, &s), TR_ERR_CONFIG);
    q = (tr_schedule_request){
        .name = "bfs", .ranks = 1 << 24, .micro_batches = 1 << 24, .chunks = 1 << 24};
    assert_int_equal(tr_schedule_make(&q, &s), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "281474976710656 stages"));
    assert_null(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_rates),
        cmocka_unit_test(test_formulas_of_whole_backwards),
        cmocka_unit_test(test_interleaved_groups),
        cmocka_unit_test(test_formulas_of_zero_bubble),
        cmocka_unit_test(test_formulas_at_unit_costs),
        cmocka_unit_test(test_schedules_for_a_memory),
        cmocka_unit_test(test_1f1b_v),
        cmocka_unit_test(test_v_of_many_ranks),
        cmocka_unit_test(test_memory_of_every_rank),
        cmocka_unit_test(test_caps_hold),
        cmocka_unit_test(test_dualpipev_is_the_golden_file),
        cmocka_unit_test(test_every_size_runs),
        cmocka_unit_test(test_errors_say_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
