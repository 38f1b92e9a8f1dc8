/* The schedule `auto`: at most the best published orders' times at equal memory, never worse than a
 * generator, and an order that runs for every request. TRIREME_LONG=1: more random requests. */
#include "pipeline/orders/auto.h"
#include "pipeline/orders/auto_impl.h"
#include "pipeline/orders/check.h"
#include "pipeline/orders/csv.h"
#include "pipeline/orders/estimate.h"
#include "pipeline/orders/generate_best.h"
#include "pipeline/orders/generate_impl.h"
#include "pipeline/program/lower.h"
#include "support/pipeline_cases.h"
#include "support/schedule_meter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Relative rounding error of a sum of a few thousand doubles of similar size stays below this. */
static const double tolerance = 1e-9;

static double ideal(const tr_schedule_request *q) {
    return q->micro_batches * (q->share.f + q->share.i + q->share.w);
}

static void describe(const tr_schedule_request *q, char *text, size_t size) {
    (void)snprintf(text, size, "p %d, m %d, v %d, costs %g %g %g %g, memory %g %g cap %g", q->ranks,
                   q->micro_batches, q->chunks, q->share.f, q->share.i, q->share.w, q->latency,
                   q->share.m_b, q->share.m_w, q->cap);
}

/* Makes the order and proves it: complete, W in order, under the cap, as long as reported, not
 * below its bounds. */
static meter make(const tr_schedule_request *q, tr_auto_report *report, bool lower) {
    char text[256];
    describe(q, text, sizeof text);
    tr_schedule *s = NULL;
    tr_schedule_report checked;
    if (tr_schedule_auto(q, report, &s) != TR_OK) fail_msg("%s: %s", text, tr_error_message());
    if (tr_schedule_check(s, NULL, &checked) != TR_OK) fail_msg("%s: %s", text, tr_error_message());
    if (!checked.sums_ascending) fail_msg("%s: %s", text, checked.note);
    meter result = meter_measure(s, &q->share, q->latency);
    if (q->cap > 0 && result.peak > q->cap * (1 + tolerance))
        fail_msg("%s: peak %g", text, result.peak);
    if (fabs(result.makespan - report->makespan) > tolerance * result.makespan)
        fail_msg("%s: %.12g, reported %.12g", text, result.makespan, report->makespan);
    if (report->makespan < report->shape_bound * (1 - tolerance) ||
        report->makespan < report->bound * (1 - tolerance))
        fail_msg("%s: %.12g, bounds %.12g %.12g", text, report->makespan, report->shape_bound,
                 report->bound);
    assert_true(fabs(report->gap - (report->makespan / report->bound - 1)) < tolerance);
    if (lower) {
        tr_stage_table table;
        tr_program_set *set = NULL;
        test_table_chain(s->stages, 256, 256, 256, &table);
        if (tr_lower(s, &table, &set) != TR_OK) fail_msg("%s: %s", text, tr_error_message());
        tr_program_set_destroy(set);
        tr_stage_table_free(&table);
    }
    tr_schedule_destroy(s);
    return result;
}

/* --- published orders ------------------------------------------------------------------------- */

/* Costs F, I, W, c of a rank's share, and the best public order's overhead over m (F + I + W) in
 * percent, at p m_B and m_W = 0.94 m_B with at most four stages a rank, replayed with those costs:
 * PyTorch's interleaved zero bubble with four stages, and its ZB-V for the last line. The last
 * numbers are what the search, with its moves, has reached: a change must not make them worse. */
static const struct {
    const char *name;
    tr_stage_cost share;
    double latency, peer[3], reached[3];
} profiles[] = {
    {"unit", {.f = 1, .i = 1, .w = 1}, 0, {3.1, 3.6, 1.8}, {3.13, 3.65, 1.83}},
    {"1.5B", {.f = 18.513, .i = 18.086, .w = 9.331}, .626, {9.7, 10.9, 5.5}, {7.1, 9.1, 5.0}},
    {"6.2B", {.f = 29.802, .i = 29.428, .w = 19.530}, .577, {6.9, 7.9, 3.9}, {4.95, 7.05, 3.6}},
    {"28.3B", {.f = 10.408, .i = 10.204, .w = 7.703}, .408, {8.6, 9.7, 4.8}, {6.92, 8.9, 4.35}},
    {"attention", {.f = 1, .i = 1.4, .w = .6}, .02, {7.6, 8.7, 4.4}, {6.85, 8.15, 4.1}},
    {"slow p2p", {.f = 1, .i = 1, .w = 1}, .2, {17.1, 21.0, 10.5}, {15.0, 17.75, 8.9}},
};
enum { PROFILES = sizeof profiles / sizeof profiles[0] };
static const int sizes[3][2] = {{4, 8}, {8, 16}, {8, 32}};

