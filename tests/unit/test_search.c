/* Tests the search over layouts against plans of all of them, and sketches against plans. */
#include "support/all_layouts.h"
#include "support/plan_config.h"

#include "partition/offload_choice.h"
#include "partition/run_plan.h"
#include "partition/search.h"
#include "partition/search_estimate.h"
#include "partition/traffic.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static tr_device *device;

static int open_cpu(void **state) {
    (void)state;
    return tr_device_open("cpu", &one_thread, &device) == TR_OK ? 0 : 1;
}

static int close_cpu(void **state) {
    (void)state;
    tr_device_close(device);
    return 0;
}

/* Larger micro-batches are a little faster, as on a device. */
static tr_status rate_of(void *context, const tr_config *c, double *rate) {
    const double *alone = context;
    *rate = *alone * (1 + 0.02 * (double)c->train.micro_batch);
    return TR_OK;
}

static tr_status search(const tr_config *config, int ranks, unsigned kept, double rate,
                        tr_search *out) {
    const tr_search_request request = {.config = config,
                                       .device = device,
                                       .ranks = ranks,
                                       .kept = kept,
                                       .rate = rate_of,
                                       .context = &rate};
    return tr_search_make(&request, out);
}

/* Plans a choice in full. Returns false when it is refused, or does not fit. */
static bool plan_choice(const tr_config *config, const tr_layout_choice *x, double rate,
                        tr_found *out) {
    tr_config c = *config;
    tr_run_plan *p;
    tr_step_traffic traffic;
    tr_layout_choice_apply(x, 0, &c);
    assert_int_equal(rate_of(&rate, &c, &rate), TR_OK);
    if (tr_run_plan_make(&c, device, &p) != TR_OK) return false;
    assert_int_equal(tr_traffic_of(&c, p->layout, rate, &traffic), TR_OK);
    *out = (tr_found){.choice = *x,
                      .seconds = traffic.makespan / rate,
                      .bytes = p->memory[tr_run_plan_largest(p)].total};
    const bool fits = tr_run_plan_fits(p);
    tr_run_plan_destroy(p);
    return fits;
}

/* The shortest step of a mesh: of layouts that do not offload activations, or, when none of them
 * fits, of those that do. */
typedef struct truth {
    tr_found best;
} truth;

enum { MOST_MESHES = 16 };

/* The plans of all layouts. */
typedef struct truths {
    const tr_config *config;
    unsigned kept; /* train.recompute, or nothing */
    double rate;
    int meshes;
    truth of[MOST_MESHES]; /* [meshes] */
} truths;

static bool same_mesh(const tr_layout_choice *a, const tr_layout_choice *b) {
    return a->pp == b->pp && a->tp == b->tp && a->dp == b->dp;
}

/* Returns true when the choice fits. */
static bool take_choice(truths *t, const tr_layout_choice *x) {
    tr_found found;
    int k = 0;
    if (!plan_choice(t->config, x, t->rate, &found)) return false;
    while (k < t->meshes && !same_mesh(&t->of[k].best.choice, x)) k++;
    assert_true(k < MOST_MESHES);
    if (k == t->meshes) t->of[t->meshes++] = (truth){.best = found};
    truth *of = &t->of[k];
    const int copies = x->offload.stages > 0, best = of->best.choice.offload.stages > 0;
    if (copies < best || (copies == best && found.seconds < of->best.seconds)) of->best = found;
    return true;
}

/* Names only as many stages as suffice. */
static void take_stages(truths *t, tr_layout_choice x) {
    tr_config c = *t->config;
    tr_run_plan *p;
    tr_layout_choice_apply(&x, 0, &c);
    assert_int_equal(tr_run_plan_make(&c, device, &p), TR_OK);
    const int stages = p->layout->desc.schedule->stages;
    tr_run_plan_destroy(p);
    assert_int_equal(tr_offload_narrow(&c, device, stages), TR_OK);
    assert_true(tr_config_offload(&c, &x.offload));
    assert_true(take_choice(t, &x));
}

