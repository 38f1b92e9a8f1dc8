/* Tests GPT-2 on host devices: gradients against finite differences with dropout, one tensor rank
 * against several, decoding against the forward pass. test_golden compares with PyTorch. */
#include "support/model_team.h"

static const tr_model_config tiny = {
    .family = "gpt2", .layers = 2, .width = 16, .heads = 2, .context = 7, .vocab = 11};
/* A model with heads that divide by 2 and 3 and a vocabulary that divides by neither. */
static const tr_model_config wide = {.family = "gpt2",
                                     .layers = 2,
                                     .width = 24,
                                     .heads = 6,
                                     .context = 7,
                                     .vocab = 11,
                                     .dropout = 0.2f};
/* One with a larger vocabulary. */
static const tr_model_config large = {.family = "gpt2",
                                      .layers = 1,
                                      .width = 24,
                                      .heads = 6,
                                      .context = 7,
                                      .vocab = 400,
                                      .dropout = 0.2f};
static void run_model(const char *device, const tr_model_config *config, tr_dtype dtype, int ranks,
                      bool apart, result *out) {
    run_filled(device, config, dtype, ranks, apart, rig_fill, out);
}

/* --- finite differences ----------------------------------------------------------------------- */

static void check_differences(const tr_model_config *config) {
    tr_world *world;
    RIG_TRY(tr_world_open_local(1, &world));
    static rig r;
    rig_open(&r, "ref", world, config, TR_F32, BATCH, SEQ, false);
    rig_fill(&r);
    double loss = rig_forward(&r);
    rig_backward(&r, true);
    for (int p = 0; p < r.model->params_count; p++) {
        tr_param *param = rig_param(r.model, p);
        if (param->use > 0) continue;
        bool tied = !strcmp(tr_param_name(param), "transformer.wte.weight");
        const tr_param *second = rig_param(r.model, r.model->params_count - 1);
        for (int sample = 0; sample < 6; sample++) {
            int64_t i = (sample * 7919 + 13) % param->count;
            float x = rig_get(param, TR_F32, i), h = 0x1p-5f; /* exact steps */
            double near =
                rig_forward_with(&r, param, i, x + h) - rig_forward_with(&r, param, i, x - h);
            double far = rig_forward_with(&r, param, i, x + 2 * h) -
                         rig_forward_with(&r, param, i, x - 2 * h);
            /* Five points: the error is O(h^4), and about 30 roundings of FP32 tensors over h. */
            double slope = (8 * near - far) / (12 * (double)h);
            double grad = rig_grad(param, i) + (tied ? rig_grad(second, i) : 0);
            double tolerance = 4 * sqrt(30) * EPS_F32 * loss / (double)h + 2e-3 * fabs(grad);
            if (!(fabs(slope - grad) <= tolerance))
                fail_msg("%s[%lld]: gradient %g, difference %g, tolerance %g", tr_param_name(param),
                         (long long)i, grad, slope, tolerance);
        }
    }
    rig_close(&r);
    tr_world_close(world);
}

static void test_finite_differences(void **state) {
    (void)state;
    tr_model_config config = tiny;
    config.dropout = 0.25f;
    check_differences(&config);
    check_differences(&large);
}

/* --- layouts ---------------------------------------------------------------------------------- */

static void check_tensor_ranks(const tr_model_config *config) {
    for (int d = 0; d < DEVICES; d++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            tr_dtype dtype = bf16 ? TR_BF16 : TR_F32;
            result one;
            run_model(devices[d], config, dtype, 1, true, &one);
            for (int ranks = 2; ranks <= 3; ranks++) {
                result several;
                run_model(devices[d], config, dtype, ranks, true, &several);
                if (bf16)
                    compare(&several, &one, sqrt(30) * EPS_BF16, 4 * sqrt(30) * EPS_BF16, 0.1);
                else compare(&several, &one, 1e-6, 1e-5, 1e-3);
                result_free(&several);
            }
            result_free(&one);
        }
    }
}

static void test_tensor_ranks_agree(void **state) {
    (void)state;
    check_tensor_ranks(&wide);
}

/* I and W apart or layer by layer run the same operators on the same arguments, so they give the
 * same bits. */
static void test_order_changes_no_bit(void **state) {
    (void)state;
    for (int d = 0; d < DEVICES; d++) {
        result apart, together;
        run_model(devices[d], &large, TR_BF16, 2, true, &apart);
        run_model(devices[d], &large, TR_BF16, 2, false, &together);
        compare_bits(&apart, &together);
        result_free(&apart);
        result_free(&together);
    }
}

/* Runs as many micro-batches of one sample as `whole` has samples, and returns their loss. Their
 * gradients are summed. */
static double run_one_by_one(const rig *whole, rig *one, int64_t samples, int64_t seq) {
    double loss = 0;
    rig_begin_gradients(one);
    for (int64_t b = 0; b < samples; b++) {
        one->sample = whole->sample + b;
        memcpy(one->tokens, whole->tokens + b * seq, (size_t)seq * sizeof(int32_t));
        memcpy(one->labels, whole->labels + b * seq, (size_t)seq * sizeof(int32_t));
        rig_accumulate(one, true);
        loss += one->loss[0];
    }
    return loss;
}

/* Compares a micro-batch of several samples with as many of one sample: the masks are the same, and
 * so are loss and gradients except for the order of FP32 sums. */
