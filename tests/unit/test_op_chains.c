/* Compares gradients of ref with finite differences (test_op_gradients.c) where one operator is not
 * enough: products with an activation and its gradient, ROPE and NORM_ROPE, which work in place,
 * and ADD_NORM, which has two results. */
#include "support/op_runner.h"
#include "support/ref_rig.h"

#include <math.h>
#include <string.h>

static const double h = TR_DIFFERENCE_STEP;

enum { ROWS = 6, WIDTH = 11, SEQ = 3 };

/* An MLP of fused products: H[5,7] = f(X[5,9] W[7,9]' + b), Y[5,6] = H V[6,7]'. */
typedef struct mlp {
    float *x, *w, *b, *v, *dy;           /* random */
    float h[35], aux[35], y[30];         /* F */
    float dh[35], dx[45], dw[63], db[7]; /* the gradients */
    tr_op_runner r[5];
} mlp;

/* Opens the forward products r[0..2), and those of the gradients of AUX, x, and w with b. */
static void open_mlp(mlp *m, tr_activation activation, tr_op_data *data) {
    const tr_op_desc desc[] = {
        {.kind = TR_OP_MATMUL,
         .matmul = {.m = 5,
                    .n = 7,
                    .k = 9,
                    .trans_b = true,
                    .fused = {.bias = true, .activate = true, .activation = activation}}},
        {.kind = TR_OP_MATMUL, .matmul = {.m = 5, .n = 6, .k = 7, .trans_b = true}},
        {.kind = TR_OP_MATMUL,
         .matmul =
             {.m = 5, .n = 7, .k = 6, .fused = {.activate_grad = true, .activation = activation}}},
        {.kind = TR_OP_MATMUL, .matmul = {.m = 5, .n = 9, .k = 7}},
        {.kind = TR_OP_MATMUL,
         .matmul = {.m = 7,
                    .n = 9,
                    .k = 5,
                    .trans_a = true,
                    .accumulate = true,
                    .fused = {.bias_grad = true, .bias_grad_of_a = true}}}};
    void *const memory[5][TR_OP_MAX_TENSORS] = {{m->x, m->w, m->h, m->b, NULL, m->aux},
                                                {m->h, m->v, m->y},
                                                {m->dy, m->v, m->dh, NULL, NULL, m->aux},
                                                {m->dh, m->w, m->dx},
                                                {m->dh, m->x, m->dw, NULL, NULL, NULL, m->db}};
    for (int k = 0; k < 5; k++) {
        m->r[k] = tr_op_runner_open(device, &desc[k], data);
        tr_op_data_operands(&desc[k], memory[k], TR_OP_MAX_TENSORS, m->r[k].args.t);
        tr_op_runner_run(&m->r[k]);
    }
}

/* Compares a gradient of the MLP with differences. */
static void check_mlp(mlp *m, const char *name, float *x, const float *slope, int count) {
    const double tolerance = 8 * tr_dtype_eps(TR_F32) / h * sqrt(30) * 64;
    double size = 0;
    for (int i = 0; i < count; i++) {
        const float kept = x[i];
        double sum = 0;
        for (int j = 0; j < 4; j++) {
            x[i] = (float)((double)kept + tr_difference_offset[j] * h);
            tr_op_runner_run(&m->r[0]);
            tr_op_runner_run(&m->r[1]);
            sum += tr_difference_weight[j] * tr_op_weighted_sum(m->y, m->dy, 30);
        }
        x[i] = kept;
        const double want = sum / (12 * h), got = (double)slope[i];
        size = fmax(size, fabs(want));
        if (!(fabs(got - want) <= tolerance))
            fail_msg("mlp by %s, element %d: %.9g, not %.9g", name, i, got, want);
    }
    assert_true(size > 50 * tolerance);
}

/* Products with an activation and with its gradient, for the smooth activations. */
static void test_activated_products(void **state) {
    (void)state;
    for (int f = 0; f < TR_ACTIVATION_RELU2; f++) {
        tr_op_data data = {.state = {.train = 1}};
        mlp m = {.x = tr_op_random_floats(seed, 51, 45),
                 .w = tr_op_random_floats(seed, 52, 63),
                 .b = tr_op_random_floats(seed, 53, 7),
                 .v = tr_op_random_floats(seed, 54, 42),
                 .dy = tr_op_random_floats(seed, 55, 30)};
        for (int i = 0; i < 63; i++) m.w[i] *= 0.25f; /* where activations are not saturated */
        open_mlp(&m, (tr_activation)f, &data);
        check_mlp(&m, "x", m.x, m.dx, 45);
        check_mlp(&m, "w", m.w, m.dw, 63);
        check_mlp(&m, "b", m.b, m.db, 7);
        for (int k = 0; k < 5; k++) tr_op_runner_close(&m.r[k]);
        float *const random[] = {m.x, m.w, m.b, m.v, m.dy};
        for (size_t i = 0; i < sizeof random / sizeof *random; i++) free(random[i]);
    }
}

