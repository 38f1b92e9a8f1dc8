/* Tests the plan of a run: its bytes are exactly those that the engines of its ranks allocate; the
 * last rank's memory; its time; its cut. test_plan_limits tests plans under a limit of memory. */
#include "support/plan_config.h"

#include "partition/request.h"
#include "partition/run_plan.h"
#include "train/engine.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

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

/* The same with every schedule, and with validation in the same arena. */
static void test_bytes_of_every_schedule(void **state) {
    (void)state;
    for (int k = 0; k < SCHEDULES; k++) {
        char schedule[64];
        (void)snprintf(schedule, sizeof schedule, "parallel.schedule=%s", schedules[k]);
        compare(2, 2, (const char *[]){"parallel.pp=2", schedule});
    }
}

/* Fails unless the plan has the bytes of each rank that the rank's own layout has. */
static void compare_alone(int count, const char *const *overrides) {
    tr_config config;
    tr_device *device;
    tr_run_plan *plan;
    read_config(&config, count, overrides);
    assert_int_equal(tr_device_open("ref", &one_thread, &device), TR_OK);
    if (tr_run_plan_make(&config, device, &plan) != TR_OK) fail_msg("%s", tr_error_message());
    tr_mesh mesh = plan->layout->desc.mesh;
    for (int r = 0; r < plan->ranks; r++) {
        const tr_op_context context = {.device = device, .deterministic = true};
        tr_memory_plan alone;
        tr_layout *layout;
        mesh.index[TR_AXIS_TP] = r % mesh.degree[TR_AXIS_TP];
        mesh.index[TR_AXIS_DP] = r / mesh.degree[TR_AXIS_TP] % mesh.degree[TR_AXIS_DP];
        mesh.index[TR_AXIS_PP] = r / mesh.degree[TR_AXIS_TP] / mesh.degree[TR_AXIS_DP];
        const tr_layout_desc desc = tr_request_layout(&config, &plan->orders, &mesh);
        assert_int_equal(tr_layout_create(&desc, &layout), TR_OK);
        assert_int_equal(tr_layout_prepare(layout, &context, 0, NULL, -1), TR_OK);
        assert_int_equal(tr_layout_lower(layout), TR_OK);
        assert_int_equal(tr_layout_memory(layout, device, &mesh, &alone), TR_OK);
        for (int k = 0; k < TR_MEMORY_CLASSES; k++)
            if (alone.of[k] != plan->memory[r].of[k])
                fail_msg("rank %d, %s: planned %zu, alone %zu", r,
                         tr_device_memory_name((tr_memory)k), plan->memory[r].of[k], alone.of[k]);
        assert_memory_equal(&alone, &plan->memory[r], sizeof alone);
        tr_layout_destroy(layout);
    }
    tr_run_plan_destroy(plan);
    tr_device_close(device);
}

/* Ranks that are alike share a plan. Here are ranks that differ: in the sizes of their portions of
 * few blocks of parameters, in their parts of a vocabulary or an MLP that does not divide evenly,
 * and in whether they sum the norms of a key head that several hold. */
static void test_bytes_of_ranks_that_differ(void **state) {
    static const char *const optimizers[] = {"optim.name=adamw", "optim.name=adafactor",
                                             "optim.name=muon", "optim.name=lamb"};
    (void)state;
    for (size_t k = 0; k < sizeof optimizers / sizeof *optimizers; k++) {
        compare_alone(7, (const char *[]){optimizers[k], "parallel.zero=1", "parallel.dp=12",
                                          "train.batch=24", "model.width=96", "parallel.pp=2",
                                          "parallel.schedule=1f1b"});
        compare_alone(8,
                      (const char *[]){optimizers[k], "parallel.tp=4", "model.heads=4",
                                       "model.kv_heads=2", "model.vocab=399", "model.mlp_width=50",
                                       "parallel.dp=2", "log.noise_scale=true"});
    }
    compare_alone(6, (const char *[]){"parallel.dp=2x6", "parallel.zero=3", "train.batch=24",
                                      "parallel.schedule=bfs", "parallel.virtual=4",
                                      "model.width=96"});
    compare_alone(5, (const char *[]){"parallel.dp=6", "parallel.tp=2", "parallel.zero=2",
                                      "model.vocab=5001", "train.batch=12"});
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

/* Each batch of a run has a step of its own: the last is the plan's, and one with half as many
 * micro-batches takes more than half as long, because its bubble is as long. */
static void test_time_of_each_batch(void **state) {
    (void)state;
    tr_config config;
    tr_device *device;
    tr_run_plan *plan;
    const char *const keys[] = {"parallel.pp=2", "train.batch=8", "train.micro_batch=1",
                                "train.batch_warmup=4 10"};
    read_config(&config, 4, keys);
    assert_int_equal(tr_device_open("ref", &one_thread, &device), TR_OK);
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    const tr_run_step *half = &plan->step[0], *whole = &plan->step[1];
    assert_int_equal(plan->steps, 2);
    assert_true(half->batch == 4 && whole->batch == 8);
    assert_true(whole->makespan == plan->time->makespan && whole->ideal == plan->ideal);
    assert_true(2 * half->makespan > whole->makespan * 1.01 && half->makespan < whole->makespan);
    assert_true(fabs(2 * half->ideal / whole->ideal - 1) < 1e-9);
    tr_run_plan_destroy(plan);
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
        cmocka_unit_test(test_bytes_of_ranks_that_differ),
        cmocka_unit_test(test_bytes_with_recompute),
        cmocka_unit_test(test_memory_of_the_last_rank),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_units_of_receives),
        cmocka_unit_test(test_tensor_ranks_cut_the_same_stages),
        cmocka_unit_test(test_time_of_a_step),
        cmocka_unit_test(test_time_of_each_batch),
        cmocka_unit_test(test_gradients_in_the_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
