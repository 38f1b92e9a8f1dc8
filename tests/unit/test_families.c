/* Tests the families and their options on host devices: gradients against finite differences, I
 * then W against B, one tensor rank against several (more of them than key and value heads
 * included), decoding against the forward pass; published sizes; refused options. */
#include "layers/model_impl.h"
#include "layers/preset.h"
#include "support/model_team.h"

static const struct {
    const char *name;
    tr_model_config config;
} cases[] = {
    {"llama",
     {.family = "llama",
      .layers = 2,
      .width = 16,
      .heads = 4,
      .kv_heads = 2,
      .context = 7,
      .vocab = 11}},
    {"llama, one key head, exact GeGLU, scaled, tied",
     {.family = "llama",
      .layers = 1,
      .width = 16,
      .heads = 4,
      .kv_heads = 1,
      .context = 7,
      .vocab = 11,
      .tie = TR_YES,
      .activation = "geglu",
      .rope_theta = 100,
      .rope_scaling = "llama3 8 1 4 4"}},
    {"llama, squared ReLU, biases, norms, dropout, linear",
     {.family = "llama",
      .layers = 1,
      .width = 12,
      .heads = 4,
      .head_size = 4,
      .mlp_width = 13,
      .context = 7,
      .vocab = 11,
      .dropout = 0.2f,
      .qk_norm = TR_YES,
      .qkv_bias = TR_YES,
      .activation = "relu2",
      .rope_scaling = "linear 2"}},
    {"qwen2",
     {.family = "qwen2",
      .layers = 1,
      .width = 16,
      .heads = 4,
      .kv_heads = 2,
      .context = 7,
      .vocab = 11,
      .tie = TR_YES}},
    {"qwen3, heads wider than the model",
     {.family = "qwen3",
      .layers = 1,
      .width = 12,
      .heads = 4,
      .kv_heads = 2,
      .head_size = 6,
      .context = 7,
      .vocab = 11,
      .activation = "geglu_tanh"}},
    {"mistral, window, YaRN",
     {.family = "mistral",
      .layers = 1,
      .width = 16,
      .heads = 4,
      .kv_heads = 1,
      .window = 2,
      .context = 7,
      .vocab = 11,
      .rope_theta = 100,
      .rope_scaling = "yarn 4 4"}},
    {"gpt2, grouped queries, window, exact GELU, untied",
     {.family = "gpt2",
      .layers = 1,
      .width = 16,
      .heads = 4,
      .kv_heads = 2,
      .mlp_width = 20,
      .window = 3,
      .context = 7,
      .vocab = 11,
      .tie = TR_NO,
      .qkv_bias = TR_NO,
      .norm_eps = 1e-3,
      .activation = "gelu"}},
    {"llama, updates of all linear layers",
     {.family = "llama",
      .layers = 1,
      .width = 16,
      .heads = 4,
      .kv_heads = 1,
      .context = 7,
      .vocab = 11,
      .lora = {.rank = 3, .alpha = 6, .targets = "all-linear"}}},
    {"qwen2, updates of some linear layers, squared ReLU",
     {.family = "qwen2",
      .layers = 1,
      .width = 16,
      .heads = 4,
      .kv_heads = 2,
      .mlp_width = 13,
      .context = 7,
      .vocab = 11,
      .dropout = 0.2f,
      .activation = "relu2",
      .lora = {.rank = 4, .alpha = 2, .targets = "v_proj self_attn.q_proj down_proj"}}},
    {"gpt2, updates",
     {.family = "gpt2",
      .layers = 1,
      .width = 16,
      .heads = 4,
      .context = 7,
      .vocab = 11,
      .lora = {.rank = 2, .alpha = 3, .targets = "c_attn c_fc mlp.c_proj"}}},
};
enum { CASES = sizeof cases / sizeof *cases };

/* --- gradients -------------------------------------------------------------------------------- */

/* Returns the gradient of the parameter's second use, 0 without one. */
static double tied_gradient(rig *r, const tr_param *param, int64_t i) {
    for (int p = 0; p < r->model->params_count; p++) {
        const tr_param *other = rig_param(r->model, p);
        if (other->use > 0 && !strcmp(tr_param_name(other), tr_param_name(param)))
            return rig_grad(other, i);
    }
    return 0;
}

