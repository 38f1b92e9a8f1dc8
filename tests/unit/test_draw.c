/* Tests drawings: the text, an SVG that is well-formed XML, a trace that is JSON with arrows in
 * pairs and no overlaps on a track. */
#include "base/utf8.h"
#include "pipeline/draw/draw.h"
#include "support/generate_order.h"
#include "support/pipeline_cases.h"
#include "support/seed.h"
#include "support/trace_check.h"
#include "support/xml_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Makes the timelines of one order: from its estimate and from its lowered program. */
static void make(const tr_schedule *s, double c, tr_timeline **order, tr_timeline **program) {
    tr_stage_table t;
    tr_estimate *e = NULL;
    tr_program_set *set = NULL;
    tr_simulation *sim = NULL;
    tr_estimate_options options = {.latency = c, .times = true};
    test_table_chain(s->stages, 256, 256, 256, &t);
    assert_int_equal(tr_estimate_order(s, &options, &e), TR_OK);
    assert_int_equal(tr_timeline_of_estimate("order <&\">", s, NULL, e, order), TR_OK);
    assert_int_equal(tr_lower(s, &t, &set), TR_OK);
    assert_int_equal(tr_simulate(set, t.cost, &(tr_simulated_links){.near.latency = c}, &sim),
                     TR_OK);
    assert_int_equal(tr_timeline_of_simulation("program", set, sim, 1e-3, program), TR_OK);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_estimate_destroy(e);
    tr_stage_table_free(&t);
}

static tr_schedule *generate(const char *name, int p, int m) {
    tr_schedule *s = NULL;
    if (generate_order(name, p, p, m, &s) != TR_OK) fail_msg("%s", tr_error_message());
    return s;
}

/* The sum of a bucket is below the actions, and its own track in a trace; the wait is a bar and
 * '='. */
static void test_reductions(void **state) {
    (void)state;
    tr_stage_table t;
    tr_simulation *sim = NULL;
    tr_timeline *timeline = NULL;
    const tr_simulated_links links = {.sum.latency = 2};
    char *text = NULL;
    size_t size = 0;
    test_table_chain(1, 256, 256, 256, &t);
    tr_schedule *s = generate("gpipe", 1, 1);
    tr_program_set *set = NULL;
    assert_int_equal(tr_lower(s, &t, &set), TR_OK);
    assert_int_equal(tr_simulate(set, t.cost, &links, &sim), TR_OK);
    assert_int_equal(tr_timeline_of_simulation("program", set, sim, 0, &timeline), TR_OK);
    const tr_timeline *all[] = {timeline};
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(tr_draw_text(timeline, &(tr_draw_text_options){.width = 80}, out), TR_OK);
    assert_int_equal(tr_draw_svg(all, 1, &(tr_draw_svg_options){0}, out), TR_OK);
    assert_int_equal(tr_draw_trace(all, 1, out), TR_OK);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(text, "rank 0   F0B0--====  bubble 40.0%"));
    assert_non_null(strstr(text, "height=\"5\"><title>0REDUCE_START0: 3 to 5"));
    assert_non_null(strstr(text, "height=\"20\"><title>0REDUCE_WAIT0: 3 to 5"));
    assert_non_null(strstr(text, "Other: reductions"));
    assert_non_null(strstr(text, "\"name\":\"reductions\""));
    assert_non_null(strstr(text, "\"cat\":\"reduce\""));
    free(text);
    tr_timeline_destroy(timeline);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

static void test_text(void **state) {
    (void)state;
    tr_schedule *s = generate("1f1b", 2, 2);
    tr_timeline *order = NULL, *program = NULL;
    make(s, 0, &order, &program);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(tr_draw_text(order, &(tr_draw_text_options){.width = 100}, out), TR_OK);
    fclose(out);
    assert_string_equal(text, "order <&\">: makespan 9\n"
                              "rank 0   F0F1....B0--..B1--  bubble 33.3%\n"
                              "rank 1   ..F0B0--F1B1--....  bubble 33.3%\n");
    free(text);
    out = open_memstream(&text, &size);
    /* Too narrow for names: only letters. Then with colours. */
    assert_int_equal(
        tr_draw_text(program, &(tr_draw_text_options){.width = 20, .colour = true}, out), TR_OK);
    fclose(out);
    assert_non_null(strstr(text, "\033[30;46m"));
    assert_non_null(strstr(text, "\033[0m"));
    free(text);
    tr_timeline_destroy(order);
    tr_timeline_destroy(program);
    tr_schedule_destroy(s);
}

