/* Tests that the search over layouts says of each layout what its plan says, over drawn models,
 * layouts and memories. */
#include "support/all_layouts.h"
#include "support/drawn.h"
#include "support/plan_config.h"
#include "support/seed.h"

#include "partition/offload_choice.h"
#include "partition/recompute_choice.h"
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

static uint64_t at; /* of the drawn numbers */

/* --- drawn configs ---------------------------------------------------------------------------- */

enum { MOST_KEYS = 40, KEY_TEXT = 64, VALUES = 8 };

/* A key and some of its values; "": none is given. */
typedef struct drawn_key {
    const char *name, *value[VALUES];
} drawn_key;

/* The sizes of small models, and of published ones. */
static const drawn_key small_keys[] = {
    {"model.preset", {"tiny", "tiny", "llama-tiny", "qwen2-tiny", "qwen3-tiny", "mistral-tiny"}},
    {"model.layers", {"1", "2", "3", "4", "6", "8", "12"}},
    {"model.width", {"32", "64", "96"}},
    {"model.context", {"16", "64", "256"}},
    {"model.vocab", {"64", "515", "4099"}},
    {"model.mlp_width", {"", "", "50", "200"}},
    {.name = NULL}};
static const drawn_key published_keys[] = {
    {"model.preset", {"gpt2-124m", "gpt2-350m", "llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b"}},
    {"model.context", {"64", "512"}},
    {.name = NULL}};

static const drawn_key run_keys[] = {
    {"model.dropout", {"", "", "0.1"}},
    {"train.batch", {"8", "12", "16", "24"}},
    {"train.precision", {"fp32", "fp32", "bf16", "bf16", "fp16", "fp64"}},
    {"train.freeze", {"", "", "", "*0*"}},
    {"optim.name", {"adamw", "adamw", "sgd", "lion", "lamb", "muon", "adafactor"}},
    {"optim.gradients", {"", "", "bf16"}},
    {"optim.moments", {"", "", "bf16", "int8"}},
    {"optim.master", {"", "", "none"}},
    {"parallel.reduce", {"", "", "bf16"}},
    {"checkpoint.background", {"", "", "true"}},
    {"log.noise_scale", {"", "", "true"}},
    {"device.name", {"cpu", "cpu", "ref", "guarded"}},
    {"device.offload",
     {"", "", "optimizer", "activations", "activations:1", "optimizer,activations"}},
    {"device.host_memory", {"", "1GiB", "100KiB", "1MiB"}},
    {"device.host_ranks", {"", "2", "4", "6"}},
    {"device.link", {"", "0.5", "50"}},
    {"device.network", {"", "0.1"}},
    {.name = NULL}};

static const drawn_key layout_keys[] = {
    {"parallel.pp", {"1", "2", "2", "3", "4"}},
    {"parallel.tp", {"1", "1", "2", "4"}},
    {"parallel.dp", {"1", "2", "2", "4", "2x2", "3"}},
    {"parallel.zero", {"0", "1", "2", "3", "3"}},
    {"parallel.sequence", {"", "true"}},
    {"parallel.virtual", {"", "", "2", "3", "4", "6"}},
    {"train.micro_batch", {"1", "1", "2", "4"}},
    {"train.recompute", {"", "selective", "full", "full:0", "auto"}},
    {.name = NULL}};

/* Adds keys, each with one of its values. */
static void draw_keys(const drawn_key *key, char text[MOST_KEYS][KEY_TEXT], int *count) {
    for (; key->name; key++) {
        int values = 0;
        while (values < VALUES && key->value[values]) values++;
        const char *value = key->value[tr_up_to(&at, values) - 1];
        if (value[0]) (void)snprintf(text[(*count)++], KEY_TEXT, "%s=%s", key->name, value);
    }
}

/* Draws keys of a model of these sizes, and of a layout if there is one, until a config accepts
 * them. */
static void draw(const drawn_key *sizes, bool layout, tr_config *config) {
    static const char base[] = "data.path: x\ntrain.threads: 1\n";
    tr_status status = TR_ERR_CONFIG;
    while (status != TR_OK) {
        char text[MOST_KEYS][KEY_TEXT];
        const char *keys[MOST_KEYS];
        int count = 0;
        draw_keys(sizes, text, &count);
        draw_keys(run_keys, text, &count);
        if (layout) {
            draw_keys(layout_keys, text, &count);
            (void)snprintf(text[count++], KEY_TEXT, "parallel.schedule=%s",
                           schedules[tr_up_to(&at, SCHEDULES) - 1]);
        }
        for (int k = 0; k < count; k++) keys[k] = text[k];
        status = tr_config_parse(base, strlen(base), "drawn.yaml", keys, count, config);
        if (status == TR_OK) status = tr_config_check(config, 0);
    }
    tr_error_clear();
}

