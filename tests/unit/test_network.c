/* Tests the links between ranks: which are between hosts, and what messages, sums and gathers take
 * on them, sums of tied gradients, too. */
#include "layers/param_layout.h"
#include "partition/network.h"
#include "partition/request.h"
#include "partition/run_plan.h"
#include "partition/traffic.h"
#include "support/engine_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static tr_config config_of(int64_t host_ranks) {
    static const char *const links[] = {"device.link=10", "device.link_latency=2",
                                        "device.network=1", "device.network_latency=30"};
    static const char text[] = "data.path: x\n";
    tr_config config;
    assert_int_equal(tr_config_parse(text, strlen(text), "x.yaml", links, 4, &config), TR_OK);
    config.device.host_ranks = host_ranks;
    return config;
}

static int host_of(const tr_mesh *mesh, int pp, int dp, int tp, int64_t host_ranks) {
    const int index[TR_AXIS_COUNT] = {[TR_AXIS_PP] = pp, [TR_AXIS_DP] = dp, [TR_AXIS_TP] = tp};
    return host_ranks ? (int)(tr_mesh_rank(mesh, index) / host_ranks) : 0;
}

/* Returns true when some ranks that differ only along the axis are on different hosts. */
static bool spans_hosts(const tr_mesh *mesh, tr_axis axis, int64_t host_ranks) {
    for (int pp = 0; pp < mesh->degree[TR_AXIS_PP]; pp++)
        for (int dp = 0; dp < mesh->degree[TR_AXIS_DP]; dp++)
            for (int tp = 0; tp < mesh->degree[TR_AXIS_TP]; tp++)
                if (host_of(mesh, pp, dp, tp, host_ranks) !=
                    host_of(mesh, axis == TR_AXIS_PP ? 0 : pp, axis == TR_AXIS_DP ? 0 : dp,
                            axis == TR_AXIS_TP ? 0 : tp, host_ranks))
                    return true;
    return false;
}

static bool stages_span_hosts(const tr_mesh *mesh, int from, int to, int64_t host_ranks) {
    for (int dp = 0; dp < mesh->degree[TR_AXIS_DP]; dp++)
        for (int tp = 0; tp < mesh->degree[TR_AXIS_TP]; tp++)
            if (host_of(mesh, from, dp, tp, host_ranks) != host_of(mesh, to, dp, tp, host_ranks))
                return true;
    return false;
}

/* All meshes of up to 4 ranks along each axis, on hosts of up to 20 ranks. */
static void test_which_links_are_between_hosts(void **state) {
    (void)state;
    tr_mesh mesh = {0};
    for (int k = 0; k < 4 * 4 * 4 * 21; k++) {
        const int host = k / 64;
        const tr_config config = config_of(host);
        mesh.degree[TR_AXIS_PP] = 1 + k % 4;
        mesh.degree[TR_AXIS_DP] = 1 + k / 4 % 4;
        mesh.degree[TR_AXIS_TP] = 1 + k / 16 % 4;
        for (tr_axis axis = 0; axis < TR_AXIS_COUNT; axis++)
            if (tr_network_is_far(&config, &mesh, axis) != spans_hosts(&mesh, axis, host))
                fail_msg("pp %d, dp %d, tp %d on hosts of %d: axis %d", mesh.degree[0],
                         mesh.degree[1], mesh.degree[2], host, (int)axis);
        const tr_simulated_links links = tr_network_links(&config, &mesh, 1e9);
        for (int a = 0; a < mesh.degree[TR_AXIS_PP]; a++)
            for (int b = 0; b < mesh.degree[TR_AXIS_PP]; b++) {
                const bool far = a != b && stages_span_hosts(&mesh, a, b, host);
                const tr_link link = tr_simulated_link(&links, a, b);
                if (a != b && (link.latency == links.far.latency) != far)
                    fail_msg("pp %d, dp %d, tp %d on hosts of %d: from %d to %d", mesh.degree[0],
                             mesh.degree[1], mesh.degree[2], host, a, b);
            }
    }
}

