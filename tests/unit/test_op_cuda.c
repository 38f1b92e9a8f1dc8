/* Compares every operator of the cuda device with ref: the shared tables, shapes at which the
 * kernels take another path, and random shapes, in both storage types; a second run gives the same
 * bits. Exit code 77: there is no GPU. TRIREME_TEST_KERNELS=own leaves out operators that libraries
 * compute; TRIREME_TEST_ONLY=NAME runs only the tests with names that begin so.
 *
 * Every case in one storage type is a test of its own, so that a failure hides no other.
 *
 * The same source tests the emulated device (support/cuda/): its cuda:1 runs threads in the
 * opposite order and must give the same bits, its cuda:2 has no aligned memory, and its cuda:3 has
 * an emulated cuBLASLt for products. */
#include "device/cuda/blas_layout.h"
#include "device/device_impl.h"
#include "device/op_table.h"
#include "device/plan_book.h"
#include "support/drawn.h"
#include "support/op_check.h"
#include "support/op_cuda_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef TRIREME_EMULATED
#include <cublasLt.h>
#endif

static uint64_t seed;
static bool own_kernels;
static tr_device *ref, *cuda;
static tr_device *backwards, *unaligned, *library; /* emulated, or NULL */

/* Checks that products run in the library, except those with a bias of one element, which the
 * emulated library refuses; with several ranks preparing runs the operator once. */
static void check_library(const tr_op_check *check) {
#ifdef TRIREME_EMULATED
    const int64_t before = tr_emulated_products;
    tr_op_data got;
    tr_op_check_run(check, library, &got);
    const tr_matmul_desc *d = &check->start.desc.matmul;
    const int64_t runs = tr_emulated_products - before;
    assert_true(runs >= 2 || !tr_blas_has(d) || (d->fused.bias && d->n == 1));
    tr_op_check_same(check, library, &got);
    tr_op_data_free(&got);
#else
    (void)check;
#endif
}

/* Returns true when a library computes the operator and libraries are left out. */
static bool leave_out(const tr_op_desc *d) {
    if (!own_kernels) return false;
    if (d->kind == TR_OP_MATMUL) return tr_blas_has(&d->matmul);
    const tr_attention_desc *a = &d->attention;
    return (d->kind == TR_OP_ATTENTION || d->kind == TR_OP_ATTENTION_DGRAD) &&
           a->dtype == TR_BF16 && a->seq >= 64 &&
           (a->head_size == 64 || a->head_size == 96 || a->head_size == 128);
}

static tr_op_case_list list;

/* On a GPU, cuBLASLt 13.1 rounds a narrow product before it adds C, and, where rows do not begin or
 * end on 16 bytes, before it adds a bias (seen on an H100 and, where they begin there and do not
 * end, on an H200). The emulated one rounds once. */
static void allow_rounding(const tr_matmul_desc *d, tr_op_tensor *t) {
#ifndef TRIREME_EMULATED
    const tr_blas_layout l = tr_blas_layout_of(d);
    const int64_t begins = l.first.ld | l.second.ld | l.result.ld;
    const int64_t ends = l.first.rows | l.second.rows | l.result.rows;
    const bool aligned = (begins | ends) % 8 == 0;
    if (d->c == TR_F32 || d->c == TR_F64 || !(d->accumulate || (d->fused.bias && !aligned))) return;
    t[TR_MATMUL_C].inner = t[TR_MATMUL_AUX].inner = tr_dtype_eps(d->c);
#else
    (void)d;
    (void)t;
#endif
}