/* --- plans ------------------------------------------------------------------------------------ */

enum { ALL_KEPT = (1 << TR_SEARCH_KEYS) - 1 };

static tr_device *open_device(const tr_config *config) {
    tr_device *device;
    assert_int_equal(tr_device_open(config->device.name, &one_thread, &device), TR_OK);
    return device;
}

/* Larger micro-batches are a little faster, as on a device. */
static tr_status rate_of(void *context, const tr_config *c, double *rate) {
    (void)context;
    *rate = 1e10 * (1 + 0.02 * (double)c->train.micro_batch);
    return TR_OK;
}

static void search(const tr_config *config, tr_device *device, int ranks, unsigned kept,
                   tr_status *status, tr_search *out) {
    const tr_search_request request = {
        .config = config, .device = device, .ranks = ranks, .kept = kept, .rate = rate_of};
    *status = tr_search_make(&request, out);
}

/* What `trireme plan` says of a layout. */
typedef struct planned {
    bool refused, fits, fits_device;
    size_t bytes, host_bytes;
    double seconds;
} planned;

static planned plan(const tr_config *config, tr_device *device) {
    tr_config c = *config;
    tr_run_plan *p;
    tr_step_traffic traffic;
    double rate;
    tr_status status = tr_request_recompute(&c, device);
    if (status == TR_OK) status = tr_run_plan_make(&c, device, &p);
    if (status != TR_OK) {
        assert_true(status == TR_ERR_CONFIG || status == TR_ERR_FIT);
        tr_error_clear();
        return (planned){.refused = true};
    }
    assert_int_equal(rate_of(NULL, &c, &rate), TR_OK);
    assert_int_equal(tr_traffic_of(&c, p->layout, rate, &traffic), TR_OK);
    const planned out = {.fits = tr_run_plan_fits(p),
                         .fits_device = tr_run_plan_fits_device(p),
                         .bytes = p->memory[tr_run_plan_largest(p)].total,
                         .host_bytes = p->host_bytes,
                         .seconds = traffic.makespan / rate};
    tr_run_plan_destroy(p);
    return out;
}

static void fail_layout(const tr_config *c, const char *what, double of_search, double of_plan) {
    fail_msg("%s: search %.17g, plan %.17g\n%s %d layers, pp %d tp %d dp %d (%d) zero %d %s "
             "virtual %d micro_batch %d batch %d %s sequence %d %s optim %s device %s offload %s "
             "limit %lld",
             what, of_search, of_plan, c->model.family, (int)c->model.layers, (int)c->parallel.pp,
             (int)c->parallel.tp, (int)c->parallel.dp, (int)c->parallel.copies,
             (int)c->parallel.zero, c->parallel.schedule, (int)c->parallel.virtual_stages,
             (int)c->train.micro_batch, (int)c->train.batch, c->model.recompute, c->model.sequence,
             c->train.precision, c->optim.name, c->device.name, c->device.offload,
             (long long)c->device.memory);
}

static void expect_equal(const tr_config *c, const char *what, double of_search, double of_plan) {
    if (of_search != of_plan) fail_layout(c, what, of_search, of_plan);
}

/* --- one layout ------------------------------------------------------------------------------- */

/* Searches among one layout, and plans it, in this memory of a rank. Returns its plan. */
static planned compare_layout(tr_config *c, tr_device *device, size_t memory) {
    tr_search s;
    tr_status status;
    c->device.memory = (int64_t)memory;
    const planned p = plan(c, device);
    search(c, device, (int)(c->parallel.pp * c->parallel.tp * c->parallel.dp), ALL_KEPT, &status,
           &s);
    tr_error_clear();
    expect_equal(c, "refused", status != TR_OK, p.refused);
    if (p.refused) return p;
    expect_equal(c, "fits", s.count, p.fits);
    if (p.fits) {
        expect_equal(c, "bytes", (double)s.found[0].bytes, (double)p.bytes);
        expect_equal(c, "seconds", s.found[0].seconds, p.seconds);
    } else if (!p.fits_device)
        expect_equal(c, "bytes of one that does not fit", s.least, (double)p.bytes);
    else expect_equal(c, "bytes in the host's memory", (double)s.host_bytes, (double)p.host_bytes);
    return p;
}

/* In any memory the search says that a layout fits exactly when its plan fits, and has the plan's
 * bytes and time. */