static void expect_link(tr_link link, double latency, double per_byte) {
    assert_true(link.latency > latency * (1 - 1e-12) && link.latency < latency * (1 + 1e-12));
    assert_true(link.per_byte > per_byte * (1 - 1e-12) && link.per_byte < per_byte * (1 + 1e-12));
}

/* 2 us and 10 GB/s on a host, 30 us and 1 GB/s between hosts, in FLOPs of 1 TFLOP/s. */
static void test_what_links_take(void **state) {
    (void)state;
    const tr_mesh mesh = {.degree = {[TR_AXIS_PP] = 2, [TR_AXIS_DP] = 4, [TR_AXIS_TP] = 2}};
    tr_config config = config_of(8);
    const tr_simulated_links links = tr_network_links(&config, &mesh, 1e12);
    expect_link(links.near, 2e6, 100);
    expect_link(links.far, 30e6, 1000);
    assert_true(links.line == 8 && links.host == 8);
    expect_link(links.sum, 4e6, 150); /* 2 (n - 1) / n = 1.5 */
    expect_link(tr_network_sum(&config, &mesh, TR_AXIS_TP, 1e12), 4e6, 100);
    config.parallel.zero = 1; /* only the first half of a sum */
    expect_link(tr_network_links(&config, &mesh, 1e12).sum, 2e6, 75);
    config.parallel.zero = 0;
    /* 2x2 with a host for each run: near ranks sum over the link, and half of the bytes across. */
    const tr_mesh factors = {.degree = {[TR_AXIS_PP] = 2, [TR_AXIS_DP] = 4, [TR_AXIS_TP] = 2},
                             .near = 2};
    config.device.host_ranks = 4;
    expect_link(tr_network_near(&config, &factors, 1e12), 4e6, 100);
    expect_link(tr_network_links(&config, &factors, 1e12).sum, 64e6, 100 + 1000 / 2);
    config.parallel.zero = 1;
    expect_link(tr_network_links(&config, &factors, 1e12).sum, 62e6, 50 + 1000 / 2);
    /* Without data ranks only tensor ranks sum gradients, and divide nothing. */
    const tr_mesh tensor = {.degree = {[TR_AXIS_PP] = 2, [TR_AXIS_DP] = 1, [TR_AXIS_TP] = 4}};
    expect_link(tr_network_links(&config, &tensor, 1e12).sum, 4e6, 150);
    config.parallel.zero = 0;
    expect_link(tr_network_sum(&config, &mesh, TR_AXIS_DP, 1e12), 60e6, 1500);
    expect_link(tr_network_sum(&config, &mesh, TR_AXIS_TP, 1e12), 4e6, 100);
    /* Copies to the host: by default no faster than the device's usual link. */
    expect_link(links.copy, 2e6, 1000);
    config.device.link = 0.5;
    expect_link(tr_network_links(&config, &mesh, 1e12).copy, 2e6, 2000);
    config.device.host_link = 20;
    expect_link(tr_network_links(&config, &mesh, 1e12).copy, 2e6, 50);
    /* Without values a CPU's link has 1 GB/s in 20 GFLOP/s, and the network is like it. */
    config.device.link = config.device.link_latency = 0;
    config.device.network = config.device.network_latency = 0;
    const tr_simulated_links usual = tr_network_links(&config, &mesh, 0);
    assert_true(usual.near.latency == 0 && usual.near.per_byte == 20);
    assert_true(usual.far.latency == 0 && usual.far.per_byte == 20);
}