static void try_choice(void *context, const tr_layout_choice *choice) {
    truths *t = context;
    tr_layout_choice x = *choice;
    if (t->kept && x.recompute != TR_RECOMPUTE_NONE) return;
    if (take_choice(t, &x) || tr_config_on_host(t->config)) return;
    for (int k = 0; k < TR_OFFLOAD_CHOICES; k++) {
        x.offload = tr_offload_choices[k];
        if (take_choice(t, &x) && x.offload.stages > 0) take_stages(t, x);
    }
}

/* Returns true when the search has the best layout of a mesh; fails when what it has is more than
 * 1 % longer. */
static bool has_best(const tr_search *s, const truth *t) {
    const tr_layout_choice *best = &t->best.choice;
    int k = 0;
    while (k < s->count && !same_mesh(&s->found[k].choice, best)) k++;
    if (k == s->count) fail_msg("pp %d tp %d is missing", (int)best->pp, (int)best->tp);
    if (s->found[k].seconds > 1.01 * t->best.seconds)
        fail_msg("pp %d tp %d: %g s with %s, %g with %s", (int)best->pp, (int)best->tp,
                 s->found[k].seconds, s->found[k].choice.schedule, t->best.seconds, best->schedule);
    return s->found[k].seconds <= t->best.seconds * (1 + 1e-9);
}

/* Compares a search with plans of all layouts. Returns how many meshes have the best one. */
static int compare(const tr_config *config, int ranks, unsigned kept, double rate, int *meshes) {
    truths t = {.config = config, .kept = kept, .rate = rate};
    tr_search s;
    double last = 0;
    int same = 0;
    assert_int_equal(search(config, ranks, kept, rate, &s), TR_OK);
    tr_test_each_layout(config, ranks, try_choice, &t);
    tr_error_clear();
    *meshes = t.meshes;
    for (int k = 0; k < t.meshes; k++) same += has_best(&s, &t.of[k]);
    assert_int_equal(s.count, *meshes);
    for (int k = 0; k < s.count; k++) {
        assert_true(s.found[k].seconds >= last);
        last = s.found[k].seconds;
    }
    printf("%d ranks: %d of %d meshes have the best layout; %d of %d layouts planned\n", ranks,
           same, *meshes, (int)s.plans, (int)s.layouts);
    assert_true(s.plans < s.layouts);
    return same;
}

/* With the address sanitizer, which takes tenfold time, of each memory one rate. */
#ifdef __SANITIZE_ADDRESS__
enum { RATE_STEP = 2 };
#else
enum { RATE_STEP = 1 };
#endif

/* Of each mesh the search has a layout that is at most 1 % longer than the best of all. */
static void test_it_finds_the_best(void **state) {
    (void)state;
    static const char *const memories[] = {"device.memory=64MiB", "device.memory=1200KiB",
                                           "device.memory=900KiB"};
    static const double rates[] = {1e9, 1e12};
    int same = 0, all = 0;
    for (size_t m = 0; m < sizeof memories / sizeof *memories; m++)
        for (size_t r = m % RATE_STEP; r < sizeof rates / sizeof *rates; r += RATE_STEP) {
            const char *const overrides[] = {memories[m], "model.layers=8", "train.batch=8",
                                             "model.vocab=515"};
            tr_config config;
            int meshes;
            read_config(&config, 4, overrides);
            same += compare(&config, r ? 4 : 8, 0, rates[r], &meshes);
            all += meshes;
        }
    assert_true(all > 20 / RATE_STEP);
    assert_true(same >= 0.9 * all);
}

