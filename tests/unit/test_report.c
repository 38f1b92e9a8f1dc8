/* Tests the report of a run: it is well-formed, has the right numbers, and is written completely or
 * not at all; also its charts. */
#include "pipeline/orders/make.h"
#include "support/pipeline_cases.h"
#include "support/scratch.h"
#include "support/xml_check.h"
#include "train/plot.h"
#include "train/report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static tr_config config;

/* Makes a new config with the run directory <scratch>/<name>, and the directory. */
static void use_directory(const char *name) {
    char text[256];
    (void)snprintf(text, sizeof text, "{data.path: a, log.dir: \"%s/%s\"}", scratch, name);
    assert_int_equal(tr_config_parse(text, strlen(text), "x.yaml", NULL, 0, &config), TR_OK);
    assert_int_equal(mkdir(config.log.dir, 0755), 0);
}

static FILE *open_file(const char *name, const char *mode) {
    char path[1200];
    (void)snprintf(path, sizeof path, "%s/%s", config.log.dir, name);
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    return f;
}

static void write_lines(const char *lines) {
    FILE *f = open_file("metrics.jsonl", "a");
    assert_true(fputs(lines, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Returns the page without its first line, after checking it. The caller frees it. */
static char *read_page(void) {
    FILE *f = open_file("report.html", "r");
    char *text = NULL;
    size_t size = 0;
    assert_true(getdelim(&text, &size, '\0', f) > 0);
    (void)fclose(f);
    char *page = strchr(text, '\n');
    assert_non_null(page);
    assert_int_equal(strncmp(text, "<!DOCTYPE html>", 15), 0);
    memmove(text, page + 1, strlen(page + 1) + 1);
    assert_true(test_is_xml(text));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "href"));
    assert_null(strstr(text, "src="));
    return text;
}

static void has(const char *text, const char *word) {
    if (!strstr(text, word)) fail_msg("there is no '%s' in:\n%s", word, text);
}

/* Fails unless every point of every line is within the axes. */
static void lies_inside(const char *text) {
    for (const char *path = text; (path = strstr(path, " d=\"M"));) {
        double x, y;
        int used;
        for (path += 4; sscanf(path + 1, "%lf %lf%n", &x, &y, &used) == 2; path += 1 + used)
            if (x < 62 || x > 542 || y < 40 || y > 224)
                fail_msg("(%g, %g) is outside of the axes", x, y);
    }
}

static char *draw(const tr_plot *plot) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(tr_plot_svg(plot, out), TR_OK);
    (void)fclose(out);
    assert_true(test_is_xml(text));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    lies_inside(text);
    return text;
}

static char *draw_values(const double *x, const double *y, size_t count) {
    const tr_series series = {"s", x, y, count, false};
    return draw(&(tr_plot){"t", "x", &series, 1, true, false});
}

static void ticks_are_round(void **state) {
    (void)state;
    const double x[] = {1, 100}, y[] = {0, 4.1}, rate[] = {0, 6e-4}, speed[] = {0, 2.4e6};
    const tr_series two[] = {{"a <b>", x, y, 2, false}, {"dots & all", x, y, 2, true}};
    char *text = draw(
        &(tr_plot){"<title\u00e9\xc2\x9f\xff\t\xef\xbf\xbf>", "step & more", two, 2, true, true});
    const char *const words[] = {">0<",
                                 ">1<",
                                 ">2<",
                                 ">3<",
                                 ">4<",
                                 ">20<",
                                 ">100<",
                                 ">a &lt;b&gt;<",
                                 ">dots &amp; all<",
                                 ">&lt;title\u00e9\x3f\x3f\x3f\x3f&gt;<",
                                 ">step &amp; more<"};
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) has(text, words[k]);
    assert_int_equal(test_count(text, "<circle"), 2);
    free(text);
    text = draw_values(x, rate, 2);
    has(text, ">2e-4<");
    has(text, ">6e-4<");
    free(text);
    text = draw_values(x, speed, 2);
    has(text, ">0.5M<");
    has(text, ">2.0M<");
    free(text);
}

