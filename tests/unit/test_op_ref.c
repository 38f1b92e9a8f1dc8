/* The reference operators against known values and against their own definitions. */
#include "support/ref_rig.h"

/* Every case runs on ref in every storage type of devices, twice with the same bits, inline and
 * queued. */
static void test_table_runs(void **state) {
    (void)state;
    char text[256], message[256];
    tr_stream *stream;
    bool seen[TR_OP_COUNT] = {false};
    must(tr_stream_create(device, &stream));
    for (size_t i = 0; i < tr_op_case_count; i++)
        for (int s = 0; s < TR_OP_STORAGES; s++) {
            tr_op_data first, second;
            const tr_dtype storage = tr_op_storages[s];
            tr_op_case_describe(&tr_op_cases[i], storage, text, sizeof text);
            must(tr_op_data_make(&tr_op_cases[i], storage, seed, &first));
            must(tr_op_data_clone(&first, &second));
            must(tr_op_data_run(&first, device, NULL));
            must(tr_op_data_run(&second, device, stream));
            if (!tr_op_data_compare(&second, &first, message, sizeof message))
                fail_msg("%s: %s", text, message);
            for (int k = 0; k < TR_OP_MAX_TENSORS; k++)
                if (first.memory[k])
                    assert_memory_equal(first.memory[k], second.memory[k],
                                        (size_t)first.tensor[k].count *
                                            tr_dtype_size(first.tensor[k].dtype));
            tr_op_data_free(&first);
            tr_op_data_free(&second);
            seen[tr_op_cases[i].desc.kind] = true;
        }
    tr_stream_destroy(stream);
    for (int kind = 0; kind < TR_OP_COUNT; kind++)
        if (!seen[kind]) fail_msg("operator %s has no case", tr_op_name((tr_op_kind)kind));
}

/* The comparison itself can fail: in every case, a thousandth of a term too much (or any number
 * that is none) in any output, and any change of an input. */
static void test_compare_fails(void **state) {
    (void)state;
    char text[256], message[256];
    const double wrong[] = {1e-3, NAN, INFINITY};
    for (size_t i = 0; i < tr_op_case_count; i++) {
        tr_op_data a, b;
        tr_op_case_describe(&tr_op_cases[i], TR_F32, text, sizeof text);
        must(tr_op_data_make(&tr_op_cases[i], TR_F32, seed, &a));
        must(tr_op_data_run(&a, device, NULL));
        must(tr_op_data_clone(&a, &b));
        assert_true(tr_op_data_compare(&b, &a, message, sizeof message));
        for (int k = 0; k < TR_OP_MAX_TENSORS; k++) {
            const tr_op_tensor *t = &a.tensor[k];
            if (!a.memory[k] || t->count == 0 || t->fill == TR_FILL_STATE) continue;
            int64_t at = t->count / 2;
            double right = tr_element(a.memory[k], t->dtype, at);
            for (int w = 0; w < 3; w++) {
                const bool whole = t->dtype == TR_I32 || t->dtype == TR_U8;
                if (whole && w > 0) break; /* has no such number */
                /* ... and two steps of a type with numbers that are wider apart */
                double shift = wrong[w] + 2 * tr_dtype_eps(t->dtype) * fabs(right);
                if (whole) shift = right > 0 ? -1 : 1;
                tr_element_set(b.memory[k], t->dtype, at, right + shift);
                if (tr_op_data_compare(&b, &a, message, sizeof message))
                    fail_msg("%s: tensor %d is off by %g, and that passes", text, k, shift);
            }
            tr_element_set(b.memory[k], t->dtype, at, right);
        }
        assert_true(tr_op_data_compare(&b, &a, message, sizeof message));
        tr_op_data_free(&b);
        tr_op_data_free(&a);
    }
}