static void check_micro_batch(const char *device, const tr_model_config *config, int64_t samples,
                              int64_t seq, double tolerance) {
    static rig whole, one;
    tr_world *worlds[2];
    RIG_TRY(tr_world_open_local(1, &worlds[0]));
    RIG_TRY(tr_world_open_local(1, &worlds[1]));
    rig_open(&whole, device, worlds[0], config, TR_F32, samples, seq, false);
    rig_open(&one, device, worlds[1], config, TR_F32, 1, seq, false);
    rig_fill(&whole);
    rig_fill(&one);
    whole.sample = 2;
    rig_backward(&whole, true);
    double together = whole.loss[0], apart = run_one_by_one(&whole, &one, samples, seq);
    if (!(fabs(apart - together) <= tolerance * EPS_F32 * together))
        fail_msg("losses differ by %g of %g", apart - together, together);
    for (int p = 0; p < whole.model->params_count; p++) {
        const tr_param *a = rig_param(whole.model, p), *b = rig_param(one.model, p);
        double difference = 0, squares = 0;
        for (int64_t i = 0; i < a->count; i++) {
            double x = rig_grad(a, i), y = rig_grad(b, i);
            difference += (x - y) * (x - y);
            squares += x * x;
        }
        if (!(difference <= tolerance * tolerance * EPS_F32 * EPS_F32 * squares))
            fail_msg("%s: gradients differ by %g of %g", tr_param_name(a), sqrt(difference),
                     sqrt(squares));
    }
    rig_close(&whole);
    rig_close(&one);
    tr_world_close(worlds[0]);
    tr_world_close(worlds[1]);
}

static void test_micro_batch_changes_no_mask(void **state) {
    (void)state;
    check_micro_batch("ref", &wide, 2, SEQ, 4);
}

/* The head cuts the rows of 33 samples into chunks of 1,088 and 1,057 rows, and those of one sample
 * not at all. 33 partial sums round more often than two. */
static void test_chunks_of_rows(void **state) {
    (void)state;
    enum { SAMPLES = 33, LONG = 65 };
    tr_model_config config = wide;
    config.context = LONG;
    check_micro_batch("ref", &config, SAMPLES, LONG, 4 * sqrt(SAMPLES));
}

/* Tensor ranks reduce chunk by chunk, so they must cut the same chunks, although one has one more
 * column of the vocabulary and so longer rows of logits. */
static void test_tensor_ranks_cut_the_same_chunks(void **state) {
    (void)state;
    enum { LONG = 2048, RANKS = 2 };
    tr_model_config config = wide;
    size_t scratch[RANKS];
    config.context = LONG;
    config.vocab = (1 << 16) + 1;
    for (int rank = 0; rank < RANKS; rank++) {
        tr_model *model;
        tr_model_shape shape = {
            .batch = 1, .seq = LONG, .dtype = TR_F32, .tp_rank = rank, .tp_size = RANKS};
        RIG_TRY(tr_model_create(&config, &shape, &model));
        scratch[rank] = model->layers[model->count - 1]->bytes[TR_LIFE_SCRATCH];
        tr_model_destroy(model);
    }
    assert_int_equal(scratch[0], scratch[1]);
}

/* --- decoding --------------------------------------------------------------------------------- */

/* Returns the log-probability of `token` at row `row` by the forward pass: the loss of that row
 * alone. */
static double forward_log_probability(rig *r, int64_t row, int32_t token) {
    for (int64_t i = 0; i < r->rows; i++) r->labels[i] = i == row ? token : -1;
    return -rig_forward(r);
}

/* Checks some tokens at every position, `apart` from one to the next. */
static void check_decode(const char *device, const tr_model_config *config, tr_dtype dtype,
                         int apart, double tolerance) {
    static rig whole, step;
    tr_world *worlds[2];
    RIG_TRY(tr_world_open_local(1, &worlds[0]));
    RIG_TRY(tr_world_open_local(1, &worlds[1]));
    rig_open(&whole, device, worlds[0], config, dtype, BATCH, SEQ, false);
    rig_open(&step, device, worlds[1], config, dtype, BATCH, SEQ, true);
    rig_fill(&whole);
    rig_fill(&step);
    whole.state->train = 0;
    int64_t vocab = config->vocab;
    for (int64_t t = 0; t < SEQ; t++) {
        for (int64_t b = 0; b < BATCH; b++) step.tokens[b] = whole.tokens[b * SEQ + t];
        rig_decode(&step, t);
        for (int64_t b = 0; b < BATCH; b++) {
            const float *logits = &step.logits[b * vocab];
            double total = rig_log_sum_exp(logits, vocab);
            for (int32_t v = 0; v < vocab; v += apart) {
                double expected = forward_log_probability(&whole, b * SEQ + t, v);
                double error = fabs((double)logits[v] - total - expected);
                if (!(error <= tolerance))
                    fail_msg("%s position %lld token %d: off by %g, more than %g", device,
                             (long long)t, v, error, tolerance);
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
    for (int d = 0; d < DEVICES; d++) {
        /* Logits of size 1 after 30 roundings. */
        const double f32 = 4 * sqrt(30) * EPS_F32, bf16 = 4 * sqrt(30) * EPS_BF16;
        check_decode(devices[d], &wide, TR_F32, 1, f32);
        check_decode(devices[d], &wide, TR_BF16, 1, bf16);
        check_decode(devices[d], &large, TR_F32, 57, f32);
        check_decode(devices[d], &large, TR_BF16, 57, bf16);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_tensor_ranks_agree),
        cmocka_unit_test(test_order_changes_no_bit),
        cmocka_unit_test(test_micro_batch_changes_no_mask),
        cmocka_unit_test(test_chunks_of_rows),
        cmocka_unit_test(test_tensor_ranks_cut_the_same_chunks),
        cmocka_unit_test(test_decode_equals_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
