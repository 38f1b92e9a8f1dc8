/* Tests the planned sums over tensor ranks: they are those that a step makes, operators run during
 * those for which the plan has other work, and what stays exposed of them follows the formula. */
#include "partition/request.h"
#include "partition/run_plan.h"
#include "partition/tensor_sums.h"
#include "train/engine.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, LAYERS = 4, WIDTH = 32, SEQ = 16, VOCAB = 100, MICRO_BATCHES = 8 };

static const tr_device_options one_thread = {.threads = 1};
static const char model[] = "data.path: x\n"
                            "model: {layers: 4, width: 32, heads: 4, context: 16, vocab: 100}\n"
                            "train: {batch: 16, micro_batch: 2, threads: 1}\n";

static void read_config(tr_config *config, int count, const char *const *overrides) {
    if (tr_config_parse(model, strlen(model), "model.yaml", overrides, count, config) != TR_OK)
        fail_msg("%s", tr_error_message());
}

/* --- what runs during a sum ------------------------------------------------------------------ */

enum { MOST_TRAVEL = 4 };

/* Of this thread's rank: operators that have run, and the sums and gathers over the tensor ranks
 * that travel, with their tickets and the operators before. hidden: first waits for one before
 * which others have run. */
static _Thread_local struct {
    int operators, hidden, travels;
    bool sequence; /* then tr_group_start only makes sums that are waited for at once, or of
                      gradients */
    struct {
        int64_t ticket;
        int before;
    } sum[MOST_TRAVEL];
} during;

tr_status __real_tr_op_run(tr_op *op, tr_stream *stream, const tr_op_args *args);
tr_status __wrap_tr_op_run(tr_op *op, tr_stream *stream, const tr_op_args *args);
tr_status __wrap_tr_op_run(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    during.operators++;
    return __real_tr_op_run(op, stream, args);
}

/* Notes a sum that is not waited for yet; the last place is for those that no test waits for. */
static void note_start(int64_t ticket) {
    const int k = during.travels < MOST_TRAVEL ? during.travels++ : MOST_TRAVEL - 1;
    during.sum[k].ticket = ticket;
    during.sum[k].before = during.operators;
}

tr_status __real_tr_group_start(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                                tr_dtype dtype, tr_reduce op, int64_t *ticket);
tr_status __wrap_tr_group_start(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                                tr_dtype dtype, tr_reduce op, int64_t *ticket);
tr_status __wrap_tr_group_start(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                                tr_dtype dtype, tr_reduce op, int64_t *ticket) {
    const tr_status status = __real_tr_group_start(group, stream, buffer, count, dtype, op, ticket);
    if (!during.sequence) during.travels = 0; /* only the last one's first wait is looked at */
    if (!during.sequence) note_start(*ticket);
    return status;
}

tr_status __real_tr_group_scatter(tr_group *group, tr_stream *stream, void *whole, void *part,
                                  int64_t count, tr_dtype dtype, int64_t *ticket);
tr_status __wrap_tr_group_scatter(tr_group *group, tr_stream *stream, void *whole, void *part,
                                  int64_t count, tr_dtype dtype, int64_t *ticket);
tr_status __wrap_tr_group_scatter(tr_group *group, tr_stream *stream, void *whole, void *part,
                                  int64_t count, tr_dtype dtype, int64_t *ticket) {
    const tr_status status =
        __real_tr_group_scatter(group, stream, whole, part, count, dtype, ticket);
    note_start(*ticket);
    return status;
}

tr_status __real_tr_group_gather_parts(tr_group *group, tr_stream *stream, void *whole,
                                       int64_t count, tr_dtype dtype, int64_t *ticket);
tr_status __wrap_tr_group_gather_parts(tr_group *group, tr_stream *stream, void *whole,
                                       int64_t count, tr_dtype dtype, int64_t *ticket);
tr_status __wrap_tr_group_gather_parts(tr_group *group, tr_stream *stream, void *whole,
                                       int64_t count, tr_dtype dtype, int64_t *ticket) {
    const tr_status status =
        __real_tr_group_gather_parts(group, stream, whole, count, dtype, ticket);
    note_start(*ticket);
    return status;
}