/* On several hosts data ranks that divide something may be in runs, each on a host. */
static void test_it_finds_runs_on_hosts(void **state) {
    (void)state;
    static const char *const hosts[] = {"device.host_ranks=4", "device.host_ranks=2"};
    int runs = 0;
    for (size_t h = 0; h < sizeof hosts / sizeof *hosts; h++) {
        const char *const overrides[] = {"device.memory=1MiB", hosts[h], "device.link=1",
                                         "device.network=0.05", "model.vocab=515"};
        tr_config config;
        tr_search s;
        int meshes;
        read_config(&config, 5, overrides);
        (void)compare(&config, 8, 0, 1e10, &meshes);
        assert_int_equal(search(&config, 8, 0, 1e10, &s), TR_OK);
        for (int k = 0; k < s.count; k++) {
            tr_found planned;
            assert_true(plan_choice(&config, &s.found[k].choice, 1e10, &planned));
            assert_true(planned.seconds == s.found[k].seconds);
            assert_int_equal(planned.bytes, s.found[k].bytes);
            runs += s.found[k].choice.copies > 1;
        }
    }
    printf("%d in runs\n", runs);
    assert_true(runs > 0);
}

/* Over slow links the slices of four tensor ranks take a quarter of the messages' time. A search
 * that may choose them is as good as one that must take them. */
static void test_it_knows_that_slices_save_messages(void **state) {
    (void)state;
    const char *const overrides[] = {
        "model.family=llama",     "model.vocab=515", "device.memory=4MiB",
        "device.host_ranks=4",    "device.link=1",   "device.network=0.01",
        "parallel.sequence=true", "parallel.pp=2",   "parallel.tp=4"};
    const unsigned kept = 1U << TR_SEARCH_PP | 1U << TR_SEARCH_TP;
    tr_config config;
    tr_search s[2];
    read_config(&config, 9, overrides);
    assert_int_equal(search(&config, 8, kept, 5e9, &s[0]), TR_OK);
    assert_int_equal(search(&config, 8, kept | 1U << TR_SEARCH_SEQUENCE, 5e9, &s[1]), TR_OK);
    assert_true(s[0].count == 1 && s[1].count == 1);
    assert_true(s[0].found[0].seconds <= s[1].found[0].seconds * (1 + 1e-9));
}

/* Where the memory does not suffice, layouts with parts in the host's memory count, too: the search
 * has the best of them, or one that is at most 1 % longer, as planned. */
static void test_it_finds_offloads(void **state) {
    (void)state;
    static const char *const memories[] = {"device.memory=700KiB", "device.memory=560KiB",
                                           "device.memory=480KiB", "device.memory=400KiB"};
    const unsigned kept = 1U << TR_SEARCH_RECOMPUTE; /* none */
    int offloads = 0, copies = 0;
    for (size_t m = 0; m < sizeof memories / sizeof *memories; m += RATE_STEP) {
        const char *const overrides[] = {memories[m], "device.name=guarded", "model.layers=6",
                                         "train.batch=8", "model.vocab=515"};
        tr_config config;
        tr_search s;
        int meshes;
        read_config(&config, 5, overrides);
        (void)compare(&config, 4, kept, 1e10, &meshes);
        assert_int_equal(search(&config, 4, kept, 1e10, &s), TR_OK);
        for (int k = 0; k < s.count; k++) {
            tr_found planned;
            assert_true(plan_choice(&config, &s.found[k].choice, 1e10, &planned));
            assert_true(planned.seconds == s.found[k].seconds);
            assert_int_equal(planned.bytes, s.found[k].bytes);
            offloads += s.found[k].choice.offload.optimizer;
            copies += s.found[k].choice.offload.stages > 0;
            /* It names the stages that suffice. */
            assert_true(s.found[k].choice.offload.stages < TR_CONFIG_ALL_STAGES);
        }
    }
    printf("%d offload the optimizer's state, %d activations\n", offloads, copies);
    assert_true(offloads > 0 && copies > 0);
}

