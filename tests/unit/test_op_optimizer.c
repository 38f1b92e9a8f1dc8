/* The reference operators at the end of a step, SUMSQ, STEP_FINISH and UPDATE, against their
 * definitions. */
#include "device/elementwise.h"
#include "support/ref_rig.h"

/* Adds 256 lanes by halves, as a tree written as a recursion: lane j is the sum of lanes j, j +
 * 2^k, j + 2 * 2^k, ... */
static double tree(const double lane[256], int j, int apart) {
    return apart == 256 ? lane[j] : tree(lane, j, 2 * apart) + tree(lane, j + apart, 2 * apart);
}

/* The order of the sum, written out: blocks of 4096 elements, lanes by i % 256, lanes by halves;
 * the sums of more than 256 blocks likewise. */
static void test_sumsq_order(void **state) {
    (void)state;
    enum { N = 258 * 4096 + 1234, BLOCKS = 259 };
    static float x[N];
    fill_normal(x, N, 5);
    double of_block[256] = {0}, backwards = 0, got;
    for (int block = 0; block < BLOCKS; block++) {
        double lane[256] = {0};
        for (int j = 0; j < 256; j++)
            for (int i = block * 4096 + j; i < N && i < (block + 1) * 4096; i += 256)
                lane[j] += (double)x[i] * (double)x[i];
        of_block[block % 256] += tree(lane, 0, 1);
    }
    const double want = tree(of_block, 0, 1);
    for (int i = N - 1; i >= 0; i--) backwards += (double)x[i] * (double)x[i];
    tr_op_desc d = {.kind = TR_OP_SUMSQ, .sumsq = {.count = N}};
    RUN(d, NULL, 0, x, &got);
    assert_memory_equal(&got, &want, sizeof got);
    assert_near(got, backwards, 1e-12 * want);
    /* The sums of two runs of blocks, added together. */
    double blocks[BLOCKS];
    tr_op_desc first = {.kind = TR_OP_SUMSQ, .sumsq = {.count = 2 * 4096, .part = TR_SUMSQ_BLOCKS}},
               rest = {.kind = TR_OP_SUMSQ,
                       .sumsq = {.count = N - 2 * 4096, .part = TR_SUMSQ_BLOCKS}},
               total = {.kind = TR_OP_SUMSQ, .sumsq = {.count = BLOCKS, .part = TR_SUMSQ_TOTAL}};
    RUN(rest, NULL, 0, x + 2 * 4096, NULL, blocks + 2);
    RUN(first, NULL, 0, x, NULL, blocks);
    got = 0;
    RUN(total, NULL, 0, NULL, &got, blocks);
    assert_memory_equal(&got, &want, sizeof got);
}

static void test_step_finish(void **state) {
    (void)state;
    double losses[] = {30, 10, 12, 4, 0, 0}, norms[] = {9 * 56.0 * 56.0, 16 * 56.0 * 56.0};
    tr_op_desc d = {.kind = TR_OP_STEP_FINISH, .step_finish = {.losses = 3, .norms = 2}};
    tr_step_state step = {.loss_scale = 4, .max_norm = 1, .skip = 1};
    RUN(d, &step, 0, losses, norms, &step);
    assert_near(step.loss, 3, 0);
    assert_near(step.valid, 14, 0);
    assert_near(step.grad_norm, 5, 1e-15); /* 5 * 56 / (14 * 4) */
    assert_near(step.gradient_factor, 0.2 / 56, 1e-9);
    assert_int_equal(step.skip, 0);
    step.max_norm = 10; /* no clipping below the limit, none without a limit */
    RUN(d, &step, 0, losses, norms, &step);
    assert_near(step.gradient_factor, 1.0 / 56, 1e-9);
    step.max_norm = 0;
    RUN(d, &step, 0, losses, norms, &step);
    assert_near(step.gradient_factor, 1.0 / 56, 1e-9);
    step.loss_limit = 3; /* at a limit a step is taken, above it not */
    step.norm_limit = 5;
    RUN(d, &step, 0, losses, norms, &step);
    assert_int_equal(step.skip, 0);
    step.loss_limit = 2.9;
    RUN(d, &step, 0, losses, norms, &step);
    assert_true(step.skip == 1 && step.gradient_factor == 0 && step.loss == 3);
    step.loss_limit = 0;
    step.norm_limit = 4.9;
    RUN(d, &step, 0, losses, norms, &step);
    assert_true(step.skip == 1 && step.gradient_factor == 0);
    step.norm_limit = 0;

    const double broken[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        double bad_losses[] = {30, 10, broken[i], 4, 0, 0}, bad_norms[] = {1, broken[i]};
        RUN(d, &step, 0, bad_losses, norms, &step);
        assert_int_equal(step.skip, 1);
        assert_true(!isfinite(step.loss));
        RUN(d, &step, 0, losses, bad_norms, &step);
        assert_int_equal(step.skip, 1);
        assert_true(step.gradient_factor == 0);
    }
    double nothing[6] = {0};
    RUN(d, &step, 0, nothing, norms, &step);
    assert_int_equal(step.skip, 1);
}