/* With slow messages between hosts the order auto has fewer stages, and so fewer messages. */
static void test_auto_knows_the_links(void **state) {
    (void)state;
    static const char text[] = "data.path: x\n"
                               "model: {layers: 8, width: 64, heads: 4, context: 32}\n"
                               "train: {batch: 8, micro_batch: 1}\n"
                               "parallel: {pp: 4, schedule: auto}\n";
    static const char *const slow[] = {"device.network_latency=1000", "device.host_ranks=2"};
    int stages[2];
    for (int k = 0; k < 2; k++) {
        tr_config config;
        tr_schedule *schedule;
        tr_schedule_report report;
        assert_int_equal(tr_config_parse(text, strlen(text), "x.yaml", slow, 2 * k, &config),
                         TR_OK);
        assert_int_equal(tr_request_schedule(&config, &schedule, &report), TR_OK);
        stages[k] = schedule->stages;
        tr_schedule_destroy(schedule);
    }
    assert_true(stages[0] > stages[1]);
}

/* --- the bytes of sums ------------------------------------------------------------------------ */

/* A rank of a step, and the bytes that it sends for sums of gradients. */
typedef struct summing {
    const tr_config *config;
    const tr_schedule *schedule;
    int64_t near, across; /* groups */
    int runs;
    bool ends;    /* the end of the step runs, with sums of its own */
    double sent;  /* to the other near ranks, and across */
    double price; /* of its program's sums */
} summing;

/* A delay of the world, which only sees every collective and its bytes: a first or a second round,
 * except those of an all-reduce, and of a sum across two runs, which has the bytes of both. */
static double see_collective(void *context, int group, size_t bytes) {
    summing *s = context;
    const int near = (int)tr_config_near(s->config);
    const bool across = group == s->across && s->runs > 1;
    const int n = across ? s->runs : near;
    const bool both = across ? n == 2 : s->runs == 1 && s->config->parallel.zero == 0;
    if (s->ends || n == 1) return 0;
    assert_true(across || group == s->near);
    s->sent += (both ? 2 : 1) * (double)bytes * (n - 1) / n;
    return 0;
}

static void see_instr(void *context, const tr_instr *instr, bool begin) {
    summing *s = context;
    (void)begin;
    s->ends |= instr->action.type == TR_ACTION_FINISH;
    if (begin && instr->action.type == TR_ACTION_REDUCE_START) s->price += (double)instr->bytes;
}

static tr_status fetch_zeros(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                             int count) {
    (void)context, (void)validation, (void)sample;
    for (int k = 0; k < count; k++) memset(wanted[k].to, 0, 16 * sizeof(int32_t));
    return TR_OK;
}

static tr_status take_step(engine_rank *r, void *state) {
    summing *s = state;
    const tr_config *c = s->config;
    tr_step_result result;
    tr_engine_desc desc = {.world = r->world,
                           .device = r->device,
                           .model = c->model,
                           .batch = c->train.batch,
                           .micro_batch = c->train.micro_batch,
                           .dtype = tr_config_dtype(c),
                           .schedule = s->schedule,
                           .zero = (int)c->parallel.zero,
                           .reduce = tr_request_reduce(c),
                           .fetch = fetch_zeros,
                           .observe = see_instr,
                           .observe_context = s,
                           .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f}};
    desc.optimizer.gradients = strcmp(c->optim.gradients, "bf16") ? TR_F32 : TR_BF16;
    TR_TRY(tr_mesh_make(1, r->ranks, 1, r->rank, r->ranks, &desc.mesh));
    desc.mesh.near = tr_config_near(c);
    TR_TRY(tr_engine_create(&desc, &r->engine));
    const tr_store *store = tr_engine_store(r->engine);
    TR_TRY(tr_store_init(tr_engine_store(r->engine), 1, NULL));
    s->near = tr_mesh_part_id(&store->mesh, &store->slot[0].layout.sum);
    s->across = tr_mesh_part_id(&store->mesh, &store->slot[0].layout.across);
    s->runs = tr_mesh_part_size(&store->slot[0].layout.across);
    tr_world_set_delay(r->world, see_collective, s);
    TR_TRY(tr_engine_step(r->engine, 1, 1, 0, 1e-3, &result));
    tr_world_set_delay(r->world, NULL, NULL);
    s->price *= tr_network_reduce(c, &store->mesh, 1e9).per_byte; /* of a link of 1 GB/s */
    return TR_OK;
}