/* Keys that are kept have the config's values, also those that the search would not choose. */
static void test_kept_keys_stay(void **state) {
    (void)state;
    const char *const overrides[] = {"parallel.tp=2", "parallel.schedule=gpipe",
                                     "train.micro_batch=4", "train.recompute=full:0-1",
                                     "parallel.zero=1"};
    const unsigned kept = 1U << TR_SEARCH_TP | 1U << TR_SEARCH_SCHEDULE |
                          1U << TR_SEARCH_MICRO_BATCH | 1U << TR_SEARCH_RECOMPUTE |
                          1U << TR_SEARCH_ZERO;
    tr_config config;
    tr_search s;
    read_config(&config, 5, overrides);
    assert_int_equal(search(&config, 4, kept, 1e9, &s), TR_OK);
    assert_int_equal(s.count, 2); /* pp 1 and 2 */
    for (int k = 0; k < s.count; k++) {
        const tr_layout_choice *x = &s.found[k].choice;
        tr_config c = config;
        tr_layout_choice_apply(x, kept, &c);
        assert_int_equal(x->tp, 2);
        assert_int_equal(x->pp * x->dp, 2);
        assert_int_equal(c.train.micro_batch, 4);
        assert_int_equal(c.parallel.zero, 1);
        assert_string_equal(c.parallel.schedule, "gpipe");
        assert_string_equal(c.model.recompute, "full:0-1");
    }
}

static void test_none_fits_and_none_is_possible(void **state) {
    (void)state;
    const char *const small[] = {"device.memory=4KiB"};
    tr_config config;
    tr_search s;
    read_config(&config, 1, small);
    assert_int_equal(search(&config, 4, 0, 1e9, &s), TR_OK);
    assert_int_equal(s.count, 0);
    assert_true(s.layouts > 0);
    assert_true(s.least > (double)s.limit);
    read_config(&config, 0, NULL);
    assert_int_equal(search(&config, 11, 0, 1e9, &s), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "no layout of 11 ranks is possible"));
    tr_error_clear();
}

/* Estimates a layout of the config. Sets *c to the config with it. */
static tr_layout_estimate estimate(const tr_config *config, const tr_layout_choice *x, double rate,
                                   tr_config *c) {
    const tr_search_request request = {.config = config,
                                       .device = device,
                                       .ranks = (int)(x->pp * x->tp * x->dp),
                                       .rate = rate_of,
                                       .context = &rate};
    tr_layout_estimator *estimator;
    tr_layout_estimate e;
    *c = *config;
    tr_layout_choice_apply(x, 0, c);
    assert_int_equal(tr_layout_estimator_create(&request, SIZE_MAX, &estimator), TR_OK);
    assert_int_equal(tr_layout_estimate_make(estimator, x, c, &e), TR_OK);
    tr_layout_estimator_destroy(estimator);
    return e;
}

/* Returns the estimated seconds of two pipeline ranks with four tensor ranks each. */
static double estimate_tensor_ranks(const char *hosts) {
    const tr_layout_choice x = {.pp = 2, .tp = 4, .dp = 1, .micro_batch = 2, .schedule = "1f1b"};
    const char *const overrides[] = {hosts, "device.link=50", "device.network=1"};
    tr_config config, c;
    read_config(&config, 3, overrides);
    return estimate(&config, &x, 1e12, &c).seconds;
}

/* Hosts of 6 ranks divide the second pipeline rank's tensor ranks, though one pipeline rank alone
 * is on one host. */
static void test_estimates_know_the_hosts(void **state) {
    (void)state;
    const double whole = estimate_tensor_ranks("device.host_ranks=8");
    assert_true(estimate_tensor_ranks("device.host_ranks=4") == whole);
    assert_true(estimate_tensor_ranks("device.host_ranks=6") > 1.5 * whole);
}

/* On one rank the estimate of the optimizer's step is the plan's, with the time that the host takes
 * for the state in its memory. */
static void test_estimates_know_the_host(void **state) {
    (void)state;
    const char *const overrides[] = {"device.name=guarded"};
    tr_config config, c;
    double update[2], rate = 1e12;
    read_config(&config, 1, overrides);
    for (int k = 0; k < 2; k++) {
        const tr_layout_choice x = {.pp = 1,
                                    .tp = 1,
                                    .dp = 1,
                                    .micro_batch = 2,
                                    .schedule = "1f1b",
                                    .offload.optimizer = k == 1};
        tr_run_plan *p;
        tr_step_traffic t;
        update[k] = estimate(&config, &x, 1e12, &c).update;
        assert_int_equal(rate_of(&rate, &c, &rate), TR_OK);
        assert_int_equal(tr_run_plan_make(&c, device, &p), TR_OK);
        assert_int_equal(tr_traffic_of(&c, p->layout, rate, &t), TR_OK);
        tr_run_plan_destroy(p);
        const double planned = (t.updating + t.of[TR_TRAFFIC_STEPS].exposed) / rate;
        assert_true(fabs(update[k] - planned) <= 1e-9 * planned);
        rate = 1e12;
    }
    assert_true(update[1] > update[0]);
}

