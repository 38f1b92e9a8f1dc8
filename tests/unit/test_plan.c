/* Tests the plan of a run: its bytes are exactly those that the engines of its ranks allocate; the
 * last rank's memory; its advice. */
#include "base/memory.h"
#include "partition/advice.h"
#include "partition/recompute_choice.h"
#include "partition/request.h"
#include "partition/run_plan.h"
#include "train/engine.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const tr_device_options one_thread = {.threads = 1};

/* Tensor ranks cannot divide this vocabulary evenly, so they take different numbers of bytes. */
static const char model[] = "data.path: x\n"
                            "model: {layers: 4, width: 32, heads: 4, context: 16, vocab: 4099}\n"
                            "train: {batch: 16, micro_batch: 2, threads: 1}\n";

static void read_config(tr_config *config, int count, const char *const *overrides) {
    assert_int_equal(tr_config_parse(model, strlen(model), "model.yaml", overrides, count, config),
                     TR_OK);
}

typedef struct rank_thread {
    pthread_t thread;
    const tr_config *config;
    tr_world *world;
    tr_memory_plan plan;
    tr_memory_rank taken;
    tr_status status;
} rank_thread;

/* Makes the rank's engine as the trainer does, without a limit, and reads its bytes. */
static tr_status measure(rank_thread *t, tr_device *device) {
    const tr_config *c = t->config;
    tr_schedule *schedule;
    tr_schedule_report report;
    tr_engine *engine = NULL;
    TR_TRY(tr_request_schedule(c, &schedule, &report));
    tr_engine_desc desc = {.world = t->world,
                           .device = device,
                           .model = c->model,
                           .batch = c->train.batch,
                           .micro_batch = c->train.micro_batch,
                           .dtype = tr_config_dtype(c),
                           .schedule = schedule};
    tr_status status = tr_mesh_make((int)c->parallel.pp, (int)c->parallel.dp, (int)c->parallel.tp,
                                    tr_world_rank(t->world), tr_world_size(t->world), &desc.mesh);
    if (status == TR_OK) status = tr_engine_create(&desc, &engine);
    if (status == TR_OK) {
        tr_engine_plan(engine, &t->plan);
        t->taken = tr_memory_measure(device, &t->plan);
    }
    tr_engine_destroy(engine);
    tr_schedule_destroy(schedule);
    return status;
}

static void *rank_main(void *argument) {
    rank_thread *t = argument;
    tr_device *device = NULL;
    t->status = tr_device_open("cpu", &one_thread, &device);
    if (t->status == TR_OK) t->status = measure(t, device);
    if (t->status != TR_OK) {
        fprintf(stderr, "%s\n", tr_error_message());
        tr_world_abort(t->world, 1); /* otherwise the other ranks would wait for this one */
    }
    if (device) tr_device_close(device);
    tr_world_close(t->world);
    return NULL;
}

/* Plans the config and makes its engines. Fails unless planned, engine's and allocated bytes are
 * equal in every class on every rank, and planning allocated nothing. */
static void compare(int ranks, int count, const char *const *overrides) {
    tr_config config;
    tr_device *device;
    tr_run_plan *plan;
    tr_world *world[8];
    rank_thread rank[8];
    read_config(&config, count, overrides);
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    assert_int_equal(tr_memory_taken(device), 0);
    assert_int_equal(plan->ranks, ranks);
    assert_int_equal(tr_world_open_local(ranks, world), TR_OK);
    for (int r = 0; r < ranks; r++) {
        rank[r] = (rank_thread){.config = &config, .world = world[r]};
        assert_int_equal(pthread_create(&rank[r].thread, NULL, rank_main, &rank[r]), 0);
    }
    for (int r = 0; r < ranks; r++) pthread_join(rank[r].thread, NULL);
    for (int r = 0; r < ranks; r++) {
        const tr_memory_plan *want = &plan->memory[r], *have = &rank[r].plan;
        assert_int_equal(rank[r].status, TR_OK);
        for (int k = 0; k < TR_MEMORY_CLASSES; k++) {
            if (want->of[k] != have->of[k] || want->of[k] != rank[r].taken.taken[k])
                fail_msg("rank %d, %s: planned %zu, by the engine %zu, taken %zu", r,
                         tr_device_memory_name((tr_memory)k), want->of[k], have->of[k],
                         rank[r].taken.taken[k]);
        }
        assert_int_equal(want->live_peak, have->live_peak);
        assert_int_equal(want->total, have->total);
        assert_int_equal(want->total, rank[r].taken.taken_total);
    }
    tr_run_plan_destroy(plan);
    tr_device_close(device);
}