static void test_prepare_refuses(void **state) {
    (void)state;
    const tr_op_desc wrong[] = {
        {.kind = TR_OP_COUNT},
        {.kind = TR_OP_MATMUL, .matmul = {.m = 0, .n = 1, .k = 1}},
        {.kind = TR_OP_MATMUL, .matmul = {.m = 1, .n = 4, .k = 1, .ldc = 3}},
        {.kind = TR_OP_MATMUL, .matmul = {.m = INT64_MAX / 2, .n = 4, .k = 1}},
        {.kind = TR_OP_MATMUL,
         .matmul = {.m = 1, .n = 1, .k = 1, .c = TR_BF16, .accumulate = true}},
        {.kind = TR_OP_MATMUL, .matmul = {.m = 1, .n = 1, .k = 1, .scale = 2, .accumulate = true}},
        {.kind = TR_OP_MATMUL,
         .matmul = {.m = 1, .n = 1, .k = 1, .fused.bias = true, .accumulate = true}},
        {.kind = TR_OP_MATMUL,
         .matmul = {.m = 1, .n = 1, .k = 1, .accumulate = true, .fused.activate = true}},
        {.kind = TR_OP_MATMUL,
         .matmul = {.m = 1, .n = 1, .k = 1, .ldc = 2, .fused.activate_grad = true}},
        {.kind = TR_OP_MATMUL,
         .matmul = {.m = 1, .n = 1, .k = 1, .fused.bias = true, .fused.activate_grad = true}},
        {.kind = TR_OP_MATMUL,
         .matmul = {.m = 1, .n = 1, .k = 1, .trans_b = true, .fused.bias_grad = true}},
        {.kind = TR_OP_MATMUL,
         .matmul = {.m = 1, .n = 1, .k = 1, .fused = {.bias_grad = true, .bias_grad_of_a = true}}},
        {.kind = TR_OP_ACTIVATION, .rows = {.rows = 1, .width = 1, .dtype = TR_I32}},
        {.kind = TR_OP_RMSNORM, .rmsnorm = {.rows = 3, .width = 2, .group = 2, .ldx = 4}},
        {.kind = TR_OP_RMSNORM, .rmsnorm = {.rows = 4, .width = 2, .group = 2, .ldy = 3}},
        {.kind = TR_OP_RMSNORM, .rmsnorm = {.rows = 4, .width = 2, .ldy = 3}},
        {.kind = TR_OP_GLU, .glu = {.rows = 1, .width = 1, .activation = TR_ACTIVATION_COUNT}},
        {.kind = TR_OP_ROPE,
         .rope = {.rows = 1, .seq = 1, .heads = 1, .head_size = 3, .ld = 3, .theta = 2}},
        {.kind = TR_OP_ROPE,
         .rope = {.rows = 1, .seq = 1, .heads = 2, .head_size = 2, .ld = 3, .theta = 2}},
        {.kind = TR_OP_ROPE,
         .rope = {.rows = 3, .seq = 2, .heads = 1, .head_size = 2, .ld = 2, .theta = 2}},
        {.kind = TR_OP_ROPE,
         .rope = {.rows = 1,
                  .seq = 1,
                  .heads = 1,
                  .head_size = 2,
                  .ld = 2,
                  .theta = 2,
                  .scaling = {.kind = TR_ROPE_LLAMA3, .factor = 8, .original = 9}}},
        {.kind = TR_OP_DROPOUT_ADD, .dropout = {.rows = 1, .width = 1, .seq = 1, .p = 1}},
        {.kind = TR_OP_POSITION_WGRAD, .embed = {.rows = 3, .width = 1, .seq = 2}},
        {.kind = TR_OP_SUMSQ, .sumsq = {.count = -1}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tr_op *op = (tr_op *)&wrong;
        assert_int_equal(tr_op_prepare(&(tr_op_context){.device = device}, &wrong[i], &op),
                         TR_ERR_INTERNAL);
        assert_null(op);
    }
    tr_op_release(NULL);
    assert_string_equal(tr_op_name(TR_OP_LAYERNORM_DGRAD), "layernorm_dgrad");
    tr_op_desc matmul = {.kind = TR_OP_MATMUL, .matmul = {.m = 3, .n = 5, .k = 7}};
    assert_near(tr_op_flops(&matmul), 210, 0);
}

static void test_known_values(void **state) {
    (void)state;
    /* [1 2; 3 4] [5 6; 7 8] + [10 20] */
    float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, bias[] = {10, 20}, c[4];
    tr_op_desc d = {.kind = TR_OP_MATMUL, .matmul = {.m = 2, .n = 2, .k = 2, .fused.bias = true}};
    RUN(d, NULL, 0, a, b, c, bias);
    const float product[] = {29, 42, 53, 70};
    assert_memory_equal(c, product, sizeof c);
    /* A' B': [1 3; 2 4] [5 7; 6 8], added and written */
    d.matmul = (tr_matmul_desc){
        .m = 2, .n = 2, .k = 2, .trans_a = true, .trans_b = true, .accumulate = true};
    RUN_ADDING(d, a, b, c, NULL);
    const float sum[] = {29 + 23, 42 + 31, 53 + 34, 70 + 46}, written[] = {23, 31, 34, 46};
    assert_memory_equal(c, sum, sizeof c);
    RUN(d, NULL, 0, a, b, c, NULL);
    assert_memory_equal(c, written, sizeof c);

    /* gelu: 0, 1, -1 as published for the tanh form; large arguments are x and 0. */
    float x[] = {0, 1, -1, 30, -30}, y[5];
    d = (tr_op_desc){.kind = TR_OP_ACTIVATION, .rows = {.rows = 1, .width = 5}};
    RUN(d, NULL, 0, x, y);
    const double gelu[] = {0, 0.8411919906082768, -0.15880800939172324, 30, 0};
    for (int i = 0; i < 5; i++) assert_near((double)y[i], gelu[i], 1.2e-7 * fabs(gelu[i]));

    /* A row 1 2 3 4: mean 2.5, variance 1.25. */
    float row[] = {1, 2, 3, 4}, gamma[] = {1, 1, 1, 2}, beta[] = {0, 0, 0, 1}, out[4], mean, rstd;
    d = (tr_op_desc){.kind = TR_OP_LAYERNORM, .layernorm = {.rows = 1, .width = 4}};
    RUN(d, NULL, 0, row, gamma, beta, out, &mean, &rstd);
    assert_near((double)mean, 2.5, 0);
    assert_near((double)rstd, 1 / sqrt(1.25), 1e-7);
    assert_near((double)out[0], -1.5 / sqrt(1.25), 2e-7);
    assert_near((double)out[3], 1 + 2 * 1.5 / sqrt(1.25), 4e-7);
}

/* f(x) and f'(x), the latter as the slope of y = f(gate) up with up = 1, and what up gets. */
static void test_activations(void **state) {
    (void)state;
    const struct {
        tr_activation activation;
        float x;
        double value, slope;
    } known[] = {
        {TR_ACTIVATION_GELU, 1, 0.8411919906082768, 1.0829641283009862},
        {TR_ACTIVATION_GELU_ERF, 1, 0.8413447460685429, 1.0833154705876864},
        {TR_ACTIVATION_GELU_ERF, -2, -0.04550026389635842, -0.08523180107819846},
        {TR_ACTIVATION_GELU_ERF, -30, 0, 0},
        {TR_ACTIVATION_SILU, 1, 0.7310585786300049, 0.9276705118714869},
        {TR_ACTIVATION_SILU, -1, -0.2689414213699951, 0.07232948812851325},
        {TR_ACTIVATION_SILU, -200, 0, 0},
        {TR_ACTIVATION_RELU2, 3, 9, 6},
        {TR_ACTIVATION_RELU2, -3, 0, 0},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        float x[2] = {known[i].x, 1}, y, dy = 1, dx[2];
        tr_op_desc d = {.kind = TR_OP_GLU,
                        .glu = {.rows = 1, .width = 1, .activation = known[i].activation}};
        RUN(d, NULL, 0, x, &y);
        assert_near((double)y, known[i].value, 1.2e-7 * fabs(known[i].value) + 1e-30);
        d.kind = TR_OP_GLU_DGRAD;
        RUN(d, NULL, 0, &dy, x, dx);
        assert_near((double)dx[0], known[i].slope, 1.2e-7 * fabs(known[i].slope) + 1e-30);
        assert_true(dx[1] == y);
    }
    for (tr_activation a = 0; a < TR_ACTIVATION_COUNT; a++) {
        float x[2] = {NAN, 1}, y, dy = 1, dx[2];
        tr_op_desc d = {.kind = TR_OP_GLU, .glu = {.rows = 1, .width = 1, .activation = a}};
        RUN(d, NULL, 0, x, &y);
        d.kind = TR_OP_GLU_DGRAD;
        RUN(d, NULL, 0, &dy, x, dx);
        assert_true(isnan(y) && isnan(dx[0]) && isnan(dx[1]));
    }
}

/* A row 1 2 3 4: mean square 7.5. */
static void test_rmsnorm(void **state) {
    (void)state;
    float row[] = {1, 2, 3, 4}, gamma[] = {1, 1, 1, 2}, out[4], rstd;
    tr_op_desc d = {.kind = TR_OP_RMSNORM, .rmsnorm = {.rows = 1, .width = 4, .eps = 0.5f}};
    RUN(d, NULL, 0, row, gamma, out, &rstd);
    assert_near((double)rstd, 1 / sqrt(8), 1e-7);
    assert_near((double)out[0], 1 / sqrt(8), 1e-7);
    assert_near((double)out[3], 8 / sqrt(8), 4e-7);
}

static void test_bf16_rounds_to_even(void **state) {
    (void)state;
    float x[] = {1.0f, 1.00390625f, 1.01171875f, -1.00390625f, 0x1.010002p0f, 3.4e38f};
    const float want[] = {1.0f, 1.0f, 1.015625f, -1.0f, 1.0078125f, INFINITY};
    uint16_t y[6];
    tr_op_desc d = {.kind = TR_OP_CAST,
                    .rows = {.rows = 2, .width = 3, .dtype = TR_F32, .to = TR_BF16}};
    RUN(d, NULL, 0, x, y);
    for (int i = 0; i < 5; i++) assert_near((double)tr_bf16_to_f32(y[i]), (double)want[i], 0);
    assert_true(tr_bf16_to_f32(y[5]) > 3.38e38f);
    d.rows.dtype = TR_BF16;
    d.rows.to = TR_F32;
    RUN(d, NULL, 0, y, x);
    for (int i = 0; i < 5; i++) assert_near((double)x[i], (double)want[i], 0);
}

enum { D_SEQ = 16, D_WIDTH = 250, D_SAMPLES = 5, D_ROWS = D_SEQ * D_SAMPLES };
static float ones[D_ROWS * D_WIDTH], masked[D_ROWS * D_WIDTH], again[D_ROWS * D_WIDTH];

static void test_dropout(void **state) {
    (void)state;
    const int64_t n = D_ROWS * D_WIDTH;
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    tr_step_state step = {.seed = seed, .step = 1, .first_sample = 40, .train = 1};
    tr_op_desc d = {
        .kind = TR_OP_DROPOUT_ADD,
        .dropout = {.rows = D_ROWS, .width = D_WIDTH, .seq = D_SEQ, .p = 0.25f, .site = 3}};
    RUN(d, &step, 2, ones, NULL, NULL, masked);
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        assert_true(masked[i] == 0 || masked[i] == (float)(1 / 0.75));
        kept += masked[i] != 0;
    }
    /* Binomial: five standard deviations. */
    assert_near((double)kept, 0.75 * (double)n, 5 * sqrt(0.75 * 0.25 * (double)n));

    /* Split by samples and by row groups within the step: the same mask. */
    for (int64_t s = 0; s < D_SAMPLES; s++) {
        tr_op_desc part = d;
        part.dropout.rows = D_SEQ;
        RUN(part, &step, 2 + s, ones, NULL, NULL, again + s * D_SEQ * D_WIDTH);
    }
    assert_memory_equal(masked, again, sizeof masked);
    /* first_sample and the offset only count together. */
    tr_step_state shifted = step;
    shifted.first_sample = 42;
    RUN(d, &shifted, 0, ones, NULL, NULL, again);
    assert_memory_equal(masked, again, sizeof masked);
    /* The gradient has the same mask, here in place. */
    d.kind = TR_OP_DROPOUT_DGRAD;
    memcpy(again, ones, sizeof ones);
    RUN(d, &step, 2, again, again);
    assert_memory_equal(masked, again, sizeof masked);
    d.kind = TR_OP_DROPOUT_ADD;

    /* Another step, site, seed or sample: another mask, overlapping by chance alone. */
    for (int change = 0; change < 4; change++) {
        tr_step_state other = step;
        tr_op_desc at = d;
        if (change == 0) other.step++;
        if (change == 1) at.dropout.site++;
        if (change == 2) other.seed++;
        RUN(at, &other, change == 3 ? 20 : 2, ones, NULL, NULL, again);
        int64_t equal = 0;
        for (int64_t i = 0; i < n; i++) equal += masked[i] == again[i];
        double chance = 0.75 * 0.75 + 0.25 * 0.25;
        assert_near((double)equal, chance * (double)n, 6 * sqrt(chance * (1 - chance) * (double)n));
    }
    /* Off in evaluation; a residual and a bias are added as they are. */
    step.train = 0;
    RUN(d, &step, 2, ones, ones, ones, again);
    for (int64_t i = 0; i < n; i++) assert_true(again[i] == 3);
}