enum { ALL_KEPT = (1 << TR_SEARCH_KEYS) - 1 };

/* No layout counts twice, and bfs has its values of zero and its number of stages. */
static void test_kept_orders_count_once(void **state) {
    (void)state;
    static const struct {
        const char *schedule, *more;
        unsigned searched;
        int layouts;
    } cases[] = {{"interleaved", "parallel.virtual=2", 0, 1},
                 {"interleaved", "parallel.pp=2", 1U << TR_SEARCH_VIRTUAL, 2}, /* 0 and 2 */
                 {"bfs", "parallel.virtual=4", 1U << TR_SEARCH_ZERO, 4},
                 {"bfs", "model.layers=6", 1U << TR_SEARCH_VIRTUAL, 4}}; /* 0, 2, 4 and 6 */
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char schedule[64];
        const bool bfs = strcmp(cases[k].schedule, "bfs") == 0;
        (void)snprintf(schedule, sizeof schedule, "parallel.schedule=%s", cases[k].schedule);
        const char *const overrides[] = {schedule, bfs ? "parallel.dp=2" : "parallel.pp=2",
                                         cases[k].more};
        tr_config config;
        tr_search s;
        read_config(&config, 3, overrides);
        assert_int_equal(search(&config, 2, ALL_KEPT & ~cases[k].searched, 1e9, &s), TR_OK);
        assert_int_equal(s.layouts, cases[k].layouts);
    }
}

/* Kept, train.recompute auto finds the modes of each layout for the memory. */
static void test_kept_auto_recomputes(void **state) {
    (void)state;
    static const char *const modes[] = {"train.recompute=auto", "train.recompute=none"};
    const unsigned kept = 1U << TR_SEARCH_RECOMPUTE | 1U << TR_SEARCH_SEQUENCE;
    for (size_t k = 0; k < 2; k++) {
        const char *const overrides[] = {"device.memory=720KiB", modes[k], "model.vocab=515",
                                         "model.layers=8"};
        tr_config config;
        tr_search s;
        read_config(&config, 4, overrides);
        assert_int_equal(search(&config, 4, kept, 1e9, &s), TR_OK);
        assert_int_equal(s.count > 0, k == 0);
        for (int i = 0; i < s.count; i++) assert_true(s.found[i].bytes <= s.limit);
    }
}

/* Layouts without the stage of which activations are offloaded are not considered. */
static void test_offloads(void **state) {
    (void)state;
    const char *const stage[] = {"device.name=guarded", "device.memory=64MiB",
                                 "device.offload=activations:1"};
    const char *const host[] = {"device.name=guarded", "device.memory=64MiB",
                                "device.offload=optimizer", "device.host_memory=16KiB"};
    tr_config config;
    tr_search s;
    read_config(&config, 3, stage);
    assert_int_equal(search(&config, 4, 1U << TR_SEARCH_OFFLOAD, 1e9, &s), TR_OK);
    assert_true(s.count > 0);
    for (int k = 0; k < s.count; k++)
        assert_true(s.found[k].choice.pp > 1 || s.found[k].choice.virtual_stages > 1);
    read_config(&config, 4, host);
    assert_int_equal(search(&config, 4, 1U << TR_SEARCH_OFFLOAD, 1e9, &s), TR_OK);
    assert_int_equal(s.count, 0);
    assert_int_equal(s.host_limit, 16 << 10);
    assert_true(s.host_bytes > s.host_limit);
}