static void test_each_layout_is_as_planned(void **state) {
    (void)state;
    int layouts = 0, fit = 0, not = 0;
    for (int n = tr_test_trials(200); n > 0; n--) {
        tr_config c;
        draw(n % 20 ? small_keys : published_keys, true, &c);
        if (!tr_test_drawn((uint64_t)n)) continue;
        tr_device *device = open_device(&c);
        planned p = compare_layout(&c, device, (size_t)1 << 40);
        const size_t most = p.bytes;
        layouts += !p.refused;
        for (int k = 0; k < 4 && !p.refused; k++) {
            const size_t memory = k < 2 ? most - (size_t)k : most / 64 * (size_t)tr_up_to(&at, 64);
            if (memory == 0) continue;
            p = compare_layout(&c, device, memory);
            fit += p.fits;
            not += !p.fits;
        }
        tr_device_close(device);
    }
    printf("%d layouts; %d fit, %d did not\n", layouts, fit, not );
    assert_true(fit > layouts / 2 && not > layouts);
}

/* With this memory and its cut, smaller pieces of a later tensor index pack worse than those of the
 * first one, so a rank of it takes most. */
static void test_a_tensor_index_that_packs_worse(void **state) {
    static const char base[] = "data.path: x\ntrain.threads: 1\n";
    static const char *const keys[] = {
        "model.preset=llama-tiny", "model.layers=12",    "model.width=96",
        "model.context=16",        "model.vocab=4099",   "train.batch=8",
        "train.micro_batch=4",     "train.freeze=*0*",   "train.recompute=full",
        "train.precision=fp32",    "optim.name=sgd",     "optim.gradients=bf16",
        "parallel.pp=4",           "parallel.tp=4",      "parallel.dp=2",
        "parallel.zero=3",         "parallel.virtual=2", "parallel.schedule=interleaved"};
    (void)state;
    tr_config c;
    assert_int_equal(tr_config_parse(base, strlen(base), "fixed.yaml", keys,
                                     (int)(sizeof keys / sizeof *keys), &c),
                     TR_OK);
    tr_device *device = open_device(&c);
    const planned p = compare_layout(&c, device, 2767440);
    assert_false(p.refused || p.fits);
    (void)compare_layout(&c, device, p.bytes);
    tr_device_close(device);
}

/* --- all layouts ------------------------------------------------------------------------------ */

/* The plans of all layouts of some ranks. */
typedef struct truth {
    const tr_config *config;
    tr_device *device;
    unsigned kept;
    tr_layout_estimator *estimator;
    int layouts, meshes;
    struct {
        int64_t pp, tp;
        bool fits;
    } mesh[32];
    double least;      /* bytes of the layout that takes least */
    size_t host_bytes; /* in a host's memory, of those that fit except there */
} truth;

static void take_mesh(truth *t, const tr_layout_choice *x, bool fits) {
    int k = 0;
    while (k < t->meshes && (t->mesh[k].pp != x->pp || t->mesh[k].tp != x->tp)) k++;
    assert_true(k < 32);
    if (k == t->meshes) {
        t->mesh[t->meshes].pp = x->pp;
        t->mesh[t->meshes].tp = x->tp;
        t->mesh[t->meshes++].fits = false;
    }
    t->mesh[k].fits |= fits;
}

/* Returns true when the choice is refused or fits. */
static bool is_settled(truth *t, const tr_layout_choice *x) {
    tr_config c = *t->config;
    tr_layout_estimate e;
    tr_layout_choice_apply(x, t->kept, &c);
    const tr_status status = tr_config_check(&c, 0);
    tr_error_clear();
    if (status != TR_OK) return true;
    const planned p = plan(&c, t->device);
    if (p.refused) return true;
    t->layouts++;
    take_mesh(t, x, p.fits);
    assert_int_equal(tr_layout_estimate_make(t->estimator, x, &c, &e), TR_OK);
    if (e.bytes > (double)p.bytes) fail_layout(&c, "least bytes", e.bytes, (double)p.bytes);
    if (p.fits && e.within > p.seconds * (1 + 1e-9))
        fail_layout(&c, "seconds within the memory", e.within, p.seconds);
    if (!p.fits_device) t->least = fmin(t->least, (double)p.bytes);
    else if (!p.fits && (!t->host_bytes || p.host_bytes < t->host_bytes))
        t->host_bytes = p.host_bytes;
    return p.fits;
}