/* Fails unless the data ranks of a step send the bytes that the link prices, on average. All sizes
 * are whole blocks of memory, since sums of adjacent gradients also send what rounds them up. */
static void compare_sums(const char *dp, const char *zero, const char *reduce, const char *grads) {
    static const char text[] = "data.path: x\n"
                               "model: {layers: 2, width: 128, heads: 4, context: 16, vocab: 100}\n"
                               "train: {batch: 12, micro_batch: 1, threads: 1}\n"
                               "device: {link: 1}\n";
    const char *const overrides[] = {dp, zero, reduce, grads};
    summing rank[MOST_ENGINE_RANKS];
    tr_config config;
    tr_schedule *schedule;
    tr_schedule_report report;
    double sent = 0, price = 0;
    assert_int_equal(tr_config_parse(text, strlen(text), "x.yaml", overrides, 4, &config), TR_OK);
    assert_int_equal(tr_request_schedule(&config, &schedule, &report), TR_OK);
    const int ranks = (int)config.parallel.dp;
    for (int r = 0; r < ranks; r++) rank[r] = (summing){.config = &config, .schedule = schedule};
    run_engine_ranks(ranks, "cpu", take_step, rank, sizeof *rank);
    for (int r = 0; r < ranks; r++) {
        sent += rank[r].sent;
        price += rank[r].price;
    }
    if (sent < price * (1 - 1e-9) || sent > price * (1 + 1e-9) || sent <= 0)
        fail_msg("%s %s %s %s: %.0f bytes sent, %.0f priced", dp, zero, reduce, grads, sent, price);
    tr_schedule_destroy(schedule);
}

static void test_sums_send_the_priced_bytes(void **state) {
    (void)state;
    static const char *const dp[] = {"parallel.dp=2", "parallel.dp=2x2", "parallel.dp=3x2"};
    static const char *const types[][2] = {{"parallel.reduce=fp32", "optim.gradients=fp32"},
                                           {"parallel.reduce=bf16", "optim.gradients=fp32"},
                                           {"parallel.reduce=bf16", "optim.gradients=bf16"}};
    for (int k = 0; k < 9; k++) {
        compare_sums(dp[k % 3], "parallel.zero=0", types[k / 3][0], types[k / 3][1]);
        compare_sums(dp[k % 3], "parallel.zero=1", types[k / 3][0], types[k / 3][1]);
    }
}

/* --- sums of tied gradients ------------------------------------------------------------------- */

/* Plans a GPT-2, and returns what its tied table's sums take at 1 GFLOP/s. Fails unless the step
 * has them besides what the simulation and the other kinds take. */
static tr_traffic sums_of_ties(tr_device *device, const char *const *overrides) {
    static const char text[] = "data.path: x\n"
                               "model: {layers: 4, width: 64, heads: 4, context: 16, vocab: 1000}\n"
                               "train: {batch: 8, micro_batch: 1, threads: 1}\n"
                               "device: {link: 2, link_latency: 3, network: 1, "
                               "network_latency: 30, memory: 1GiB}\n";
    tr_config config;
    tr_run_plan *plan;
    tr_step_traffic t;
    tr_simulation *step;
    assert_int_equal(tr_config_parse(text, strlen(text), "x.yaml", overrides, 4, &config), TR_OK);
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    const tr_layout *l = plan->layout;
    const tr_simulated_links links = tr_network_links(&config, &l->desc.mesh, 1e9);
    assert_int_equal(tr_traffic_step(&config, l, 1e9, &t), TR_OK);
    assert_int_equal(tr_simulate(l->program[TR_LAYOUT_TRAIN], l->table.cost, &links, &step), TR_OK);
    const double others = step->makespan + t.of[TR_TRAFFIC_TENSOR].exposed + t.updating;
    const tr_traffic ties = t.of[TR_TRAFFIC_TIES];
    assert_true(ties.exposed == ties.moving);
    assert_true(fabs(t.makespan - others - ties.exposed) < 1e-9 * t.makespan);
    tr_simulation_destroy(step);
    tr_run_plan_destroy(plan);
    return ties;
}