static void check_listed(void **state) {
    const tr_op_listed *l = *state;
    const tr_op_case *c = &l->op;
    tr_op_check check;
    tr_op_data got, other;
    tr_op_check_open(c, l->storage, seed, ref, &check);
    if (c->desc.kind == TR_OP_MATMUL) allow_rounding(&check.start.desc.matmul, check.want.tensor);
    if (!leave_out(&check.start.desc)) {
        tr_op_check_run(&check, cuda, &got);
        tr_op_check_same(&check, backwards ? backwards : cuda, &got);
        if (unaligned) {
            tr_op_check_run(&check, unaligned, &other);
            tr_op_data_free(&other);
        }
        tr_op_check_parts(&check, cuda, &got);
        if (library && c->desc.kind == TR_OP_MATMUL) check_library(&check);
        tr_op_data_free(&got);
    }
    tr_op_check_close(&check);
}

/* All products of layers/ run in the library; those with types that the library does not document
 * run in the device's own kernel. */
static void test_types(void **state) {
    (void)state;
    const tr_dtype f = TR_F32, h = TR_BF16;
    assert_true(tr_blas_has(&(tr_matmul_desc){.a = f, .b = f, .c = f, .fused.bias = true}));
    assert_true(tr_blas_has(&(tr_matmul_desc){.a = h, .b = h, .c = h, .fused.bias = true}));
    assert_true(tr_blas_has(&(tr_matmul_desc){.a = h, .b = h, .c = f, .accumulate = true}));
    assert_false(tr_blas_has(&(tr_matmul_desc){.a = h, .b = h, .c = f, .fused.bias = true}));
    const tr_fusion gelu = {.activate = true}, sums = {.bias_grad = true};
    const tr_fusion bias_gelu = {.bias = true, .activate = true};
    assert_true(tr_blas_has(
        &(tr_matmul_desc){.a = h, .b = h, .c = h, .fused = {.bias = true, .residual = true}}));
    assert_true(
        tr_blas_has(&(tr_matmul_desc){.n = 16, .a = h, .b = h, .c = h, .fused = bias_gelu}));
    assert_false(tr_blas_has(&(tr_matmul_desc){.n = 12, .a = h, .b = h, .c = h, .fused = gelu}));
    assert_false(tr_blas_has(&(tr_matmul_desc){.n = 16, .a = f, .b = f, .c = f, .fused = gelu}));
    assert_true(tr_blas_has(
        &(tr_matmul_desc){.n = 5, .a = h, .b = h, .c = f, .accumulate = true, .fused = sums}));
    assert_false(tr_blas_has(&(tr_matmul_desc){.n = 5, .a = h, .b = h, .c = h, .fused = sums}));
    assert_false(tr_blas_has(&(tr_matmul_desc){.a = f, .b = h, .c = f}));
    assert_false(tr_blas_has(&(tr_matmul_desc){.a = f, .b = f, .c = h}));
}

static void run_decoding(const tr_op_case *c, int64_t position, tr_op_data *start,
                         tr_op_data *data) {
    must(tr_op_data_make(c, TR_F32, seed, start));
    for (int k = 0; k < TR_STEP_TEXTS; k++) start->state.position[k] = position;
    must(tr_op_data_clone(start, data));
    must(tr_op_data_run(data, cuda, NULL));
}

/* Only the kernel sees a decoding position outside cache or table: it accesses no memory there and
 * writes NaN. */
static void test_positions(void **state) {
    (void)state;
    const tr_op_case decode = {
        {.kind = TR_OP_ATTENTION_DECODE,
         .attention =
             {.batch = 2, .seq = 9, .heads = 2, .kv_heads = 1, .head_size = 5, .decode = 1}},
        0};
    const tr_op_case position = {
        {.kind = TR_OP_POSITION, .embed = {.rows = 3, .width = 20, .seq = 9, .decode = 1}}, 0};
    for (int64_t at = -1; at <= 9; at += 10) {
        tr_op_data start, data;
        run_decoding(&decode, at, &start, &data);
        for (int i = TR_DECODE_QKV; i <= TR_DECODE_VCACHE; i++)
            assert_memory_equal(start.memory[i], data.memory[i],
                                (size_t)data.tensor[i].count * sizeof(float));
        for (int64_t i = 0; i < data.tensor[TR_DECODE_Y].count; i++)
            assert_true(isnan(tr_element(data.memory[TR_DECODE_Y], TR_F32, i)));
        tr_op_data_free(&start);
        tr_op_data_free(&data);
        run_decoding(&position, at, &start, &data);
        for (int64_t i = 0; i < data.tensor[TR_POSITION_Y].count; i++)
            assert_true(isnan(tr_element(data.memory[TR_POSITION_Y], TR_F32, i)));
        tr_op_data_free(&start);
        tr_op_data_free(&data);
    }
}