static void odd_values_are_drawn(void **state) {
    (void)state;
    const double x[] = {1, 2, 3, 4, 5};
    const double gaps[] = {1, 2, NAN, INFINITY, 3}, flat[] = {7, 7, 7, 7, 7};
    const double huge[] = {-1.7e308, 1.7e308, 0, 5e-324, 1}, none[] = {NAN, NAN, NAN, NAN, NAN};
    const double close[] = {1e17, 1e17 + 16, 1e17, 1e17, 1e17};
    char *text = draw_values(x, gaps, 5);
    assert_int_equal(test_count(text, "<path"), 1);
    assert_int_equal(test_count(text, "<circle"), 1); /* the single value */
    free(text);
    text = draw_values(x, flat, 5);
    has(text, ">7.0<");
    free(text);
    free(draw_values(x, huge, 5));
    free(draw_values(x, close, 5));
    const double *const empty[] = {none, gaps};
    for (size_t k = 0; k < 2; k++) {
        text = draw_values(x, empty[k], k == 0 ? 5 : 0);
        has(text, ">no values<");
        free(text);
    }
    text = draw_values(x, flat, 1);
    assert_int_equal(test_count(text, "<circle"), 1);
    free(text);
}

/* When a curve of many points is thinned out, its spikes remain. */
static void long_curves_keep_their_spikes(void **state) {
    (void)state;
    enum { N = 100000 };
    double *x, *y;
    assert_int_equal(tr_calloc(N, sizeof *x, &x), TR_OK);
    assert_int_equal(tr_calloc(N, sizeof *y, &y), TR_OK);
    for (int k = 0; k < N; k++) {
        x[k] = k;
        y[k] = k % 2;
    }
    char *text = draw_values(x, y, N);
    int points = test_count(text, "L");
    assert_true(points > 1000 && points < TR_PLOT_MOST);
    free(text);
    /* One spike after the smallest value of its part, one before it. */
    y[31234] = 50;
    y[71200] = 1;
    y[71201] = 50;
    text = draw_values(x, y, N);
    has(text, ">50<");
    char *path = strchr(strstr(text, " d=\""), 'M');
    double at, value, where[2] = {0, 0};
    int spikes = 0;
    for (int used; sscanf(path + 1, "%lf %lf%n", &at, &value, &used) == 2; path += 1 + used)
        if (value < 100 && spikes++ < 2) where[spikes - 1] = at;
    assert_int_equal(spikes, 2);
    assert_true(fabs(where[0] - (62 + 480.0 * 31234 / (N - 1))) < 0.1);
    assert_true(fabs(where[1] - (62 + 480.0 * 71201 / (N - 1))) < 0.1);
    free(text);
    free(x);
    free(y);
}

/* Makes a timeline of two ranks: one is busy for 3 of 4 units, the other for 4. */
static tr_timeline *make_timeline(double seconds) {
    tr_timeline *t;
    assert_int_equal(tr_timeline_create("made <up>", 2, 2, 3, seconds, &t), TR_OK);
    for (int k = 0; k < 7; k++)
        assert_int_equal(
            tr_timeline_add(t, (tr_bar){.rank = k >= 3,
                                        .action = {.stage = k >= 3, .micro_batch = k % 3},
                                        .peer = -1,
                                        .message = -1,
                                        .start = k >= 3 ? k - 3 : k,
                                        .end = k >= 3 ? k - 2 : k + 1}),
            TR_OK);
    assert_int_equal(tr_timeline_finish(t, 0), TR_OK);
    return t;
}