tr_status __real_tr_group_wait(tr_group *group, tr_stream *stream, int64_t ticket);
tr_status __wrap_tr_group_wait(tr_group *group, tr_stream *stream, int64_t ticket);
tr_status __wrap_tr_group_wait(tr_group *group, tr_stream *stream, int64_t ticket) {
    for (int k = 0; k < during.travels; k++)
        if (during.sum[k].ticket == ticket) {
            during.hidden += during.operators > during.sum[k].before;
            during.sum[k] = during.sum[--during.travels];
        }
    return __real_tr_group_wait(group, stream, ticket);
}

/* --- the sums of a step ----------------------------------------------------------------------- */

typedef struct rank_state {
    pthread_t thread;
    const tr_config *config;
    tr_world *world;
    int64_t group; /* of the tensor ranks */
    bool ends;     /* the end of the step runs, with sums of its own */
    double delay;  /* of each sum */
    tr_engine *engine;
    double before, waited; /* seconds, before the step and in it until its end */
    int64_t count;
    double bytes;
    int hidden; /* of these, those during which operators ran */
    tr_status status;
} rank_state;

/* A delay of the world, which also sees every sum. */
static double see_sum(void *context, int group, size_t bytes) {
    rank_state *r = context;
    if (group != r->group || r->ends) return 0;
    r->count++;
    r->bytes += (double)bytes;
    return r->delay;
}

static void on_observe(void *context, const tr_instr *instr, bool begin) {
    rank_state *r = context;
    if (instr->action.type != TR_ACTION_FINISH || !begin) return;
    r->ends = true;
    r->waited = tr_engine_tensor_waited(r->engine) - r->before;
    r->hidden = during.hidden;
}

static tr_status fetch_tokens(void *context, bool validation, int64_t sample,
                              const tr_fetch *wanted, int count) {
    (void)context, (void)validation;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < SEQ; i++)
            ((int32_t *)wanted[k].to)[i] = (int32_t)((sample + i) % VOCAB);
    return TR_OK;
}

/* Takes the sums of gradients over the tensor ranks, which are not activations', from what the step
 * has made: those of norms with sequence parallelism. */
static void leave_out_gradients(rank_state *r, const tr_mesh *mesh) {
    const tr_store *store = tr_engine_store(r->engine);
    for (int i = 0; i < store->spans; i++) {
        const int k = store->span[i].slot;
        if (tr_mesh_part_id(mesh, &store->slot[k].layout.sum) != r->group) continue;
        r->count--;
        r->bytes -= (double)store->span[i].count * sizeof(float);
    }
}

static tr_status take_step(rank_state *r, tr_device *device, const tr_schedule *schedule) {
    const tr_config *c = r->config;
    tr_engine *engine = NULL;
    tr_step_result result;
    tr_engine_desc desc = {.world = r->world,
                           .device = device,
                           .model = c->model,
                           .batch = c->train.batch,
                           .micro_batch = c->train.micro_batch,
                           .dtype = tr_config_dtype(c),
                           .schedule = schedule,
                           .fetch = fetch_tokens,
                           .observe = on_observe,
                           .observe_context = r,
                           .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f}};
    TR_TRY(tr_mesh_make((int)c->parallel.pp, (int)c->parallel.dp, (int)c->parallel.tp,
                        tr_world_rank(r->world), tr_world_size(r->world), &desc.mesh));
    tr_mesh_part part = tr_mesh_self(&desc.mesh);
    TR_TRY(tr_mesh_widen(&desc.mesh, TR_AXIS_TP, 0, &part));
    r->group = tr_mesh_part_id(&desc.mesh, &part);
    TR_TRY(tr_engine_create(&desc, &engine));
    tr_status status = tr_store_init(tr_engine_store(engine), 1, NULL);
    tr_world_set_delay(r->world, see_sum, r);
    r->engine = engine;
    r->before = tr_engine_tensor_waited(engine);
    if (status == TR_OK) status = tr_engine_step(engine, 1, 1, 0, 1e-3, &result);
    tr_world_set_delay(r->world, NULL, NULL);
    if (status == TR_OK) leave_out_gradients(r, &desc.mesh);
    tr_engine_destroy(engine);
    return status;
}

