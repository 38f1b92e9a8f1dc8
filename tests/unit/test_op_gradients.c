/* Compares each dgrad and wgrad of ref with finite differences of ref's forward operator, in f32.
 *
 * L = sum(DY * Y) for random DY; dL/dx by the five-point central difference (8 (L(x+h) - L(x-h)) -
 * (L(x+2h) - L(x-2h))) / 12h. Y is rounded to f32, so L has an error of eps sqrt(n) max|Y DY|, and
 * the difference 1/h of that; the truncation error, O(h^4), is smaller. */
#include "base/memory.h"
#include "base/philox.h"
#include "support/op_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

static uint64_t seed;
static tr_device *device;
static const double h = 0x1p-5;

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
    {.name = "gelu",
     .forward = {{.kind = TR_OP_ACTIVATION, .rows = {.rows = ROWS, .width = WIDTH}}, 0},
     .x = TR_ACTIVATION_X,
     .y = TR_ACTIVATION_Y,
     .backward = {.kind = TR_OP_ACTIVATION_DGRAD, .rows = {.rows = ROWS, .width = WIDTH}},
     .from = {DY, TR_ACTIVATION_X, GRADIENT}},
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

/* A prepared operator of ref with its scratch; it runs on host memory. */
typedef struct runner {
    tr_op *op;
    tr_op_args args;
} runner;

static runner open_runner(const tr_op_desc *desc, tr_op_data *data) {
    runner r = {.args = {.state = &data->state, .sample = data->sample}};
    must(tr_op_prepare(&(tr_op_context){.device = device}, desc, &r.op));
    must(tr_device_alloc(device, TR_MEMORY_DATA, r.op->scratch_bytes, &r.args.scratch));
    return r;
}

static void run(runner *r) {
    must(tr_op_run(r->op, tr_device_compute(device), &r->args));
}

static void close_runner(runner *r) {
    tr_device_free(device, r->args.scratch);
    tr_op_release(r->op);
}

static double weighted_sum(const float *y, const float *dy, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)y[i] * (double)dy[i];
    return sum;
}

/* Returns dL/dx[i] of the forward operator in `r`; x keeps its value. */
static double difference(runner *r, float *x, const float *y, const float *dy, int64_t n) {
    const double weight[] = {1, -8, 8, -1};
    const int steps[] = {-2, -1, 1, 2};
    float kept = *x;
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        *x = (float)((double)kept + steps[k] * h);
        run(r);
        sum += weight[k] * weighted_sum(y, dy, n);
    }
    *x = kept;
    return sum / (12 * h);
}

/* Returns random multiples of 2^-16, so that x + 2h is exact. The caller frees them. */
static float *random_floats(int64_t n, uint64_t stream) {
    float *x;
    must(tr_calloc((size_t)n, sizeof *x, &x));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(rint((double)tr_normal(seed, stream, (uint64_t)i) * 65536) / 65536);
    return x;
}

/* Runs the backward operator of g: fills the gradient by x, and what its buffer held before. */
static void analytic(const gradient *g, tr_op_data *data, float *dy, float **result,
                     float **before) {
    int64_t n = data->tensor[g->x].count;
    *result = random_floats(n, 12);
    *before = random_floats(n, 12);
    float *spare = random_floats(n, 13);
    runner backward = open_runner(&g->backward, data);
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
    run(&backward);
    close_runner(&backward);
    free(spare);
}