/* ROPE, with documents: `inverse` of DY is the gradient. */
static void test_rope_gradient(void **state) {
    (void)state;
    enum { R_ROWS = 6, R_HEADS = 2, R_SIZE = 4, R_X = R_ROWS * R_HEADS * R_SIZE };
    tr_op_desc desc = {.kind = TR_OP_ROPE,
                       .rope = {.rows = R_ROWS,
                                .seq = R_ROWS,
                                .heads = R_HEADS,
                                .head_size = R_SIZE,
                                .ld = R_HEADS * R_SIZE,
                                .theta = 100,
                                .documents = true}};
    tr_op_data data = {.state = {.train = 1}};
    float *x = tr_op_random_floats(seed, 61, R_X), *dy = tr_op_random_floats(seed, 62, R_X),
          *dx = tr_op_random_floats(seed, 62, R_X);
    float y[R_X];
    int32_t starts[R_ROWS] = {0, 0, 0, 3, 3, 5};
    void *const memory[2][TR_OP_MAX_TENSORS] = {{y, starts}, {dx, starts}};
    tr_op_runner r[2];
    for (int k = 0; k < 2; k++) {
        desc.rope.inverse = k == 1;
        r[k] = tr_op_runner_open(device, &desc, &data);
        tr_op_data_operands(&desc, memory[k], TR_OP_MAX_TENSORS, r[k].args.t);
    }
    tr_op_runner_run(&r[1]);
    for (int i = 0; i < R_X; i++) {
        const float kept = x[i];
        double sum = 0;
        for (int j = 0; j < 4; j++) {
            x[i] = (float)((double)kept + tr_difference_offset[j] * h);
            memcpy(y, x, sizeof y);
            tr_op_runner_run(&r[0]);
            sum += tr_difference_weight[j] * tr_op_weighted_sum(y, dy, R_X);
        }
        x[i] = kept;
        const double want = sum / (12 * h), got = (double)dx[i];
        const double tolerance = 8 * tr_dtype_eps(TR_F32) / h * sqrt(R_X) * 4;
        if (!(fabs(got - want) <= tolerance)) fail_msg("element %d: %.9g, not %.9g", i, got, want);
    }
    for (int k = 0; k < 2; k++) tr_op_runner_close(&r[k]);
    free(x);
    free(dy);
    free(dx);
}

/* NORM_ROPE works in place, so each difference begins with a copy of X: the gradient by X, and that
 * by gamma, which RMSNORM_WGRAD takes from DNORMED. */
static void test_norm_rope_gradient(void **state) {
    (void)state;
    enum { N_ROWS = 4, N_HEADS = 3, N_SIZE = 6, N_X = N_ROWS * N_HEADS * N_SIZE };
    const tr_norm_rope_desc norm_rope = {.eps = 1e-5,
                                         .rope = {.rows = N_ROWS,
                                                  .seq = N_ROWS,
                                                  .heads = N_HEADS,
                                                  .head_size = N_SIZE,
                                                  .ld = N_HEADS * N_SIZE,
                                                  .theta = 100,
                                                  .documents = true}};
    tr_op_data data = {.state = {.train = 1}};
    float *x = tr_op_random_floats(seed, 31, N_X), *gamma = tr_op_random_floats(seed, 32, N_SIZE);
    float *dy = tr_op_random_floats(seed, 33, N_X), *dx = tr_op_random_floats(seed, 33, N_X);
    float y[N_X], rstd[N_ROWS * N_HEADS], kept[N_X], dnormed[N_X], dgamma[N_SIZE] = {0};
    int32_t starts[N_ROWS] = {0, 0, 2, 2};
    const tr_op_desc desc[] = {
        {.kind = TR_OP_NORM_ROPE, .norm_rope = norm_rope},
        {.kind = TR_OP_NORM_ROPE_DGRAD, .norm_rope = norm_rope},
        {.kind = TR_OP_RMSNORM_WGRAD,
         .rmsnorm = {.rows = N_ROWS * N_HEADS, .width = N_SIZE, .eps = 1e-5}}};
    void *const memory[3][TR_OP_MAX_TENSORS] = {{y, gamma, rstd, kept, starts},
                                                {dx, kept, gamma, rstd, dnormed, starts},
                                                {dnormed, kept, rstd, dgamma}};
    tr_op_runner r[3];
    for (int k = 0; k < 3; k++) {
        r[k] = tr_op_runner_open(device, &desc[k], &data);
        tr_op_data_operands(&desc[k], memory[k], TR_OP_MAX_TENSORS, r[k].args.t);
        memcpy(y, x, sizeof y);
        tr_op_runner_run(&r[k]);
    }
    for (int i = 0; i < N_X + N_SIZE; i++) {
        float *at = i < N_X ? &x[i] : &gamma[i - N_X], before = *at;
        double sum = 0;
        for (int j = 0; j < 4; j++) {
            *at = (float)((double)before + tr_difference_offset[j] * h);
            memcpy(y, x, sizeof y);
            tr_op_runner_run(&r[0]);
            sum += tr_difference_weight[j] * tr_op_weighted_sum(y, dy, N_X);
        }
        *at = before;
        double want = sum / (12 * h), got = (double)(i < N_X ? dx[i] : dgamma[i - N_X]);
        double tolerance = 8 * tr_dtype_eps(TR_F32) / h * sqrt(N_X) * 4;
        if (!(fabs(got - want) <= tolerance)) fail_msg("element %d: %.9g, not %.9g", i, got, want);
    }
    for (int k = 0; k < 3; k++) tr_op_runner_close(&r[k]);
    free(x);
    free(gamma);
    free(dy);
    free(dx);
}