static void test_svg(void **state) {
    (void)state;
    assert_true(test_is_xml("<a b=\"c\"><d/>x&lt;</a>"));
    assert_false(test_is_xml("<a><b></a></b>") || test_is_xml("<a>&</a>") ||
                 test_is_xml("<a b=c/>"));
    tr_schedule *s = generate("1f1b", 4, 100);
    tr_timeline *t[2] = {NULL, NULL};
    make(s, 0.1, &t[0], &t[1]);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(tr_draw_svg((const tr_timeline *const *)t, 2, &(tr_draw_svg_options){0}, out),
                     TR_OK);
    fclose(out);
    assert_true(test_is_xml(text));
    assert_int_equal(test_count(text, "<rect class=\"F"), 2 * 4 * 100 + 1);
    assert_int_equal(test_count(text, "<rect class=\"B"), 2 * 4 * 100 + 1);
    assert_int_equal(test_count(text, ">rank "), 2 * 4);
    assert_non_null(strstr(text, "order &lt;&amp;\"&gt;: makespan"));
    free(text);
    tr_timeline_destroy(t[0]);
    tr_timeline_destroy(t[1]);
    tr_schedule_destroy(s);
}

/* Makes steps 5, 6, ... of 2 ranks, 10 ms each, with 8 F of 1 ms and an optimizer step of 1 ms. */
static tr_timeline *make_steps(int steps) {
    tr_timeline *t;
    assert_int_equal(tr_timeline_create("measured", 2, 2, 8, 1, &t), TR_OK);
    t->first_step = 5;
    for (int s = 0; s < steps; s++)
        for (int k = 0; k < 18; k++) {
            double start = 0.01 * s + 0.001 * (k % 9);
            assert_int_equal(
                tr_timeline_add(
                    t, (tr_bar){.rank = k / 9,
                                .action = {.stage = k / 9,
                                           .type = k % 9 < 8 ? TR_ACTION_F : TR_ACTION_FINISH,
                                           .micro_batch = k % 9},
                                .peer = -1,
                                .message = -1,
                                .step = s,
                                .start = start,
                                .end = start + 0.001}),
                TR_OK);
        }
    assert_int_equal(tr_timeline_finish(t, 0), TR_OK);
    return t;
}

static void steps_fit_their_width(void **state) {
    (void)state;
    for (int steps = 1; steps <= 100; steps = steps * 3 + 1) {
        tr_timeline *t = make_steps(steps);
        const tr_timeline *const drawn[] = {t};
        const tr_draw_svg_options options = {.width = 1000};
        int shown;
        size_t events;
        tr_draw_svg_size(drawn, 1, &options, &shown, &events);
        assert_int_equal(shown, steps < 12 ? steps : 12); /* 816 pixels, 8 actions of 8 pixels */
        assert_int_equal(events, 18 * shown);
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);
        assert_int_equal(tr_draw_svg(drawn, 1, &options, out), TR_OK);
        fclose(out);
        assert_true(test_is_xml(text));
        assert_non_null(strstr(text, " width=\"1000\" "));
        assert_int_equal(test_count(text, "<line class=\"s\""), shown);
        assert_non_null(strstr(text, ">step 5<"));
        assert_null(strstr(text, ">step 17<"));
        assert_non_null(strstr(text, ">0 ms<"));
        assert_true(test_count(text, " ms<") > 2);
        assert_non_null(strstr(text, steps > 1 ? ": makespan 0.008 s a step, bubble 0.0%"
                                               : ": makespan 0.008 s, bubble 0.0%"));
        for (const char *x = text; (x = strstr(x, "<rect class=\"")); x++) {
            double left, width;
            assert_int_equal(sscanf(strstr(x, " x="), " x=\"%lf\"", &left), 1);
            assert_int_equal(sscanf(strstr(x, " width="), " width=\"%lf\"", &width), 1);
            assert_true(left >= 64 && left + width <= 1000);
        }
        free(text);
        tr_timeline_destroy(t);
    }
}