static void check_param(rig *r, const char *name, tr_param *param, double loss) {
    for (int sample = 0; sample < 8; sample++) {
        int64_t i = (sample * 7919 + 13) % param->count;
        float x = rig_get(param, TR_F32, i), h = 0x1p-6f; /* exact steps */
        double near = rig_forward_with(r, param, i, x + h) - rig_forward_with(r, param, i, x - h);
        double far =
            rig_forward_with(r, param, i, x + 2 * h) - rig_forward_with(r, param, i, x - 2 * h);
        /* Five points: the error is O(h^4), and about 30 roundings of FP32 tensors over h. */
        double slope = (8 * near - far) / (12 * (double)h);
        double grad = rig_grad(param, i) + tied_gradient(r, param, i);
        double tolerance = 4 * sqrt(30) * EPS_F32 * loss / (double)h + 2e-3 * fabs(grad);
        if (!(fabs(slope - grad) <= tolerance))
            fail_msg("%s: %s[%lld]: gradient %g, difference %g, tolerance %g", name,
                     tr_param_name(param), (long long)i, grad, slope, tolerance);
    }
}

static void test_finite_differences(void **state) {
    (void)state;
    for (int k = 0; k < CASES; k++) {
        static rig r;
        tr_world *world;
        RIG_TRY(tr_world_open_local(1, &world));
        rig_open(&r, "ref", world, &cases[k].config, TR_F32, BATCH, SEQ, false);
        rig_fill_named(&r);
        double loss = rig_forward(&r);
        rig_backward(&r, true);
        for (int p = 0; p < r.model->params_count; p++) {
            tr_param *param = rig_param(r.model, p);
            if (param->use == 0 && !param->frozen) check_param(&r, cases[k].name, param, loss);
        }
        rig_close(&r);
        tr_world_close(world);
    }
}

/* I and W apart or layer by layer run the same operators on the same arguments, so they give the
 * same bits. */
static void test_order_changes_no_bit(void **state) {
    (void)state;
    for (int d = 0; d < DEVICES; d++)
        for (int k = 0; k < CASES; k++) {
            result apart, together;
            run_filled(devices[d], &cases[k].config, TR_BF16, 2, true, rig_fill_named, &apart);
            run_filled(devices[d], &cases[k].config, TR_BF16, 2, false, rig_fill_named, &together);
            compare_bits(&apart, &together);
            result_free(&apart);
            result_free(&together);
        }
}

static void test_tensor_ranks_agree(void **state) {
    (void)state;
    for (int d = 0; d < DEVICES; d++)
        for (int k = 0; k < CASES; k++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                tr_dtype dtype = bf16 ? TR_BF16 : TR_F32;
                result one;
                run_filled(devices[d], &cases[k].config, dtype, 1, true, rig_fill_named, &one);
                for (int ranks = 2; ranks <= MOST_RANKS; ranks *= 2) {
                    result several;
                    run_filled(devices[d], &cases[k].config, dtype, ranks, true, rig_fill_named,
                               &several);
                    if (bf16)
                        compare(&several, &one, sqrt(30) * EPS_BF16, 4 * sqrt(30) * EPS_BF16, 0.1);
                    else compare(&several, &one, 1e-6, 1e-5, 1e-3);
                    result_free(&several);
                }
                result_free(&one);
            }
}

/* Slices of 3 or 6 rows begin within sequences of 4. BF16 has the tolerance of FP32,
 * because gradients of norms are FP32 sums of the same products. */
static void check_sequence(const char *device, int k, tr_dtype dtype, int ranks, bool apart) {
    static const char *const recompute[] = {"none", "selective", "full"};
    tr_model_config config = cases[k].config;
    result with, without;
    (void)snprintf(config.recompute, sizeof config.recompute, "%s", recompute[k % 3]);
    run_shape(device, &config, dtype, 3, 4, ranks, apart, rig_fill_named, &without);
    config.sequence = true;
    run_shape(device, &config, dtype, 3, 4, ranks, apart, rig_fill_named, &with);
    compare_sequence(&with, &without);
    result_free(&with);
    result_free(&without);
}

static void test_sequence_changes_only_norms(void **state) {
    (void)state;
    for (int d = 0; d < DEVICES; d++)
        for (int k = 0; k < CASES; k++)
            for (int ranks = 2; ranks <= MOST_RANKS; ranks *= 2)
                for (int way = 0; way < 4; way++)
                    check_sequence(devices[d], k, way % 2 ? TR_BF16 : TR_F32, ranks, way / 2);
}