enum { A_BATCH = 2, A_SEQ = 9, A_HEADS = 3, A_DIM = 4, A_WIDTH = A_HEADS * A_DIM };

static const tr_op_desc attention = {
    .kind = TR_OP_ATTENTION,
    .attention = {
        .batch = A_BATCH, .seq = A_SEQ, .heads = A_HEADS, .kv_heads = A_HEADS, .head_size = A_DIM}};

/* Changing what comes after position 5 changes nothing up to it; position 0 sees itself alone. */
static void test_attention_is_causal(void **state) {
    (void)state;
    float qkv[A_BATCH][A_SEQ][3][A_WIDTH], y[A_BATCH][A_SEQ][A_WIDTH],
        after[A_BATCH][A_SEQ][A_WIDTH];
    float lse[A_BATCH * A_HEADS * A_SEQ];
    fill_normal(&qkv[0][0][0][0], sizeof qkv / sizeof(float), 1);
    RUN(attention, NULL, 0, qkv, y, lse);
    for (int b = 0; b < A_BATCH; b++) {
        for (int c = 0; c < A_WIDTH; c++) assert_true(y[b][0][c] == qkv[b][0][2][c]);
        fill_normal(&qkv[b][6][0][0], 3 * 3 * A_WIDTH, 2);
    }
    RUN(attention, NULL, 0, qkv, after, lse);
    for (int b = 0; b < A_BATCH; b++) {
        assert_memory_equal(y[b], after[b], 6 * sizeof y[b][0]);
        assert_memory_not_equal(y[b][6], after[b][6], 3 * sizeof y[b][0]);
    }
}