static void numbers_are_there(void **state) {
    (void)state;
    const size_t mib = 1 << 20;
    tr_memory_rank memory[2] = {
        {.plan = {.of = {3 * mib, 5 * mib, 7 * mib, 11 * mib, 17 * mib, 13 * mib, 2 * mib},
                  .live_peak = 10 * mib,
                  .total = 58 * mib},
         .taken = {3 * mib, 5 * mib, 7 * mib, 11 * mib, 19 * mib, 13 * mib, 2 * mib},
         .taken_total = 60 * mib}};
    tr_timeline *timeline = make_timeline(0);
    const tr_timeline *const timelines[] = {timeline};
    use_directory("num <b> & bers \u00e9\u65e5");
    write_lines("{\"step\":1,\"loss\":5.5,\"grad_norm\":2.5,\"lr\":0.001,\"tokens_per_s\":1000}\n"
                "what is not a record\n\n[1]\n{\"loss\":9}\n"
                "{\"step\":2,\"loss\":null,\"grad_norm\":null,\"lr\":0.002,\"tokens_per_s\":4000}\n"
                "{\"step\":3,\"loss\":3.25,\"grad_norm\":1.5,\"lr\":0.003,\"tokens_per_s\":3000,"
                "\"val_loss\":3.125}\n{\"step\":4,\"lo");
    const tr_waits waits[2] = {{.steps = 8, .messages = 1, .gradients = 0.24, .tensor = 3},
                               {.steps = 8, .messages = 0.1}};
    const tr_step_traffic traffic = {
        .of = {[TR_TRAFFIC_COPIES] = {12, 3.25 * (double)mib, 2, 1, TR_REACH_INSIDE_HOSTS},
               [TR_TRAFFIC_STEPS] = {.count = 1, .exposed = 2}},
        .makespan = 8};
    const tr_report report = {.config = &config,
                              .memory = memory,
                              .waits = waits,
                              .ranks = 2,
                              .traffic = &traffic,
                              .timelines = timelines,
                              .timelines_count = 1};
    assert_int_equal(tr_report_write(&report), TR_OK);
    char *text = read_page();
    const char *const words[] = {("the host and back</th><td class=\"number\">12</td><td "
                                  "class=\"number\">3.25</td><td class=\"number\">25.0%</td><td "
                                  "class=\"number\">12.5%</td></tr>\n<tr><th>the optimizer on"),
                                 "num &lt;b&gt; &amp; bers \u00e9\u65e5<",
                                 "3.2500 nats a token",
                                 "3.1250 nats a token after step 3",
                                 "3000 tokens/s",
                                 ">3.00<",
                                 ">5.00<",
                                 ">7.00<",
                                 ">11.00<",
                                 ">13.00<",
                                 ">10.00<",
                                 ">58.00<",
                                 ">17.00<",
                                 ">19.00<",
                                 ">2.00<",
                                 ">60.00<",
                                 "made &lt;up&gt;",
                                 "bubble 25.0%",
                                 ">75.0%<",
                                 ">100.0%<",
                                 ("rank 0 waits</th><td class=\"number\">12.5%</td><td "
                                  "class=\"number\">3.0%</td><td class=\"number\">37.5%</td>"),
                                 "rank 1 waits</th><td class=\"number\">1.2%</td>"};
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) has(text, words[k]);
    assert_int_equal(test_count(text, "<svg"), 6);
    assert_int_equal(test_count(text, "no values"), 0);
    free(text);
    tr_timeline_destroy(timeline);
}

/* Reads where the rectangle begins and ends that has `what` after its first attributes. */
static void read_bar(const char *text, const char *what, double *begin, double *end) {
    const char *at = strstr(text, what);
    double width;
    assert_non_null(at);
    while (at > text && strncmp(at, "<rect", 5) != 0) at--;
    assert_int_equal(sscanf(at, "<rect x=\"%lf\" y=\"%*d\" width=\"%lf\"", begin, &width), 2);
    *end = *begin + width;
}

/* On a device in host memory the snapshot is part of a rank's bar, which ends at what was taken. */
static void bars_have_the_snapshot(void **state) {
    (void)state;
    const size_t mib = 1 << 20;
    tr_memory_rank memory = {
        .plan = {.of = {[TR_MEMORY_PARAMETERS] = 3 * mib, [TR_MEMORY_SNAPSHOT] = 5 * mib},
                 .total = 8 * mib},
        .taken_total = 8 * mib};
    const tr_report report = {.config = &config, .memory = &memory, .ranks = 1};
    double begin[2], end[2], mark, past;
    use_directory("snapshot");
    assert_int_equal(tr_report_write(&report), TR_OK);
    char *text = read_page();
    read_bar(text, "<title>parameters 3.00 MiB", &begin[0], &end[0]);
    read_bar(text, "<title>snapshot 5.00 MiB", &begin[1], &end[1]);
    read_bar(text, "height=\"22\"", &mark, &past);
    assert_true(begin[1] == end[0] && end[1] == mark + 1);
    assert_true(fabs((end[1] - begin[1]) * 3 - (end[0] - begin[0]) * 5) < 0.5);
    free(text);
    memory.plan.apart = true; /* and on others it is not */
    memory.plan.total = memory.taken_total = 3 * mib;
    assert_int_equal(tr_report_write(&report), TR_OK);
    text = read_page();
    assert_int_equal(test_count(text, "<title>snapshot"), 0);
    read_bar(text, "<title>parameters 3.00 MiB", &begin[0], &end[0]);
    assert_true(end[0] == mark + 1);
    free(text);
}