/* Products of a layer as layers/ describes them, in BF16: forward, gradients of input and
 * weight. */
static const tr_matmul_desc products[] = {
    {.m = 64, .n = 96, .k = 32, .a = TR_BF16, .b = TR_BF16, .c = TR_BF16, .fused.bias = true},
    {.m = 64,
     .n = 128,
     .k = 32,
     .a = TR_BF16,
     .b = TR_BF16,
     .c = TR_BF16,
     .fused.bias = true,
     .fused.activate = true},
    {.m = 64,
     .n = 128,
     .k = 32,
     .a = TR_BF16,
     .b = TR_BF16,
     .c = TR_BF16,
     .trans_b = true,
     .fused.activate_grad = true},
    {.m = 32,
     .n = 128,
     .k = 64,
     .a = TR_BF16,
     .b = TR_BF16,
     .c = TR_F32,
     .trans_a = true,
     .accumulate = true,
     .fused.bias_grad = true},
    {.m = 128,
     .n = 32,
     .k = 64,
     .a = TR_BF16,
     .b = TR_BF16,
     .c = TR_F32,
     .trans_a = true,
     .accumulate = true,
     .fused = {.bias_grad = true, .bias_grad_of_a = true}},
};
enum { PRODUCTS = sizeof products / sizeof *products };

/* Equal descriptions share one operator, which is planned and run for warm-up once; its last user
 * releases it. */
static void test_shared(void **state) {
    (void)state;
    tr_device *device = library ? library : cuda;
    tr_op *first[PRODUCTS], *second[PRODUCTS];
    char text[256];
    for (int i = 0; i < PRODUCTS; i++) {
        const tr_op_desc desc = {.kind = TR_OP_MATMUL, .matmul = products[i]};
        must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &first[i]));
    }
#ifdef TRIREME_EMULATED
    const int64_t before = tr_emulated_products;
#endif
    for (int i = 0; i < PRODUCTS; i++) {
        tr_op_desc desc = {.kind = TR_OP_MATMUL, .matmul = products[i]};
        must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &second[i]));
        assert_ptr_equal(first[i], second[i]);
        desc.matmul.k *= 2;
        must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &second[i]));
        assert_ptr_not_equal(first[i], second[i]);
        tr_op_release(second[i]);
    }
#ifdef TRIREME_EMULATED
    assert_int_equal(tr_emulated_products, before + PRODUCTS); /* with the other k */
#endif
    /* The library computes a layer's products whole, with their fusions. */
    if (tr_device_fallbacks(device, text, sizeof text) != 0) fail_msg("%s", text);
    for (int i = 0; i < PRODUCTS; i++) {
        tr_op_release(first[i]);
        tr_op_release(first[i]);
    }
    assert_null(device->operators.newest);
}

/* Products leave compute units to kernels that wait, except in deterministic mode: their number
 * depends on the cut, which must not change a bit. Another context gives another operator. */
static void test_units(void **state) {
    (void)state;
#ifdef TRIREME_EMULATED
    const int left[] = {0, 4, 132};
    const int32_t planned[] = {0, 128, 0};
    const tr_op_desc desc = {.kind = TR_OP_MATMUL, .matmul = products[1]};
    for (int i = 0; i < 6; i++) {
        const bool deterministic = i >= 3;
        tr_op_context context = {.device = library, .deterministic = deterministic};
        tr_op *op, *all;
        must(tr_op_prepare(&context, &desc, &all));
        tr_op_context_leave(&context, left[i % 3]);
        tr_emulated_units = -1;
        must(tr_op_prepare(&context, &desc, &op)); /* a new operator runs once */
        const bool fewer = !deterministic && planned[i % 3];
        assert_int_equal(tr_emulated_units, fewer ? planned[i % 3] : -1);
        assert_true((op == all) == !fewer);
        tr_op_release(op);
        tr_op_release(all);
    }
#endif
}

