/* Tests stages of a small GPT-2 on the ref device: losses and gradients of a step are bit for bit
 * the same under every cut, schedule and placement, with I and W together or apart. Also tests
 * which operators stages of every family run, and what they keep, without dropout. */
#include "device/device_impl.h"
#include "support/stage_rig.h"
#include "support/generate_order.h"

#include <float.h>

static tr_model_config config = {.family = "gpt2",
                                 .layers = LAYERS - 2, /* plus embedding and head */
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
    memset(param->grad, 0xff, count * sizeof(float)); /* NaN: the first W must write it */
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

static tr_status make_model(rank_state *r) {
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

/* Takes a step; the outcome's values are the gradients. */
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
    .steps = 1, .vocab = 150, .make = make_model, .finish = take_gradients};

/* Without dropout W reads gradients at the same place as I: those between layers, between stages on
 * one rank, and from other ranks. */
static void check_every_layout(tr_dtype dtype, double dropout) {
    config.dropout = dropout;
    outcome *want = expect_every_layout(&gpt2, dtype);
    config.dropout = 0.1;
    double sum = 0;
    for (int k = 0; k < MICRO_BATCHES; k++) {
        assert_true(want->loss[k][0] > 0);
        const double *each = want->validation[k]; /* of two sequences */
        const double error = fabs(each[0] + each[2] - want->loss[k][0]);
        assert_true((error < 1e-14 * want->loss[k][0]) == (dropout == 0));
        assert_true(each[1] + each[3] == want->loss[k][1]);
        assert_true(each[0] > 0 && each[2] > 0);
    }
    for (int k = 0; k < MOST_VALUES; k++) sum += (double)want->value[k] * (double)want->value[k];
    assert_true(sum > 1e-6 && sum < 1e12);
    free(want);
}

static void test_f32(void **state) {
    (void)state;
    check_every_layout(TR_F32, 0.1);
    check_every_layout(TR_F32, 0);
}

static void test_bf16(void **state) {
    (void)state;
    check_every_layout(TR_BF16, 0.1);
    check_every_layout(TR_BF16, 0);
}

/* A micro-batch's tokens, labels and dropout masks follow from its place in the step: alone it has
 * the same loss as among the other micro-batches. The step's gradients are the sums of those of its
 * micro-batches alone. */
static void test_micro_batches_are_told_apart(void **state) {
    (void)state;
    static double sum[MOST_VALUES], size[MOST_VALUES];
    tr_schedule *all = NULL, *one = NULL;
    assert_int_equal(generate_order("gpipe", 2, 2, MICRO_BATCHES, &all), TR_OK);
    assert_int_equal(generate_order("gpipe", 2, 2, 1, &one), TR_OK);
    outcome *want = run_layout(&gpt2, all, cut2, TR_F32, 0);
    for (int k = 0; k < MICRO_BATCHES; k++) {
        outcome *got = run_layout(&gpt2, one, cut2, TR_F32, k);
        assert_true(got->loss[0][0] == want->loss[k][0]);
        assert_true(got->loss[0][1] == want->loss[k][1]);
        for (int i = 0; i < 2 * BATCH; i++)
            assert_true(got->validation[0][i] == want->validation[k][i]);
        for (int i = 0; i < MOST_VALUES; i++) {
            sum[i] += (double)got->value[i];
            size[i] += fabs((double)got->value[i]);
        }
        free(got);
    }
    for (int i = 0; i < MOST_VALUES; i++)
        assert_true(fabs((double)want->value[i] - sum[i]) <=
                    MICRO_BATCHES * (double)FLT_EPSILON * size[i]);
    free(want);
    tr_schedule_destroy(one);
    tr_schedule_destroy(all);
}

/* --- recompute ------------------------------------------------------------------------------ */

/* Fails unless the model has the bits that it has when F keeps everything: under every schedule, or
 * only on one rank, with I and W together and apart, and with virtual stages. */
static void check_recompute(const char *mode, tr_dtype dtype, bool everywhere) {
    tr_schedule *s = NULL;
    assert_int_equal(generate_order("gpipe", 1, 1, MICRO_BATCHES, &s), TR_OK);
    config.recompute[0] = '\0';
    outcome *want = run_layout(&gpt2, s, cut1, dtype, 0);
    (void)snprintf(config.recompute, sizeof config.recompute, "%s", mode);
    if (everywhere) {
        outcome *got = expect_every_layout(&gpt2, dtype);
        assert_memory_equal(got, want, sizeof *got);
        free(got);
    } else {
        expect_same(&gpt2, want, s, cut1, dtype);
        expect_generated(&gpt2, want, "zbv", 2, 4, cut4, dtype);
        tr_schedule_destroy(s);
        s = split_schedule();
        expect_same(&gpt2, want, s, cut6, dtype);
    }
    config.recompute[0] = '\0';
    free(want);
    tr_schedule_destroy(s);
}

static void test_recompute_under_every_schedule(void **state) {
    (void)state;
    check_recompute("full", TR_F32, true);
    check_recompute("selective", TR_F32, true);
    check_recompute("full:0-1,selective:3", TR_BF16, true);
}

static void test_recompute_in_every_family(void **state) {
    (void)state;
    static const char *const families[] = {"gpt2", "llama", "qwen2", "qwen3", "mistral"};
    static const char *const modes[] = {"selective", "full"};
    const tr_model_config kept = config;
    for (size_t k = 0; k < sizeof families / sizeof families[0]; k++)
        for (int n = 0; n < 12; n++) { /* modes, types, and dropout, no dropout, updates */
            (void)snprintf(config.family, sizeof config.family, "%s", families[k]);
            config.qk_norm = strcmp(families[k], "qwen3") == 0 ? TR_YES : 0;
            config.dropout = n / 4 == 1 ? 0 : 0.1;
            config.lora.rank = n / 4 == 2 ? 2 : 0;
            check_recompute(modes[n % 2], n / 2 % 2 ? TR_BF16 : TR_F32, false);
            config = kept;
        }
}

/* --- what is run and kept without dropout ----------------------------------------------------- */

/* The ref device, with counters of operators and copies. */
static tr_device_ops counting;
static int runs[TR_OP_COUNT], copies;
static tr_status (*run_uncounted)(tr_op *op, tr_stream *stream, const tr_op_args *args);

static tr_status run_counted(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    runs[op->desc.kind]++;
    return run_uncounted(op, stream, args);
}

static tr_status prepare_counted(const tr_op_context *context, const tr_op_desc *desc,
                                 tr_op **out) {
    TR_TRY(tr_device_ops_ref.prepare[desc->kind](context, desc, out));
    if (!*out) return TR_OK;
    if (run_uncounted && run_uncounted != (*out)->run) abort(); /* all host operators run alike */
    run_uncounted = (*out)->run;
    (*out)->run = run_counted;
    return TR_OK;
}

static tr_status copy_counted(tr_stream *stream, void *to, const void *from, size_t bytes) {
    copies++;
    return tr_device_ops_ref.stream_copy(stream, to, from, bytes);
}

static tr_status make_counted(rank_state *r) {
    counting = tr_device_ops_ref;
    for (int k = 0; k < TR_OP_COUNT; k++)
        if (counting.prepare[k]) counting.prepare[k] = prepare_counted;
    counting.stream_copy = copy_counted;
    memset(runs, 0, sizeof runs);
    copies = 0;
    r->device->ops = &counting;
    return make_model(r);
}

/* Blocks of one rank, and its steps' F: of training and of validation. */
enum { BLOCKS = LAYERS - 2, ALL_F = 2 * MICRO_BATCHES };

static const rig_model counted = {
    .steps = 1, .vocab = 150, .make = make_counted, .finish = take_gradients};

/* Fails unless products add the residuals, nothing else is added, dropped or copied, and cross
 * entropy is one operator. */
static void check_counts(const tr_schedule *s) {
    free(run_layout(&counted, s, cut1, TR_F32, 0));
    assert_int_equal(runs[TR_OP_ADD], 0);
    assert_int_equal(runs[TR_OP_DROPOUT_ADD] + runs[TR_OP_DROPOUT_DGRAD] + runs[TR_OP_ADD_NORM], 0);
    assert_int_equal(runs[TR_OP_CAST], 0);
    assert_int_equal(copies, 0);
    assert_int_equal(runs[TR_OP_XENT], MICRO_BATCHES);     /* in training */
    assert_int_equal(runs[TR_OP_XENT_MAX], MICRO_BATCHES); /* in validation */
    assert_int_equal(runs[TR_OP_XENT_SUM], MICRO_BATCHES);
    assert_int_equal(runs[TR_OP_XENT_DGRAD], 0);
}

/* Checks the bytes of I..W. A block keeps the gradients of h, of the norms' outputs and of the
 * linear layers' outputs, but not that of its own output, which stays where it was received or
 * summed. Embedding and head keep nothing. So B keeps only these gradients and those of its input
 * and output. */
static void check_bytes(const tr_model_config *c) {
    const tr_model_shape shape = {.batch = BATCH, .seq = SEQ, .dtype = TR_F32, .tp_size = 1};
    tr_model *model = NULL;
    tr_stage_table t;
    assert_int_equal(tr_model_create(c, &shape, &model), TR_OK);
    const size_t row = tr_align_up(TOKENS * (size_t)c->width * sizeof(float));
    const tr_model_config *m = &model->config;
    const size_t head = TOKENS * (size_t)m->head_size * sizeof(float);
    const size_t q = (size_t)m->heads, kv = (size_t)m->kv_heads;
    const size_t dqkv = tr_align_up((q + 2 * kv) * head);
    const size_t normed = c->qk_norm ? tr_align_up(q * head) + tr_align_up(kv * head) : 0;
    const size_t din = tr_align_up((size_t)(TOKENS * m->mlp_width) * sizeof(float));
    const bool gated = strcmp(c->family, "gpt2") != 0;
    const size_t block = 3 * row + dqkv + normed + (gated ? 0 : din);
    assert_int_equal(model->layers[0]->pieces + model->layers[LAYERS - 1]->pieces, 0);
    for (int k = 1; k < LAYERS - 1; k++)
        assert_int_equal(model->layers[k]->bytes[TR_LIFE_IW], block);
    assert_int_equal(tr_layer_table_make(model, cut1, 1, &t), TR_OK);
    assert_int_equal(t.cost[0].backward_iw, block + 2 * row);
    /* The gradients of the outputs of the embedding and of all blocks except the last one; the
     * head's F writes that gradient. */
    assert_int_equal(t.cost[0].bytes[TR_LIFE_IW], (size_t)(LAYERS - 2) * (block + row));
    tr_stage_table_free(&t);
    tr_model_destroy(model);
}

/* Makes an order with I and W apart, on one rank. */
static tr_schedule *apart_schedule(void) {
    static const tr_action_type phases[] = {TR_ACTION_F, TR_ACTION_I, TR_ACTION_W};
    tr_schedule *s = NULL;
    if (tr_schedule_create("apart", 1, 1, MICRO_BATCHES, NULL, &s) != TR_OK) abort();
    for (int phase = 0; phase < 3; phase++)
        for (int k = 0; k < MICRO_BATCHES; k++)
            if (tr_schedule_add(s, 0, (tr_action){.type = phases[phase], .micro_batch = k}) !=
                TR_OK)
                abort();
    return s;
}

/* With dropout, the addition after attention is one operator with the norm of the MLP. The other
 * additions are those of the embedding and the MLPs, the other norms those of attention and the
 * head. */
static void test_additions_are_fused_with_norms(void **state) {
    (void)state;
    tr_schedule *s = NULL;
    assert_int_equal(generate_order("1f1b", 1, 1, MICRO_BATCHES, &s), TR_OK);
    free(run_layout(&counted, s, cut1, TR_F32, 0));
    assert_int_equal(runs[TR_OP_ADD_NORM], ALL_F * BLOCKS);
    assert_int_equal(runs[TR_OP_DROPOUT_ADD], ALL_F * (BLOCKS + 1));
    assert_int_equal(runs[TR_OP_LAYERNORM], ALL_F * (BLOCKS + 1));
    tr_schedule_destroy(s);
}

static void test_nothing_is_copied(void **state) {
    (void)state;
    static const char *const families[] = {"gpt2", "llama", "qwen2", "qwen3", "mistral"};
    const tr_model_config kept = config;
    tr_schedule *together = NULL, *apart = apart_schedule();
    assert_int_equal(generate_order("1f1b", 1, 1, MICRO_BATCHES, &together), TR_OK);
    for (size_t k = 0; k < sizeof families / sizeof families[0]; k++) {
        (void)snprintf(config.family, sizeof config.family, "%s", families[k]);
        config.dropout = 0;
        config.qk_norm = strcmp(families[k], "qwen3") == 0 ? TR_YES : 0;
        check_counts(together);
        check_counts(apart);
        check_bytes(&config);
        config = kept;
    }
    tr_schedule_destroy(apart);
    tr_schedule_destroy(together);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_micro_batches_are_told_apart),
        cmocka_unit_test(test_recompute_under_every_schedule),
        cmocka_unit_test(test_recompute_in_every_family),
        cmocka_unit_test(test_additions_are_fused_with_norms),
        cmocka_unit_test(test_nothing_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