/* --- decoding --------------------------------------------------------------------------------- */

/* Fails unless the loss of every token at every position agrees with decoding, within the tolerance
 * of logits of size 1. */
static void check_decode(const char *device, const tr_model_config *config, double tolerance) {
    static rig whole, step;
    tr_world *worlds[2];
    RIG_TRY(tr_world_open_local(1, &worlds[0]));
    RIG_TRY(tr_world_open_local(1, &worlds[1]));
    rig_open(&whole, device, worlds[0], config, TR_F32, BATCH, SEQ, false);
    rig_open(&step, device, worlds[1], config, TR_F32, BATCH, SEQ, true);
    rig_fill_named(&whole);
    rig_fill_named(&step);
    whole.state->train = 0;
    for (int64_t t = 0; t < SEQ; t++) {
        for (int64_t b = 0; b < BATCH; b++) step.tokens[b] = whole.tokens[b * SEQ + t];
        rig_decode(&step, t);
        for (int64_t b = 0; b < BATCH; b++) {
            const float *logits = &step.logits[b * config->vocab];
            double total = rig_log_sum_exp(logits, config->vocab), size = 1;
            for (int64_t v = 0; v < config->vocab; v++)
                if (fabs((double)logits[v]) > size) size = fabs((double)logits[v]);
            for (int32_t v = 0; v < config->vocab; v += 3) {
                for (int64_t i = 0; i < whole.rows; i++)
                    whole.labels[i] = i == b * SEQ + t ? v : -1;
                double error = fabs((double)logits[v] - total + rig_forward(&whole));
                if (!(error <= tolerance * size))
                    fail_msg("%s position %lld token %d: off by %g, more than %g", device,
                             (long long)t, v, error, tolerance * size);
            }
        }
    }
    rig_close(&whole);
    rig_close(&step);
    tr_world_close(worlds[0]);
    tr_world_close(worlds[1]);
}

static void test_decode_equals_forward(void **state) {
    (void)state;
    for (int d = 0; d < DEVICES; d++)
        for (int k = 0; k < CASES; k++)
            check_decode(devices[d], &cases[k].config, 4 * sqrt(30) * EPS_F32);
}

/* --- sizes ------------------------------------------------------------------------------------ */

/* Parameters in millions, as published. */
static void test_presets_have_the_published_sizes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double millions;
    } sizes[] = {{"gpt2-124m", 124.44},     {"gpt2-350m", 354.82},       {"gpt2-774m", 774.03},
                 {"gpt2-1.5b", 1557.61},    {"llama-3.2-1b", 1235.81},   {"llama-3-8b", 8030.26},
                 {"llama-3-70b", 70553.71}, {"llama-3-405b", 405853.39}, {"qwen2.5-0.5b", 494.03},
                 {"qwen3-0.6b", 596.05},    {"qwen3-8b", 8190.74},       {"mistral-7b", 7241.73}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const tr_preset *preset = tr_preset_find(sizes[i].name);
        assert_non_null(preset);
        tr_model_shape shape = {.batch = 1, .seq = 128, .dtype = TR_BF16, .tp_size = 1};
        tr_model *model;
        RIG_TRY(tr_model_create(&preset->model, &shape, &model));
        double millions = (double)tr_model_parameters(model) * 1e-6;
        if (fabs(millions - sizes[i].millions) > 0.005)
            fail_msg("%s has %.3f M parameters, not %.2f", sizes[i].name, millions,
                     sizes[i].millions);
        tr_model_destroy(model);
    }
}