static tr_status run_rank(rank_state *r) {
    tr_device *device = NULL;
    tr_schedule *schedule = NULL;
    tr_schedule_report report;
    TR_TRY(tr_device_open("cpu", &one_thread, &device));
    tr_status status = tr_request_schedule(r->config, &schedule, &report);
    if (status == TR_OK) status = take_step(r, device, schedule);
    tr_schedule_destroy(schedule);
    tr_device_close(device);
    return status;
}

static void *rank_main(void *argument) {
    rank_state *r = argument;
    during.sequence = r->config->model.sequence;
    r->status = run_rank(r);
    if (r->status != TR_OK) {
        fprintf(stderr, "%s\n", tr_error_message());
        tr_world_abort(r->world, 1);
    }
    tr_world_close(r->world);
    return NULL;
}

typedef struct planned {
    tr_device *device;
    tr_run_plan *plan;
} planned;

static planned plan_open(const tr_config *config) {
    planned p;
    assert_int_equal(tr_device_open("cpu", &one_thread, &p.device), TR_OK);
    if (tr_run_plan_make(config, p.device, &p.plan) != TR_OK) fail_msg("%s", tr_error_message());
    return p;
}

static void plan_close(planned *p) {
    tr_run_plan_destroy(p->plan);
    tr_device_close(p->device);
}

static tr_sum_times sums_of(const tr_run_plan *plan, int pp_rank, tr_link link) {
    const tr_layout *l = plan->layout;
    return tr_sum_times_of(l->model, &l->placement, &l->program[TR_LAYOUT_TRAIN]->program[pp_rank],
                           link);
}

/* Returns the sums of the rank's program during which other work of B is planned. */
static int planned_hidden(const tr_run_plan *plan, int pp_rank) {
    const tr_layout *l = plan->layout;
    const tr_program *program = &l->program[TR_LAYOUT_TRAIN]->program[pp_rank];
    int hidden = 0;
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        if (a.type != TR_ACTION_B) continue;
        for (int i = l->placement.first[a.stage]; i < l->placement.first[a.stage + 1]; i++)
            for (int n = 0; n < l->model->layers[i]->sums; n++) {
                const tr_layer_sum *sum = &l->model->layers[i]->sum[n];
                if (sum->when != TR_LAYER_SUM_W_APART && sum->hides > 0) hidden += sum->count;
            }
    }
    return hidden;
}

/* Takes a step in which every sum is delayed. Fails unless every rank made the planned sums, of the
 * planned bytes; with orders that hide none, unless it waited for all of them. */
static void compare_delayed(double delay, int count, const char *const *overrides) {
    tr_config config;
    tr_world *world[RANKS];
    rank_state rank[RANKS];
    read_config(&config, count, overrides);
    planned p = plan_open(&config);
    assert_in_range(p.plan->ranks, 2, RANKS);
    assert_int_equal(tr_world_open_local(p.plan->ranks, world), TR_OK);
    for (int r = 0; r < p.plan->ranks; r++) {
        rank[r] = (rank_state){.config = &config, .world = world[r], .delay = delay};
        assert_int_equal(pthread_create(&rank[r].thread, NULL, rank_main, &rank[r]), 0);
    }
    for (int r = 0; r < p.plan->ranks; r++) pthread_join(rank[r].thread, NULL);
    for (int r = 0; r < p.plan->ranks; r++) {
        const int pp_rank = r / (int)(config.parallel.dp * config.parallel.tp);
        const tr_sum_times want = sums_of(p.plan, pp_rank, (tr_link){0});
        assert_int_equal(rank[r].status, TR_OK);
        if (want.count != rank[r].count || want.bytes != rank[r].bytes)
            fail_msg("rank %d: planned %d sums of %.0f bytes, made %d of %.0f", r, (int)want.count,
                     want.bytes, (int)rank[r].count, rank[r].bytes);
        assert_true(want.count > 0);
        assert_int_equal(rank[r].hidden, planned_hidden(p.plan, pp_rank));
        /* Half: a thread that is interrupted after it has started a sum waits less for it. */
        if (rank[r].waited < 0.5 * delay * (double)want.count)
            fail_msg("rank %d: waited %.3f s for %d sums of %.3f s", r, rank[r].waited,
                     (int)want.count, delay);
    }
    plan_close(&p);
}