/* The first token sees itself alone, so its query has no gradient: exactly none, whatever the
 * rounding of its log-sum-exp, which is large here. */
static void test_attention_gradient_of_one_key(void **state) {
    (void)state;
    enum { COUNT = A_BATCH * A_SEQ * A_WIDTH };
    float qkv[A_BATCH][A_SEQ][3][A_WIDTH], dqkv[A_BATCH][A_SEQ][3][A_WIDTH], y[COUNT], dy[COUNT];
    float lse[A_BATCH * A_HEADS * A_SEQ];
    fill_normal(&qkv[0][0][0][0], 3 * COUNT, 5);
    fill_normal(dy, COUNT, 6);
    for (int i = 0; i < 3 * COUNT; i++) (&qkv[0][0][0][0])[i] *= 30;
    RUN(attention, NULL, 0, qkv, y, lse);
    tr_op_desc back = attention;
    back.kind = TR_OP_ATTENTION_DGRAD;
    RUN(back, NULL, 0, dy, qkv, y, lse, dqkv);
    for (int b = 0; b < A_BATCH; b++)
        for (int c = 0; c < A_WIDTH; c++) assert_true(dqkv[b][0][0][c] == 0);
}

static void test_decode_equals_attention(void **state) {
    (void)state;
    float qkv[A_BATCH][A_SEQ][3][A_WIDTH], y[A_BATCH][A_SEQ][A_WIDTH];
    float lse[A_BATCH * A_HEADS * A_SEQ], token[A_BATCH][3][A_WIDTH], out[A_BATCH][A_WIDTH];
    float kcache[A_BATCH][A_SEQ][A_WIDTH] = {0}, vcache[A_BATCH][A_SEQ][A_WIDTH] = {0};
    fill_normal(&qkv[0][0][0][0], sizeof qkv / sizeof(float), 3);
    RUN(attention, NULL, 0, qkv, y, lse);
    tr_op_desc decode = attention;
    decode.kind = TR_OP_ATTENTION_DECODE;
    decode.attention.decode = 1;
    tr_step_state step = {0};
    for (int i = 0; i < A_SEQ; i++) {
        for (int b = 0; b < A_BATCH; b++) step.position[b] = i;
        for (int b = 0; b < A_BATCH; b++) memcpy(token[b], qkv[b][i], sizeof token[b]);
        RUN(decode, &step, 0, token, kcache, vcache, out);
        for (int b = 0; b < A_BATCH; b++) assert_memory_equal(out[b], y[b][i], sizeof out[b]);
    }
    step.position[A_BATCH - 1] = A_SEQ;
    void *t[] = {token, kcache, vcache, out};
    assert_int_equal(run_at(decode, &step, 0, false, t, 4), TR_ERR_INTERNAL);
}