/* A layout that does not fit is another one with each offload. */
static void plan_choice(void *context, const tr_layout_choice *choice) {
    tr_layout_choice x = *choice;
    truth *t = context;
    if (is_settled(t, &x) || t->kept || tr_config_on_host(t->config)) return;
    for (int k = 0; k < TR_OFFLOAD_CHOICES; k++) {
        x.offload = tr_offload_choices[k];
        (void)is_settled(t, &x);
    }
}

/* Each layout that is found is as planned, and fits. */
static void check_found(const truth *t, const tr_found *found) {
    tr_config c = *t->config;
    tr_layout_choice_apply(&found->choice, t->kept, &c);
    assert_int_equal(tr_config_check(&c, 0), TR_OK);
    const planned p = plan(&c, t->device);
    expect_equal(&c, "fits", true, !p.refused && p.fits);
    expect_equal(&c, "bytes", (double)found->bytes, (double)p.bytes);
    expect_equal(&c, "seconds", found->seconds, p.seconds);
}

/* Keeps an offload that was drawn. */
static unsigned kept_of(const tr_config *config) {
    return strcmp(config->device.offload, "none") == 0 ? 0 : 1U << TR_SEARCH_OFFLOAD;
}

/* Searches, and compares with the plans of all layouts. Returns how many are found. */
static int compare_search(const tr_config *config, tr_device *device, int ranks, truth *t) {
    const unsigned kept = kept_of(config);
    const tr_search_request request = {
        .config = config, .device = device, .ranks = ranks, .kept = kept, .rate = rate_of};
    tr_search s;
    tr_status status;
    int fitting = 0;
    *t = (truth){.config = config, .device = device, .kept = kept, .least = INFINITY};
    search(config, device, ranks, kept, &status, &s);
    assert_int_equal(
        tr_layout_estimator_create(&request, (size_t)config->device.memory, &t->estimator), TR_OK);
    tr_test_each_layout(config, ranks, plan_choice, t);
    tr_layout_estimator_destroy(t->estimator);
    tr_error_clear();
    expect_equal(config, "refused", status != TR_OK, t->layouts == 0);
    if (status != TR_OK) return 0;
    for (int k = 0; k < s.count; k++) check_found(t, &s.found[k]);
    for (int k = 0; k < t->meshes; k++) fitting += t->mesh[k].fits;
    expect_equal(config, "meshes that fit", s.count,
                 fitting < TR_SEARCH_MOST ? fitting : TR_SEARCH_MOST);
    if (fitting > 0) return s.count;
    expect_equal(config, "least in the host's memory", (double)s.host_bytes, (double)t->host_bytes);
    if (!t->host_bytes) expect_equal(config, "least of all", s.least, t->least);
    return 0;
}

/* Draws a memory of a rank: about what layouts of these ranks take. */
static int64_t draw_memory(const tr_config *config, tr_device *device, int ranks) {
    const size_t limits[] = {(size_t)1 << 40, 1};
    double bytes[2];
    for (int k = 0; k < 2; k++) {
        tr_config c = *config;
        tr_search s;
        tr_status status;
        c.device.memory = (int64_t)limits[k];
        search(&c, device, ranks, kept_of(&c), &status, &s);
        tr_error_clear();
        if (status != TR_OK || (k == 0 && s.count == 0)) return 1 << 20;
        bytes[k] = k == 0 ? (double)s.found[0].bytes : s.least;
    }
    return (int64_t)(bytes[1] + (bytes[0] - bytes[1]) * ((double)tr_up_to(&at, 16) - 3) / 12);
}

/* The search misses no mesh with a layout that fits, says which bytes suffice where none does, and
 * no layout takes less memory or time than it is estimated to take at least. */
static void test_a_search_is_as_planned(void **state) {
    static const int ranks[] = {1, 2, 3, 4, 6};
    (void)state;
    int layouts = 0, found = 0, none = 0;
    for (int n = tr_test_trials(8); n > 0; n--) {
        tr_config c;
        truth t;
        do draw(small_keys, false, &c);
        while (c.model.layers > 4);
        tr_device *device = open_device(&c);
        const int count = ranks[tr_up_to(&at, 5) - 1];
        c.device.memory = draw_memory(&c, device, count);
        const int own = compare_search(&c, device, count, &t);
        layouts += t.layouts;
        found += own;
        none += own == 0;
        tr_device_close(device);
    }
    printf("%d layouts, %d found; %d models without one\n", layouts, found, none);
    assert_true(found > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_layout_is_as_planned),
                                       cmocka_unit_test(test_a_tensor_index_that_packs_worse),
                                       cmocka_unit_test(test_a_search_is_as_planned)};
    at = tr_test_seed(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