static void check(const gradient *g) {
    tr_op_data data;
    must(tr_op_data_make(&g->forward, TR_F32, seed, &data));
    int64_t nx = data.tensor[g->x].count, ny = data.tensor[g->y].count;
    float *x = data.memory[g->x], *y = data.memory[g->y], *dy = random_floats(ny, 11);
    for (int64_t i = 0; i < nx; i++) x[i] = (float)(rint((double)x[i] * 65536) / 65536);
    runner forward = open_runner(&data.desc, &data);
    tr_op_data_operands(&data.desc, data.memory, TR_OP_MAX_TENSORS, forward.args.t);
    run(&forward);
    float *result, *before;
    analytic(g, &data, dy, &result, &before);

    double largest = 1;
    for (int64_t i = 0; i < ny; i++)
        largest = fmax(largest, fabs((double)y[i]) * fabs((double)dy[i]));
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
    close_runner(&forward);
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
    float *logits = random_floats(X_ROWS * X_VOCAB, 21);
    float *slope = random_floats(X_ROWS * X_VOCAB, 21); /* the logits until XENT_DGRAD has run */
    int32_t labels[X_ROWS] = {0, 12, -1, 7, 12};
    float max[X_ROWS], sums[2 * X_ROWS];
    double loss[2];
    runner parts[4];
    for (int k = 0; k < 4; k++) {
        tr_op_desc desc = {.kind = (tr_op_kind)(TR_OP_XENT_MAX + k),
                           .xent = {.rows = X_ROWS, .vocab = X_VOCAB}};
        parts[k] = open_runner(&desc, &data);
        void *t[] = {slope, labels, max, sums, loss};
        tr_op_data_operands(&desc, t, 5, parts[k].args.t);
        run(&parts[k]);
        tr_tensor *x = &parts[k].args.t[TR_XENT_LOGITS];
        if (x->data) x->data = logits; /* XENT_LOSS has no operand for it */
    }
    const double weight[] = {1, -8, 8, -1};
    const int steps[] = {-2, -1, 1, 2};
    for (int i = 0; i < X_ROWS * X_VOCAB; i++) {
        float kept = logits[i];
        double sum = 0;
        for (int j = 0; j < 4; j++) {
            logits[i] = (float)((double)kept + steps[j] * h);
            for (int k = 0; k < 3; k++) run(&parts[k]);
            sum += weight[j] * loss[0];
        }
        logits[i] = kept;
        double want = 2 * sum / (12 * h), got = (double)slope[i];
        /* SUMS are f32: each row's loss, of about log(vocab), is known to eps. */
        double tolerance = 8 * tr_dtype_eps(TR_F32) / h * sqrt(X_VOCAB);
        if (!(fabs(got - want) <= tolerance)) fail_msg("logit %d: %.9g, not %.9g", i, got, want);
    }
    for (int k = 0; k < 4; k++) close_runner(&parts[k]);
    free(logits);
    free(slope);
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
    float *x = random_floats(N_X, 31), *gamma = random_floats(N_SIZE, 32);
    float *dy = random_floats(N_X, 33), *dx = random_floats(N_X, 33);
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
    runner r[3];
    for (int k = 0; k < 3; k++) {
        r[k] = open_runner(&desc[k], &data);
        tr_op_data_operands(&desc[k], memory[k], TR_OP_MAX_TENSORS, r[k].args.t);
        memcpy(y, x, sizeof y);
        run(&r[k]);
    }
    const double weight[] = {1, -8, 8, -1};
    const int steps[] = {-2, -1, 1, 2};
    for (int i = 0; i < N_X + N_SIZE; i++) {
        float *at = i < N_X ? &x[i] : &gamma[i - N_X], before = *at;
        double sum = 0;
        for (int j = 0; j < 4; j++) {
            *at = (float)((double)before + steps[j] * h);
            memcpy(y, x, sizeof y);
            run(&r[0]);
            sum += weight[j] * weighted_sum(y, dy, N_X);
        }
        *at = before;
        double want = sum / (12 * h), got = (double)(i < N_X ? dx[i] : dgamma[i - N_X]);
        double tolerance = 8 * tr_dtype_eps(TR_F32) / h * sqrt(N_X) * 4;
        if (!(fabs(got - want) <= tolerance)) fail_msg("element %d: %.9g, not %.9g", i, got, want);
    }
    for (int k = 0; k < 3; k++) close_runner(&r[k]);
    free(x);
    free(gamma);
    free(dy);
    free(dx);
}