enum { X_ROWS = 11, X_VOCAB = 24, X_HALF = X_VOCAB / 2 };

/* Cross entropy of a vocabulary split in two, with the reductions between the parts done here,
 * equals the unsplit one: loss and gradient. The unsplit one equals -log softmax. */
static void test_xent_split(void **state) {
    (void)state;
    float whole[X_ROWS][X_VOCAB], given[X_ROWS][X_VOCAB], part[2][X_ROWS][X_HALF];
    float max[X_ROWS], sums[X_ROWS][2], max2[2][X_ROWS], sums2[2][X_ROWS][2];
    double loss[2], loss2[2], expected = 0;
    int32_t labels[X_ROWS];
    fill_normal(&given[0][0], X_ROWS * X_VOCAB, 4);
    memcpy(whole, given, sizeof given);
    for (int r = 0; r < X_ROWS; r++) labels[r] = r == 4 ? -1 : (r * 7 + 3) % X_VOCAB;
    tr_step_state step = {.train = 1, .loss_scale = 4};
    tr_op_desc d = {.kind = TR_OP_XENT_MAX, .xent = {.rows = X_ROWS, .vocab = X_VOCAB}};
    RUN(d, &step, 0, whole, labels, max, sums, loss);
    d.kind = TR_OP_XENT_SUM;
    RUN(d, &step, 0, whole, labels, max, sums, loss);
    d.kind = TR_OP_XENT_LOSS;
    RUN(d, &step, 0, whole, labels, max, sums, loss);
    d.kind = TR_OP_XENT_DGRAD;
    RUN(d, &step, 0, whole, labels, max, sums, loss);
    for (int r = 0; r < X_ROWS; r++) {
        double total = 0;
        for (int v = 0; v < X_VOCAB; v++) total += exp((double)given[r][v]);
        if (labels[r] >= 0) expected += log(total) - (double)given[r][labels[r]];
        for (int v = 0; v < X_VOCAB; v++) {
            double g = labels[r] < 0 ? 0 : exp((double)given[r][v]) / total - (v == labels[r]);
            assert_near((double)whole[r][v], 4 * g, 4 * 4e-7);
        }
    }
    assert_near(loss[0], expected, 1e-6 * expected);
    assert_near(loss[1], X_ROWS - 1, 0);

    for (int k = 0; k < 2; k++)
        for (int r = 0; r < X_ROWS; r++)
            memcpy(part[k][r], &given[r][k * X_HALF], sizeof part[k][r]);
    for (tr_op_kind kind = TR_OP_XENT_MAX; kind <= TR_OP_XENT_DGRAD; kind++) {
        for (int k = 0; k < 2; k++) {
            d = (tr_op_desc){.kind = kind,
                             .xent = {.rows = X_ROWS, .vocab = X_HALF, .vocab_begin = k * X_HALF}};
            RUN(d, &step, 0, part[k], labels, max2[k], sums2[k], loss2);
        }
        for (int r = 0; r < X_ROWS; r++) { /* the group's reductions */
            if (kind == TR_OP_XENT_MAX) max2[0][r] = max2[1][r] = fmaxf(max2[0][r], max2[1][r]);
            for (int j = 0; j < 2 && kind == TR_OP_XENT_SUM; j++)
                sums2[0][r][j] = sums2[1][r][j] = sums2[0][r][j] + sums2[1][r][j];
        }
    }
    assert_memory_equal(max, max2[0], sizeof max);
    assert_near(loss2[0], loss[0], 1e-6 * loss[0]);
    assert_near(loss2[1], loss[1], 0);
    for (int r = 0; r < X_ROWS; r++)
        for (int v = 0; v < X_VOCAB; v++)
            assert_near((double)part[v / X_HALF][r][v % X_HALF], (double)whole[r][v], 4 * 4e-7);
}