static void test_hugging_face_names(void **state) {
    (void)state;
    static const char *const names[] = {"model.embed_tokens.weight",
                                        "model.layers.0.input_layernorm.weight",
                                        "model.layers.0.self_attn.q_proj.weight",
                                        "model.layers.0.self_attn.k_proj.weight",
                                        "model.layers.0.self_attn.v_proj.weight",
                                        "model.layers.0.self_attn.q_norm.weight",
                                        "model.layers.0.self_attn.k_norm.weight",
                                        "model.layers.0.self_attn.o_proj.weight",
                                        "model.layers.0.post_attention_layernorm.weight",
                                        "model.layers.0.mlp.gate_proj.weight",
                                        "model.layers.0.mlp.up_proj.weight",
                                        "model.layers.0.mlp.down_proj.weight",
                                        "model.norm.weight",
                                        "lm_head.weight"};
    static const int64_t shapes[][2] = {{11, 12}, {12, 1},  {24, 12}, {12, 12}, {12, 12},
                                        {6, 1},   {6, 1},   {12, 24}, {12, 1},  {64, 12},
                                        {64, 12}, {12, 64}, {12, 1},  {11, 12}};
    tr_model_config config = cases[4].config;
    tr_model_shape shape = {.batch = 1, .seq = 4, .dtype = TR_F32, .tp_size = 1};
    tr_model *model;
    size_t at = 0;
    RIG_TRY(tr_model_create(&config, &shape, &model));
    for (int p = 0; p < model->params_count; p++) {
        const tr_param *param = rig_param(model, p);
        for (int k = 0; k < param->tensors; k++, at++) {
            assert_in_range(at, 0, sizeof names / sizeof *names - 1);
            assert_string_equal(param->tensor[k].name, names[at]);
            assert_memory_equal(param->tensor[k].shape, shapes[at], sizeof *shapes);
        }
    }
    assert_int_equal(at, sizeof names / sizeof *names);
    tr_model_destroy(model);
}

static void test_what_does_not_go_together_is_refused(void **state) {
    (void)state;
    static const struct {
        tr_model_config config;
        int tp;
        const char *says;
    } bad[] = {
        {{.family = "llama", .heads = 6, .kv_heads = 4}, 1, "model.kv_heads 4 does not divide"},
        {{.family = "llama", .heads = 12, .kv_heads = 6},
         4,
         "model.kv_heads 6 and parallel.tp 4 do not divide each other: a tensor rank holds whole "
         "key and "
         "value heads, or shares one with the next; parallel.tp=3 works"},
        {{.family = "llama", .heads = 4}, 8, "model.heads 4 is not divisible by parallel.tp 8"},
        {{.family = "llama", .heads = 5}, 1, "model.width 48 is not divisible by model.heads 5"},
        {{.family = "llama", .heads = 4, .head_size = 7}, 1, "model.head_size 7 is odd"},
        {{.family = "llama", .heads = 4, .rope_theta = 1},
         1,
         "model.rope_theta must be above 1, not 1"},
        {{.family = "llama", .heads = 4, .rope_scaling = "yarn"}, 1, ", not 'yarn'"},
        {{.family = "llama", .heads = 4, .rope_scaling = "lama3 8 1 4 64"},
         1,
         ", not 'lama3 8 1 4 64'; did you mean 'llama3'?"},
        {{.family = "llama", .heads = 4, .rope_scaling = "llama3 8 4 1 64"},
         1,
         ", not 'llama3 8 4 1 64'"},
        {{.family = "llama", .heads = 4, .rope_scaling = "yarn 4 16 1"}, 1, ", not 'yarn 4 16 1'"},
        {{.family = "llama", .heads = 4, .rope_scaling = "yarn 0x4 16"}, 1, ", not 'yarn 0x4 16'"},
        {{.family = "llama", .heads = 4, .rope_scaling = "yarn 4 16.5"}, 1, ", not 'yarn 4 16.5'"},
        {{.family = "llama", .heads = 4, .rope_scaling = "yarn 4 9999999999999999999"},
         1,
         ", not 'yarn 4 9999999999999999999'"},
        {{.family = "llama", .heads = 4, .rope_scaling = "linear 2 "}, 1, ", not 'linear 2 '"},
        {{.family = "llama", .heads = 4, .rope_scaling = "linear 2 3"}, 1, ", not 'linear 2 3'"},
        {{.family = "llama", .heads = 4, .rope_scaling = "linear 1e400"},
         1,
         ", not 'linear 1e400'"},
        {{.family = "llama", .heads = 4, .rope_scaling = "linear nan"}, 1, ", not 'linear nan'"},
        {{.family = "llama", .heads = 4, .rope_scaling = "none 2"}, 1, ", not 'none 2'"},
        {{.family = "llama", .heads = 4, .rope_scaling = "yarn 4 16 1 32"},
         1,
         ", not 'yarn 4 16 1 32'"},
        {{.family = "llama", .heads = 4, .rope_scaling = "yarn 4 16 32 1 0"},
         1,
         ", not 'yarn 4 16 32 1 0'"},
        {{.family = "llama", .heads = 4, .width = INT64_MAX},
         1,
         "model.width must be between 1 and 16777216"},
        {{.family = "llama", .heads = 4, .activation = "tanh"}, 1, ", not 'tanh'"},
        {{.family = "llama", .heads = 4, .window = -1}, 1, "model.window must be between 0 and "},
        {{.family = "llama", .heads = 4, .norm_eps = -1},
         1,
         "model.norm_eps must be above 0 and below 1, not -1"},
        {{.family = "llama", .heads = 4, .mlp_width = 1}, 2, "model.mlp_width 1"},
        {{.family = "gpt2", .heads = 4, .activation = "swiglu"}, 1, "model.activation swiglu"},
        {{.family = "gpt2", .heads = 4, .qk_norm = TR_YES}, 1, "model.qk_norm is true"},
        {{.family = "gpt2", .heads = 4, .rope_theta = 100}, 1, "model.rope_theta is for rotary"},
        {{.family = "gpt2", .heads = 4, .rope_scaling = "linear 2"},
         1,
         "model.rope_scaling is for"},
        {{.family = "lama", .heads = 4}, 1, "gpt2, llama, qwen2, qwen3, mistral"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tr_model_config config = bad[i].config;
        tr_model_shape shape = {.batch = 1, .seq = 4, .dtype = TR_F32, .tp_size = bad[i].tp};
        config.layers = 1;
        if (!config.width) config.width = 48;
        config.context = 8;
        config.vocab = 16;
        assert_int_equal(tr_model_check(&config, &shape), TR_ERR_CONFIG);
        if (!strstr(tr_error_message(), bad[i].says))
            fail_msg("'%s' does not say '%s'", tr_error_message(), bad[i].says);
    }
}

/* The width makes tensors of 2^58 elements; a micro-batch of 2^32 tokens and 2^32 elements of
 * queries are more than a product of oneDNN counts. */
static void test_tensors_larger_than_memory_are_refused(void **state) {
    (void)state;
    tr_model_config config = {.family = "llama",
                              .layers = 1,
                              .width = 1 << 20,
                              .heads = 1,
                              .head_size = 2,
                              .mlp_width = 1,
                              .context = 1 << 24,
                              .vocab = INT32_MAX};
    tr_model_shape shape = {.batch = 1 << 6, .seq = 1 << 24, .dtype = TR_F32, .tp_size = 1};
    assert_int_equal(tr_model_check(&config, &shape), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "larger than any memory"));
    config.vocab = 2;
    assert_int_equal(tr_model_check(&config, &shape), TR_OK);
    shape.batch = 1 << 8;
    assert_int_equal(tr_model_check(&config, &shape), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "a micro-batch of 256 x 16777216 tokens is larger"));
    shape.batch = 1;
    config.heads = 1 << 16;
    config.head_size = 1 << 16;
    assert_int_equal(tr_model_check(&config, &shape), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "make model.heads or model.head_size smaller"));
}