static void test_bytes_of_training(void **state) {
    (void)state;
    compare(4, 2, (const char *[]){"parallel.pp=2", "parallel.tp=2"});
    compare(4, 3, (const char *[]){"parallel.pp=2", "parallel.tp=2", "train.precision=bf16"});
    compare(8, 4,
            (const char *[]){"parallel.pp=2", "parallel.tp=2", "parallel.dp=2",
                             "parallel.schedule=gpipe"});
    compare(2, 3, (const char *[]){"parallel.pp=2", "parallel.schedule=zbv", "model.dropout=0.1"});
    compare(1, 0, NULL);
}

static const char *const schedules[] = {
    "gpipe",  "1f1b", "interleaved",    "bfs",    "zb-h1", "zb-h2",    "zb-1p", "zb-2p", "v-min",
    "v-half", "zbv",  "interleaved-zb", "1f1b-v", "auto",  "dualpipev"};
enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };

/* The same with every schedule, and with validation in the same arena. */
static void test_bytes_of_every_schedule(void **state) {
    (void)state;
    for (int k = 0; k < SCHEDULES; k++) {
        char schedule[64];
        (void)snprintf(schedule, sizeof schedule, "parallel.schedule=%s", schedules[k]);
        compare(2, 2, (const char *[]){"parallel.pp=2", schedule});
    }
}

/* The same with recompute. */
static void test_bytes_with_recompute(void **state) {
    (void)state;
    for (int k = 0; k < SCHEDULES; k++) {
        char schedule[64];
        (void)snprintf(schedule, sizeof schedule, "parallel.schedule=%s", schedules[k]);
        compare(2, 3, (const char *[]){"parallel.pp=2", schedule, "train.recompute=full"});
    }
    compare(4, 4,
            (const char *[]){"parallel.pp=2", "parallel.tp=2", "model.dropout=0.1",
                             "train.recompute=full:0-1,selective:3"});
    compare(4, 4,
            (const char *[]){"parallel.dp=2", "parallel.tp=2", "train.precision=bf16",
                             "train.recompute=selective"});
}

/* Checks the memory of a pipeline of four ranks, with a head that has logits of 501 MiB; on ref,
 * because the scratch of products on cpu depends on the processor: without BF16 products it holds
 * their operands in FP32. */
static void check_last_rank(const char *schedule, bool half) {
    static const char text[] =
        "model: {layers: 16, width: 2048, heads: 32, context: 2048, vocab: 128256}\n"
        "train: {batch: 8, micro_batch: 1, precision: bf16}\n"
        "parallel: {pp: 4}\n"
        "device.memory: 1000GiB\n";
    const size_t parameters = 128256L * 2048 + 2 * 2048;
    const size_t head = parameters * (sizeof(uint16_t) + 4 * sizeof(float));
    const size_t chunk = 1024L * 128256 * sizeof(uint16_t);
    tr_config config;
    tr_device *device = NULL;
    tr_run_plan *plan = NULL;
    assert_int_equal(tr_config_parse(text, strlen(text), "x.yaml", &schedule, 1, &config), TR_OK);
    assert_int_equal(tr_device_open("ref", &one_thread, &device), TR_OK);
    if (tr_run_plan_make(&config, device, &plan) != TR_OK) fail_msg("%s", tr_error_message());
    const tr_memory_plan *last = &plan->memory[3];
    const size_t own = last->of[TR_MEMORY_ACTIVATIONS];
    for (int middle = 1; middle <= 2; middle++) {
        const tr_memory_plan *m = &plan->memory[middle];
        const size_t arena = m->of[TR_MEMORY_ACTIVATIONS];
        print_message("%s: rank %d takes %zu MiB, the last %zu; activations %zu and %zu\n",
                      schedule, middle, m->total >> 20, last->total >> 20, arena >> 20, own >> 20);
        assert_in_range(last->total, head, m->total + m->total / 10 + head + chunk);
        assert_in_range(own, chunk, half ? arena / 2 + chunk : arena + chunk);
    }
    tr_run_plan_destroy(plan);
    tr_device_close(device);
}

