/* Stages of a small GPT-2 on the ref device: losses and gradients of a step are bit for bit the
 * same under every cut, schedule and placement, with I and W together or apart. */
#include "stage_rig.h"

static const tr_model_config config = {.family = "gpt2",
                                       .layers = LAYERS - 2, /* and embedding and head */
                                       .width = 8,
                                       .heads = 2,
                                       .context = 8,
                                       .vocab = 150, /* logits in three parts */
                                       .dropout = 0.1f};

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

static tr_status make_gpt2(rank_state *r) {
    tr_model_shape shape = {.batch = BATCH, .seq = SEQ, .dtype = r->l->dtype, .tp_size = 1};
    TR_TRY(tr_model_create(&config, &shape, &r->model));
    tr_layer_env env = {.context.device = r->device, .tp = r->tp};
    for (int k = 0; k < r->model->count; k++) {
        tr_layer *layer = r->model->layers[k];
        if (!is_here(r, k)) continue;
        for (int j = 0; j < layer->params_count; j++) TR_TRY(place_param(r, &layer->params[j]));
        TR_TRY(layer->ops->prepare(layer, &env));
    }
    return TR_OK;
}

/* The values are the gradients. */
static tr_status take_gradients(rank_state *r, int step) {
    size_t at = 0;
    (void)step;
    for (int k = 0; k < r->model->count; k++)
        for (int j = 0; j < r->model->layers[k]->params_count; j++) {
            const tr_param *param = &r->model->layers[k]->params[j];
            if (param->grad)
                memcpy(&r->l->result->value[at], param->grad, (size_t)param->count * sizeof(float));
            at += (size_t)param->count;
        }
    return at <= MOST_VALUES ? TR_OK : TR_FAIL(TR_ERR_INTERNAL, "the test's model is too large");
}

static const rig_model gpt2 = {
    .steps = 1, .vocab = 150, .make = make_gpt2, .finish = take_gradients};

static void check_every_layout(tr_dtype dtype) {
    outcome *want = expect_every_layout(&gpt2, dtype);
    double sum = 0;
    for (int k = 0; k < MICRO_BATCHES; k++) {
        assert_true(want->loss[k][0] > 0 && want->loss[k][0] != want->validation[k][0]);
        assert_true(want->loss[k][1] == want->validation[k][1]);
    }
    for (int k = 0; k < MOST_VALUES; k++) sum += (double)want->value[k] * (double)want->value[k];
    assert_true(sum > 1e-6 && sum < 1e12);
    free(want);
}

static void test_f32(void **state) {
    (void)state;
    check_every_layout(TR_F32);
}

static void test_bf16(void **state) {
    (void)state;
    check_every_layout(TR_BF16);
}

/* A micro-batch's tokens, labels and dropout masks go with its place in the step: alone it has the
 * loss that it has among the others. */
static void test_micro_batches_are_told_apart(void **state) {
    (void)state;
    tr_schedule *all = NULL, *one = NULL;
    assert_int_equal(tr_schedule_generate("gpipe", 2, 2, MICRO_BATCHES, &all), TR_OK);
    assert_int_equal(tr_schedule_generate("gpipe", 2, 2, 1, &one), TR_OK);
    outcome *want = run_layout(&gpt2, all, cut2, TR_F32, 0);
    for (int k = 0; k < MICRO_BATCHES; k++) {
        outcome *got = run_layout(&gpt2, one, cut2, TR_F32, k);
        assert_true(got->loss[0][0] == want->loss[k][0]);
        assert_true(got->loss[0][1] == want->loss[k][1]);
        assert_true(got->validation[0][0] == want->validation[k][0]);
        free(got);
    }
    free(want);
    tr_schedule_destroy(one);
    tr_schedule_destroy(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_micro_batches_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