static void little_is_enough(void **state) {
    (void)state;
    const tr_report report = {.config = &config};
    use_directory("nothing");
    assert_int_equal(tr_report_write(&report), TR_OK);
    char *text = read_page();
    assert_int_equal(test_count(text, "no values"), 4);
    free(text);
    use_directory("one");
    write_lines("{\"step\":1,\"loss\":5.5,\"grad_norm\":2.5,\"lr\":0.001,\"tokens_per_s\":1000}\n");
    assert_int_equal(tr_report_write(&report), TR_OK);
    text = read_page();
    assert_int_equal(test_count(text, "<circle"), 4);
    free(text);
}

/* A timeline that is too large for a browser is replaced by its tables. */
static void a_long_timeline_is_a_table(void **state) {
    (void)state;
    tr_timeline *t;
    assert_int_equal(tr_timeline_create("long", 100, 1, 1, 0, &t), TR_OK);
    for (int k = 0; k < 30000; k++)
        assert_int_equal(
            tr_timeline_add(t, (tr_bar){.rank = k % 100, .start = k / 100, .end = k / 100 + 0.5}),
            TR_OK);
    assert_int_equal(tr_timeline_finish(t, 300), TR_OK);
    const tr_timeline *const timelines[] = {t};
    const tr_report report = {.config = &config, .timelines = timelines, .timelines_count = 1};
    use_directory("long");
    assert_int_equal(tr_report_write(&report), TR_OK);
    char *text = read_page();
    assert_int_equal(test_count(text, "<svg"), 4);
    has(text, "30000 events are too many");
    has(text, "36 more ranks are not shown");
    assert_int_equal(test_count(text, "<td class=\"number\">50.0%</td>"), 64 * 2);
    free(text);
    tr_timeline_destroy(t);
}

/* Of a timeline with more actions than the page has room for, the first steps are drawn, and the
 * page says how many. */
static void the_first_steps_are_drawn(void **state) {
    (void)state;
    const struct {
        int actions;
        const char *note;
    } cases[] = {{1000, " The first of 6 steps is drawn; the numbers are of all."},
                 {60, " The first 2 of 6 steps are drawn; the numbers are of all."},
                 {1, NULL}};
    use_directory("steps");
    for (int i = 0; i < 3; i++) {
        const int actions = cases[i].actions;
        tr_timeline *t;
        assert_int_equal(tr_timeline_create("steps", 1, 1, 6, 1, &t), TR_OK);
        for (int k = 0; k < 6 * actions; k++)
            assert_int_equal(
                tr_timeline_add(t, (tr_bar){.step = k / actions, .start = k, .end = k + 1}), TR_OK);
        assert_int_equal(tr_timeline_finish(t, 6 * actions), TR_OK);
        const tr_timeline *const timelines[] = {t};
        const tr_report report = {.config = &config, .timelines = timelines, .timelines_count = 1};
        assert_int_equal(tr_report_write(&report), TR_OK);
        char *text = read_page();
        if (cases[i].note) has(text, cases[i].note);
        else assert_null(strstr(text, "drawn; the numbers"));
        free(text);
        tr_timeline_destroy(t);
    }
}

static void a_hundred_thousand_steps_take_no_time(void **state) {
    (void)state;
    use_directory("many");
    FILE *f = open_file("metrics.jsonl", "w");
    for (int step = 1; step <= 100000; step++) {
        (void)fprintf(f,
                      "{\"step\":%d,\"loss\":%.17g,\"grad_norm\":%.17g,\"lr\":%.17g,"
                      "\"tokens_per_s\":%.17g",
                      step, 2 + 3 / sqrt(step), 1 + 0.1 * sin(step), 1e-3 / step,
                      1e4 + 100 * cos(step));
        if (step % 10 == 0) (void)fprintf(f, ",\"val_loss\":%.17g", 2.1 + 3 / sqrt(step));
        (void)fputs("}\n", f);
    }
    assert_int_equal(fclose(f), 0);
    const tr_report report = {.config = &config};
    clock_t begin = clock();
    assert_int_equal(tr_report_write(&report), TR_OK);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    printf("100,000 steps: %.3f s\n", seconds);
#ifdef __SANITIZE_ADDRESS__
    assert_true(seconds < 10);
#else
    assert_true(seconds < 1);
#endif
    char *text = read_page();
    assert_true(strlen(text) < 200000);
    has(text, ">100k<");
    free(text);
}

