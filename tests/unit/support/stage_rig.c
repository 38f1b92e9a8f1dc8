#include "support/stage_rig.h"

tr_status take(rank_state *r, size_t bytes, void *out) {
    void *memory = NULL;
    TR_TRY(tr_device_alloc(r->device, TR_MEMORY_DATA, bytes, &memory));
    r->memory[r->memories++] = memory;
    memcpy(out, &memory, sizeof memory);
    return TR_OK;
}

bool is_here(const rank_state *r, int layer) {
    const layout *l = r->l;
    int stage = 0;
    while (l->first[stage + 1] <= layer) stage++;
    return l->schedule->rank_of[stage] == r->rank;
}

/* Opens the channels, and checks that they allocate exactly the bytes of the plan. */
static tr_status open_links(rank_state *r) {
    const layout *l = r->l;
    int line[MOST_RANKS] = {0, 1, 2, 3}, ranks = l->schedule->ranks;
    const int *rank_of = l->schedule->rank_of;
    TR_TRY(tr_links_open(l->world[r->rank], r->device, &r->table, rank_of, line, ranks, r->rank,
                         &r->links));
    size_t planned = tr_links_bytes(&r->table, rank_of, r->rank);
    size_t taken = tr_device_peak(r->device, TR_MEMORY_TRANSFERS);
    if (planned == taken) return TR_OK;
    return TR_FAIL(TR_ERR_INTERNAL, "rank %d planned %zu bytes of transfers and took %zu", r->rank,
                   planned, taken);
}

static tr_status make_runners(rank_state *r, const tr_layer_source *source) {
    const layout *l = r->l;
    int stages = l->schedule->stages;
    TR_TRY(tr_layer_table_make(r->model, l->first, stages, &r->table));
    TR_TRY(tr_lower(l->schedule, &r->table, &r->set[0]));
    TR_TRY(tr_lower(l->forward, &r->table, &r->set[1]));
    TR_TRY(open_links(r));
    for (int k = 0; k < stages; k++)
        if (l->schedule->rank_of[k] == r->rank)
            TR_TRY(tr_layer_stage_create(r->model, l->first, stages, k, source, &r->stage[k]));
    for (int k = 0; k < 2; k++) {
        const tr_program *program = &r->set[k]->program[r->rank];
        tr_runner_options options = {
            .device = r->device, .links = r->links, .program = program, .stages = r->stage};
        TR_TRY(take(r, program->arena_bytes, &options.arena));
        /* The contents of a buffer before it is written must not matter. */
        memset(options.arena, 0xff, program->arena_bytes);
        TR_TRY(tr_runner_create(&options, &r->runner[k]));
    }
    return TR_OK;
}

/* Runs training steps and a forward-only one without dropout, over the same stages and channels. */
static tr_status run_both(rank_state *r) {
    layout *l = r->l;
    tr_step_state state = {.seed = SEED, .first_sample = 40, .train = 1, .loss_scale = 1};
    const size_t stride = TOKENS * sizeof(int32_t);
    tr_step_data input[TR_STEP_INPUTS] = {
        {TR_STEP_INPUT_TOKENS, l->tokens + l->skip * TOKENS, stride},
        {TR_STEP_INPUT_LABELS, l->labels + l->skip * TOKENS, stride}};
    int inputs = 2 + (l->model->inputs ? l->model->inputs(r, &input[2]) : 0);
    tr_layer_source source = {.device = r->device,
                              .state = &state,
                              .input = input,
                              .inputs = inputs,
                              .loss = &r->loss[0][0],
                              .loss_stride = 2 * BATCH,
                              .first_sample = l->skip * BATCH,
                              .sample_stride = BATCH};
    TR_TRY(l->model->make(r));
    TR_TRY(make_runners(r, &source));
    for (int step = 0; step < l->model->steps; step++) {
        state.step = step + 1;
        TR_TRY(tr_runner_step(r->runner[0]));
        TR_TRY(l->model->finish(r, step));
    }
    if (is_here(r, LAYERS - 1)) memcpy(l->result->loss, r->loss, sizeof r->loss);
    state.train = 0;
    TR_TRY(tr_runner_step(r->runner[1]));
    if (is_here(r, LAYERS - 1)) memcpy(l->result->validation, r->loss, sizeof r->loss);
    return TR_OK;
}

