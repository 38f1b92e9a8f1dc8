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
#include "bench/gpt2_products.h"
#include "device/cuda/blas_layout.h"
#include "device/device_impl.h"
#include "device/op_table.h"
#include "device/plan_book.h"
#include "support/op_check.h"

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

/* The listed cases; a test's state is one of them. */
typedef struct listed {
    tr_op_case op;
    tr_dtype storage;
    char name[256]; /* "test_SET: the case" */
} listed;

enum { MOST = 4096 };
static listed every_case[MOST];
static int case_count;
static const char *set; /* the name of the set that is listed */

/* On a GPU, cuBLASLt 13.1 rounds a narrow product before it adds C, and, where rows do not begin on
 * 16 bytes, before it adds a bias (seen on an H100). The emulated one rounds once. */
static void allow_rounding(const tr_matmul_desc *d, tr_op_tensor *t) {
#ifndef TRIREME_EMULATED
    const tr_blas_layout l = tr_blas_layout_of(d);
    const bool aligned = (l.first.ld | l.second.ld | l.result.ld) % 8 == 0;
    if (d->c == TR_F32 || d->c == TR_F64 || !(d->accumulate || (d->fused.bias && !aligned))) return;
    t[TR_MATMUL_C].inner = t[TR_MATMUL_AUX].inner = tr_dtype_eps(d->c);
#else
    (void)d;
    (void)t;
#endif
}