/* The reason is named when it is not the numbers of ranks. */
static void test_refusals_have_a_reason(void **state) {
    (void)state;
    static const struct {
        const char *key;
        unsigned kept;
        const char *reason;
    } cases[] = {{"data.documents=packed", 0, "ranks is possible: data.documents packed needs"},
                 {"train.micro_batch=3", 1U << TR_SEARCH_MICRO_BATCH, "train.batch 16 is not"},
                 {"parallel.dp=3", 1U << TR_SEARCH_DP, "keys that are given as arguments stay"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tr_config config;
        tr_search s;
        read_config(&config, 1, &cases[k].key);
        assert_int_equal(search(&config, 4, cases[k].kept, 1e9, &s), TR_ERR_CONFIG);
        if (!strstr(tr_error_message(), cases[k].reason)) fail_msg("%s", tr_error_message());
        tr_error_clear();
    }
}

/* A sketch has the time of the plan and the bytes of its tensor index 0, and once completed those
 * of all ranks. The others take no more. A library's product may need more scratch for a smaller
 * slice of the vocabulary: there, with `scratch`, the arena is left out. */
static void compare_sketch(const tr_config *config, tr_device *on, bool scratch) {
    tr_run_plan *plan, *sketch;
    assert_int_equal(tr_run_plan_make(config, on, &plan), TR_OK);
    assert_int_equal(tr_run_plan_sketch(config, on, plan->limit, &sketch), TR_OK);
    assert_true(plan->time->makespan == sketch->time->makespan);
    const size_t arena = TR_MEMORY_ACTIVATIONS;
    for (int r = 0; r < plan->ranks; r++) {
        const tr_memory_plan *own = &plan->memory[r], *first = &sketch->memory[r];
        if (r % (int)config->parallel.tp == 0) assert_int_equal(own->total, first->total);
        assert_true(own->total - own->of[arena] <= first->total - first->of[arena]);
        if (!scratch) assert_true(own->total <= first->total);
    }
    if (!scratch)
        assert_int_equal(plan->memory[tr_run_plan_largest(plan)].total,
                         sketch->memory[tr_run_plan_largest(sketch)].total);
    assert_int_equal(tr_run_plan_complete(config, on, sketch), TR_OK);
    for (int r = 0; r < plan->ranks; r++)
        assert_int_equal(plan->memory[r].total, sketch->memory[r].total);
    tr_run_plan_destroy(plan);
    tr_run_plan_destroy(sketch);
}

static void test_a_sketch_is_no_smaller(void **state) {
    (void)state;
    static const char *const layouts[][3] = {
        {"parallel.tp=2", "parallel.pp=2", "parallel.dp=2"},
        {"parallel.tp=4", "parallel.zero=1", "parallel.dp=3"},
        {"parallel.tp=4", "model.family=llama", "model.kv_heads=2"},
        {"parallel.tp=2", "parallel.pp=4", "parallel.schedule=zbv"}};
    tr_device *ref;
    assert_int_equal(tr_device_open("ref", &one_thread, &ref), TR_OK);
    for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
        tr_config config;
        const char *overrides[] = {layouts[k][0], layouts[k][1], layouts[k][2], "train.batch=12"};
        read_config(&config, 4, overrides);
        if (k == 3) config.model.layers = 8;
        compare_sketch(&config, device, true);
        (void)strcpy(config.device.name, "ref");
        compare_sketch(&config, ref, false);
    }
    tr_device_close(ref);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_it_finds_the_best),
                                       cmocka_unit_test(test_it_finds_offloads),
                                       cmocka_unit_test(test_it_finds_runs_on_hosts),
                                       cmocka_unit_test(test_it_knows_that_slices_save_messages),
                                       cmocka_unit_test(test_estimates_know_the_hosts),
                                       cmocka_unit_test(test_estimates_know_the_host),
                                       cmocka_unit_test(test_kept_keys_stay),
                                       cmocka_unit_test(test_none_fits_and_none_is_possible),
                                       cmocka_unit_test(test_kept_orders_count_once),
                                       cmocka_unit_test(test_kept_auto_recomputes),
                                       cmocka_unit_test(test_offloads),
                                       cmocka_unit_test(test_refusals_have_a_reason),
                                       cmocka_unit_test(test_a_sketch_is_no_smaller)};
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
