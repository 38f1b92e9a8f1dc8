/* Stages of a small GPT-2 on the ref device: losses and gradients of a step are bit for bit the
 * same under every cut, schedule and placement, with I and W together or apart. */
#include "layers/layer_stage.h"
#include "layers/model.h"
#include "pipeline/program/run.h"
#include "pipeline_cases.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum {
    SEED = 1234,
    LAYERS = 6, /* embedding, four blocks, head */
    BATCH = 2,
    SEQ = 6,
    MICRO_BATCHES = 3,
    MOST_RANKS = 4,
    MOST_PARAMS = 64,
    MOST_GRADS = 1 << 16,
    TOKENS = BATCH * SEQ
};

static const tr_model_config config = {.family = "gpt2",
                                       .layers = LAYERS - 2,
                                       .width = 8,
                                       .heads = 2,
                                       .context = 8,
                                       .vocab = 150, /* logits in three parts */
                                       .dropout = 0.1f};

typedef struct outcome {
    double loss[MICRO_BATCHES][2], validation[MICRO_BATCHES][2];
    float grad[MOST_GRADS]; /* by parameter index, one behind the other */
    size_t grads;
} outcome;

/* One layout; read-only while its ranks run, but the outcome. */
typedef struct layout {
    const tr_schedule *schedule, *forward;
    const int *first;
    tr_dtype dtype;
    int skip; /* micro-batches left out in front of the schedule's */
    tr_world *world[MOST_RANKS];
    int32_t tokens[MICRO_BATCHES * TOKENS], labels[MICRO_BATCHES * TOKENS];
    outcome *result;
    char failure[MOST_RANKS][512];
} layout;

typedef struct rank_state {
    layout *l;
    int rank;
    tr_device *device;
    tr_group *tp;
    tr_model *model;
    tr_stage_table table;
    tr_links *links;
    tr_program_set *set[2];
    tr_stage *stage[LAYERS];
    tr_runner *runner[2];
    double loss[MICRO_BATCHES][2];     /* of the step that ran last, where the head is */
    void *memory[2 * MOST_PARAMS + 2]; /* to free */
    int memories;
} rank_state;

static tr_status take(rank_state *r, size_t bytes, void *out) {
    void *memory = NULL;
    TR_TRY(tr_device_alloc(r->device, TR_MEMORY_DATA, bytes, &memory));
    r->memory[r->memories++] = memory;
    memcpy(out, &memory, sizeof memory);
    return TR_OK;
}

static bool is_here(const rank_state *r, int layer) {
    const layout *l = r->l;
    int stage = 0;
    while (l->first[stage + 1] <= layer) stage++;
    return l->schedule->rank_of[stage] == r->rank;
}

static tr_status place_param(rank_state *r, tr_param *param) {
    for (int k = 0; k < r->model->count && !param->value; k++)
        for (int j = 0; j < r->model->layers[k]->params_count; j++) {
            const tr_param *other = &r->model->layers[k]->params[j];
            if (other->value && strcmp(tr_param_name(other), tr_param_name(param)) == 0)
                param->value = other->value;
        }
    size_t count = (size_t)param->count;
    TR_TRY(take(r, count * sizeof(float), &param->grad));
    if (param->value) return TR_OK;
    float *master = NULL;
    TR_TRY(tr_calloc(count, sizeof *master, &master));
    tr_param_init(param, SEED, 1, master);
    tr_status status = take(r, count * sizeof(float), &param->value);
    for (size_t k = 0; status == TR_OK && k < count; k++)
        if (r->l->dtype == TR_F32) ((float *)param->value)[k] = master[k];
        else ((uint16_t *)param->value)[k] = tr_f32_to_bf16(master[k]);
    free(master);
    return status;
}

static tr_status prepare_layers(rank_state *r) {
    tr_model_shape shape = {.batch = BATCH, .seq = SEQ, .dtype = r->l->dtype, .tp_size = 1};
    TR_TRY(tr_model_create(&config, &shape, &r->model));
    tr_layer_env env = {
        .device = r->device, .tp = r->tp, .batch = BATCH, .seq = SEQ, .dtype = r->l->dtype};
    for (int k = 0; k < r->model->count; k++) {
        tr_layer *layer = r->model->layers[k];
        if (!is_here(r, k)) continue;
        for (int j = 0; j < layer->params_count; j++) TR_TRY(place_param(r, &layer->params[j]));
        TR_TRY(layer->ops->prepare(layer, &env));
    }
    return TR_OK;
}