static void test_embed(void **state) {
    (void)state;
    float table[] = {1, 2, 3, 4, 5, 6}, y[8], dtable[] = {NAN, NAN, NAN, NAN, NAN, NAN};
    int32_t tokens[] = {11, 9, 12, 13};
    tr_op_desc d = {.kind = TR_OP_EMBED,
                    .embed = {.rows = 4, .width = 2, .vocab_begin = 10, .vocab = 3}};
    RUN(d, NULL, 0, tokens, table, y);
    const float want[] = {3, 4, 0, 0, 5, 6, 0, 0};
    assert_memory_equal(y, want, sizeof y);
    int32_t twice[] = {11, 11, 9, 12};
    float dy[] = {1, 2, 10, 20, 7, 7, 5, 6};
    d.kind = TR_OP_EMBED_WGRAD;
    RUN(d, NULL, 0, dy, twice, dtable);
    const float gradient[] = {0, 0, 11, 22, 5, 6};
    assert_memory_equal(dtable, gradient, sizeof dtable);
    RUN_ADDING(d, dy, twice, dtable);
    const float doubled[] = {0, 0, 22, 44, 10, 12};
    assert_memory_equal(dtable, doubled, sizeof dtable);
}

static void fill(const tr_op_data *data, int k, double value) {
    for (int64_t i = 0; i < data->tensor[k].count; i++)
        tr_element_set(data->memory[k], data->tensor[k].dtype, i, value);
}

