/* Compares each dgrad and wgrad of ref with finite differences of ref's forward operator, in f32.
 *
 * L = sum(DY * Y) for random DY; dL/dx by the five-point central difference (8 (L(x+h) - L(x-h)) -
 * (L(x+2h) - L(x-2h))) / 12h. Y is rounded to f32, so L has an error of eps sqrt(n) max|Y DY|, and
 * the difference 1/h of that; the truncation error, O(h^4), is smaller. */
#include "support/op_runner.h"
#include "support/ref_rig.h"

#include <math.h>

static const double h = TR_DIFFERENCE_STEP;

/* Where a tensor of the backward operator comes from: an index of the forward operator's tensors,
 * or one of these. */
enum { NONE = -1, DY = -2, GRADIENT = -3, SPARE = -4 };

typedef struct gradient {
    const char *name;
    tr_op_case forward;
    int x, y; /* differentiate tensor y by tensor x */
    tr_op_desc backward;
    bool adds; /* the gradient is added to its buffer */
    int from[TR_OP_MAX_TENSORS];
} gradient;

enum { ROWS = 6, WIDTH = 11, SEQ = 3, VOCAB = 7 };
#define LAYERNORM .layernorm = {.rows = ROWS, .width = WIDTH, .eps = 1e-5f}
#define RMSNORM   .rmsnorm = {.rows = ROWS, .width = WIDTH, .eps = 1e-5f}
#define GLU(f)    .glu = {.rows = ROWS, .width = WIDTH, .activation = TR_ACTIVATION_##f}
#define GLU_GRADIENT(text, f)                                                                      \
    {                                                                                              \
        .name = text, .forward = {{.kind = TR_OP_GLU, GLU(f)}, 0}, .x = TR_GLU_X, .y = TR_GLU_Y,   \
        .backward = {.kind = TR_OP_GLU_DGRAD, GLU(f)}, .from = {                                   \
            DY,                                                                                    \
            TR_GLU_X,                                                                              \
            GRADIENT                                                                               \
        }                                                                                          \
    }
#define ROWS_OF(f) .rows = {.rows = ROWS, .width = WIDTH, .activation = TR_ACTIVATION_##f}
#define ACTIVATION_GRADIENT(text, f)                                                               \
    {                                                                                              \
        .name = text, .forward = {{.kind = TR_OP_ACTIVATION, ROWS_OF(f)}, 0},                      \
        .x = TR_ACTIVATION_X, .y = TR_ACTIVATION_Y,                                                \
        .backward = {.kind = TR_OP_ACTIVATION_DGRAD, ROWS_OF(f)}, .from = {                        \
            DY,                                                                                    \
            TR_ACTIVATION_X,                                                                       \
            GRADIENT                                                                               \
        }                                                                                          \
    }
#define ATTENTION .attention = {.batch = 2, .seq = 7, .heads = 2, .kv_heads = 2, .head_size = 5}
#define GROUPED                                                                                    \
    .attention = {.batch = 2,                                                                      \
                  .seq = 7,                                                                        \
                  .heads = 4,                                                                      \
                  .kv_heads = 2,                                                                   \
                  .head_size = 3,                                                                  \
                  .window = 4,                                                                     \
                  .scale = 0.75f,                                                                  \
                  .documents = true}
#define EMBED                                                                                      \
    .embed = {.rows = 8 * SEQ, .width = WIDTH, .seq = SEQ, .vocab_begin = 2, .vocab = VOCAB}
#define PACKED  .embed = {.rows = 2 * WIDTH, .width = VOCAB, .seq = WIDTH, .documents = true}
#define DROPOUT .dropout = {.rows = ROWS, .width = WIDTH, .seq = SEQ, .p = 0.3f, .site = 5}

/* A linear layer: X[5,9], W[7,9], bias[7], Y[5,7]. */
#define LINEAR                                                                                     \
    {                                                                                              \
        {.kind = TR_OP_MATMUL,                                                                     \
         .matmul = {.m = 5, .n = 7, .k = 9, .trans_b = true, .fused.bias = true}},                 \
            0                                                                                      \
    }