static void check_listed(void **state) {
    const listed *l = *state;
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

/* Lists a case in one storage type, and the one that adds to gradients. */
static void list_storage(const tr_op_case *c, tr_dtype storage) {
    if (case_count == MOST) {
        printf("more than %d cases\n", MOST);
        exit(1);
    }
    listed *l = &every_case[case_count++];
    *l = (listed){.op = *c, .storage = storage};
    const int begin = snprintf(l->name, sizeof l->name, "%s: ", set);
    tr_op_case_describe(c, storage, l->name + begin, sizeof l->name - (size_t)begin);
    tr_op_case adding;
    if (tr_op_case_adding(c, &adding)) list_storage(&adding, storage);
}

static void list_case(const tr_op_case *c) {
    for (int s = 0; s < TR_OP_STORAGES; s++) list_storage(c, tr_op_storages[s]);
    if (tr_op_row_of(c->desc.kind)->fp64) list_storage(c, TR_F64);
}

/* The operators of GPT-2 124M in BF16, with fewer rows, because ref is slow, and a part of the
 * head's columns. The emulation, which runs on the host, has even fewer. */
#ifdef TRIREME_EMULATED
enum { ROWS = 24, WIDTH = 64, SEQ = 72, VOCAB = 192 };
#else
enum { ROWS = 128, WIDTH = 768, SEQ = 1024, VOCAB = 5632 };
#endif

static void list_models(void) {
    const tr_op_desc list[] = {
        {.kind = TR_OP_ATTENTION,
         .attention = {.batch = 1,
                       .seq = SEQ,
                       .heads = 2,
                       .kv_heads = 2,
                       .head_size = 64,
                       .dtype = TR_BF16}},
        {.kind = TR_OP_ATTENTION_DGRAD,
         .attention = {.batch = 1,
                       .seq = SEQ,
                       .heads = 2,
                       .kv_heads = 2,
                       .head_size = 64,
                       .dtype = TR_BF16}},
        {.kind = TR_OP_ATTENTION,
         .attention = {.batch = 1,
                       .seq = SEQ,
                       .heads = 4,
                       .kv_heads = 1,
                       .head_size = 128,
                       .dtype = TR_BF16}},
        {.kind = TR_OP_ATTENTION_DGRAD,
         .attention = {.batch = 1,
                       .seq = SEQ,
                       .heads = 4,
                       .kv_heads = 1,
                       .head_size = 128,
                       .dtype = TR_BF16}},
        {.kind = TR_OP_LAYERNORM, .layernorm = {ROWS, WIDTH, 1e-5f, TR_BF16}},
        {.kind = TR_OP_LAYERNORM_DGRAD, .layernorm = {ROWS, WIDTH, 1e-5f, TR_BF16}},
        {.kind = TR_OP_LAYERNORM_WGRAD, .layernorm = {ROWS, WIDTH, 1e-5f, TR_BF16}},
        {.kind = TR_OP_DROPOUT_ADD, .dropout = {ROWS, WIDTH, ROWS, 0, 0.1f, 7, TR_BF16}},
        {.kind = TR_OP_DROPOUT_DGRAD, .dropout = {ROWS, WIDTH, ROWS, 0, 0.1f, 7, TR_BF16}},
        {.kind = TR_OP_ADD_NORM,
         .add_norm = {{ROWS, WIDTH, ROWS, 0, 0.1f, 7, TR_BF16}, 1e-5f, false}},
        {.kind = TR_OP_ADD_NORM, .add_norm = {{ROWS, WIDTH, ROWS, 0, 0, 7, TR_BF16}, 1e-5f, true}},
        {.kind = TR_OP_EMBED, .embed = {.rows = ROWS, .width = WIDTH, .vocab = VOCAB}},
        {.kind = TR_OP_EMBED_WGRAD, .embed = {.rows = ROWS, .width = WIDTH, .vocab = VOCAB}},
        {.kind = TR_OP_POSITION, .embed = {.rows = ROWS, .width = WIDTH, .seq = ROWS}},
        {.kind = TR_OP_POSITION_WGRAD, .embed = {.rows = ROWS, .width = WIDTH, .seq = ROWS}},
        {.kind = TR_OP_XENT_MAX, .xent = {.rows = ROWS, .vocab = VOCAB}},
        {.kind = TR_OP_XENT_SUM, .xent = {.rows = ROWS, .vocab = VOCAB}},
        {.kind = TR_OP_XENT_LOSS, .xent = {.rows = ROWS, .vocab = VOCAB}},
        {.kind = TR_OP_XENT_DGRAD, .xent = {.rows = ROWS, .vocab = VOCAB}},
        {.kind = TR_OP_XENT, .xent = {.rows = ROWS, .vocab = VOCAB}},
        {.kind = TR_OP_SUMSQ, .sumsq = {.count = 4 * WIDTH * WIDTH}},
        {.kind = TR_OP_UPDATE,
         .update = {.count = 4 * WIDTH * WIDTH,
                    .beta1 = 0.9f,
                    .beta2 = 0.95f,
                    .eps = 1e-8f,
                    .weight_decay = 0.1f,
                    .dtype = TR_BF16,
                    .lr_scale = 1}},
    };
    bench_product products[BENCH_PRODUCTS];
    bench_products(ROWS, WIDTH, VOCAB, TR_BF16, products);
    for (int i = 0; i < BENCH_PRODUCTS; i++) {
        const unsigned out = products[i].desc.matmul.c == TR_F32 ? TR_CASE_F32_OUT : 0;
        list_storage(&(tr_op_case){products[i].desc, out}, TR_BF16);
    }
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        list_storage(&(tr_op_case){list[i], 0}, TR_BF16);
}

static void list_table(void) {
    for (size_t i = 0; i < tr_op_case_count; i++) list_case(&tr_op_cases[i]);
}

static void list_large(void) {
    for (size_t i = 0; i < tr_op_large_case_count; i++) list_case(&tr_op_large_cases[i]);
}

/* Shapes at which kernels take another path: chunks of more than 128 rows, several packs a thread,
 * a sort through global memory, more blocks of SUMSQ than are added at once, the same token in
 * every row. */
static void list_ways(void) {
    const tr_op_case cases[] = {
        {{.kind = TR_OP_BIAS_GRAD, .rows = {.rows = 66000, .width = 3}}, 0},
        {{.kind = TR_OP_BIAS_GRAD, .rows = {.rows = 140, .width = 520}}, 0},
        {{.kind = TR_OP_LAYERNORM_WGRAD, .layernorm = {.rows = 140, .width = 520, .eps = 1e-5f}},
         0},
        {{.kind = TR_OP_EMBED_WGRAD, .embed = {.rows = 4099, .width = 8, .vocab = 40}}, 0},
        {{.kind = TR_OP_EMBED_WGRAD, .embed = {.rows = 2049, .width = 3, .vocab = 1}}, 0},
        {{.kind = TR_OP_EMBED_WGRAD, .embed = {.rows = 70, .width = 264, .vocab = 1000}}, 0},
        {{.kind = TR_OP_XENT_MAX, .xent = {.rows = 3, .vocab = 9005}}, 0},
        {{.kind = TR_OP_XENT_SUM, .xent = {.rows = 3, .vocab = 9005}}, 0},
        {{.kind = TR_OP_XENT_DGRAD, .xent = {.rows = 3, .vocab = 9005}}, 0},
        {{.kind = TR_OP_XENT_LOSS, .xent = {.rows = 1100, .vocab = 5}}, 0},
        {{.kind = TR_OP_XENT, .xent = {.rows = 4, .vocab = 9005}}, 0},
        {{.kind = TR_OP_XENT, .xent = {.rows = 2, .vocab = 60001}}, 0},
        {{.kind = TR_OP_SUMSQ, .sumsq = {.count = 4096 * 1025 + 13}}, 0},
        {{.kind = TR_OP_DROPOUT_ADD,
          .dropout = {.rows = 9, .width = 520, .seq = 4, .p = 0.3f, .site = 3}},
         0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) list_case(&cases[i]);
}

static uint64_t random_state;
static int64_t up_to(int64_t n) {
    return tr_up_to(&random_state, n);
}

static void list_kinds(tr_op_desc desc, tr_op_kind first, tr_op_kind last) {
    for (tr_op_kind kind = first; kind <= last; kind++) {
        desc.kind = kind;
        list_case(&(tr_op_case){desc, 0});
    }
}

/* Fewer where they take long: on the host, and there with the address sanitizer six times as long.
 */
#if defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 2 };
#elif defined(TRIREME_EMULATED)
enum { ROUNDS = 4 };
#else
enum { ROUNDS = 8 };
#endif

static void list_random(void) {
    random_state = seed;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t rows = up_to(150), width = up_to(2) == 1 ? up_to(400) : 8 * up_to(50);
        list_kinds((tr_op_desc){.rows = {.rows = rows, .width = width}}, TR_OP_BIAS_GRAD,
                   TR_OP_BIAS_GRAD);
        const tr_activation activation = (tr_activation)(up_to(TR_ACTIVATION_COUNT) - 1);
        list_kinds((tr_op_desc){.rows = {rows, width, TR_F32, TR_F32, activation}},
                   TR_OP_ACTIVATION, TR_OP_ACTIVATION_DGRAD);
        list_kinds((tr_op_desc){.rows = {.rows = rows, .width = width}}, TR_OP_ADD, TR_OP_ADD_ROWS);
        list_kinds((tr_op_desc){.layernorm = {rows, width + 1, 1e-5f, TR_F32}}, TR_OP_LAYERNORM,
                   TR_OP_LAYERNORM_WGRAD);
        list_kinds((tr_op_desc){.rmsnorm = tr_random_rmsnorm(&random_state)}, TR_OP_RMSNORM,
                   TR_OP_RMSNORM_WGRAD);
        list_kinds((tr_op_desc){.glu = {rows, width, activation, TR_F32}}, TR_OP_GLU,
                   TR_OP_GLU_DGRAD);
        list_kinds((tr_op_desc){.rope = tr_random_rope(&random_state)}, TR_OP_ROPE, TR_OP_ROPE);
        tr_norm_rope_desc norm_rope = {.rope = tr_random_rope(&random_state), .eps = 1e-6};
        norm_rope.rope.inverse = false;
        list_kinds((tr_op_desc){.norm_rope = norm_rope}, TR_OP_NORM_ROPE, TR_OP_NORM_ROPE_DGRAD);
        tr_attention_desc attention = tr_random_attention(&random_state);
        list_kinds((tr_op_desc){.attention = attention}, TR_OP_ATTENTION, TR_OP_ATTENTION_DGRAD);
        attention.documents = false;
        attention.decode = (attention.seq + 1) / 2;
        list_kinds((tr_op_desc){.attention = attention}, TR_OP_ATTENTION_DECODE,
                   TR_OP_ATTENTION_DECODE);
        /* On a GPU, cuDNN computes this in BF16. */
        attention = (tr_attention_desc){.batch = 1,
                                        .seq = 63 + up_to(70),
                                        .heads = 2,
                                        .kv_heads = up_to(2),
                                        .head_size = 32 + 32 * up_to(3)};
        list_kinds((tr_op_desc){.attention = attention}, TR_OP_ATTENTION, TR_OP_ATTENTION_DGRAD);
        list_kinds((tr_op_desc){.embed = {.rows = rows,
                                          .width = width,
                                          .vocab_begin = up_to(9) - 1,
                                          .vocab = up_to(60)}},
                   TR_OP_EMBED, TR_OP_EMBED_WGRAD);
        int64_t seq = up_to(30);
        list_kinds((tr_op_desc){.embed = {.rows = seq * up_to(4),
                                          .width = width,
                                          .seq = seq,
                                          .documents = up_to(2) == 1}},
                   TR_OP_POSITION, TR_OP_POSITION_WGRAD);
        const int64_t first = up_to(40) - 1;
        list_kinds((tr_op_desc){.dropout = {rows, width, seq, first, 0.25f, 7, TR_F32}},
                   TR_OP_DROPOUT_ADD, TR_OP_DROPOUT_DGRAD);
        const tr_dropout_desc add = {rows, width + 7, seq, first, 0.25f, 7, TR_F32};
        list_kinds((tr_op_desc){.add_norm = {add, 1e-5, i % 2}}, TR_OP_ADD_NORM, TR_OP_ADD_NORM);
        list_kinds((tr_op_desc){.xent = {.rows = rows / 8 + 1,
                                         .vocab = 8 * width,
                                         .ld = up_to(2) == 1 ? 0 : 8 * width + up_to(70)}},
                   TR_OP_XENT_MAX, TR_OP_XENT);
        list_kinds((tr_op_desc){.update = {.count = up_to(5000),
                                           .beta1 = 0.9f,
                                           .beta2 = 0.95f,
                                           .eps = 1e-8f,
                                           .weight_decay = 0.1f,
                                           .dtype = TR_F32,
                                           .lr_scale = 2}},
                   TR_OP_UPDATE, TR_OP_UPDATE);
    }
}

/* Sets the other fields of a product to values that one of the fusions allows. */
static void fuse(tr_matmul_desc *d) {
    const int64_t which = up_to(5);
    d->fused = (tr_fusion){.bias = d->fused.bias && (which == 1 || which == 3),
                           .activate = which == 1,
                           .activate_grad = which == 2,
                           .residual = which == 3,
                           .bias_grad = which >= 4,
                           .bias_grad_of_a = which == 5};
    if (which < 3) d->fused.activation = (tr_activation)(up_to(TR_ACTIVATION_COUNT) - 1);
    if (which == 4) d->trans_b = false, d->ldb = 0;
    else if (which == 5) d->trans_a = true, d->lda = 0;
    else d->accumulate = false, d->ldc = 0, d->n *= 8, d->ldb *= 8;
}

/* Products with random leading dimensions and fusions. */
static void list_products(void) {
    random_state = seed;
    for (int i = 0; i < 12 * ROUNDS; i++) {
        tr_op_desc m = {.kind = TR_OP_MATMUL};
        m.matmul = tr_random_matmul(&random_state, 20, 20, 20);
        list_case(&(tr_op_case){m, up_to(3) == 1 ? TR_CASE_F32_OUT : 0});
        fuse(&m.matmul);
        list_case(&(tr_op_case){m, m.matmul.fused.bias_grad ? TR_CASE_F32_OUT : 0});
    }
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

/* Products of a layer as layers/ describes them, in BF16: forward, gradients of input and weight.
 */
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
    assert_null(device->operators);
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
    void (*list)(void);
} sets[] = {
    {"test_models", list_models}, {"test_table", list_table},   {"test_large", list_large},
    {"test_ways", list_ways},     {"test_random", list_random}, {"test_products", list_products},
};

/* Runs the listed cases, then the other tests; returns the number of failures. cmocka passes over
 * entries without a name. */
static int run_groups(void) {
    static struct CMUnitTest listed_tests[MOST];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),  cmocka_unit_test(test_positions),
        cmocka_unit_test(test_shared), cmocka_unit_test(test_fallbacks),
        cmocka_unit_test(test_units),  cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_plans),
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        set = sets[i].name;
        sets[i].list();
    }
    for (int i = 0; i < case_count; i++)
        listed_tests[i] = (struct CMUnitTest){
            .name = every_case[i].name, .test_func = check_listed, .initial_state = &every_case[i]};
    const int failed = cmocka_run_group_tests(listed_tests, NULL, NULL) +
                       cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d of %d cases, or other tests, failed\n", failed, case_count);
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