/* Every gradient of a parameter: what is written over NaN, added to zero, and added to itself. */
static void check_gradients(const tr_op_case *c) {
    tr_op_data written, added, doubled;
    must(tr_op_data_make(c, TR_F32, seed, &written)); /* with NaN */
    must(tr_op_data_clone(&written, &added));
    must(tr_op_data_run(&written, device, NULL));
    added.adds = true;
    for (int k = 0; k < TR_OP_MAX_TENSORS; k++)
        if (added.tensor[k].fill == TR_FILL_NAN) fill(&added, k, 0);
    must(tr_op_data_run(&added, device, NULL));
    must(tr_op_data_clone(&added, &doubled));
    must(tr_op_data_run(&doubled, device, NULL));
    for (int k = 0; k < TR_OP_MAX_TENSORS; k++)
        for (int64_t i = 0; added.tensor[k].fill == TR_FILL_NAN && i < added.tensor[k].count; i++) {
            const tr_matmul_desc *m = &c->desc.matmul;
            if (c->desc.kind == TR_OP_MATMUL && m->ldc && i % m->ldc >= m->n) continue; /* a gap */
            const double once = tr_element(written.memory[k], added.tensor[k].dtype, i);
            assert_near(tr_element(added.memory[k], added.tensor[k].dtype, i), once, 0);
            assert_near(tr_element(doubled.memory[k], added.tensor[k].dtype, i), 2 * once,
                        4 * tr_dtype_eps(TR_F32) * fabs(once));
        }
    tr_op_data_free(&written);
    tr_op_data_free(&added);
    tr_op_data_free(&doubled);
}

static void test_gradients_are_written_or_added_to(void **state) {
    (void)state;
    bool seen[TR_OP_COUNT] = {false};
    int kinds = 0;
    for (size_t i = 0; i < tr_op_case_count; i++) {
        tr_op_case adding;
        if (!tr_op_case_adding(&tr_op_cases[i], &adding)) continue;
        if (adding.desc.kind == TR_OP_QUANTIZE) continue; /* rounds its sums: test_moments */
        check_gradients(&tr_op_cases[i]);
        kinds += !seen[tr_op_cases[i].desc.kind];
        seen[tr_op_cases[i].desc.kind] = true;
    }
    assert_int_equal(kinds, 6);
}

int main(void) {
    seed = tr_test_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_runs),
        cmocka_unit_test(test_compare_fails),
        cmocka_unit_test(test_prepare_refuses),
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_bf16_rounds_to_even),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_attention_is_causal),
        cmocka_unit_test(test_attention_gradient_of_one_key),
        cmocka_unit_test(test_decode_equals_attention),
        cmocka_unit_test(test_xent_split),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_gradients_are_written_or_added_to),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
