/* Tests tensors, the rows of the table of operators, and the check of a run's operands. */
#include "device/device_impl.h"
#include "device/op_table.h"
#include "support/op_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static tr_tensor dense(int rank, const int64_t *shape) {
    return tr_tensor_dense(NULL, TR_F32, rank, shape);
}
#define DENSE(...)                                                                                 \
    dense((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

static bool alike(tr_tensor a, tr_tensor b) {
    bool result = tr_tensor_alike(&a, &b);
    assert_int_equal(tr_tensor_alike(&b, &a), result);
    return result;
}

static void test_alike(void **state) {
    (void)state;
    assert_true(alike(DENSE(6, 4), DENSE(6, 4)));
    assert_true(alike(DENSE(6, 12), DENSE(2, 3, 3, 1, 4)));
    assert_true(alike(DENSE(5, 1), DENSE(5)));
    assert_true(alike(DENSE(0, 7), DENSE(0)));
    assert_false(alike(DENSE(6, 4), DENSE(4, 6)));
    assert_false(alike(DENSE(6, 4), DENSE(6, 5)));
    assert_false(alike(DENSE(6, 4), DENSE(24, 2)));
    assert_false(alike(DENSE(2, 6), DENSE(4, 3)));
    tr_tensor half = DENSE(6, 4);
    half.dtype = TR_BF16;
    assert_false(alike(DENSE(6, 4), half));
    /* Rows that are not adjacent. */
    tr_tensor apart = tr_tensor_narrow(DENSE(6, 9), 4);
    assert_false(alike(DENSE(6, 4), apart));
    assert_true(alike(tr_tensor_narrow(DENSE(2, 3, 9), 4), apart));
    assert_false(alike(DENSE(24), apart));
    /* A single row is always dense. */
    assert_true(alike(DENSE(4), tr_tensor_narrow(DENSE(1, 9), 4)));
}

static void test_views(void **state) {
    (void)state;
    float data[12] = {0};
    char text[80];
    tr_tensor t = tr_tensor_rows(tr_tensor_matrix(data, TR_F32, 4, 3), 1, 2);
    assert_ptr_equal(t.data, data + 3);
    assert_int_equal(tr_tensor_count(&t), 6);
    assert_int_equal(tr_tensor_bytes(&t), 24);
    assert_string_equal(tr_tensor_text(&t, text, sizeof text), "f32 (2, 3)");
    t = tr_tensor_narrow(t, 2);
    assert_string_equal(tr_tensor_text(&t, text, sizeof text), "f32 (2, 2) with strides 3, 1");
}

/* Every operator has a row, and every operand of a case has a slot that accepts it. */
static void test_rows(void **state) {
    (void)state;
    for (int k = 0; k < TR_OP_COUNT; k++) {
        const tr_op_row *row = tr_op_row_of((tr_op_kind)k);
        assert_true(row && row->name && row->fault && row->same && row->operands);
    }
    assert_null(tr_op_row_of(TR_OP_COUNT));
    for (size_t i = 0; i < tr_op_case_count; i++) {
        tr_op_data data;
        must(tr_op_data_make(&tr_op_cases[i], TR_BF16, 1, &data));
        tr_tensor t[TR_OP_MAX_TENSORS];
        tr_op_operands(&data.desc, t);
        for (int k = 0; k < TR_OP_MAX_TENSORS; k++) {
            const tr_op_slot *slot = &tr_op_row_of(data.desc.kind)->slot[k];
            if (!t[k].rank) continue;
            assert_true(slot->name && slot->types & 1u << t[k].dtype);
            /* The tests' own list of operands agrees, including gaps between rows. */
            if (!data.tensor[k].present) assert_true(slot->use & TR_SLOT_OPTIONAL);
            else assert_int_equal(data.tensor[k].dtype, t[k].dtype);
            if (data.tensor[k].output && !(tr_op_cases[i].options & TR_CASE_IN_PLACE))
                assert_true(slot->use & TR_SLOT_OUT);
        }
        assert_true(tr_op_bytes(&data.desc) > 0);
        tr_op_data_free(&data);
    }
}

/* The bytes that a fused product must move: a saved input is written or read once. */
static void test_bytes(void **state) {
    (void)state;
    tr_op_desc desc = {.kind = TR_OP_MATMUL, .matmul = {.m = 2, .n = 3, .k = 5}};
    assert_true(tr_op_bytes(&desc) == 4 * (10 + 15 + 6));
    desc.matmul.fused.activate = true;
    assert_true(tr_op_bytes(&desc) == 4 * (10 + 15 + 6 + 6));
    desc = (tr_op_desc){.kind = TR_OP_ROPE,
                        .rope = {.rows = 1, .seq = 1, .heads = 1, .head_size = 4, .ld = 4}};
    assert_true(tr_op_bytes(&desc) == 2 * 4 * 4);
}

static void assert_refused(tr_status status, const char *sentence) {
    assert_int_equal(status, TR_ERR_INTERNAL);
    assert_string_equal(tr_error_message(), sentence);
}

static void test_descriptions(void **state) {
    tr_op *op;
    tr_op_desc desc = {.kind = (tr_op_kind)1000};
    assert_refused(tr_op_prepare(&(tr_op_context){.device = *state}, &desc, &op),
                   "operator number 1000 does not exist");
    desc = (tr_op_desc){.kind = TR_OP_ACTIVATION, .rows = {.rows = 2, .width = 3, .dtype = TR_I32}};
    assert_refused(tr_op_prepare(&(tr_op_context){.device = *state}, &desc, &op),
                   "operator activation: x must be f32 or bf16 or f16 or f64");
    desc.rows.rows = 0;
    assert_refused(tr_op_prepare(&(tr_op_context){.device = *state}, &desc, &op),
                   "operator activation: rows and width must be positive");
    /* Each operand of a product fits the address space, which its m n k multiplications exceed. */
    const int64_t m = 1 << 24, n = 1 << 22, k = 1 << 20;
    const tr_op_row *row = tr_op_row_of(TR_OP_MATMUL);
    assert_null(row->fault(&(tr_op_desc){.matmul = {.m = m, .n = n, .k = k}}));
    for (int i = 0; i < 3; i++) {
        const int64_t huge = INT64_C(1) << 40;
        const tr_op_desc wide = {
            .matmul = {.m = i == 0 ? 1 : huge, .n = i == 1 ? 1 : huge, .k = i == 2 ? 1 : huge}};
        assert_non_null(row->fault(&wide));
    }
}

/* UPDATE and DIRECTION accept the codes of states that an optimizer has, and no others. */
static void test_codes(void **state) {
    static const char of_m[] =
        "M has the code of signed numbers, or with the rule of momentum the even one";
    static const char of_v[] = "V has the code of squares";
    static const struct {
        tr_update_rule rule;
        tr_code8 m, v;
        const char *fault;
    } rows[] = {
        {TR_UPDATE_ADAMW, TR_CODE8_SIGNED, TR_CODE8_SQUARES, NULL},
        {TR_UPDATE_ADAMW, TR_CODE8_EVEN, TR_CODE8_SQUARES, of_m},
        {TR_UPDATE_ADAMW, TR_CODE8_SQUARES, TR_CODE8_SQUARES, of_m},
        {TR_UPDATE_ADAMW, TR_CODE8_SIGNED, TR_CODE8_SIGNED, of_v},
        {TR_UPDATE_ADAMW, TR_CODE8_SIGNED, TR_CODE8_EVEN, of_v},
        {TR_UPDATE_MOMENTUM, TR_CODE8_SIGNED, TR_CODE8_SIGNED, NULL},
        {TR_UPDATE_MOMENTUM, TR_CODE8_EVEN, TR_CODE8_SIGNED, NULL},
        {TR_UPDATE_MOMENTUM, TR_CODE8_SQUARES, TR_CODE8_SIGNED, of_m},
        {TR_UPDATE_LION, TR_CODE8_SIGNED, TR_CODE8_SIGNED, NULL},
        {TR_UPDATE_LION, TR_CODE8_EVEN, TR_CODE8_SIGNED, of_m},
        {TR_UPDATE_LION, TR_CODE8_SQUARES, TR_CODE8_SIGNED, of_m},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tr_op_desc desc = {
            .update = {.count = 300,
                       .lr_scale = 1,
                       .rule = rows[i].rule,
                       .state_dtype = TR_U8,
                       .code = {rows[i].m, rows[i].v},
                       .rounding = {.boxes = 1, .box = {{.rows = 1, .cols = 300, .ld = 300}}}}};
        for (int k = 0; k < 2; k++) {
            const tr_op_row *row = tr_op_row_of(k ? TR_OP_DIRECTION : TR_OP_UPDATE);
            const char *fault = row->fault(&desc);
            if (!rows[i].fault) assert_null(fault);
            else assert_string_equal(fault ? fault : "none", rows[i].fault);
        }
    }
}

/* y[4, 6] = x[4, 5] w[5, 6] + bias */
static void test_operands(void **state) {
    float memory[64] = {0};
    const tr_op_desc desc = {.kind = TR_OP_MATMUL,
                             .matmul = {.m = 4, .n = 6, .k = 5, .fused.bias = true}};
    const tr_op_args good = {.t = {[TR_MATMUL_A] = tr_tensor_matrix(memory, TR_F32, 4, 5),
                                   [TR_MATMUL_B] = tr_tensor_matrix(memory, TR_F32, 5, 6),
                                   [TR_MATMUL_C] = tr_tensor_matrix(memory, TR_F32, 4, 6),
                                   [TR_MATMUL_BIAS] = tr_tensor_vector(memory, TR_F32, 6)}};
    tr_op *op;
    must(tr_op_prepare(&(tr_op_context){.device = *state}, &desc, &op));
    must(tr_op_check_args(op, &good));
    tr_op_args bad = good;
    bad.t[TR_MATMUL_B] = tr_tensor_matrix(memory, TR_F32, 6, 5);
    assert_refused(tr_op_check_args(op, &bad),
                   "operator matmul: operand b is f32 (6, 5), but must be f32 (5, 6)");
#if !defined(NDEBUG) || defined(TRIREME_CHECKS_OPERANDS)
    assert_refused(tr_op_run(op, tr_device_compute(*state), &bad),
                   "operator matmul: operand b is f32 (6, 5), but must be f32 (5, 6)");
#endif
    bad = good;
    bad.t[TR_MATMUL_C].dtype = TR_BF16;
    assert_refused(tr_op_check_args(op, &bad),
                   "operator matmul: operand c is bf16 (4, 6), but must be f32 (4, 6)");
    bad = good;
    bad.t[TR_MATMUL_BIAS].data = NULL;
    assert_refused(tr_op_check_args(op, &bad), "operator matmul: operand bias is missing");
    bad = good;
    bad.t[TR_MATMUL_AUX] = good.t[TR_MATMUL_C];
    assert_refused(tr_op_check_args(op, &bad), "operator matmul takes no operand aux here");
    op->scratch_bytes = 1;
    assert_refused(tr_op_check_args(op, &good),
                   "operator matmul: its 1 bytes of scratch are missing");
    tr_op_release(op);
}

static tr_status refuse(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    (void)context, (void)desc, (void)out;
    return TR_OK;
}

static tr_status prepare_plain(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    if (!tr_matmul_is_plain(&desc->matmul)) return TR_OK;
    return tr_device_ops_ref.prepare[TR_OP_MATMUL](context, desc, out);
}

/* An operator that a device refuses runs as its decomposition, with the bits of the separate
 * operators; without a decomposition preparing fails. */
static void test_refused(void **state) {
    tr_device *device = *state;
    const tr_device_ops *all = device->ops;
    tr_device_ops own = *all;
    own.prepare[TR_OP_ACTIVATION] = refuse;
    own.prepare[TR_OP_CAST] = NULL;
    own.prepare[TR_OP_MATMUL] = prepare_plain;
    own.fuses = true;
    device->ops = &own;
    tr_op *op;
    tr_op_desc desc = {.kind = TR_OP_ACTIVATION, .rows = {.rows = 3, .width = 2}};
    assert_int_equal(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &op), TR_ERR_DEVICE);
    assert_string_equal(tr_error_message(),
                        "device ref has no operator activation of this description");
    desc.kind = TR_OP_CAST;
    assert_int_equal(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &op), TR_ERR_DEVICE);
    assert_string_equal(tr_error_message(), "device ref has no operator cast");

    const float x[] = {1, 2, 3, 4, 5, 6}, w[] = {0.5f, -1, 2, 0.25f};
    const float bias[] = {10, 20}, residual[] = {-1, -2, -3, -4, -5, -6};
    float y[6];
    char text[160];
    desc =
        (tr_op_desc){.kind = TR_OP_MATMUL,
                     .matmul = {.m = 3, .n = 2, .k = 2, .fused = {.bias = true, .residual = true}}};
    const tr_op_args args = {
        .t = {[TR_MATMUL_A] = tr_tensor_matrix(x, TR_F32, 3, 2),
              [TR_MATMUL_B] = tr_tensor_matrix(w, TR_F32, 2, 2),
              [TR_MATMUL_C] = tr_tensor_matrix(y, TR_F32, 3, 2),
              [TR_MATMUL_BIAS] = tr_tensor_vector(bias, TR_F32, 2),
              [TR_MATMUL_RESIDUAL] = tr_tensor_matrix(residual, TR_F32, 3, 2)}};
    must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &op));
    must(tr_op_run(op, tr_device_compute(device), &args));
    for (int i = 0; i < 6; i++) {
        const float *row = &x[i / 2 * 2];
        assert_true(y[i] == row[0] * w[i % 2] + row[1] * w[2 + i % 2] + bias[i % 2] + residual[i]);
    }
    assert_int_equal(tr_device_fallbacks(device, text, sizeof text), 1);
    assert_string_equal(text, "1 x matmul 3x2x2 f32 with residual in parts");
    tr_op_release(op);
    device->ops = all;
}

