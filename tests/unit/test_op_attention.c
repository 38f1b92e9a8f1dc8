/* Tests which tokens attention sees, on ref: grouped queries, windows and documents against plain
 * attention over the visible tokens, with keys repeated for each query; decoding against the whole
 * sequence. Both add the same terms in the same order, so the bits are the same. Also tests the
 * rounding of the gradient, on ref and on cpu, or on the emulated kernels of cuda. */
#include "base/philox.h"
#include "support/op_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, SEQ = 11, HEADS = 4, KV_HEADS = 2, SIZE = 3, GROUP = HEADS / KV_HEADS };
enum { WIDTH = HEADS * SIZE, ROW = (HEADS + 2 * KV_HEADS) * SIZE };

#ifdef TRIREME_EMULATED
#define OTHER "cuda:0"
#else
#define OTHER "cpu"
#endif

static tr_device *ref, *other;
static float qkv[BATCH][SEQ][ROW];
static const int32_t starts[BATCH][SEQ] = {{0, 0, 0, 3, 3, 5, 6, 6, 6, 6, 6},
                                           {0, 1, 1, 1, 1, 1, 1, 1, 8, 9, 9}};

/* Runs a description on host memory. */
static void run_on(tr_device *device, const tr_op_desc *desc, tr_step_state *state,
                   void *const *memory, int n) {
    tr_op *op;
    tr_op_args args = {.state = state};
    must(tr_op_prepare(&(tr_op_context){.device = device}, desc, &op));
    tr_op_data_operands(desc, memory, n, args.t);
    must(tr_device_alloc(device, TR_MEMORY_DATA, op->scratch_bytes, &args.scratch));
    must(tr_op_run(op, tr_device_compute(device), &args));
    tr_device_free(device, args.scratch);
    tr_op_release(op);
}

static void run(const tr_op_desc *desc, tr_step_state *state, void *const *memory, int n) {
    run_on(ref, desc, state, memory, n);
}

/* Computes the last token's output of plain attention over tokens first .. last of sequence b. */
static void plain(int b, int first, int last, float scale, float y[WIDTH]) {
    float alone[SEQ][3][HEADS][SIZE], out[SEQ][WIDTH], lse[HEADS * SEQ];
    for (int t = first; t <= last; t++)
        for (int h = 0; h < HEADS; h++) {
            const int head[] = {h, HEADS + h / GROUP, HEADS + KV_HEADS + h / GROUP};
            for (int part = 0; part < 3; part++)
                memcpy(alone[t - first][part][h], qkv[b][t] + head[part] * SIZE,
                       sizeof alone[0][0][0]);
        }
    const tr_op_desc desc = {.kind = TR_OP_ATTENTION,
                             .attention = {.batch = 1,
                                           .seq = last - first + 1,
                                           .heads = HEADS,
                                           .kv_heads = HEADS,
                                           .head_size = SIZE,
                                           .scale = scale}};
    run(&desc, NULL, (void *[]){alone, out, lse}, 3);
    memcpy(y, out[last - first], sizeof out[0]);
}

static tr_attention_desc grouped(int64_t window, bool documents, float scale) {
    return (tr_attention_desc){.batch = BATCH,
                               .seq = SEQ,
                               .heads = HEADS,
                               .kv_heads = KV_HEADS,
                               .head_size = SIZE,
                               .window = window,
                               .documents = documents,
                               .scale = scale};
}

static void check_seen(int window, bool documents, float scale) {
    float y[BATCH][SEQ][WIDTH], lse[BATCH * HEADS * SEQ], want[WIDTH];
    const tr_op_desc desc = {.kind = TR_OP_ATTENTION,
                             .attention = grouped(window, documents, scale)};
    run(&desc, NULL, (void *[]){qkv, y, lse, (void *)starts}, documents ? 4 : 3);
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < SEQ; t++) {
            int first = window && t - window + 1 > 0 ? t - window + 1 : 0;
            if (documents && starts[b][t] > first) first = starts[b][t];
            plain(b, first, t, scale, want);
            assert_memory_equal(y[b][t], want, sizeof want);
        }
}