static void compare(int count, const char *const *overrides) {
    compare_delayed(0, count, overrides);
}

static void test_planned_sums_are_made(void **state) {
    (void)state;
    compare(1, (const char *[]){"parallel.tp=2"});
    compare(2, (const char *[]){"parallel.tp=4", "train.precision=bf16"});
    compare(3, (const char *[]){"parallel.tp=2", "parallel.pp=2", "parallel.schedule=zb-h1"});
    compare(3, (const char *[]){"parallel.tp=2", "parallel.pp=2", "parallel.schedule=zbv"});
    compare(3, (const char *[]){"parallel.tp=2", "parallel.dp=2", "model.dropout=0.1"});
    compare(3, (const char *[]){"parallel.tp=2", "model.family=llama", "model.kv_heads=2"});
    compare(2, (const char *[]){"parallel.tp=2", "train.recompute=full"});
    compare(2, (const char *[]){"parallel.tp=2", "train.recompute=full:0,selective:1-2"});
    static const char *const sequence = "parallel.sequence=true";
    compare(2, (const char *[]){"parallel.tp=2", sequence});
    compare(3, (const char *[]){"parallel.tp=4", "train.precision=bf16", sequence});
    compare(
        4, (const char *[]){"parallel.tp=2", "parallel.pp=2", "parallel.schedule=zb-h1", sequence});
    compare(4, (const char *[]){"parallel.tp=2", "parallel.dp=2", "model.dropout=0.1", sequence});
    compare(3, (const char *[]){"parallel.tp=2", "train.recompute=full:0,selective:1-2", sequence});
    compare(5, (const char *[]){"parallel.tp=2", "train.recompute=full:0,selective:1-2", sequence,
                                "parallel.schedule=zb-h1", "parallel.pp=2"});
    compare(3,
            (const char *[]){"parallel.tp=2", "train.freeze=*.wte.* *.wpe.* *.h.[01].*", sequence});
    compare(3, (const char *[]){"parallel.tp=2", "train.freeze=*.mlp.c_proj.* *.attn.c_attn.*",
                                sequence});
    /* A head with two chunks of 64 rows and one of 16. */
    compare(5, (const char *[]){"parallel.tp=2", "model.vocab=1500000", "model.width=4",
                                "train.batch=9", "train.micro_batch=9"});
    /* Nothing before block 2 is trained. */
    compare(2, (const char *[]){"parallel.tp=2", "train.freeze=*.wte.* *.wpe.* *.h.[01].*"});
}

/* Under I and W apart nothing runs behind a sum, so all their delays are waited for. */
static void test_waits_are_measured(void **state) {
    (void)state;
    compare_delayed(20e-3, 2, (const char *[]){"parallel.tp=2", "parallel.schedule=zb-h1"});
}

/* --- what stays exposed ----------------------------------------------------------------------- */

/* Returns the time that is left of `sum` after `hides`. */
static double rest(double sum, double hides) {
    return fmax(0, sum - hides);
}

/* Plans 8 micro-batches of a GPT-2 with 4 layers on two tensor ranks. Of the hidden size are the
 * sums of the embedding, of the head's input gradient, and of each block two activations and two
 * gradients; B hides the latter behind W of attention (8 R C^2 FLOPs) and of the MLP (16 R C^2).
 * The head also makes two sums of 1 and 2 numbers a row. */