static double overhead_of(const tr_schedule_request *q, const char *name, int chunks) {
    tr_schedule_request known = *q;
    tr_schedule *s = NULL;
    known.name = name;
    known.chunks = chunks;
    if (tr_schedule_make(&known, &s) != TR_OK) fail_msg("%s", tr_error_message());
    meter result = meter_measure(s, &q->share, q->latency);
    tr_schedule_destroy(s);
    return 100 * (result.makespan / ideal(q) - 1);
}

static void test_beats_published_orders(void **state) {
    (void)state;
    int better = 0;
    printf("%-10s %3s %3s %8s %6s %8s\n", "percent", "p", "m", "auto", "peer", "bound");
    for (int k = 0; k < PROFILES; k++)
        for (int n = 0; n < 3; n++) {
            int p = sizes[n][0];
            tr_schedule_request q = {.ranks = p,
                                     .micro_batches = sizes[n][1],
                                     .share = profiles[k].share,
                                     .latency = profiles[k].latency,
                                     .cap = p};
            q.share.m_b = 1;
            q.share.m_w = 0.94;
            tr_auto_report report;
            double overhead = 100 * (make(&q, &report, n == 0).makespan / ideal(&q) - 1);
            double peer = profiles[k].peer[n];
            printf("%-10s %3d %3d %8.3f %6.1f %8.3f\n", profiles[k].name, p, q.micro_batches,
                   overhead, peer, 100 * (report.bound / ideal(&q) - 1));
            /* The published number is rounded to a tenth. */
            if (overhead > peer + 0.05) fail_msg("%s: worse", profiles[k].name);
            if (overhead > profiles[k].reached[n] + 100 * tolerance)
                fail_msg("%s: worse than before", profiles[k].name);
            assert_true(overhead <= overhead_of(&q, "interleaved-zb", 4) + 100 * tolerance);
            assert_true(overhead <= overhead_of(&q, "zbv", 2) + 100 * tolerance);
            better += overhead < peer - 0.05;
        }
    printf("better in %d of %d\n", better, 3 * PROFILES);
    assert_true(better >= 15);
}

static void test_large(void **state) {
    (void)state;
    tr_auto_report report;
    tr_schedule_request q = {.ranks = 32,
                             .micro_batches = 256,
                             .share = profiles[3].share,
                             .latency = profiles[3].latency,
                             .cap = 32};
    q.share.m_b = 1;
    q.share.m_w = 0.94;
    double overhead = 100 * (make(&q, &report, false).makespan / ideal(&q) - 1);
    printf("28.3B p 32, m 256: %.3f\n", overhead);
    assert_true(overhead < overhead_of(&q, "interleaved-zb", 4) - 0.05);
}

/* --- generators ------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15u;
    uint64_t x = *state;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static double draw_real(uint64_t *state) {
    return (double)(draw(state) >> 11) * 0x1p-53;
}

/* Fails if a generator that stays under the cap is faster, with the same chunks or, where they are
 * free, up to four. */
static void expect_best(const tr_schedule_request *q, double makespan) {
    const char *name;
    int chunks;
    for (int g = 0; tr_generate_get(g, &name, &chunks); g++) {
        if (strcmp(name, "auto") == 0 || strcmp(name, "forward") == 0) continue;
        for (int v = 1; v <= 4; v++) {
            tr_schedule_request known = *q;
            tr_schedule *s = NULL;
            if ((chunks && v != chunks) || (q->chunks && v != q->chunks)) continue;
            known.name = name;
            known.chunks = v;
            if (tr_schedule_make(&known, &s) != TR_OK) fail_msg("%s", tr_error_message());
            meter other = meter_measure(s, &q->share, q->latency);
            tr_schedule_destroy(s);
            if (q->cap > 0 && other.peak > q->cap * (1 + tolerance)) continue;
            if (makespan <= other.makespan * (1 + tolerance)) continue;
            char text[256];
            describe(q, text, sizeof text);
            fail_msg("%s: %s of %d chunks takes %g, auto %g", text, name, v, other.makespan,
                     makespan);
        }
    }
}