/* The same with W[9,7], and the first one with RESIDUAL[5,7]. */
#define LINEAR_IN_OUT                                                                              \
    { {.kind = TR_OP_MATMUL, .matmul = {.m = 5, .n = 7, .k = 9, .fused.bias = true}}, 0 }
#define RESIDUAL                                                                                   \
    {                                                                                              \
        {.kind = TR_OP_MATMUL,                                                                     \
         .matmul = {.m = 5, .n = 7, .k = 9, .trans_b = true, .fused.residual = true}},             \
            0                                                                                      \
    }
/* Gradients of weights [7,9] and [9,7], and of the bias. */
#define BIAS_GRAD_OF_A                                                                             \
    .matmul = {.m = 7,                                                                             \
               .n = 9,                                                                             \
               .k = 5,                                                                             \
               .trans_a = true,                                                                    \
               .accumulate = true,                                                                 \
               .fused = {.bias_grad = true, .bias_grad_of_a = true}}
#define BIAS_GRAD                                                                                  \
    .matmul = {.m = 9, .n = 7, .k = 5, .trans_a = true, .accumulate = true, .fused.bias_grad = true}

static const gradient gradients[] = {
    {.name = "matmul by A",
     .forward = LINEAR,
     .x = TR_MATMUL_A,
     .y = TR_MATMUL_C,
     .backward = {.kind = TR_OP_MATMUL, .matmul = {.m = 5, .n = 9, .k = 7}},
     .from = {DY, TR_MATMUL_B, GRADIENT, NONE}},
    {.name = "matmul by B",
     .forward = LINEAR,
     .x = TR_MATMUL_B,
     .y = TR_MATMUL_C,
     .backward = {.kind = TR_OP_MATMUL,
                  .matmul = {.m = 7, .n = 9, .k = 5, .trans_a = true, .accumulate = true}},
     .adds = true,
     .from = {DY, TR_MATMUL_A, GRADIENT, NONE}},
    {.name = "bias",
     .forward = LINEAR,
     .x = TR_MATMUL_BIAS,
     .y = TR_MATMUL_C,
     .backward = {.kind = TR_OP_BIAS_GRAD, .rows = {.rows = 5, .width = 7}},
     .adds = true,
     .from = {DY, GRADIENT}},
    {.name = "matmul with a residual, by A",
     .forward = RESIDUAL,
     .x = TR_MATMUL_A,
     .y = TR_MATMUL_C,
     .backward = {.kind = TR_OP_MATMUL, .matmul = {.m = 5, .n = 9, .k = 7}},
     .from = {DY, TR_MATMUL_B, GRADIENT, NONE}},
    {.name = "matmul with a residual, by the residual", /* DY, by the cast to its own type */
     .forward = RESIDUAL,
     .x = TR_MATMUL_RESIDUAL,
     .y = TR_MATMUL_C,
     .backward = {.kind = TR_OP_CAST, .rows = {.rows = 5, .width = 7}},
     .from = {DY, GRADIENT}},
    {.name = "matmul by B, with the bias gradient of A",
     .forward = LINEAR,
     .x = TR_MATMUL_B,
     .y = TR_MATMUL_C,
     .backward = {.kind = TR_OP_MATMUL, BIAS_GRAD_OF_A},
     .adds = true,
     .from = {DY, TR_MATMUL_A, GRADIENT, NONE, NONE, NONE, SPARE}},
    {.name = "bias, of A",
     .forward = LINEAR,
     .x = TR_MATMUL_BIAS,
     .y = TR_MATMUL_C,
     .backward = {.kind = TR_OP_MATMUL, BIAS_GRAD_OF_A},
     .adds = true,
     .from = {DY, TR_MATMUL_A, SPARE, NONE, NONE, NONE, GRADIENT}},
    {.name = "matmul by B [in, out], with the bias gradient",
     .forward = LINEAR_IN_OUT,
     .x = TR_MATMUL_B,
     .y = TR_MATMUL_C,
     .backward = {.kind = TR_OP_MATMUL, BIAS_GRAD},
     .adds = true,
     .from = {TR_MATMUL_A, DY, GRADIENT, NONE, NONE, NONE, SPARE}},
    {.name = "bias, of B",
     .forward = LINEAR_IN_OUT,
     .x = TR_MATMUL_BIAS,
     .y = TR_MATMUL_C,
     .backward = {.kind = TR_OP_MATMUL, BIAS_GRAD},
     .adds = true,
     .from = {TR_MATMUL_A, DY, SPARE, NONE, NONE, NONE, GRADIENT}},
    {.name = "layernorm by X",
     .forward = {{.kind = TR_OP_LAYERNORM, LAYERNORM}, 0},
     .x = TR_LN_X,
     .y = TR_LN_Y,
     .backward = {.kind = TR_OP_LAYERNORM_DGRAD, LAYERNORM},
     .from = {DY, TR_LN_X, TR_LN_GAMMA, TR_LN_MEAN, TR_LN_RSTD, NONE, GRADIENT}},
    {.name = "layernorm by X, onto the residual",
     .forward = {{.kind = TR_OP_LAYERNORM, LAYERNORM}, 0},
     .x = TR_LN_X,
     .y = TR_LN_Y,
     .backward = {.kind = TR_OP_LAYERNORM_DGRAD, LAYERNORM},
     .adds = true,
     .from = {DY, TR_LN_X, TR_LN_GAMMA, TR_LN_MEAN, TR_LN_RSTD, GRADIENT, GRADIENT}},
    {.name = "layernorm by gamma",
     .forward = {{.kind = TR_OP_LAYERNORM, LAYERNORM}, 0},
     .x = TR_LN_GAMMA,
     .y = TR_LN_Y,
     .backward = {.kind = TR_OP_LAYERNORM_WGRAD, LAYERNORM},
     .adds = true,
     .from = {DY, TR_LN_X, TR_LN_MEAN, TR_LN_RSTD, GRADIENT, SPARE}},
    {.name = "layernorm by beta",
     .forward = {{.kind = TR_OP_LAYERNORM, LAYERNORM}, 0},
     .x = TR_LN_BETA,
     .y = TR_LN_Y,
     .backward = {.kind = TR_OP_LAYERNORM_WGRAD, LAYERNORM},
     .adds = true,
     .from = {DY, TR_LN_X, TR_LN_MEAN, TR_LN_RSTD, SPARE, GRADIENT}},
    {.name = "rmsnorm by X",
     .forward = {{.kind = TR_OP_RMSNORM, RMSNORM}, 0},
     .x = TR_RMS_X,
     .y = TR_RMS_Y,
     .backward = {.kind = TR_OP_RMSNORM_DGRAD, RMSNORM},
     .from = {DY, TR_RMS_X, TR_RMS_GAMMA, TR_RMS_RSTD, NONE, GRADIENT, NONE}},
    {.name = "rmsnorm by X, onto the residual",
     .forward = {{.kind = TR_OP_RMSNORM, RMSNORM}, 0},
     .x = TR_RMS_X,
     .y = TR_RMS_Y,
     .backward = {.kind = TR_OP_RMSNORM_DGRAD, RMSNORM},
     .adds = true,
     .from = {DY, TR_RMS_X, TR_RMS_GAMMA, TR_RMS_RSTD, GRADIENT, GRADIENT, NONE}},
    {.name = "rmsnorm by gamma",
     .forward = {{.kind = TR_OP_RMSNORM, RMSNORM}, 0},
     .x = TR_RMS_GAMMA,
     .y = TR_RMS_Y,
     .backward = {.kind = TR_OP_RMSNORM_WGRAD, RMSNORM},
     .adds = true,
     .from = {DY, TR_RMS_X, TR_RMS_RSTD, GRADIENT}},
    GLU_GRADIENT("glu, gelu", GELU),
    GLU_GRADIENT("glu, exact gelu", GELU_ERF),
    GLU_GRADIENT("glu, silu", SILU),
    ACTIVATION_GRADIENT("gelu", GELU),
    ACTIVATION_GRADIENT("exact gelu", GELU_ERF),
    ACTIVATION_GRADIENT("silu", SILU),
    ACTIVATION_GRADIENT("relu^2", RELU2),
    {.name = "attention",
     .forward = {{.kind = TR_OP_ATTENTION, ATTENTION}, 0},
     .x = TR_ATTENTION_QKV,
     .y = TR_ATTENTION_Y,
     .backward = {.kind = TR_OP_ATTENTION_DGRAD, ATTENTION},
     .from = {DY, TR_ATTENTION_QKV, TR_ATTENTION_Y, TR_ATTENTION_LSE, GRADIENT}},
    {.name = "attention, grouped queries, window, documents",
     .forward = {{.kind = TR_OP_ATTENTION, GROUPED}, 0},
     .x = TR_ATTENTION_QKV,
     .y = TR_ATTENTION_Y,
     .backward = {.kind = TR_OP_ATTENTION_DGRAD, GROUPED},
     .from = {DY, TR_ATTENTION_QKV, TR_ATTENTION_Y, TR_ATTENTION_LSE, GRADIENT,
              TR_ATTENTION_STARTS}},
    {.name = "embed",
     .forward = {{.kind = TR_OP_EMBED, EMBED}, 0},
     .x = TR_EMBED_TABLE,
     .y = TR_EMBED_Y,
     .backward = {.kind = TR_OP_EMBED_WGRAD, EMBED},
     .adds = true,
     .from = {DY, TR_EMBED_TOKENS, GRADIENT}},
    {.name = "position",
     .forward = {{.kind = TR_OP_POSITION, EMBED}, 0},
     .x = TR_POSITION_TABLE,
     .y = TR_POSITION_Y,
     .backward = {.kind = TR_OP_POSITION_WGRAD, EMBED},
     .adds = true,
     .from = {DY, GRADIENT}},
    {.name = "position, documents",
     .forward = {{.kind = TR_OP_POSITION, PACKED}, 0},
     .x = TR_POSITION_TABLE,
     .y = TR_POSITION_Y,
     .backward = {.kind = TR_OP_POSITION_WGRAD, PACKED},
     .adds = true,
     .from = {DY, GRADIENT, TR_POSITION_STARTS}},
    {.name = "dropout",
     .forward = {{.kind = TR_OP_DROPOUT_ADD, DROPOUT}, 0},
     .x = TR_DROPOUT_X,
     .y = TR_DROPOUT_Y,
     .backward = {.kind = TR_OP_DROPOUT_DGRAD, DROPOUT},
     .from = {DY, GRADIENT}},
};