/* Returns the number of messages: each micro-batch crosses every stage boundary between ranks
 * twice. */
static int messages_of(const tr_schedule *s) {
    int crossings = 0;
    for (int k = 0; k + 1 < s->stages; k++) crossings += s->rank_of[k] != s->rank_of[k + 1];
    return 2 * crossings * s->micro_batches;
}

static void expect_traces(const tr_schedule *s, double c) {
    tr_timeline *t[2] = {NULL, NULL};
    make(s, c, &t[0], &t[1]);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(tr_draw_trace((const tr_timeline *const *)t, 2, out), TR_OK);
    fclose(out);
    trace_facts facts;
    int actions = 0;
    for (int r = 0; r < s->ranks; r++) actions += s->count[r];
    const char *fault = trace_fault(text, &facts);
    if (fault) fail_msg("%s", fault);
    assert_int_equal(facts.arrows, 2 * messages_of(s));
    assert_int_equal(facts.slices, 2 * actions + 2 * facts.arrows);
    assert_int_equal(facts.processes, 2 * s->ranks);
    free(text);
    tr_timeline_destroy(t[0]);
    tr_timeline_destroy(t[1]);
}

static void test_trace(void **state) {
    (void)state;
    test_random r = {tr_test_seed(7700)};
    for (int trial = 0; trial < 40; trial++) {
        int ranks = test_between(&r, 1, 4), stages = ranks * test_between(&r, 1, 3);
        tr_stage_table t;
        test_table_chain(stages, 256, 256, 256, &t);
        tr_schedule *s = test_schedule_random(&r, &t, ranks, test_between(&r, 1, 6));
        expect_traces(s, 0.3 * test_between(&r, 0, 9));
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
    tr_schedule *s = generate("1f1b", 4, 30);
    expect_traces(s, 0.5);
    tr_schedule_destroy(s);
}

/* Writes the trace of two actions of 0 to `time` and to twice that, in a unit without seconds. */
static char *trace_of(double time) {
    tr_timeline *t;
    char *text = NULL;
    size_t size;
    assert_int_equal(tr_timeline_create("units", 1, 1, 2, 0, &t), TR_OK);
    for (int k = 0; k < 2; k++)
        assert_int_equal(
            tr_timeline_add(t, (tr_bar){.peer = -1, .start = k * time, .end = (k + 1) * time}),
            TR_OK);
    assert_int_equal(tr_timeline_finish(t, 0), TR_OK);
    const tr_timeline *const all[] = {t};
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(tr_draw_trace(all, 1, out), TR_OK);
    fclose(out);
    tr_timeline_destroy(t);
    return text;
}

/* Costs may be FLOPs, or seconds. */
static void test_trace_of_any_unit(void **state) {
    (void)state;
    static const struct {
        double time;
        const char *text;
    } cases[] = {{2, "\"ts\":2000.000,\"dur\":2000.000"},
                 {2e14, "\"ts\":200000000000.000,\"dur\":200000000000.000"},
                 {1e30, "\"ts\":1000000000.000,\"dur\":1000000000.000"},
                 {2e-9, "\"ts\":2.000,\"dur\":2.000"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char *text = trace_of(cases[k].time);
        if (!strstr(text, cases[k].text)) fail_msg("%g: %s", cases[k].time, text);
        free(text);
    }
}

/* A trace is UTF-8, also with the name of a file that is long or is not UTF-8. */
static void titles_are_utf8(void **state) {
    (void)state;
    char title[200] = "x\xff";
    for (size_t k = 2; k + 2 < sizeof title; k += 2) memcpy(title + k, "\u00e9", 3);
    for (int from = 0; from < 3; from++) {
        tr_timeline *t;
        assert_int_equal(tr_timeline_create(title + from, 1, 1, 1, 0, &t), TR_OK);
        assert_true(tr_utf8_is_valid((const uint8_t *)t->title, strlen(t->title)));
        assert_int_equal(strlen(t->title), sizeof t->title - 1);
        tr_timeline_destroy(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions), cmocka_unit_test(test_text),
        cmocka_unit_test(test_svg),        cmocka_unit_test(steps_fit_their_width),
        cmocka_unit_test(test_trace),      cmocka_unit_test(test_trace_of_any_unit),
        cmocka_unit_test(titles_are_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