/* The first and the last stage sum the gradients of their uses of the table, 1000 x 64 numbers of 4
 * bytes, at the end of a step, if they are on two ranks. */
static void test_sums_of_ties_are_priced(void **state) {
    (void)state;
    static const struct {
        const char *keys[4];
        double bytes;
        bool far;
    } cases[] = {
        {{"parallel.pp=2", "parallel.dp=1", "parallel.zero=0", "optim.gradients=fp32"},
         256000,
         false},
        {{"parallel.pp=4", "device.host_ranks=2", "parallel.zero=0", "parallel.dp=1"},
         256000,
         true},
        {{"parallel.pp=2", "parallel.tp=2", "parallel.zero=0", "optim.gradients=bf16"},
         64000,
         false},
        /* 16 blocks of 4096 elements, divided among the data ranks of a run. */
        {{"parallel.pp=2", "parallel.dp=2", "parallel.zero=1", "parallel.tp=1"}, 131072, false},
        {{"parallel.pp=2", "parallel.dp=2x4", "parallel.zero=1", "parallel.tp=1"}, 65536, false},
        {{"parallel.pp=1", "parallel.dp=2", "parallel.zero=0", "parallel.tp=1"}, 0, false},
        {{"parallel.pp=2", "parallel.schedule=zbv", "parallel.zero=0", "parallel.tp=1"}, 0, false},
        {{"parallel.pp=2", "train.freeze=*.wte.weight", "parallel.zero=0", "parallel.tp=1"},
         0,
         false}};
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device), TR_OK);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const double bytes = cases[k].bytes;
        const double time = cases[k].far ? 2 * 30e3 + bytes : 2 * 3e3 + bytes / 2;
        const tr_traffic ties = sums_of_ties(device, cases[k].keys);
        assert_true(ties.count == (bytes > 0) && ties.bytes == bytes);
        assert_true(fabs(ties.moving - (bytes > 0 ? time : 0)) <= 1e-9 * time);
        assert_int_equal(ties.over, cases[k].far ? TR_REACH_BETWEEN_HOSTS : TR_REACH_INSIDE_HOSTS);
    }
    tr_device_close(device);
}

/* --- what a step moves ------------------------------------------------------------------------ */

/* Plans a Llama, and returns what a step moves at 10 GFLOP/s. *plan: NULL, or the plan. */
static tr_step_traffic traffic_of(tr_device *device, int count, const char *const *overrides,
                                  tr_run_plan **plan) {
    static const char text[] = "data.path: x\n"
                               "model: {family: llama, layers: 4, width: 64, heads: 4, "
                               "context: 64, vocab: 1000}\n"
                               "train: {batch: 16, micro_batch: 1, threads: 1}\n"
                               "device: {link: 10, memory: 1GiB}\n"
                               "parallel: {pp: 2, dp: 2, zero: 1, cut: 'Ett|ttL'}\n";
    tr_config config;
    tr_run_plan *made;
    tr_step_traffic t;
    assert_int_equal(tr_config_parse(text, strlen(text), "x.yaml", overrides, count, &config),
                     TR_OK);
    assert_int_equal(tr_run_plan_make(&config, device, &made), TR_OK);
    assert_int_equal(tr_traffic_of(&config, made->layout, 1e10, &t), TR_OK);
    if (plan) *plan = made;
    else tr_run_plan_destroy(made);
    return t;
}

/* Messages take as long, and make the step as much longer, as without the sums and gathers of data
 * ranks. */
static void test_messages_count_alone(void **state) {
    (void)state;
    static const char *const alone[] = {"parallel.dp=1", "train.batch=8", "parallel.zero=0"};
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device), TR_OK);
    const tr_step_traffic with = traffic_of(device, 0, NULL, NULL);
    const tr_step_traffic without = traffic_of(device, 3, alone, NULL);
    const tr_traffic a = with.of[TR_TRAFFIC_MESSAGES], b = without.of[TR_TRAFFIC_MESSAGES];
    assert_true(with.of[TR_TRAFFIC_SUMS].exposed > 0 && with.of[TR_TRAFFIC_GATHERS].exposed > 0);
    assert_true(b.exposed > 0 && fabs(a.exposed / b.exposed - 1) < 1e-6);
    assert_true(a.count == b.count && a.bytes == b.bytes && a.moving == b.moving);
    tr_device_close(device);
}