/* YaRN's further numbers; 0 where they are not given. */
static void test_yarn_numbers(void **state) {
    (void)state;
    tr_rope_scaling s;
    assert_int_equal(tr_model_rope_scaling("yarn 4 16", &s), TR_OK);
    assert_true(s.factor == 4 && s.original == 16);
    assert_true(s.beta_fast == 0 && s.beta_slow == 0 && s.attention_factor == 0);
    assert_int_equal(tr_model_rope_scaling("yarn 4 16 24 2", &s), TR_OK);
    assert_true(s.beta_fast == 24 && s.beta_slow == 2 && s.attention_factor == 0);
    assert_int_equal(tr_model_rope_scaling("yarn 40 4096 24 2 1.25", &s), TR_OK);
    assert_true(s.kind == TR_ROPE_YARN && s.factor == 40 && s.original == 4096);
    assert_true(s.beta_fast == 24 && s.beta_slow == 2 && s.attention_factor == 1.25);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_order_changes_no_bit),
        cmocka_unit_test(test_tensor_ranks_agree),
        cmocka_unit_test(test_sequence_changes_only_norms),
        cmocka_unit_test(test_decode_equals_forward),
        cmocka_unit_test(test_presets_have_the_published_sizes),
        cmocka_unit_test(test_hugging_face_names),
        cmocka_unit_test(test_what_does_not_go_together_is_refused),
        cmocka_unit_test(test_tensors_larger_than_memory_are_refused),
        cmocka_unit_test(test_yarn_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