static void test_seen(void **state) {
    (void)state;
    check_seen(0, false, 0);
    check_seen(0, false, 1.5f);
    check_seen(1, false, 0);
    check_seen(4, false, 0);
    check_seen(SEQ, false, 0);
    check_seen(0, true, 0);
    check_seen(3, true, 0.25f);
}

static void check_decode(int window) {
    float y[BATCH][SEQ][WIDTH], lse[BATCH * HEADS * SEQ], token[BATCH][ROW], out[BATCH][WIDTH];
    float kcache[BATCH * SEQ * KV_HEADS * SIZE] = {0}, vcache[BATCH * SEQ * KV_HEADS * SIZE] = {0};
    tr_op_desc desc = {.kind = TR_OP_ATTENTION, .attention = grouped(window, false, 0)};
    run(&desc, NULL, (void *[]){qkv, y, lse}, 3);
    desc.kind = TR_OP_ATTENTION_DECODE;
    desc.attention.decode = 1;
    tr_step_state step = {0};
    for (int t = 0; t < SEQ; t++) {
        for (int b = 0; b < BATCH; b++) step.position[b] = t;
        for (int b = 0; b < BATCH; b++) memcpy(token[b], qkv[b][t], sizeof token[b]);
        run(&desc, &step, (void *[]){token, kcache, vcache, out}, 4);
        for (int b = 0; b < BATCH; b++) assert_memory_equal(out[b], y[b][t], sizeof out[b]);
    }
}

static void test_decode(void **state) {
    (void)state;
    check_decode(0);
    check_decode(4);
}

/* Where all keys are equal, queries have no gradient. The rounding of Y in BF16 must not give them
 * one: the gradients of a row's scores add up to zero. */
static void check_equal_keys(tr_device *device) {
    uint16_t in[BATCH][SEQ][ROW], dqkv[BATCH][SEQ][ROW], y[BATCH][SEQ][WIDTH],
        dy[BATCH][SEQ][WIDTH];
    float lse[BATCH * HEADS * SEQ];
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < SEQ; t++) {
            for (int i = 0; i < ROW; i++) {
                const bool key = i >= WIDTH && i < WIDTH + KV_HEADS * SIZE;
                in[b][t][i] = tr_f32_to_bf16(key ? 1 + (float)(i % SIZE) : qkv[b][t][i]);
            }
            for (int i = 0; i < WIDTH; i++) dy[b][t][i] = tr_f32_to_bf16(qkv[b][t][ROW - 1 - i]);
        }
    tr_op_desc desc = {.kind = TR_OP_ATTENTION, .attention = grouped(0, false, 0)};
    desc.attention.dtype = TR_BF16;
    run_on(device, &desc, NULL, (void *[]){in, y, lse}, 3);
    desc.kind = TR_OP_ATTENTION_DGRAD;
    run_on(device, &desc, NULL, (void *[]){dy, in, y, lse, dqkv}, 5);
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < SEQ; t++)
            for (int i = 0; i < WIDTH; i++) {
                const double dq = (double)tr_bf16_to_f32(dqkv[b][t][i]);
                if (!(fabs(dq) < 1e-5)) fail_msg("%s: a query's gradient is %g", device->name, dq);
            }
}

static void test_equal_keys(void **state) {
    (void)state;
    check_equal_keys(ref);
    check_equal_keys(other);
}

/* FLOPs are counted as usual: half of a square, or of the band that a window shows. */
/* The gradients of a head's keys add up to zero, as those of a row's scores do. Values with a large
 * part in common give all scores a large gradient in common, and its rounding must not remain. */