static void it_is_written_whole_or_not_at_all(void **state) {
    (void)state;
    char temporary[1200], path[1200];
    const tr_report report = {.config = &config};
    use_directory("whole");
    (void)snprintf(temporary, sizeof temporary, "%s/report.html.tmp", config.log.dir);
    (void)snprintf(path, sizeof path, "%s/report.html", config.log.dir);
    assert_int_equal(tr_report_write(&report), TR_OK);
    assert_int_not_equal(access(temporary, F_OK), 0);
    char *before = read_page();
    write_lines("{\"step\":1,\"loss\":5.5,\"grad_norm\":2.5,\"lr\":0.001,\"tokens_per_s\":1000}\n");
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(symlink("/dev/full", temporary), 0);
        assert_int_equal(tr_report_write(&report), TR_ERR_IO);
        assert_non_null(strstr(tr_error_message(), "No space left"));
        assert_int_not_equal(access(temporary, F_OK), 0);
    }
    assert_int_equal(mkdir(temporary, 0755), 0);
    assert_int_equal(tr_report_write(&report), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), path));
    char *after = read_page();
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_int_equal(rmdir(temporary), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(tr_report_write(&report), TR_ERR_DATA);
    assert_int_not_equal(access(temporary, F_OK), 0);
}

/* With 1F1B, 2 ranks and 4 micro-batches, a rank is idle for 1 of 5 slots, whatever the unit of the
 * costs. */
static void the_plan_is_the_simulated_step(void **state) {
    (void)state;
    tr_schedule *schedule;
    tr_program_set *set;
    tr_timeline *planned = NULL;
    tr_stage_table table;
    const tr_schedule_request request = {.name = "1f1b", .ranks = 2, .micro_batches = 4};
    test_table_chain(2, 256, 256, 256, &table);
    for (int s = 0; s < 2; s++) table.cost[s].f = table.cost[s].i = table.cost[s].w = 5e12;
    assert_int_equal(tr_schedule_open(&request, &schedule), TR_OK);
    assert_int_equal(tr_lower(schedule, &table, &set), TR_OK);
    assert_int_equal(tr_report_plan(set, &table, &(tr_simulated_links){0}, &planned), TR_OK);
    assert_true(fabs(planned->makespan - 15) < 1e-9);
    for (int r = 0; r < 2; r++) assert_true(fabs(planned->time[r].busy - 12) < 1e-9);
    tr_timeline_destroy(planned);
    tr_program_set_destroy(set);
    tr_schedule_destroy(schedule);
    tr_stage_table_free(&table);
}

/* The times of links have the unit of the costs: copies that take two F make a step of 12 last
 * 15. */
static void the_plan_has_the_times_of_copies(void **state) {
    (void)state;
    tr_schedule *schedule;
    tr_program_set *set;
    tr_timeline *planned = NULL;
    tr_stage_table table;
    const tr_schedule_request request = {.name = "gpipe", .ranks = 1, .micro_batches = 4};
    const tr_simulated_links links = {.copy.per_byte = 2 * 5e12 / 512};
    test_table_chain(1, 256, 256, 256, &table);
    table.cost[0].f = table.cost[0].i = table.cost[0].w = 5e12;
    table.cost[0].offload = true;
    assert_int_equal(tr_schedule_open(&request, &schedule), TR_OK);
    assert_int_equal(tr_lower(schedule, &table, &set), TR_OK);
    assert_int_equal(tr_report_plan(set, &table, &links, &planned), TR_OK);
    assert_true(fabs(planned->makespan - 15) < 1e-9);
    tr_timeline_destroy(planned);
    tr_program_set_destroy(set);
    tr_schedule_destroy(schedule);
    tr_stage_table_free(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_are_round),
        cmocka_unit_test(odd_values_are_drawn),
        cmocka_unit_test(long_curves_keep_their_spikes),
        cmocka_unit_test(numbers_are_there),
        cmocka_unit_test(bars_have_the_snapshot),
        cmocka_unit_test(little_is_enough),
        cmocka_unit_test(a_long_timeline_is_a_table),
        cmocka_unit_test(the_first_steps_are_drawn),
        cmocka_unit_test(a_hundred_thousand_steps_take_no_time),
        cmocka_unit_test(it_is_written_whole_or_not_at_all),
        cmocka_unit_test(the_plan_is_the_simulated_step),
        cmocka_unit_test(the_plan_has_the_times_of_copies),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