static void check_exposed(const char *schedule, bool hides, double latency, double per_byte) {
    const double R = 2 * SEQ, C = WIDTH, hidden = 4 * R * C, work = R * C * C / 2;
    const tr_link link = {.latency = latency, .per_byte = per_byte};
    const double sum = latency + per_byte * hidden;
    const double rows = 2 * latency + per_byte * 3 * 4 * R;
    tr_config config;
    read_config(&config, 2, (const char *[]){"parallel.tp=2", schedule});
    planned p = plan_open(&config);
    const tr_sum_times all = sums_of(p.plan, 0, link);
    const double large = MICRO_BATCHES * (4 * LAYERS + 2), small = MICRO_BATCHES * 2;
    double exposed = (2 * LAYERS + 2) * sum + rows;
    exposed += LAYERS * (rest(sum, hides ? 8 * work : 0) + rest(sum, hides ? 16 * work : 0));
    assert_int_equal(all.count, (int64_t)(large + small));
    assert_true(large == 144);
    assert_true(all.bytes == large * hidden + MICRO_BATCHES * 3 * 4 * R);
    assert_true(fabs(all.moving / (large * sum + MICRO_BATCHES * rows) - 1) < 1e-12);
    assert_true(fabs(all.exposed / (MICRO_BATCHES * exposed) - 1) < 1e-12);
    plan_close(&p);
}

static void test_what_stays_exposed(void **state) {
    (void)state;
    /* A sum shorter than every W; between those of attention and of the MLP; longer. */
    static const double per_byte[] = {8, 60, 500};
    for (int k = 0; k < 3; k++) {
        check_exposed("parallel.schedule=1f1b", true, 0, per_byte[k]);
        check_exposed("parallel.schedule=1f1b", true, 1e5, per_byte[k]);
        check_exposed("parallel.schedule=zb-h1", false, 1e5, per_byte[k]);
    }
}

/* Sequence parallelism: each of these is two halves, a scatter and a gather. A block gathers twice
 * more for its two norms' weight products, hidden behind I of the MLP (16 R C^2 FLOPs) and of
 * attention, and where W is apart twice for the gradients of outputs; the embedding gathers for its
 * W. */
static void check_exposed_sequence(const char *schedule, bool hides, double per_byte) {
    const double R = 2 * SEQ, C = WIDTH, hidden = 4 * R * C, work = R * C * C / 2;
    const tr_link link = {.latency = 1e5, .per_byte = per_byte};
    const double half = (link.latency + per_byte * hidden) / 2;
    const double rows = 2 * link.latency + per_byte * 3 * 4 * R;
    tr_config config;
    read_config(&config, 3, (const char *[]){"parallel.tp=2", schedule, "parallel.sequence=true"});
    planned p = plan_open(&config);
    const tr_layout *l = p.plan->layout;
    const tr_sum_times all = sums_of(p.plan, 0, link);
    const double attention = l->model->layers[1]->flops_i - 16 * work;
    const double again = hides ? 0 : 2 * LAYERS, large = 10 * LAYERS + 4 + again;
    double exposed = (6 * LAYERS + 4 + again) * half + rows;
    exposed += LAYERS * (rest(half, hides ? 8 * work : 0) + rest(half, hides ? 16 * work : 0));
    exposed += LAYERS * (rest(half, hides ? attention : 0) + rest(half, hides ? 16 * work : 0));
    assert_true(attention > 8 * work);
    assert_int_equal(all.count, (int64_t)(MICRO_BATCHES * (large + 2)));
    assert_true(all.bytes == MICRO_BATCHES * (large * hidden + 3 * 4 * R));
    assert_true(fabs(all.moving / (MICRO_BATCHES * (large * half + rows)) - 1) < 1e-12);
    assert_true(fabs(all.exposed / (MICRO_BATCHES * exposed) - 1) < 1e-12);
    plan_close(&p);
}

static void test_what_stays_exposed_of_sequence(void **state) {
    (void)state;
    static const double per_byte[] = {8, 60, 100, 500};
    for (int k = 0; k < 4; k++) {
        check_exposed_sequence("parallel.schedule=1f1b", true, per_byte[k]);
        check_exposed_sequence("parallel.schedule=zb-h1", false, per_byte[k]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_planned_sums_are_made),
                                       cmocka_unit_test(test_waits_are_measured),
                                       cmocka_unit_test(test_what_stays_exposed),
                                       cmocka_unit_test(test_what_stays_exposed_of_sequence)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