static tr_status make_runners(rank_state *r, const tr_layer_source *source) {
    const layout *l = r->l;
    int line[MOST_RANKS] = {0, 1, 2, 3}, ranks = l->schedule->ranks, stages = l->schedule->stages;
    TR_TRY(tr_layer_table_make(r->model, l->first, stages, &r->table));
    TR_TRY(tr_lower(l->schedule, &r->table, 0, &r->set[0]));
    TR_TRY(tr_lower(l->forward, &r->table, 0, &r->set[1]));
    TR_TRY(tr_links_open(l->world[r->rank], r->device, &r->table, l->schedule->rank_of, line, ranks,
                         r->rank, &r->links));
    for (int k = 0; k < stages; k++)
        if (l->schedule->rank_of[k] == r->rank)
            TR_TRY(tr_layer_stage_create(r->model, l->first, stages, k, source, &r->stage[k]));
    for (int k = 0; k < 2; k++) {
        const tr_program *program = &r->set[k]->program[r->rank];
        tr_runner_options options = {
            .device = r->device, .links = r->links, .program = program, .stages = r->stage};
        TR_TRY(take(r, program->arena_bytes, &options.arena));
        /* What a buffer holds before it is written must not matter. */
        memset(options.arena, 0xff, program->arena_bytes);
        TR_TRY(tr_runner_create(&options, &r->runner[k]));
    }
    return TR_OK;
}

/* A training step and a forward-only one, dropout off, over the same stages and channels. */
static tr_status run_both(rank_state *r) {
    layout *l = r->l;
    tr_step_state state = {.seed = SEED, .step = 1, .first_sample = 40, .train = 1};
    state.loss_scale = 1;
    const size_t stride = TOKENS * sizeof(int32_t);
    const tr_step_data data[] = {{TR_INPUT_TOKENS, l->tokens + l->skip * TOKENS, stride},
                                 {TR_INPUT_LABELS, l->labels + l->skip * TOKENS, stride}};
    tr_layer_source source = {.device = r->device,
                              .state = &state,
                              .input = data,
                              .inputs = 2,
                              .loss = &r->loss[0][0],
                              .loss_stride = 2,
                              .first_sample = l->skip * BATCH,
                              .sample_stride = BATCH};
    TR_TRY(prepare_layers(r));
    TR_TRY(make_runners(r, &source));
    TR_TRY(tr_runner_step(r->runner[0]));
    if (is_here(r, LAYERS - 1)) memcpy(l->result->loss, r->loss, sizeof r->loss);
    state.train = 0;
    TR_TRY(tr_runner_step(r->runner[1]));
    if (is_here(r, LAYERS - 1)) memcpy(l->result->validation, r->loss, sizeof r->loss);
    size_t at = 0;
    for (int k = 0; k < r->model->count; k++)
        for (int j = 0; j < r->model->layers[k]->params_count; j++) {
            const tr_param *param = &r->model->layers[k]->params[j];
            if (param->grad)
                memcpy(&l->result->grad[at], param->grad, (size_t)param->count * sizeof(float));
            at += (size_t)param->count;
        }
    return at <= MOST_GRADS ? TR_OK : TR_FAIL(TR_ERR_INTERNAL, "the test's model is too large");
}

static tr_status run_rank(rank_state *r) {
    tr_device_options options = {.threads = 1, .deterministic = true};
    TR_TRY(tr_device_open("ref", &options, &r->device));
    TR_TRY(tr_group_open(r->l->world[r->rank], r->device, &r->rank, 1, r->rank, 1024, &r->tp));
    TR_TRY(run_both(r));
    return TR_OK;
}