/* Returns dL/dx[i] of the forward operator in `r`; x keeps its value. */
static double difference(tr_op_runner *r, float *x, const float *y, const float *dy, int64_t n) {
    float kept = *x;
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        *x = (float)((double)kept + tr_difference_offset[k] * h);
        tr_op_runner_run(r);
        sum += tr_difference_weight[k] * tr_op_weighted_sum(y, dy, n);
    }
    *x = kept;
    return sum / (12 * h);
}

/* Runs the backward operator of g: fills the gradient by x, and what its buffer held before. */
static void analytic(const gradient *g, tr_op_data *data, float *dy, float **result,
                     float **before) {
    int64_t n = data->tensor[g->x].count;
    *result = tr_op_random_floats(seed, 12, n);
    *before = tr_op_random_floats(seed, 12, n);
    float *spare = tr_op_random_floats(seed, 13, n + 64); /* another operand, of any shape here */
    tr_op_runner backward = tr_op_runner_open(device, &g->backward, data);
    backward.args.adds = g->adds;
    void *t[TR_OP_MAX_TENSORS];
    for (int k = 0; k < TR_OP_MAX_TENSORS; k++) {
        int from = g->from[k];
        t[k] = from >= 0          ? data->memory[from]
               : from == DY       ? (void *)dy
               : from == GRADIENT ? (void *)*result
               : from == SPARE    ? (void *)spare
                                  : NULL;
    }
    tr_op_data_operands(&g->backward, t, TR_OP_MAX_TENSORS, backward.args.t);
    tr_op_runner_run(&backward);
    tr_op_runner_close(&backward);
    free(spare);
}

