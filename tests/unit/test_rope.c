/* Tests rotary positions: frequencies against values of the published formulas; the inverse undoes
 * a rotation, a document's positions restart, and decoding rotates as the whole sequence does. */
#include "base/philox.h"
#include "device/rope.h"
#include "support/op_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;
static tr_device *ref;

/* Compares with values of transformers' formulas, which an independent program computed in double
 * precision. */
static void test_frequencies(void **state) {
    (void)state;
    const tr_rope_desc plain = {.head_size = 128, .theta = 500000};
    const tr_rope_desc linear = {
        .head_size = 128, .theta = 500000, .scaling = {.kind = TR_ROPE_LINEAR, .factor = 8}};
    const tr_rope_desc llama = {.head_size = 128,
                                .theta = 500000,
                                .scaling = {.kind = TR_ROPE_LLAMA3,
                                            .original = 8192,
                                            .factor = 8,
                                            .low_factor = 1,
                                            .high_factor = 4}};
    const tr_rope_desc yarn = {.head_size = 128,
                               .theta = 1e6,
                               .scaling = {.kind = TR_ROPE_YARN, .original = 32768, .factor = 4}};
    const struct {
        const tr_rope_desc *desc;
        int64_t pair;
        double frequency;
    } known[] = {
        {&plain, 0, 1},
        {&plain, 1, 0.8146172338565447},
        {&linear, 1, 0.8146172338565447 / 8},
        {&llama, 0, 1},
        {&llama, 28, 0.003211445994752591},
        {&llama, 29, 0.002166570763503359},
        {&llama, 32, 0.0005248461609929547},
        {&llama, 35, 9.556212353964683e-05},
        {&llama, 63, 3.068925988914511e-07},
        {&yarn, 0, 1},
        {&yarn, 20, 0.01333521432163324},
        {&yarn, 30, 0.0010643609812470017},
        {&yarn, 40, 4.445698525097307e-05},
        {&yarn, 63, 3.102344401879299e-07},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        double got = tr_rope_frequency(known[i].desc, known[i].pair), want = known[i].frequency;
        if (!(fabs(got - want) <= 1e-14 * want))
            fail_msg("value %zu: %.17g is not %.17g", i, got, want);
    }
    assert_true(tr_rope_magnitude(&llama) == 1);
    assert_true(fabs(tr_rope_magnitude(&yarn) - 1.1386294361119891) < 1e-15);
    tr_rope_desc given = yarn;
    given.scaling.attention_factor = 1.25;
    assert_true(tr_rope_magnitude(&given) == 1.25);
}

/* Runs a rotation on ref over rows of `x`, which begin ld elements apart, and the starts. */
static void turn(const tr_rope_desc *desc, float *x, const int32_t *starts) {
    tr_op_data data;
    const tr_op_case c = {{.kind = TR_OP_ROPE, .rope = *desc}, 0};
    const size_t bytes = (size_t)(desc->rows * desc->ld) * sizeof *x;
    must(tr_op_data_make(&c, TR_F32, seed, &data));
    memcpy(data.memory[TR_ROPE_X], x, bytes);
    if (starts) memcpy(data.memory[TR_ROPE_STARTS], starts, (size_t)desc->rows * sizeof *starts);
    must(tr_op_data_run(&data, ref, NULL));
    memcpy(x, data.memory[TR_ROPE_X], bytes);
    tr_op_data_free(&data);
}

enum { SEQ = 12, HEADS = 2, SIZE = 8, LD = HEADS * SIZE + 3 };
static const tr_rope_desc desc = {
    .rows = SEQ, .seq = SEQ, .heads = HEADS, .head_size = SIZE, .ld = LD, .theta = 10000};

/* Fills all places with the same random row. */
static void fill(float x[SEQ][LD]) {
    for (int c = 0; c < LD; c++)
        for (int t = 0; t < SEQ; t++) x[t][c] = tr_normal(seed, 1, (uint64_t)c);
}

/* Elements i and i + SIZE / 2 are rotated by position * frequency; elements after the heads do not
 * change. */
static void test_pairs(void **state) {
    (void)state;
    float x[SEQ][LD], turned[SEQ][LD];
    fill(x);
    memcpy(turned, x, sizeof x);
    turn(&desc, &turned[0][0], NULL);
    assert_memory_equal(turned[0], x[0], sizeof x[0]);
    for (int t = 0; t < SEQ; t++) {
        assert_memory_equal(turned[t] + HEADS * SIZE, x[t] + HEADS * SIZE, 3 * sizeof(float));
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < SIZE / 2; i++) {
                const float *from = x[t] + h * SIZE + i, *to = turned[t] + h * SIZE + i;
                double angle = t * pow(10000, -2.0 * i / SIZE), c = cos(angle), s = sin(angle);
                double a = (double)from[0], b = (double)from[SIZE / 2];
                assert_true(fabs((double)to[0] - (a * c - b * s)) < 1e-6);
                assert_true(fabs((double)to[SIZE / 2] - (b * c + a * s)) < 1e-6);
            }
    }
}

static void test_inverse(void **state) {
    (void)state;
    float x[SEQ][LD], turned[SEQ][LD];
    tr_rope_desc yarn = desc;
    yarn.scaling = (tr_rope_scaling){
        .kind = TR_ROPE_YARN, .original = 4, .factor = 4, .attention_factor = 1.5};
    fill(x);
    memcpy(turned, x, sizeof x);
    turn(&yarn, &turned[0][0], NULL);
    yarn.inverse = true;
    turn(&yarn, &turned[0][0], NULL);
    for (int t = 0; t < SEQ; t++)
        for (int c = 0; c < HEADS * SIZE; c++)
            assert_true(fabs((double)turned[t][c] - 2.25 * (double)x[t][c]) < 4e-6);
}

static void test_documents(void **state) {
    (void)state;
    const int32_t starts[SEQ] = {0, 0, 0, 3, 3, 5, 6, 6, 6, 6, 6, 11};
    float x[SEQ][LD], whole[SEQ][LD], split[SEQ][LD];
    fill(x);
    memcpy(whole, x, sizeof x);
    memcpy(split, x, sizeof x);
    turn(&desc, &whole[0][0], NULL);
    tr_rope_desc documents = desc;
    documents.documents = true;
    turn(&documents, &split[0][0], starts);
    for (int t = 0; t < SEQ; t++)
        assert_memory_equal(split[t], whole[t - starts[t]], sizeof *split);
}

/* The case's state has the positions seq / 2 and seq / 2 - 1. */
static void test_decode(void **state) {
    (void)state;
    float x[SEQ][LD], whole[SEQ][LD];
    fill(x);
    memcpy(whole, x, sizeof x);
    turn(&desc, &whole[0][0], NULL);
    tr_rope_desc decode = desc;
    decode.decode = 1;
    decode.rows = 2;
    turn(&decode, &x[0][0], NULL);
    assert_memory_equal(x[0], whole[SEQ / 2], sizeof *x);
    assert_memory_equal(x[1], whole[SEQ / 2 - 1], sizeof *x);
}

static int setup(void **state) {
    (void)state;
    return (int)tr_op_open_ref(&ref);
}

static int teardown(void **state) {
    (void)state;
    tr_device_close(ref);
    return 0;
}

int main(void) {
    seed = tr_test_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies), cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_inverse),     cmocka_unit_test(test_documents),
        cmocka_unit_test(test_decode),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