static void check_sum_of_keys(tr_device *device) {
    float in[BATCH][SEQ][ROW], dqkv[BATCH][SEQ][ROW], y[BATCH][SEQ][WIDTH], dy[BATCH][SEQ][WIDTH];
    float lse[BATCH * HEADS * SEQ];
    tr_op_desc desc = {.kind = TR_OP_ATTENTION, .attention = grouped(0, false, 0)};
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < SEQ; t++) {
            for (int i = 0; i < ROW; i++)
                in[b][t][i] = qkv[b][t][i] + (i < WIDTH + KV_HEADS * SIZE ? 0 : 256);
            for (int i = 0; i < WIDTH; i++) dy[b][t][i] = qkv[b][t][ROW - 1 - i];
        }
    run_on(device, &desc, NULL, (void *[]){in, y, lse}, 3);
    desc.kind = TR_OP_ATTENTION_DGRAD;
    run_on(device, &desc, NULL, (void *[]){dy, in, y, lse, dqkv}, 5);
    for (int b = 0; b < BATCH; b++)
        for (int i = WIDTH; i < WIDTH + KV_HEADS * SIZE; i++) {
            double sum = 0, size = 0;
            for (int t = 0; t < SEQ; t++) {
                sum += (double)dqkv[b][t][i];
                size += fabs((double)dqkv[b][t][i]);
            }
            if (!(fabs(sum) < 1e-6 * size))
                fail_msg("%s: gradients of keys add up to %g of their size", device->name,
                         sum / size);
        }
}

static void test_sum_of_keys(void **state) {
    (void)state;
    check_sum_of_keys(ref);
    check_sum_of_keys(other);
}

static void test_flops(void **state) {
    (void)state;
    tr_op_desc desc = {.kind = TR_OP_ATTENTION, .attention = grouped(0, false, 0)};
    const double whole = tr_op_flops(&desc);
    assert_true(whole == 2.0 * BATCH * HEADS * SEQ * SEQ * SIZE);
    desc.attention.window = SEQ;
    assert_true(tr_op_flops(&desc) == whole);
    desc.attention.seq = 16;
    desc.attention.window = 4; /* 4 x 16 - 4 x 4 / 2, relative to 16 x 16 / 2 */
    assert_true(tr_op_flops(&desc) == 4.0 * BATCH * HEADS * SIZE * 56);
    desc.kind = TR_OP_ATTENTION_DECODE;
    desc.attention.decode = 3;
    assert_true(tr_op_flops(&desc) == 3 * 4.0 * BATCH * HEADS * SIZE * 4);
}

static void test_refused(void **state) {
    (void)state;
    tr_op_desc desc = {.kind = TR_OP_ATTENTION, .attention = grouped(0, false, 0)};
    tr_op *op;
    desc.attention.kv_heads = 3;
    assert_int_equal(tr_op_prepare(&(tr_op_context){.device = ref}, &desc, &op), TR_ERR_INTERNAL);
    desc.attention = grouped(-1, false, 0);
    assert_int_equal(tr_op_prepare(&(tr_op_context){.device = ref}, &desc, &op), TR_ERR_INTERNAL);
    desc = (tr_op_desc){.kind = TR_OP_ATTENTION_DECODE, .attention = grouped(0, true, 0)};
    desc.attention.decode = 1;
    assert_int_equal(tr_op_prepare(&(tr_op_context){.device = ref}, &desc, &op), TR_ERR_INTERNAL);
    desc.attention.documents = false;
    for (desc.attention.decode = 0; desc.attention.decode <= SEQ + 1;
         desc.attention.decode += SEQ + 1)
        assert_int_equal(tr_op_prepare(&(tr_op_context){.device = ref}, &desc, &op),
                         TR_ERR_INTERNAL);
}

static int setup(void **state) {
    (void)state;
    const uint64_t seed = tr_test_seed(1);
    float *x = &qkv[0][0][0];
    for (size_t i = 0; i < sizeof qkv / sizeof *x; i++) x[i] = tr_normal(seed, 1, i);
    must(tr_op_open_ref(&ref));
    must(tr_device_open(OTHER, &(tr_device_options){.threads = 1}, &other));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tr_device_close(ref);
    tr_device_close(other);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seen),       cmocka_unit_test(test_decode),
        cmocka_unit_test(test_equal_keys), cmocka_unit_test(test_sum_of_keys),
        cmocka_unit_test(test_flops),      cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