static void check(const gradient *g) {
    tr_op_data data;
    must(tr_op_data_make(&g->forward, TR_F32, seed, &data));
    int64_t nx = data.tensor[g->x].count, ny = data.tensor[g->y].count;
    float *x = data.memory[g->x], *y = data.memory[g->y], *dy = tr_op_random_floats(seed, 11, ny);
    for (int64_t i = 0; i < nx; i++) {
        x[i] = (float)(rint((double)x[i] * 65536) / 65536);
        if (fabs((double)x[i]) < 2 * h) x[i] = copysignf((float)(2 * h), x[i]); /* relu^2 bends */
    }
    tr_op_runner forward = tr_op_runner_open(device, &data.desc, &data);
    tr_op_data_operands(&data.desc, data.memory, TR_OP_MAX_TENSORS, forward.args.t);
    tr_op_runner_run(&forward);
    float *result, *before;
    analytic(g, &data, dy, &result, &before);

    double largest = 1;
    for (int64_t i = 0; i < ny; i++) {
        const double product = fabs((double)y[i]) * fabs((double)dy[i]);
        if (product > largest) largest = product;
    }
    double tolerance = 8 * tr_dtype_eps(TR_F32) / h * sqrt((double)ny) * largest;
    double size = 0;
    for (int64_t i = 0; i < nx; i++) {
        double want = difference(&forward, &x[i], y, dy, ny);
        double got = (double)result[i] - (g->adds ? (double)before[i] : 0);
        size = fmax(size, fabs(want));
        if (!(fabs(got - want) <= tolerance))
            fail_msg("%s, element %lld of %lld: %.9g, differences say %.9g (tolerance %.2g)",
                     g->name, (long long)i, (long long)nx, got, want, tolerance);
    }
    assert_true(size > 50 * tolerance); /* otherwise the comparison would prove nothing */
    tr_op_runner_close(&forward);
    tr_op_data_free(&data);
    free(dy);
    free(result);
    free(before);
}