static void test_adamw(void **state) {
    (void)state;
    enum { N = 37 };
    float grad[N], master[N], m[N] = {0}, v[N] = {0}, shared[N], shared_m[N] = {0},
                              shared_v[N] = {0};
    double p[N], pm[N] = {0}, pv[N] = {0};
    uint16_t value[N];
    fill_normal(master, N, 6);
    memcpy(shared, master, sizeof master);
    for (int i = 0; i < N; i++) p[i] = (double)master[i];
    tr_op_desc d = {.kind = TR_OP_UPDATE,
                    .update = {.count = N,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .eps = 1e-8f,
                               .weight_decay = 0.1f,
                               .dtype = TR_BF16,
                               .lr_scale = 0.5}};
    const double b1 = (double)0.9f, b2 = (double)0.95f;
    tr_step_state step = {.lr = 0.01f, .gradient_factor = 0.5f};
    for (int t = 1; t <= 5; t++) {
        fill_normal(grad, N, 100 + (uint64_t)t);
        step.bias_correction1 = 1 - pow(b1, t);
        step.bias_correction2 = 1 - pow(b2, t);
        const tr_update_scalars scalars = tr_update_round(&d.update, &step);
        RUN(d, &step, 0, grad, master, m, v, value);
        for (int i = 0; i < N; i++) {
            double g = 0.5 * (double)grad[i];
            pm[i] = b1 * pm[i] + (1 - b1) * g;
            pv[i] = b2 * pv[i] + (1 - b2) * g * g;
            double mhat = pm[i] / (1 - pow(b1, t)), vhat = pv[i] / (1 - pow(b2, t));
            p[i] -= 0.5 * step.lr * (mhat / (sqrt(vhat) + 1e-8) + (double)0.1f * p[i]);
            tr_update_element(&scalars, TR_UPDATE_ADAMW, grad[i], &shared[i], &shared_m[i],
                              &shared_v[i]);
        }
    }
    /* t roundings of an element of about 1: 5 eps and what m and v carry on. */
    for (int i = 0; i < N; i++) {
        double scale = fmax(1, fabs(p[i])) * 5 * tr_dtype_eps(TR_F32);
        assert_near((double)master[i], p[i], scale);
        assert_near((double)shared[i], p[i], scale);
        assert_near((double)m[i], pm[i], scale);
        assert_near((double)v[i], pv[i], scale);
        assert_int_equal(value[i], tr_f32_to_bf16(master[i]));
    }
    /* skip: nothing moves. */
    float before[3][N];
    uint16_t value_before[N];
    memcpy(before[0], master, sizeof master);
    memcpy(before[1], m, sizeof m);
    memcpy(before[2], v, sizeof v);
    memcpy(value_before, value, sizeof value);
    step.skip = 1;
    grad[0] = NAN;
    RUN(d, &step, 0, grad, master, m, v, value);
    assert_memory_equal(before[0], master, sizeof master);
    assert_memory_equal(before[1], m, sizeof m);
    assert_memory_equal(before[2], v, sizeof v);
    assert_memory_equal(value_before, value, sizeof value);
}

int main(void) {
    seed = tr_test_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sumsq_order),
        cmocka_unit_test(test_step_finish),
        cmocka_unit_test(test_adamw),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