/* The text of operators that do not run in the library: with sizes if describe() knows the
 * description, otherwise only the operator's name. */
static void test_fallbacks(void **state) {
    const struct {
        tr_op_desc desc;
        const char *text;
    } rows[] = {
        {{.kind = TR_OP_ADD, .rows = {.rows = 3, .width = 2}}, "1 x add in parts"},
        {{.kind = TR_OP_ATTENTION,
          .attention = {.batch = 1, .seq = 4, .heads = 6, .kv_heads = 3, .head_size = 8}},
         "1 x attention of 6 heads of 8 f32 in parts"},
    };
    char text[160];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tr_op *op;
        must(tr_op_prepare(&(tr_op_context){.device = *state}, &rows[i].desc, &op));
        op->way = TR_OP_IN_PARTS;
        assert_int_equal(tr_device_fallbacks(*state, text, sizeof text), 1);
        assert_string_equal(text, rows[i].text);
        tr_op_release(op);
    }
}

/* Describes an operator of which every layer has its own, by a dropout site or a rounded tensor. */
static tr_op_desc of_layer(tr_op_kind kind, int layer) {
    const tr_dropout_desc dropout = {
        .rows = 2, .width = 3, .seq = 2, .p = 0.1f, .site = (uint64_t)layer * 4096};
    const tr_quantize_desc rounding = {
        .count = 6,
        .boxes = 1,
        .box = {{.name = (uint64_t)layer * 4096, .rows = 1, .cols = 6, .ld = 6}}};
    if (kind == TR_OP_ADD_NORM)
        return (tr_op_desc){.kind = kind, .add_norm = {.add = dropout, .eps = 1e-5}};
    if (kind == TR_OP_QUANTIZE) return (tr_op_desc){.kind = kind, .quantize = rounding};
    if (kind == TR_OP_UPDATE || kind == TR_OP_DIRECTION)
        return (tr_op_desc){.kind = kind,
                            .update = {.count = 6,
                                       .lr_scale = 1,
                                       .state_dtype = TR_BF16,
                                       .rule = TR_UPDATE_LION,
                                       .rounding = rounding}};
    if (kind == TR_OP_DESCEND)
        return (tr_op_desc){
            .kind = kind,
            .descend = {
                .count = 6, .lr_scale = 1, .factor = 1, .bf16_master = true, .rounding = rounding}};
    return (tr_op_desc){.kind = kind, .dropout = dropout};
}