/* The tensor ranks' sums are those of the pipeline rank that waits longest: four of each of its
 * three blocks and eight micro-batches. */
static void test_tensor_sums_of_the_rank_that_waits_longest(void **state) {
    (void)state;
    static const char *const keys[][2] = {{"parallel.tp=2", "parallel.cut=Ettt|tL"},
                                          {"parallel.tp=2", "parallel.cut=Et|tttL"}};
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device), TR_OK);
    for (int k = 0; k < 2; k++) {
        const tr_step_traffic t = traffic_of(device, 2, keys[k], NULL);
        assert_true(t.of[TR_TRAFFIC_TENSOR].count >= 4 * 3 * 8);
    }
    tr_device_close(device);
}

/* Gathers for which no rank waits count as well: the second stage's hide while it waits for its
 * first input, and the first stage has only frozen parameters. */
static void test_hidden_gathers_count(void **state) {
    (void)state;
    static const char *const freeze[] = {"train.freeze=*embed_tokens* *layers.0.* *layers.1.*"};
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device), TR_OK);
    const tr_step_traffic t = traffic_of(device, 1, freeze, NULL);
    const tr_traffic *gathers = &t.of[TR_TRAFFIC_GATHERS];
    assert_true(gathers->count == 3 && gathers->bytes > 0 && gathers->moving > 0);
    assert_true(gathers->exposed == 0);
    tr_device_close(device);
}

/* Returns the elements of the layer that the data rank which sends most sends in a gather. */
static int64_t most_sent(const tr_layer *layer, const tr_mesh *mesh) {
    int64_t most = 0;
    for (int place = 0; place < tr_mesh_near(mesh); place++) {
        int64_t sent = 0;
        for (int k = 0; k < layer->params_count; k++)
            sent += tr_param_portion_of(&layer->params[k], mesh, place).extent;
        if (sent > most) most = sent;
    }
    return most;
}

/* Every data rank of a gather sends as much as the one with the largest portions. */
static void test_gathers_of_unequal_portions(void **state) {
    (void)state;
    static const char *const keys[][3] = {{"parallel.dp=3", "train.batch=24", "model.mlp_width=96"},
                                          {"parallel.dp=5", "train.batch=40", "model.width=80"},
                                          {"parallel.dp=7", "train.batch=56", "model.vocab=777"}};
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device), TR_OK);
    for (int k = 0; k < 3; k++) {
        tr_run_plan *plan;
        (void)traffic_of(device, 3, keys[k], &plan);
        const tr_layout *l = plan->layout;
        const tr_mesh *mesh = &l->desc.mesh;
        for (int s = 0; s < l->table.stages; s++)
            for (int n = 0; n < l->table.cost[s].buckets; n++) {
                const tr_layer *layer = l->model->layers[l->placement.first[s + 1] - 1 - n];
                const int64_t sent = tr_mesh_near(mesh) * most_sent(layer, mesh);
                assert_true(l->table.cost[s].bucket[n].gathered == (size_t)sent * sizeof(float));
            }
        tr_run_plan_destroy(plan);
    }
    tr_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_which_links_are_between_hosts),
        cmocka_unit_test(test_what_links_take),
        cmocka_unit_test(test_auto_knows_the_links),
        cmocka_unit_test(test_sums_send_the_priced_bytes),
        cmocka_unit_test(test_sums_of_ties_are_priced),
        cmocka_unit_test(test_messages_count_alone),
        cmocka_unit_test(test_tensor_sums_of_the_rank_that_waits_longest),
        cmocka_unit_test(test_hidden_gathers_count),
        cmocka_unit_test(test_gathers_of_unequal_portions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