/* Returns dL/dx of ADD_NORM by differences, L = sum(DY * Y) + sum(DSUM * SUM); `part` is what SUM
 * is before a run. */
static double add_norm_difference(runner *r, float *x, const float *part, const float *dy,
                                  const float *dsum) {
    enum { N = ROWS * WIDTH };
    const double weight[] = {1, -8, 8, -1};
    const int steps[] = {-2, -1, 1, 2};
    const float kept = *x;
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        *x = (float)((double)kept + steps[k] * h);
        memcpy(r->args.t[TR_ADD_NORM_SUM].data, part, N * sizeof *part);
        run(r);
        sum += weight[k] * (weighted_sum(r->args.t[TR_ADD_NORM_Y].data, dy, N) +
                            weighted_sum(r->args.t[TR_ADD_NORM_SUM].data, dsum, N));
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
    float *part = random_floats(N, 41), *residual = random_floats(N, 42);
    float *bias = random_floats(WIDTH, 43), *gamma = random_floats(WIDTH, 44);
    float *beta = random_floats(WIDTH, 45), *dy = random_floats(N, 46),
          *dsum = random_floats(N, 47);
    float sum[N], y[N], mean[ROWS], rstd[ROWS], dresidual[N], dpart[N];
    tr_op_desc desc[] = {
        {.kind = TR_OP_ADD_NORM, .add_norm = {.add = add, .eps = 1e-5, .rms = rms}},
        {.kind = TR_OP_LAYERNORM_DGRAD, LAYERNORM},
        {.kind = TR_OP_DROPOUT_DGRAD, .dropout = add}};
    if (rms) desc[1] = (tr_op_desc){.kind = TR_OP_RMSNORM_DGRAD, RMSNORM};
    void *memory[3][TR_OP_MAX_TENSORS] = {{sum, bias, residual, gamma, beta, y, mean, rstd},
                                          {dy, sum, gamma, mean, rstd, dsum, dresidual},
                                          {dresidual, dpart}};
    if (rms) memcpy(&memory[1][3], (void *[]){rstd, dsum, dresidual, NULL}, 4 * sizeof(void *));
    runner r[3];
    memcpy(sum, part, sizeof sum);
    for (int k = 0; k < 3; k++) {
        r[k] = open_runner(&desc[k], &data);
        tr_op_data_operands(&desc[k], memory[k], TR_OP_MAX_TENSORS, r[k].args.t);
        run(&r[k]);
    }
    const double tolerance = 8 * tr_dtype_eps(TR_F32) / h * sqrt(2 * N) * 8;
    for (int i = 0; i < 2 * N; i++) {
        float *x = i < N ? &residual[i] : &part[i - N];
        const double want = add_norm_difference(&r[0], x, part, dy, dsum);
        const double got = (double)(i < N ? dresidual[i] : dpart[i - N]);
        if (!(fabs(got - want) <= tolerance))
            fail_msg("rms %d, element %d: %.9g, not %.9g", rms, i, got, want);
    }
    for (int k = 0; k < 3; k++) close_runner(&r[k]);
    float *const random[] = {part, residual, bias, gamma, beta, dy, dsum};
    for (size_t i = 0; i < sizeof random / sizeof *random; i++) free(random[i]);
}

static void test_add_norm_gradient(void **state) {
    (void)state;
    check_add_norm(false);
    check_add_norm(true);
}

static int setup(void **state) {
    (void)state;
    return (int)tr_op_open_ref(&device);
}

static int teardown(void **state) {
    (void)state;
    tr_device_close(device);
    return 0;
}

int main(void) {
    seed = tr_test_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_xent_gradient),
        cmocka_unit_test(test_norm_rope_gradient),
        cmocka_unit_test(test_add_norm_gradient),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