static int longest_chain(const tr_op_set *set) {
    int longest = 0;
    for (size_t i = 0; i < set->chains; i++) {
        int length = 0;
        for (const tr_op *op = set->chain[i]; op; op = op->chained) length++;
        if (length > longest) longest = length;
    }
    return longest;
}

/* The operators of a deep model are found with few comparisons, and equal ones are shared. */
static void test_many_layers(void **state) {
    enum { LAYERS = 1000, KINDS = 7 };
    static const tr_op_kind kinds[KINDS] = {TR_OP_DROPOUT_ADD, TR_OP_DROPOUT_DGRAD, TR_OP_ADD_NORM,
                                            TR_OP_QUANTIZE,    TR_OP_UPDATE,        TR_OP_DIRECTION,
                                            TR_OP_DESCEND};
    static tr_op *ops[LAYERS][KINDS];
    tr_device *device = *state;
    const tr_op_set *set = &device->operators;
    const tr_op_context context = {.device = device};
    for (int layer = 0; layer < LAYERS; layer++)
        for (int k = 0; k < KINDS; k++) {
            const tr_op_desc desc = of_layer(kinds[k], layer);
            must(tr_op_prepare(&context, &desc, &ops[layer][k]));
        }
    assert_true(set->count >= LAYERS * KINDS && set->chains >= set->count);
    assert_in_range(longest_chain(set), 1, 12);
    for (int layer = 0; layer < LAYERS; layer += 7)
        for (int k = 0; k < KINDS; k++) {
            tr_op *again;
            const tr_op_desc desc = of_layer(kinds[k], layer);
            must(tr_op_prepare(&context, &desc, &again));
            assert_ptr_equal(again, ops[layer][k]);
            tr_op_release(again);
            assert_int_equal(again->users, 1);
        }
    /* Not in the order of the list. */
    for (int i = 0; i < LAYERS; i++)
        for (int k = 0; k < KINDS; k++) tr_op_release(ops[i * 37 % LAYERS][k]);
    assert_int_equal(set->count, 0);
    assert_null(set->newest);
}

static int setup(void **state) {
    return (int)tr_op_open_ref((tr_device **)state);
}

static int teardown(void **state) {
    tr_device_close(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alike),    cmocka_unit_test(test_views),
        cmocka_unit_test(test_rows),     cmocka_unit_test(test_descriptions),
        cmocka_unit_test(test_operands), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bytes),    cmocka_unit_test(test_fallbacks),
        cmocka_unit_test(test_codes),    cmocka_unit_test(test_many_layers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