static void test_never_worse_than_a_generator(void **state) {
    (void)state;
    uint64_t seed = 20261120;
    int cases = getenv("TRIREME_LONG") ? 1000 : 30;
    printf("seed %llu\n", (unsigned long long)seed);
    for (int n = 0; n < cases; n++) {
        tr_schedule_request q = {.ranks = 1 + (int)(draw(&seed) % 7),
                                 .micro_batches = 1 + (int)(draw(&seed) % 16),
                                 .chunks = (int)(draw(&seed) % 5)};
        q.share = (tr_stage_cost){.f = draw_real(&seed) + 0.1, .i = draw_real(&seed) + 0.1};
        q.share.w = draw_real(&seed);
        q.latency = draw_real(&seed) * 0.3;
        if (n % 5 == 0) {
            q.share = (tr_stage_cost){.f = 1, .i = 1, .w = 1};
            q.latency = 0;
        }
        q.share.m_b = 1 + draw_real(&seed);
        q.share.m_w = draw_real(&seed);
        if (n % 4 == 0) q.share.m_w += q.share.m_b; /* more after its I than before */
        double one = fmax(q.share.m_b, q.share.m_w);
        if (n % 3) q.cap = one * (1 + draw_real(&seed) * 1.5 * q.ranks);
        tr_auto_report report;
        expect_best(&q, make(&q, &report, n % 5 == 1).makespan);
    }
}

/* Where W holds more than F, three micro-batches fit only with whole B, and a micro-batch that fits
 * until its I has an order. */
static void test_whole_backwards_hold_less(void **state) {
    (void)state;
    tr_auto_report report;
    tr_schedule_request q = {.ranks = 3,
                             .micro_batches = 3,
                             .chunks = 1,
                             .share = {.f = 2.5, .i = 1, .w = 1, .m_b = 1, .m_w = 2},
                             .latency = 2,
                             .cap = 3};
    expect_best(&q, make(&q, &report, true).makespan);
    q.ranks = 1;
    q.cap = 1;
    assert_true(make(&q, &report, true).makespan == 3 * 4.5);
    /* The front of 1f1b-v fits, and two I before their W at its end do not. */
    q = (tr_schedule_request){.ranks = 2,
                              .micro_batches = 3,
                              .chunks = 2,
                              .share = {.f = 1, .i = 1, .w = 1.594, .m_b = 1, .m_w = 1.3},
                              .latency = 2,
                              .cap = 1.19};
    (void)make(&q, &report, true);
}

/* --- stages that differ ----------------------------------------------------------------------- */

/* Stages that differ: the first and the last are the longest. */
static tr_status describe_stages(void *context, int stages, tr_stage_table *t) {
    uint64_t seed = *(const uint64_t *)context + (uint64_t)stages;
    test_table_chain(stages, 0, 0, 0, t);
    for (int k = 0; k < stages; k++) {
        double more = k == 0 || k + 1 == stages ? 1.5 : 1;
        t->cost[k].f = more * (0.5 + draw_real(&seed)) / stages;
        t->cost[k].i = more * (0.5 + draw_real(&seed)) / stages;
        t->cost[k].w = more * draw_real(&seed) / stages;
    }
    return TR_OK;
}

static void evaluate(const tr_schedule_request *q, const tr_schedule *s, double *makespan,
                     double *peak) {
    tr_stage_table table;
    tr_estimate *e = NULL;
    assert_int_equal(describe_stages(q->context, s->stages, &table), TR_OK);
    for (int k = 0; k < s->stages; k++) {
        table.cost[k].m_b = q->share.m_b * s->ranks / s->stages;
        table.cost[k].m_w = q->share.m_w * s->ranks / s->stages;
    }
    tr_estimate_options options = {.table = &table, .latency = q->latency};
    if (tr_estimate_order(s, &options, &e) != TR_OK) fail_msg("%s", tr_error_message());
    *makespan = e->makespan;
    *peak = 0;
    for (int r = 0; r < e->ranks; r++) *peak = fmax(*peak, e->peak[r]);
    tr_estimate_destroy(e);
    tr_stage_table_free(&table);
}

/* With different costs of each stage the order takes the reported time, is not below the bound,
 * stays under the cap, and no generator's order is faster. */