/* The last rank takes at most a tenth more than a rank in the middle, not counting the head's
 * parameters, their gradients and moments, and one chunk of logits. It has fewer than half as many
 * layers. */
static void test_memory_of_the_last_rank(void **state) {
    (void)state;
    check_last_rank("parallel.schedule=1f1b", false);
    check_last_rank("parallel.schedule=gpipe", true);
}

/* Neighbours are the ranks that have an edge with this rank, each counted once. */
static void test_neighbours(void **state) {
    (void)state;
    int line[] = {0, 1, 2, 3}, loop[] = {0, 1, 2, 0, 1, 2}, v[] = {0, 1, 2, 2, 1, 0};
    const struct {
        int *owner, stages, ranks, skip, of[4]; /* skip: the stage that stage 0's output goes to */
    } cases[] = {{line, 4, 4, 1, {1, 2, 2, 1}},
                 {line, 4, 4, 2, {2, 2, 3, 1}},
                 {loop, 6, 3, 3, {2, 2, 2}},
                 {v, 6, 3, 5, {1, 2, 1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tr_edge edge[6];
        tr_layout layout = {.owner = cases[i].owner,
                            .placement.stages = cases[i].stages,
                            .table = {.edges = cases[i].stages, .edge = edge}};
        layout.desc.mesh.degree[TR_AXIS_PP] = cases[i].ranks;
        edge[0] = (tr_edge){.from = 0, .to = cases[i].skip};
        for (int k = 1; k < cases[i].stages; k++) edge[k] = (tr_edge){.from = k - 1, .to = k};
        for (int r = 0; r < cases[i].ranks; r++)
            assert_int_equal(tr_layout_neighbours(&layout, r), cases[i].of[r]);
    }
}

/* Products leave compute units to the receives of a rank's neighbours, in a plan as in a run. */
static void test_units_of_receives(void **state) {
    (void)state;
    tr_device gpu = {.units = 132};
    int line[] = {0, 1, 2};
    tr_edge edge[] = {{.from = 0, .to = 1}, {.from = 1, .to = 2}};
    tr_layout layout = {.owner = line, .placement.stages = 3, .table = {.edges = 2, .edge = edge}};
    layout.desc.mesh.degree[TR_AXIS_PP] = 3;
    tr_op_context common = {.device = &gpu, .workspace = 7};
    const int units[] = {130, 128, 130};
    for (int r = 0; r < 3; r++) {
        assert_int_equal(tr_layout_context(&layout, &common, 2, r).compute_units, units[r]);
        assert_int_equal(tr_layout_context(&layout, &common, 2, r).workspace, 7);
        assert_int_equal(tr_layout_context(&layout, &common, 0, r).compute_units, 0);
    }
    common.deterministic = true;
    assert_int_equal(tr_layout_context(&layout, &common, 2, 1).compute_units, 0);
}

/* The estimated step: each rank's work and idle time add up to the step, and the work is the
 * model's. */
static void test_time_of_a_step(void **state) {
    (void)state;
    tr_config config;
    tr_device *device;
    tr_run_plan *plan;
    read_config(&config, 1, (const char *[]){"parallel.pp=2"});
    assert_int_equal(tr_device_open("ref", &one_thread, &device), TR_OK);
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    const tr_simulation *t = plan->time;
    double work = 0, tokens = (double)(config.train.batch * config.model.context);
    for (int r = 0; r < t->ranks; r++) {
        const tr_rank_time *x = &t->time[r];
        assert_true(t->makespan > 0);
        double sum = x->busy + x->fill + x->drain + x->waiting + x->imbalance;
        assert_true(sum > t->makespan * (1 - 1e-12) && sum < t->makespan * (1 + 1e-12));
        work += x->busy;
    }
    double model_work = tokens * tr_model_flops_per_token(plan->layout->model);
    assert_true(work > model_work * 0.99 && work < model_work * 1.01);
    assert_true(plan->ideal * t->ranks > work * (1 - 1e-12));
    assert_true(plan->ideal < t->makespan);
    tr_run_plan_destroy(plan);
    tr_device_close(device);
}

static void plan_with_limit(const char *limit, tr_device *device, tr_config *config,
                            tr_run_plan **plan) {
    const char *const overrides[] = {"parallel.pp=2", "model.vocab=256", limit};
    read_config(config, 3, overrides);
    assert_int_equal(tr_run_plan_make(config, device, plan), TR_OK);
}

/* Returns the bytes of the rank that takes most. */
static size_t most_bytes(int count, const char *const *overrides, tr_device *device) {
    tr_config config;
    tr_run_plan *plan;
    read_config(&config, count, overrides);
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    const size_t most = plan->memory[tr_run_plan_largest(plan)].total;
    tr_run_plan_destroy(plan);
    return most;
}

enum { ADVICE = 512 };

/* Writes the advice for a config. */
static void make_advice(const tr_config *config, tr_device *device, char advice[ADVICE]) {
    tr_run_plan *plan;
    assert_int_equal(tr_run_plan_make(config, device, &plan), TR_OK);
    assert_int_equal(tr_advice_make(config, plan, device, advice, ADVICE), TR_OK);
    tr_run_plan_destroy(plan);
}

/* Advice for a layout, where a rank may use as much as one of another layout takes. */
static void expect_advice(int count, const char *const *layout, int other_count,
                          const char *const *other, tr_device *device, const char *change) {
    char advice[ADVICE];
    tr_config config;
    read_config(&config, count, layout);
    config.device.memory = (int64_t)most_bytes(other_count, other, device);
    make_advice(&config, device, advice);
    if (!strstr(advice, change)) fail_msg("'%s' without '%s'", advice, change);
}

/* Advice gives data ranks to the model, and combines pp and tp where it takes no more ranks. */
static void test_advice_of_several_degrees(void **state) {
    (void)state;
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    expect_advice(1, (const char *[]){"parallel.dp=4"}, 2,
                  (const char *[]){"parallel.dp=2", "parallel.pp=2"}, device,
                  "parallel.dp=2 parallel.pp=2, or");
    expect_advice(1, (const char *[]){"model.heads=2"}, 3,
                  (const char *[]){"model.heads=2", "parallel.pp=4", "parallel.tp=2"}, device,
                  "parallel.pp=4 parallel.tp=2 on 8 ranks");
    tr_device_close(device);
}

/* One byte decides whether the model fits; every change that is advised fits; with a limit below
 * all of them there is no advice. */
static void test_what_fits(void **state) {
    (void)state;
    tr_config config;
    tr_device *device;
    tr_run_plan *plan;
    char limit[64], advice[ADVICE];
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    plan_with_limit("device.memory=0", device, &config, &plan);
    size_t need = plan->memory[tr_run_plan_largest(plan)].total;
    tr_run_plan_destroy(plan);
    (void)snprintf(limit, sizeof limit, "device.memory=%zu", need);
    plan_with_limit(limit, device, &config, &plan);
    assert_true(tr_run_plan_fits(plan));
    tr_run_plan_destroy(plan);

    (void)snprintf(limit, sizeof limit, "device.memory=%zu", need - 1);
    plan_with_limit(limit, device, &config, &plan);
    assert_false(tr_run_plan_fits(plan));
    tr_run_plan_destroy(plan);
    make_advice(&config, device, advice);
    assert_string_equal(advice,
                        "it fits with train.recompute=selective, or train.micro_batch=1, or "
                        "parallel.pp=3 on 3 ranks, or parallel.tp=2 on 4 ranks");
    (void)strcpy(config.device.name, "guarded"); /* has memory of its own, like a GPU */
    make_advice(&config, device, advice);
    assert_non_null(strstr(advice, "train.micro_batch=1, or device.offload=optimizer, or"));
    (void)strcpy(config.device.offload, "optimizer"); /* and what else could go there */
    (void)strcpy(config.parallel.schedule, "gpipe");
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    config.device.memory = (int64_t)plan->memory[tr_run_plan_largest(plan)].total - 1;
    tr_run_plan_destroy(plan);
    make_advice(&config, device, advice);
    assert_non_null(strstr(advice, "device.offload=optimizer,activations:1, or"));
    config.device.memory = 1000;
    make_advice(&config, device, advice);
    assert_non_null(strstr(advice, "no larger parallel.pp"));
    assert_int_equal(tr_memory_taken(device), 0);
    tr_device_close(device);
}

/* The advice to offload activations names the stages of the ranks that need more than the limit,
 * and those between them: of four ranks the last one, and then also the first one. */
static void test_which_stages_to_offload(void **state) {
    (void)state;
    static const char *const overrides[] = {"parallel.pp=4", "parallel.schedule=gpipe",
                                            "model.vocab=256"};
    static const char *const advised[] = {"device.offload=optimizer,activations:3, or",
                                          "device.offload=optimizer,activations:0-3, or"};
    tr_config config;
    tr_device *device;
    tr_run_plan *plan;
    char advice[ADVICE];
    size_t total[4];
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    read_config(&config, 3, overrides);
    (void)strcpy(config.device.name, "guarded");
    (void)strcpy(config.device.offload, "optimizer");
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    for (int r = 0; r < 4; r++) total[r] = plan->memory[r].total;
    tr_run_plan_destroy(plan);
    assert_true(total[3] > total[0] && total[0] > total[1] && total[1] == total[2]);
    for (int k = 0; k < 2; k++) {
        config.device.memory = (int64_t)total[k];
        make_advice(&config, device, advice);
        if (!strstr(advice, advised[k])) fail_msg("%s", advice);
    }
    tr_device_close(device);
}

/* What ranks keep in the memory of a host: no host may have more than the limit. */
static void test_host_memory(void **state) {
    (void)state;
    static const char *const overrides[] = {"parallel.pp=4", "model.vocab=256"};
    tr_config config;
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    read_config(&config, 2, overrides);
    (void)strcpy(config.device.name, "guarded");
    (void)strcpy(config.device.offload, "optimizer");
    for (int host = 0; host <= 4; host++) {
        size_t most = 0, bytes = 0;
        tr_run_plan *plan;
        config.device.host_ranks = host; /* the last host may have fewer ranks */
        config.device.host_memory = 0;
        assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
        for (int r = 0; r < 4; r++) {
            if (host && r % host == 0) bytes = 0;
            bytes += plan->memory[r].of[TR_MEMORY_OFFLOAD];
            if (bytes > most) most = bytes;
        }
        assert_true(most > 0 && plan->host_bytes == most);
        tr_run_plan_destroy(plan);
        for (int less = 0; less < 2; less++) {
            config.device.host_memory = (int64_t)most - less;
            assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
            assert_int_equal(tr_run_plan_fits_host(plan), !less);
            assert_true(tr_run_plan_fits_device(plan));
            assert_int_equal(tr_run_plan_fits(plan), !less);
            tr_run_plan_destroy(plan);
        }
    }
    (void)strcpy(config.device.name, "cuda"); /* of another machine */
    config.device.memory = 1 << 30;
    config.device.host_memory = 0;
    tr_run_plan *plan;
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    assert_true(plan->host_limit == SIZE_MAX && tr_run_plan_fits(plan));
    tr_run_plan_destroy(plan);
    tr_device_close(device);
}

/* Advice for the ranks' memory: changes that fill a host's beyond its limit, or further when it is
 * exceeded already, are none; and what is missing there is no reason against other changes. */
static void test_advice_leaves_the_host_its_memory(void **state) {
    (void)state;
    static const char *const overrides[] = {"parallel.pp=2", "parallel.schedule=gpipe",
                                            "model.vocab=256"};
    tr_config config;
    tr_device *device;
    tr_run_plan *plan;
    char advice[ADVICE];
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    read_config(&config, 3, overrides);
    (void)strcpy(config.device.name, "guarded");
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    assert_true(plan->host_bytes == 0 && plan->host_limit == SIZE_MAX); /* nobody asks */
    tr_run_plan_destroy(plan);

    (void)strcpy(config.device.offload, "optimizer");
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    const int64_t host_bytes = (int64_t)plan->host_bytes;
    assert_true(plan->host_limit < SIZE_MAX);
    config.device.memory = (int64_t)plan->memory[tr_run_plan_largest(plan)].total - 1;
    tr_run_plan_destroy(plan);
    const struct {
        int64_t limit;
        bool offloads;
    } cases[] = {{4 * host_bytes, true}, {host_bytes, false}, {1, false}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        config.device.host_memory = cases[k].limit;
        make_advice(&config, device, advice);
        if (!strstr(advice, "train.micro_batch=1") || !strstr(advice, "train.recompute=selective"))
            fail_msg("limit %lld: %s", (long long)cases[k].limit, advice);
        if ((strstr(advice, "optimizer,activations") != NULL) != cases[k].offloads)
            fail_msg("limit %lld: %s", (long long)cases[k].limit, advice);
    }
    tr_device_close(device);
}

/* Plans with a limit in bytes and returns what the fullest rank takes; *c gets the modes that auto
 * chooses. */
static size_t need_under(size_t limit, const char *mode, tr_device *device, tr_config *c) {
    char memory[64], recompute[64];
    tr_run_plan *plan;
    (void)snprintf(memory, sizeof memory, "device.memory=%zu", limit);
    (void)snprintf(recompute, sizeof recompute, "train.recompute=%s", mode);
    read_config(c, 4, (const char *[]){"parallel.pp=2", "model.vocab=256", memory, recompute});
    assert_int_equal(tr_config_check(c, 2), TR_OK);
    assert_int_equal(tr_request_recompute(c, device), TR_OK);
    assert_int_equal(tr_run_plan_make(c, device, &plan), TR_OK);
    const size_t need = plan->memory[tr_run_plan_largest(plan)].total;
    tr_run_plan_destroy(plan);
    return need;
}

/* auto takes the first mode that fits, only on the stage that needs it, and full where none fits.
 * Under 1f1b the first stage holds more than the second one. */
static void test_auto_takes_the_cheapest_that_fits(void **state) {
    (void)state;
    const size_t much = (size_t)1 << 40;
    tr_config c;
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    const size_t none = need_under(much, "none", device, &c);
    const size_t selective = need_under(much, "selective", device, &c);
    const size_t full = need_under(much, "full", device, &c);
    assert_true(full < selective && selective < none);

    assert_true(need_under(much, "auto", device, &c) == none);
    assert_string_equal(c.model.recompute, "none");
    assert_true(need_under(none, "auto", device, &c) == none);
    assert_string_equal(c.model.recompute, "none");
    assert_true(need_under(none - 1, "auto", device, &c) < none);
    assert_string_equal(c.model.recompute, "selective:0-1");
    assert_true(need_under(selective - 1, "auto", device, &c) < selective);
    assert_int_equal(tr_recompute_of(c.model.recompute, 0), TR_RECOMPUTE_FULL);
    assert_int_not_equal(tr_recompute_of(c.model.recompute, 3), TR_RECOMPUTE_FULL);
    assert_true(need_under(full - 1, "auto", device, &c) == full);
    assert_string_equal(c.model.recompute, "full");

    /* Without a limit the choice would depend on this machine. */
    read_config(&c, 1, (const char *[]){"train.recompute=auto"});
    assert_int_equal(tr_config_check(&c, 1), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "set device.memory to the memory"));
    assert_int_equal(tr_memory_taken(device), 0);
    tr_device_close(device);
}

/* Lowers the mode of the rank's last stage that recomputes; returns false when none does. */
static bool lower_last_stage(tr_config *c, const tr_layout *l, int rank) {
    const int64_t blocks = c->model.layers;
    uint8_t modes[16];
    for (int64_t b = 0; b < blocks; b++) modes[b] = (uint8_t)tr_recompute_of(c->model.recompute, b);
    for (int s = l->placement.stages - 1; s >= 0; s--) {
        bool lower = false;
        for (int64_t b = l->first[s] - 1; b < l->first[s + 1] - 1 && l->owner[s] == rank; b++) {
            if (b < 0 || b >= blocks || modes[b] == 0) continue;
            modes[b]--;
            lower = true;
        }
        if (!lower) continue;
        assert_int_equal(tr_recompute_print(modes, blocks, c->model.recompute), TR_OK);
        return true;
    }
    return false;
}

static size_t need_of(const tr_config *c, tr_device *device) {
    tr_run_plan *plan;
    assert_int_equal(tr_run_plan_make(c, device, &plan), TR_OK);
    const size_t need = plan->memory[tr_run_plan_largest(plan)].total;
    tr_run_plan_destroy(plan);
    return need;
}

/* With several stages a rank auto chooses for each: a rank's last stage could not have the mode
 * before its own, because the ranks would not fit. Returns how many choices have several modes. */
static int choose_for_stages(const char *layers, const char *virtual, const char *vocab) {
    int mixed = 0;
    tr_device *device;
    tr_config c, other;
    size_t need[2];
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    for (int full = 0; full < 2; full++) {
        read_config(&c, 7,
                    (const char *[]){"parallel.pp=2", "parallel.schedule=interleaved", layers,
                                     virtual, vocab, "device.memory=1TiB",
                                     full ? "train.recompute=full" : "train.recompute=none"});
        need[full] = need_of(&c, device);
    }
    for (size_t part = 0; part <= 8; part++) {
        tr_run_plan *plan;
        c.device.memory = (int64_t)(need[1] + (need[0] - need[1]) / 8 * part);
        (void)strcpy(c.model.recompute, TR_RECOMPUTE_AUTO);
        assert_int_equal(tr_request_recompute(&c, device), TR_OK);
        mixed += strchr(c.model.recompute, ':') != NULL;
        assert_int_equal(tr_run_plan_make(&c, device, &plan), TR_OK);
        assert_true(tr_run_plan_fits(plan));
        for (int rank = 0; rank < 2; rank++) {
            other = c;
            if (lower_last_stage(&other, plan->layout, rank) &&
                need_of(&other, device) <= (size_t)c.device.memory)
                fail_msg("%s, %s: %s is enough, not %s", layers, vocab, other.model.recompute,
                         c.model.recompute);
        }
        tr_run_plan_destroy(plan);
    }
    tr_device_close(device);
    return mixed;
}

/* In the second case the cut follows the modes. */
static void test_auto_chooses_for_each_stage(void **state) {
    (void)state;
    assert_true(choose_for_stages("model.layers=8", "parallel.virtual=4", "model.vocab=256") > 4);
    assert_true(choose_for_stages("model.layers=9", "parallel.virtual=2", "model.vocab=1000") > 4);
}

/* A plan is called hopeless before it is made only if it does not fit: never at the bytes that it
 * takes, but when there is room for half of the activations alone. With less memory auto makes
 * another order, and under auto there is no order where parameters have no room. */
static void test_hopeless_plans_do_not_fit(void **state) {
    (void)state;
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    for (int k = 0; k < SCHEDULES; k++) {
        char schedule[64];
        tr_config config;
        tr_run_plan *plan;
        bool hopeless;
        (void)snprintf(schedule, sizeof schedule, "parallel.schedule=%s", schedules[k]);
        const char *const overrides[] = {"parallel.pp=4", "model.layers=16", "model.vocab=64",
                                         schedule};
        read_config(&config, 4, overrides);
        assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
        const tr_memory_plan most = plan->memory[tr_run_plan_largest(plan)];
        tr_run_plan_destroy(plan);
        config.device.memory = (int64_t)most.total;
        assert_int_equal(tr_run_plan_is_hopeless(&config, device, &hopeless), TR_OK);
        if (hopeless) fail_msg("%s fits, and is called hopeless", schedules[k]);
        if (strcmp(schedules[k], "auto") == 0) {
            config.device.memory = (int64_t)most.of[TR_MEMORY_OPTIMIZER];
            assert_int_equal(tr_run_plan_is_hopeless(&config, device, &hopeless), TR_OK);
            assert_true(hopeless);
            continue;
        }
        config.device.memory = (int64_t)(most.total - most.of[TR_MEMORY_ACTIVATIONS] / 2);
        assert_int_equal(tr_run_plan_is_hopeless(&config, device, &hopeless), TR_OK);
        if (!hopeless) fail_msg("%s has no room, and is not called hopeless", schedules[k]);
    }
    tr_device_close(device);
}

/* --- the cut ---------------------------------------------------------------------------------- */

/* The head costs as much as a block where a tensor rank has 199 words of the vocabulary, more where
 * it has 200: alone, the two ranks would cut differently. */
static void test_tensor_ranks_cut_the_same_stages(void **state) {
    (void)state;
    enum { STAGES = 2 };
    static const char *const sizes[] = {"model.heads=2", "model.context=12", "model.vocab=399",
                                        "train.batch=4", "parallel.pp=2",    "parallel.tp=2"};
    tr_config config;
    tr_schedule *schedule;
    tr_schedule_report report;
    tr_layout *layout[2];
    read_config(&config, (int)(sizeof sizes / sizeof *sizes), sizes);
    assert_int_equal(tr_request_schedule(&config, &schedule, &report), TR_OK);
    for (int rank = 0; rank < 2; rank++) {
        tr_layout_desc desc = {.model = config.model,
                               .batch = config.train.batch,
                               .micro_batch = config.train.micro_batch,
                               .dtype = TR_F32,
                               .schedule = schedule};
        assert_int_equal(tr_mesh_make(STAGES, 1, 2, rank, 2 * STAGES, &desc.mesh), TR_OK);
        assert_int_equal(desc.mesh.index[TR_AXIS_TP], rank);
        assert_int_equal(tr_layout_create(&desc, &layout[rank]), TR_OK);
    }
    for (int s = 0; s <= STAGES; s++) assert_int_equal(layout[0]->first[s], layout[1]->first[s]);
    tr_layout_destroy(layout[0]);
    tr_layout_destroy(layout[1]);
    tr_schedule_destroy(schedule);
}

/* --- parallel.zero 2 -------------------------------------------------------------------------- */

/* The head's F writes its gradients, so these are in the arena from its first F on; those of other
 * layers from the first B. A breadth-first order has few of them at one time, and takes less memory
 * than with parallel.zero 1. */
static void test_gradients_in_the_arena(void **state) {
    (void)state;
    static const char *const sizes[] = {
        "model.layers=6",        "model.dropout=0",    "train.batch=16",       "parallel.dp=4",
        "parallel.schedule=bfs", "parallel.virtual=6", "train.recompute=full", "parallel.zero=2"};
    const int count = (int)(sizeof sizes / sizeof *sizes);
    tr_config config;
    tr_device *device;
    tr_run_plan *plan, *one;
    assert_int_equal(tr_device_open("ref", &(tr_device_options){.threads = 1}, &device), TR_OK);
    read_config(&config, count, sizes);
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    const tr_program *p = &plan->layout->program[TR_LAYOUT_TRAIN]->program[0];
    int items = 0;
    for (int k = 0; k < p->items; k++) {
        const tr_item_key *key = &p->key[k];
        if (key->kind != TR_ITEM_BUCKET) continue;
        const bool head = key->owner == 5 && key->micro_batch == 0;
        int first = 0;
        while (p->instr[first].action.stage != key->owner ||
               p->instr[first].action.type != (head ? TR_ACTION_F : TR_ACTION_B))
            first++;
        assert_int_equal(p->item[k].start, first);
        items++;
    }
    assert_int_equal(items, 8);
    assert_true(2 * p->bucket_peak < p->bucket_bytes + p->bucket_bytes / 5);
    read_config(&config, count - 1, sizes);
    config.parallel.zero = 1;
    assert_int_equal(tr_run_plan_make(&config, device, &one), TR_OK);
    assert_true(plan->memory[0].total < one->memory[0].total);
    assert_true(plan->memory[0].of[TR_MEMORY_OPTIMIZER] == one->memory[0].of[TR_MEMORY_OPTIMIZER]);
    tr_run_plan_destroy(one);
    tr_run_plan_destroy(plan);
    tr_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_training),
        cmocka_unit_test(test_bytes_of_every_schedule),
        cmocka_unit_test(test_bytes_with_recompute),
        cmocka_unit_test(test_memory_of_the_last_rank),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_units_of_receives),
        cmocka_unit_test(test_tensor_ranks_cut_the_same_stages),
        cmocka_unit_test(test_time_of_a_step),
        cmocka_unit_test(test_what_fits),
        cmocka_unit_test(test_advice_of_several_degrees),
        cmocka_unit_test(test_which_stages_to_offload),
        cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_advice_leaves_the_host_its_memory),
        cmocka_unit_test(test_auto_takes_the_cheapest_that_fits),
        cmocka_unit_test(test_auto_chooses_for_each_stage),
        cmocka_unit_test(test_hopeless_plans_do_not_fit),
        cmocka_unit_test(test_gradients_in_the_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