/* A library's plan takes no more scratch than the context allows. */
static void test_workspace(void **state) {
    (void)state;
#ifdef TRIREME_EMULATED
    const tr_op_desc desc = {.kind = TR_OP_MATMUL, .matmul = products[1]};
    const size_t allowed[] = {0, 3000, 1500};
    const size_t taken[] = {4 << 20, 3000, 1500};
    for (int i = 0; i < 3; i++) {
        const tr_op_context context = {.device = library, .workspace = allowed[i]};
        tr_op *op;
        must(tr_op_prepare(&context, &desc, &op));
        assert_int_equal(tr_emulated_workspace, taken[i]);
        tr_op_release(op);
    }
#endif
}

/* A product takes the plan that a book names, unless the library does not propose it, or only with
 * more scratch than its first; a measured plan is one that the book has afterwards. */
static void test_plans(void **state) {
    (void)state;
#ifdef TRIREME_EMULATED
    for (size_t i = 0; i < 2; i++) {
        const tr_op_desc desc = {.kind = TR_OP_MATMUL, .matmul = products[i]};
        tr_op_context context = {.device = library, .choice = TR_OP_MEASURED};
        tr_plan_names names = {0};
        tr_op *first, *op;
        char key[TR_PLAN_KEY];
        tr_plan_key(&context, &desc, key, sizeof key);
        must(tr_op_prepare(&(tr_op_context){.device = library}, &desc, &first));
        must(first->plans->list(first, &names));
        assert_int_equal(names.count, 3);
        assert_string_equal(names.name[0], first->plan);
        must(tr_plan_book_create(&context.book));
        const int64_t before = tr_emulated_products;
        must(tr_op_prepare(&context, &desc, &op));
        assert_true(tr_emulated_products > before);
        assert_string_equal(tr_plan_book_find(context.book, key), op->plan);
        assert_string_not_equal(names.name[2], op->plan);
        tr_op_release(op);
        tr_plan_book_destroy(context.book);
        context.choice = TR_OP_RECORDED;
        for (int k = 0; k < 4; k++) {
            must(tr_plan_book_create(&context.book));
            must(tr_plan_book_add(context.book, key, k < 3 ? names.name[k] : "1.2.3"));
            must(tr_op_prepare(&context, &desc, &op));
            assert_string_equal(op->plan, names.name[k < 2 ? k : 0]);
            assert_int_equal(op->scratch_bytes, first->scratch_bytes);
            assert_int_equal(tr_plan_book_refused(context.book), k >= 2);
            tr_op_release(op);
            tr_plan_book_destroy(context.book);
        }
        tr_op_release(first);
    }
#endif
}

/* Operators that run without their library are counted once for each layer that uses them, and
 * named. */