static void test_stages_that_differ(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= (getenv("TRIREME_LONG") ? 200 : 8); seed++) {
        uint64_t random = seed;
        tr_schedule_request q = {.ranks = 2 + (int)(draw(&random) % 5),
                                 .micro_batches = 1 + (int)(draw(&random) % 12),
                                 .share = {.f = 1, .i = 1, .w = 0.5, .m_b = 1, .m_w = 0.6},
                                 .latency = 0.02,
                                 .most_chunks = 1 + (int)(draw(&random) % 4),
                                 .describe = describe_stages,
                                 .context = &seed};
        q.cap = q.ranks;
        tr_auto_report report;
        tr_schedule *s = NULL;
        double makespan, peak;
        if (tr_schedule_auto(&q, &report, &s) != TR_OK) fail_msg("%s", tr_error_message());
        assert_true(s->stages <= q.most_chunks * q.ranks);
        evaluate(&q, s, &makespan, &peak);
        tr_schedule_destroy(s);
        assert_true(fabs(makespan - report.makespan) < tolerance * makespan);
        assert_true(peak <= q.ranks * (1 + tolerance));
        assert_true(report.bound <= makespan * (1 + tolerance));
        const char *name;
        int chunks;
        for (int g = 0; tr_generate_get(g, &name, &chunks); g++)
            for (int v = 1; v <= q.most_chunks; v++) {
                if (strcmp(name, "auto") == 0 || strcmp(name, "forward") == 0) continue;
                if (chunks && v != chunks) continue;
                tr_schedule_request known = q;
                double other;
                known.name = name;
                known.chunks = v;
                if (tr_schedule_make(&known, &s) != TR_OK) fail_msg("%s", tr_error_message());
                evaluate(&q, s, &other, &peak);
                tr_schedule_destroy(s);
                if (peak <= q.ranks * (1 + tolerance) && other < makespan * (1 - tolerance))
                    fail_msg("seed %d, p %d, m %d: %s of %d chunks takes %g, auto %g", (int)seed,
                             q.ranks, q.micro_batches, name, v, other, makespan);
            }
    }
}

static void test_corners(void **state) {
    (void)state;
    static const int corners[][3] = {{1, 1, 0}, {1, 7, 0},  {1, 5, 3},  {4, 1, 0},  {5, 2, 2},
                                     {7, 3, 0}, {3, 13, 0}, {2, 17, 3}, {4, 11, 5}, {6, 7, 1}};
    for (size_t n = 0; n < sizeof corners / sizeof corners[0]; n++) {
        /* The smallest cap that any order can have, and no cap. */
        for (int cap = 0; cap < 2; cap++) {
            tr_schedule_request q = {.ranks = corners[n][0],
                                     .micro_batches = corners[n][1],
                                     .chunks = corners[n][2],
                                     .share = {.f = 1, .i = 1.5, .w = 0.5, .m_b = 1, .m_w = 0.5},
                                     .latency = 0.1,
                                     .cap = cap};
            tr_auto_report report;
            meter result = make(&q, &report, true);
            if (q.ranks == 1) assert_true(fabs(result.makespan / ideal(&q) - 1) < tolerance);
        }
    }
}

static void test_same_request_same_order(void **state) {
    (void)state;
    tr_schedule_request q = {.name = "auto",
                             .ranks = 4,
                             .micro_batches = 9,
                             .share = {.f = 1, .i = 1.4, .w = .6, .m_b = 1, .m_w = 0.94},
                             .latency = .1,
                             .cap = 4};
    tr_schedule *a = NULL, *b = NULL;
    char *one = NULL, *two = NULL;
    assert_int_equal(tr_schedule_make(&q, &a), TR_OK);
    assert_int_equal(tr_schedule_auto(&q, NULL, &b), TR_OK);
    assert_int_equal(tr_schedule_print(a, true, &one), TR_OK);
    assert_int_equal(tr_schedule_print(b, true, &two), TR_OK);
    assert_string_equal(one, two);
    free(one);
    free(two);
    tr_schedule_destroy(a);
    tr_schedule_destroy(b);
}

/* V-Min of four ranks holds two micro-batches, so `ahead` is drawn small; 0 would remove its limit
 * altogether. */