static void test_gradients(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++) check(&gradients[i]);
}

/* Cross entropy: the gradient that XENT_DGRAD leaves in LOGITS is that of the loss. */
static void test_xent_gradient(void **state) {
    (void)state;
    enum { X_ROWS = 5, X_VOCAB = 13 };
    tr_op_data data = {.state = {.train = 1, .loss_scale = 2}};
    float *logits = tr_op_random_floats(seed, 21, X_ROWS * X_VOCAB);
    float *slope =
        tr_op_random_floats(seed, 21, X_ROWS * X_VOCAB); /* the logits until XENT_DGRAD has run */
    int32_t labels[X_ROWS] = {0, 12, -1, 7, 12};
    float max[X_ROWS], sums[2 * X_ROWS];
    double loss[2];
    tr_op_runner parts[4];
    for (int k = 0; k < 4; k++) {
        tr_op_desc desc = {.kind = (tr_op_kind)(TR_OP_XENT_MAX + k),
                           .xent = {.rows = X_ROWS, .vocab = X_VOCAB}};
        parts[k] = tr_op_runner_open(device, &desc, &data);
        void *t[] = {slope, labels, max, sums, loss};
        tr_op_data_operands(&desc, t, 5, parts[k].args.t);
        tr_op_runner_run(&parts[k]);
        tr_tensor *x = &parts[k].args.t[TR_XENT_LOGITS];
        if (x->data) x->data = logits; /* XENT_LOSS has no operand for it */
    }
    for (int i = 0; i < X_ROWS * X_VOCAB; i++) {
        float kept = logits[i];
        double sum = 0;
        for (int j = 0; j < 4; j++) {
            logits[i] = (float)((double)kept + tr_difference_offset[j] * h);
            for (int k = 0; k < 3; k++) tr_op_runner_run(&parts[k]);
            sum += tr_difference_weight[j] * loss[0];
        }
        logits[i] = kept;
        double want = 2 * sum / (12 * h), got = (double)slope[i];
        /* SUMS are f32: each row's loss, of about log(vocab), is known to eps. */
        double tolerance = 8 * tr_dtype_eps(TR_F32) / h * sqrt(X_VOCAB);
        if (!(fabs(got - want) <= tolerance)) fail_msg("logit %d: %.9g, not %.9g", i, got, want);
    }
    for (int k = 0; k < 4; k++) tr_op_runner_close(&parts[k]);
    free(logits);
    free(slope);
}

int main(void) {
    seed = tr_test_seed(1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients),
                                       cmocka_unit_test(test_xent_gradient)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