static void close_rank(rank_state *r) {
    for (int k = 0; k < 2; k++) tr_runner_destroy(r->runner[k]);
    tr_links_close(r->links);
    for (int k = 0; k < LAYERS; k++)
        if (r->stage[k]) r->stage[k]->ops->destroy(r->stage[k]);
    for (int k = 0; k < 2; k++) tr_program_set_destroy(r->set[k]);
    tr_layer_table_free(&r->table);
    if (r->model) tr_model_destroy(r->model);
    for (int k = 0; k < r->memories; k++) tr_device_free(r->device, r->memory[k]);
    if (r->tp) tr_group_close(r->tp);
    if (r->device) tr_device_close(r->device);
}

static void *rank_main(void *argument) {
    rank_state *r = argument;
    tr_world *world = r->l->world[r->rank];
    if (run_rank(r) != TR_OK) {
        (void)snprintf(r->l->failure[r->rank], sizeof r->l->failure[r->rank], "%s (%s)",
                       tr_error_message(), tr_error_trace());
        tr_world_abort(world, TR_ERR_INTERNAL);
    }
    close_rank(r);
    tr_world_close(world);
    return NULL;
}

/* The outcome of a step of the schedule with the stages cut at first[], on the micro-batches from
 * `skip` on; the caller frees it. */
static outcome *run_layout(const tr_schedule *schedule, const int *first, tr_dtype dtype,
                           int skip) {
    layout l = {.schedule = schedule, .first = first, .dtype = dtype, .skip = skip};
    tr_schedule *forward = NULL;
    assert_int_equal(tr_schedule_forward_of(schedule, schedule->micro_batches, &forward), TR_OK);
    l.forward = forward;
    assert_int_equal(tr_calloc(1, sizeof *l.result, &l.result), TR_OK);
    test_random random = {SEED};
    for (int k = 0; k < MICRO_BATCHES * TOKENS; k++) {
        l.tokens[k] = test_between(&random, 0, (int)config.vocab - 1);
        l.labels[k] = test_between(&random, -1, (int)config.vocab - 1);
    }
    assert_int_equal(tr_world_open_local(schedule->ranks, l.world), TR_OK);
    pthread_t thread[MOST_RANKS];
    rank_state state[MOST_RANKS];
    for (int r = 0; r < schedule->ranks; r++) {
        state[r] = (rank_state){.l = &l, .rank = r};
        assert_int_equal(pthread_create(&thread[r], NULL, rank_main, &state[r]), 0);
    }
    for (int r = 0; r < schedule->ranks; r++) assert_int_equal(pthread_join(thread[r], NULL), 0);
    for (int r = 0; r < schedule->ranks; r++)
        if (l.failure[r][0]) fail_msg("rank %d: %s", r, l.failure[r]);
    tr_schedule_destroy(forward);
    return l.result;
}

static void expect_same(const outcome *want, const tr_schedule *schedule, const int *first,
                        tr_dtype dtype) {
    tr_schedule_report report;
    assert_int_equal(tr_schedule_check(schedule, NULL, &report), TR_OK);
    assert_true(report.w_ascending);
    outcome *got = run_layout(schedule, first, dtype, 0);
    if (memcmp(got, want, sizeof *got) != 0)
        fail_msg("%s, %d ranks, %d stages, %s: other bits", schedule->name, schedule->ranks,
                 schedule->stages, tr_dtype_name(dtype));
    free(got);
}

static const int cut1[] = {0, 6}, cut2[] = {0, 3, 6}, cut2b[] = {0, 1, 6}, cut3[] = {0, 1, 4, 6},
                 cut4[] = {0, 2, 3, 4, 6}, cut6[] = {0, 1, 2, 3, 4, 5, 6};

/* Six stages in a loop over three ranks, GPipe's order, I and W apart, W after all I of its stage.
 */
static tr_schedule *split_schedule(void) {
    tr_schedule *s = NULL;
    if (tr_schedule_create("split", 3, 6, MICRO_BATCHES, NULL, &s) != TR_OK) abort();
    static const tr_action_type phases[] = {TR_ACTION_F, TR_ACTION_I, TR_ACTION_W};
    for (int phase = 0; phase < 3; phase++)
        for (int n = 0; n < 6; n++)
            for (int k = 0; k < MICRO_BATCHES; k++) {
                int stage = phase == 0 ? n : 5 - n;
                tr_action a = {.stage = stage, .type = phases[phase], .micro_batch = k};
                if (tr_schedule_add(s, stage % 3, a) != TR_OK) abort();
            }
    return s;
}