static void test_fallbacks(void **state) {
    (void)state;
    tr_device *device = library ? library : cuda;
    tr_op_desc parts = {.kind = TR_OP_MATMUL, .matmul = products[1]};
    parts.matmul.a = parts.matmul.b = parts.matmul.c = TR_F32;
    tr_op_desc own = {.kind = TR_OP_MATMUL, .matmul = {.m = 3, .n = 5, .k = 7, .c = TR_BF16}};
    tr_op *op[3];
    char text[256], little[12];
    must(tr_op_prepare(&(tr_op_context){.device = device}, &parts, &op[0]));
    must(tr_op_prepare(&(tr_op_context){.device = device}, &parts, &op[1]));
    must(tr_op_prepare(&(tr_op_context){.device = device}, &own, &op[2]));
    assert_int_equal(tr_device_fallbacks(device, text, sizeof text), 3);
    assert_string_equal(text, "1 x matmul 3x5x7 f32 in the own kernel, "
                              "2 x matmul 64x128x32 f32 with activation in parts");
    assert_int_equal(tr_device_fallbacks(device, little, sizeof little), 3);
    assert_string_equal(little, "1 x matm...");
    for (int i = 0; i < 3; i++) tr_op_release(op[i]);
    assert_int_equal(tr_device_fallbacks(device, text, sizeof text), 0);
    assert_string_equal(text, "");
    /* A device without libraries counts no fallbacks. */
    must(tr_op_prepare(&(tr_op_context){.device = ref}, &parts, &op[0]));
    assert_int_equal(tr_device_fallbacks(ref, text, sizeof text), 0);
    tr_op_release(op[0]);
}

static int open_devices(void) {
    const tr_device_options options = {.threads = 1};
    tr_status status = tr_device_open("cuda:0", &options, &cuda);
    if (status == TR_ERR_DEVICE) {
        printf("skipped: %s\n", tr_error_message());
        return 77;
    }
    if (status == TR_OK) status = tr_op_open_ref(&ref);
#ifdef TRIREME_EMULATED
    if (status == TR_OK) status = tr_device_open("cuda:1", &options, &backwards);
    if (status == TR_OK) status = tr_device_open("cuda:2", &options, &unaligned);
    const tr_device_options several = {.threads = 1, .ranks = 2};
    if (status == TR_OK) status = tr_device_open("cuda:3", &several, &library);
#endif
    if (status != TR_OK) printf("%s\n", tr_error_message());
    return status == TR_OK ? 0 : 1;
}

static const struct {
    const char *name;
    void (*list)(tr_op_case_list *l);
    bool draws; /* the emulated device runs the cases that the commit draws */
} sets[] = {
    {"test_models", tr_op_list_models, false}, {"test_table", tr_op_list_table, false},
    {"test_large", tr_op_list_large, true},    {"test_ways", tr_op_list_ways, false},
    {"test_random", tr_op_list_random, true},  {"test_products", tr_op_list_products, true},
};

/* Runs the listed cases, then the other tests; returns the number of failures. cmocka passes over
 * entries without a name. */
static int run_groups(void) {
    static struct CMUnitTest listed_tests[TR_OP_LISTED];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),  cmocka_unit_test(test_positions),
        cmocka_unit_test(test_shared), cmocka_unit_test(test_fallbacks),
        cmocka_unit_test(test_units),  cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_plans),
    };
    int drawn = 0;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        list.set = sets[i].name;
        list.random = seed;
        int k = list.count;
        sets[i].list(&list);
        for (; k < list.count; k++)
            if (!backwards || !sets[i].draws || tr_test_drawn((uint64_t)k))
                listed_tests[drawn++] = (struct CMUnitTest){.name = list.op[k].name,
                                                            .test_func = check_listed,
                                                            .initial_state = &list.op[k]};
    }
    const int failed = cmocka_run_group_tests(listed_tests, NULL, NULL) +
                       cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d of %d cases, or other tests, failed\n", failed, drawn);
    return failed;
}

int main(void) {
    const char *kernels = getenv("TRIREME_TEST_KERNELS"), *only = getenv("TRIREME_TEST_ONLY");
    char pattern[64];
    own_kernels = kernels && strcmp(kernels, "own") == 0;
    snprintf(pattern, sizeof pattern, "%s*", only ? only : "");
    cmocka_set_test_filter(pattern);
    seed = tr_test_seed(1);
    int code = open_devices();
    if (code == 0) code = run_groups() ? 1 : 0;
    tr_device *all[] = {ref, cuda, backwards, unaligned, library};
    for (int i = 0; i < 5; i++) tr_device_close(all[i]);
    return code;
}