static tr_status run_rank(rank_state *r) {
    tr_device_options options = {.threads = 1};
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
    tr_stage_table_free(&r->table);
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

outcome *run_layout(const rig_model *model, const tr_schedule *schedule, const int *first,
                    tr_dtype dtype, int skip) {
    layout l = {.model = model, .schedule = schedule, .first = first, .dtype = dtype, .skip = skip};
    tr_schedule *forward = NULL;
    assert_int_equal(tr_schedule_forward_of(schedule, NULL, schedule->micro_batches, &forward),
                     TR_OK);
    l.forward = forward;
    assert_int_equal(tr_calloc(1, sizeof *l.result, &l.result), TR_OK);
    test_random random = {SEED};
    for (int k = 0; k < MICRO_BATCHES * TOKENS; k++) {
        l.tokens[k] = test_between(&random, 0, model->vocab - 1);
        l.labels[k] = test_between(&random, -1, model->vocab - 1);
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
        if (l.failure[r][0])
            fail_msg("%s, rank %d of %d: %s", schedule->name, r, schedule->ranks, l.failure[r]);
    tr_schedule_destroy(forward);
    return l.result;
}

void expect_same(const rig_model *model, const outcome *want, const tr_schedule *schedule,
                 const int *first, tr_dtype dtype) {
    tr_schedule_report report;
    assert_int_equal(tr_schedule_check(schedule, NULL, &report), TR_OK);
    assert_true(report.sums_ascending);
    outcome *got = run_layout(model, schedule, first, dtype, 0);
    if (memcmp(got, want, sizeof *got) != 0)
        fail_msg("%s, %d ranks, %d stages, %s: the bits differ", schedule->name, schedule->ranks,
                 schedule->stages, tr_dtype_name(dtype));
    free(got);
}

const int cut1[] = {0, 6}, cut2[] = {0, 3, 6}, cut2b[] = {0, 1, 6}, cut3[] = {0, 1, 4, 6},
          cut4[] = {0, 2, 3, 4, 6}, cut6[] = {0, 1, 2, 3, 4, 5, 6};

tr_schedule *split_schedule(void) {
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

void expect_generated(const rig_model *model, const outcome *want, const char *name, int ranks,
                      int stages, const int *first, tr_dtype dtype) {
    tr_schedule *s = NULL;
    assert_int_equal(generate_order(name, ranks, stages, MICRO_BATCHES, &s), TR_OK);
    expect_same(model, want, s, first, dtype);
    tr_schedule_destroy(s);
}

outcome *expect_every_layout(const rig_model *model, tr_dtype dtype) {
    static const struct {
        const char *name;
        int ranks;
        const int *first;
    } cases[] = {{"1f1b", 1, cut1}, {"gpipe", 2, cut2}, {"1f1b", 2, cut2}, {"1f1b", 2, cut2b},
                 {"1f1b", 3, cut3}, {"gpipe", 4, cut4}, {"1f1b", 4, cut4}};
    static const struct {
        const char *name;
        int least, most; /* chunks */
    } generators[] = {{"interleaved", 2, 3}, {"bfs", 2, 3},       {"zb-h1", 1, 1},
                      {"zb-h2", 1, 1},       {"zb-1p", 1, 1},     {"zb-2p", 1, 1},
                      {"zbv", 2, 2},         {"v-half", 2, 2},    {"v-min", 2, 2},
                      {"1f1b-v", 2, 2},      {"dualpipev", 2, 2}, {"interleaved-zb", 1, 3}};
    tr_schedule *s = NULL;
    assert_int_equal(generate_order("gpipe", 1, 1, MICRO_BATCHES, &s), TR_OK);
    outcome *want = run_layout(model, s, cut1, dtype, 0);
    tr_schedule_destroy(s);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        expect_generated(model, want, cases[k].name, cases[k].ranks, cases[k].ranks, cases[k].first,
                         dtype);
    for (size_t k = 0; k < sizeof generators / sizeof generators[0]; k++)
        for (int ranks = 2; ranks <= 3; ranks++)
            for (int v = generators[k].least; v <= generators[k].most && ranks * v <= 6; v++) {
                const int *cuts[] = {NULL, NULL, cut2b, cut3, cut4, NULL, cut6};
                expect_generated(model, want, generators[k].name, ranks, ranks * v, cuts[ranks * v],
                                 dtype);
            }
    s = test_schedule_v();
    expect_same(model, want, s, cut4, dtype);
    tr_schedule_destroy(s);
    s = split_schedule();
    expect_same(model, want, s, cut6, dtype);
    tr_schedule_destroy(s);
    return want;
}