static void test_limits_stay_limits(void **state) {
    (void)state;
    tr_schedule_request q = {.ranks = 4,
                             .micro_batches = 8,
                             .share = {.f = 1, .i = 1, .w = 1, .m_b = 1, .m_w = 1},
                             .cap = 2};
    tr_auto_shape shape;
    assert_int_equal(tr_auto_shape_open(&q, 2, true, false, &shape), TR_OK);
    tr_auto_draws draws = {.seed = 1};
    for (int k = 0; k < 2000; k++) {
        tr_auto_rule rule = tr_auto_first_rule(&shape);
        rule.ahead[0] = rule.ahead[1] = q.micro_batches;
        rule = tr_auto_perturb(&draws, &shape, rule);
        for (int end = 0; end < 2; end++)
            if (!(rule.ahead[end] >= 1)) fail_msg("draw %d: ahead %g", k, rule.ahead[end]);
    }
    tr_auto_shape_close(&shape);
}

/* Makes the order of the request, with these rules or with its own, as text that the caller
 * frees. */
static char *print_order(tr_schedule_request q, tr_best_rules *rules) {
    tr_schedule *s = NULL;
    char *text = NULL;
    q.rules = rules;
    if (tr_generate_order(&q, &s) != TR_OK) fail_msg("%s: %s", q.name, tr_error_message());
    assert_int_equal(tr_schedule_print(s, false, &text), TR_OK);
    tr_schedule_destroy(s);
    return text;
}

/* Orders under a cap are the same with rules that other requests left, of which each differs from
 * another one in a single field; and an order of many micro-batches takes those of one with few. */
static void test_kept_rules_change_no_order(void **state) {
    (void)state;
    static const char *const names[] = {"zb-1p", "zb-2p", "v-half", "v-min", "1f1b-v"};
    enum { NAMES = sizeof names / sizeof *names, MANY = 2504, FIELDS = 10 };
    uint64_t seed[] = {1, 2};
    tr_best_rules rules = {0};
    for (int n = 0; n < NAMES * FIELDS; n++) {
        tr_schedule_request q = {.name = names[n % NAMES],
                                 .ranks = 4,
                                 .micro_batches = 8,
                                 .share = {.f = 1, .i = 1.2, .w = 0.8, .m_b = 1, .m_w = 0.6},
                                 .latency = 0.1};
        switch (n / NAMES) {
        case 1: q.micro_batches = 9; break;
        case 2: q.latency = 0.4; break;
        case 3: q.share.f = 2; break;
        case 4: q.share.w = 0.3; break;
        case 5: q.share.m_w = 1.4; break;
        case 6: q.cap = 1.5; break;
        case 7:
        case 8:
            q.describe = describe_stages;
            q.context = &seed[n / NAMES - 7];
            break;
        case 9: q.ranks = 3; break;
        default: break;
        }
        char *own = print_order(q, NULL), *kept = print_order(q, &rules);
        assert_string_equal(own, kept);
        free(own);
        free(kept);
    }
    const size_t count = rules.count;
    tr_schedule_request q = {.name = "zb-1p",
                             .ranks = 4,
                             .micro_batches = MANY,
                             .share = {.f = 1, .i = 1.2, .w = 0.8, .m_b = 1, .m_w = 0.6},
                             .latency = 0.1};
    char *own = print_order(q, NULL), *kept = print_order(q, &rules);
    assert_string_equal(own, kept);
    assert_int_equal(rules.count, count); /* none was searched for it */
    free(own);
    free(kept);
    tr_best_rules_free(&rules);
}

static void test_errors_say_what_is_wrong(void **state) {
    (void)state;
    tr_schedule *s = NULL;
    tr_schedule_request q = {
        .name = "auto", .ranks = 2, .micro_batches = 3, .share = {.m_b = 2, .m_w = 1}, .cap = 1.9};
    assert_int_equal(tr_schedule_make(&q, &s), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "at most 1.9"));
    q.cap = 0;
    q.micro_batches = 0;
    assert_int_equal(tr_schedule_make(&q, &s), TR_ERR_CONFIG);
    q.micro_batches = 1 << 24;
    assert_int_equal(tr_schedule_make(&q, &s), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(),
                        "8 stages of 16777216 micro-batches are too many for one schedule");
    assert_null(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beats_published_orders),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_never_worse_than_a_generator),
        cmocka_unit_test(test_whole_backwards_hold_less),
        cmocka_unit_test(test_stages_that_differ),
        cmocka_unit_test(test_corners),
        cmocka_unit_test(test_same_request_same_order),
        cmocka_unit_test(test_limits_stay_limits),
        cmocka_unit_test(test_kept_rules_change_no_order),
        cmocka_unit_test(test_errors_say_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