static void expect_every_layout(tr_dtype dtype) {
    tr_schedule *s = NULL;
    assert_int_equal(tr_schedule_generate("gpipe", 1, 1, MICRO_BATCHES, &s), TR_OK);
    outcome *want = run_layout(s, cut1, dtype, 0);
    tr_schedule_destroy(s);
    double sum = 0;
    for (int k = 0; k < MICRO_BATCHES; k++) {
        assert_true(want->loss[k][0] > 0 && want->loss[k][0] != want->validation[k][0]);
        assert_true(want->loss[k][1] == want->validation[k][1]);
    }
    for (int k = 0; k < MOST_GRADS; k++) sum += (double)want->grad[k] * (double)want->grad[k];
    assert_true(sum > 1e-6 && sum < 1e12);
    static const struct {
        const char *name;
        int ranks;
        const int *first;
    } cases[] = {{"1f1b", 1, cut1},  {"gpipe", 2, cut2}, {"1f1b", 2, cut2},
                 {"1f1b", 2, cut2b}, {"gpipe", 4, cut4}, {"1f1b", 4, cut4}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        assert_int_equal(
            tr_schedule_generate(cases[k].name, cases[k].ranks, cases[k].ranks, MICRO_BATCHES, &s),
            TR_OK);
        expect_same(want, s, cases[k].first, dtype);
        tr_schedule_destroy(s);
    }
    static const struct {
        const char *name;
        int least, most; /* chunks */
    } generators[] = {{"interleaved", 2, 3}, {"bfs", 2, 3},       {"zb-h1", 1, 1},
                      {"zb-h2", 1, 1},       {"zb-1p", 1, 1},     {"zb-2p", 1, 1},
                      {"zbv", 2, 2},         {"v-half", 2, 2},    {"v-min", 2, 2},
                      {"1f1b-v", 2, 2},      {"dualpipev", 2, 2}, {"interleaved-zb", 1, 3}};
    for (size_t k = 0; k < sizeof generators / sizeof generators[0]; k++)
        for (int ranks = 2; ranks <= 3; ranks++)
            for (int v = generators[k].least; v <= generators[k].most && ranks * v <= 6; v++) {
                const int *cuts[] = {NULL, NULL, cut2b, cut3, cut4, NULL, cut6};
                assert_int_equal(
                    tr_schedule_generate(generators[k].name, ranks, ranks * v, MICRO_BATCHES, &s),
                    TR_OK);
                expect_same(want, s, cuts[ranks * v], dtype);
                tr_schedule_destroy(s);
            }
    s = test_schedule_v();
    expect_same(want, s, cut4, dtype);
    tr_schedule_destroy(s);
    s = split_schedule();
    expect_same(want, s, cut6, dtype);
    tr_schedule_destroy(s);
    free(want);
}

static void test_f32(void **state) {
    (void)state;
    expect_every_layout(TR_F32);
}

/* A micro-batch's tokens, labels and dropout masks go with its place in the step: alone it has the
 * loss that it has among the others. */
static void test_micro_batches_are_told_apart(void **state) {
    (void)state;
    tr_schedule *all = NULL, *one = NULL;
    assert_int_equal(tr_schedule_generate("gpipe", 2, 2, MICRO_BATCHES, &all), TR_OK);
    assert_int_equal(tr_schedule_generate("gpipe", 2, 2, 1, &one), TR_OK);
    outcome *want = run_layout(all, cut2, TR_F32, 0);
    for (int k = 0; k < MICRO_BATCHES; k++) {
        outcome *got = run_layout(one, cut2, TR_F32, k);
        assert_true(got->loss[0][0] == want->loss[k][0]);
        assert_true(got->loss[0][1] == want->loss[k][1]);
        assert_true(got->validation[0][0] == want->validation[k][0]);
        free(got);
    }
    free(want);
    tr_schedule_destroy(one);
    tr_schedule_destroy(all);
}

static void test_bf16(void **state) {
    (void)state;
    expect_every_layout(TR_BF16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_micro_batches_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