/* Returns dL/dx of ADD_NORM by differences, L = sum(DY * Y) + sum(DSUM * SUM); `part` is what SUM
 * is before a run. */
static double add_norm_difference(tr_op_runner *r, float *x, const float *part, const float *dy,
                                  const float *dsum) {
    enum { N = ROWS * WIDTH };
    const float kept = *x;
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        *x = (float)((double)kept + tr_difference_offset[k] * h);
        memcpy(r->args.t[TR_ADD_NORM_SUM].data, part, N * sizeof *part);
        tr_op_runner_run(r);
        sum += tr_difference_weight[k] *
               (tr_op_weighted_sum(r->args.t[TR_ADD_NORM_Y].data, dy, N) +
                tr_op_weighted_sum(r->args.t[TR_ADD_NORM_SUM].data, dsum, N));
    }
    *x = kept;
    return sum / (12 * h);
}

/* The gradients by ADD_NORM's residual and part: that of the norm, onto the sum's own, and
 * DROPOUT_DGRAD of it. */
static void check_add_norm(bool rms) {
    enum { N = ROWS * WIDTH };
    const tr_dropout_desc add = {.rows = ROWS, .width = WIDTH, .seq = SEQ, .p = 0.25f, .site = 5};
    tr_op_data data = {.state = {.train = 1, .seed = seed, .step = 1}};
    float *part = tr_op_random_floats(seed, 41, N), *residual = tr_op_random_floats(seed, 42, N);
    float *bias = tr_op_random_floats(seed, 43, WIDTH),
          *gamma = tr_op_random_floats(seed, 44, WIDTH);
    float *beta = tr_op_random_floats(seed, 45, WIDTH), *dy = tr_op_random_floats(seed, 46, N),
          *dsum = tr_op_random_floats(seed, 47, N);
    float sum[N], y[N], mean[ROWS], rstd[ROWS], dresidual[N], dpart[N];
    tr_op_desc desc[] = {
        {.kind = TR_OP_ADD_NORM, .add_norm = {.add = add, .eps = 1e-5, .rms = rms}},
        {.kind = TR_OP_LAYERNORM_DGRAD, .layernorm = {.rows = ROWS, .width = WIDTH, .eps = 1e-5f}},
        {.kind = TR_OP_DROPOUT_DGRAD, .dropout = add}};
    if (rms)
        desc[1] = (tr_op_desc){.kind = TR_OP_RMSNORM_DGRAD,
                               .rmsnorm = {.rows = ROWS, .width = WIDTH, .eps = 1e-5f}};
    void *memory[3][TR_OP_MAX_TENSORS] = {{sum, bias, residual, gamma, beta, y, mean, rstd},
                                          {dy, sum, gamma, mean, rstd, dsum, dresidual},
                                          {dresidual, dpart}};
    if (rms) memcpy(&memory[1][3], (void *[]){rstd, dsum, dresidual, NULL}, 4 * sizeof(void *));
    tr_op_runner r[3];
    memcpy(sum, part, sizeof sum);
    for (int k = 0; k < 3; k++) {
        r[k] = tr_op_runner_open(device, &desc[k], &data);
        tr_op_data_operands(&desc[k], memory[k], TR_OP_MAX_TENSORS, r[k].args.t);
        tr_op_runner_run(&r[k]);
    }
    const double tolerance = 8 * tr_dtype_eps(TR_F32) / h * sqrt(2 * N) * 8;
    for (int i = 0; i < 2 * N; i++) {
        float *x = i < N ? &residual[i] : &part[i - N];
        const double want = add_norm_difference(&r[0], x, part, dy, dsum);
        const double got = (double)(i < N ? dresidual[i] : dpart[i - N]);
        if (!(fabs(got - want) <= tolerance))
            fail_msg("rms %d, element %d: %.9g, not %.9g", rms, i, got, want);
    }
    for (int k = 0; k < 3; k++) tr_op_runner_close(&r[k]);
    float *const random[] = {part, residual, bias, gamma, beta, dy, dsum};
    for (size_t i = 0; i < sizeof random / sizeof *random; i++) free(random[i]);
}

static void test_add_norm_gradient(void **state) {
    (void)state;
    check_add_norm(false);
    check_add_norm(true);
}

int main(void) {
    seed = tr_test_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_activated_products),
        cmocka_unit_test(test_rope_gradient),
        cmocka_unit_test(test_norm_rope_gradient),
        cmocka_unit_test(test_add_norm_gradient),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
