/* Tests the plans of operators: the book's text and faults, and how a device chooses by it.
 * Compares every plan that oneDNN offers here with ref. */
#include "base/memory.h"
#include "device/device_impl.h"
#include "device/op_table.h"
#include "device/plan_book.h"
#include "support/op_check.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static uint64_t seed;
static tr_device *ref, *cpu;

/* --- the book --------------------------------------------------------------------------------- */

static tr_plan_book *new_book(void) {
    tr_plan_book *book;
    must(tr_plan_book_create(&book));
    return book;
}

static void test_book(void **state) {
    (void)state;
    tr_plan_book *book = new_book(), *again = new_book();
    char *text, *same;
    must(tr_plan_book_add(book, "matmul m 2", "gemm:jit"));
    must(tr_plan_book_add(book, "matmul m 1", "brg:avx512_core"));
    must(tr_plan_book_add(book, "attention heads 3", "2:engine8"));
    assert_int_equal(tr_plan_book_add(book, "matmul m 1", "gemm:jit"), TR_ERR_INTERNAL);
    assert_string_equal(tr_plan_book_find(book, "matmul m 1"), "brg:avx512_core");
    assert_null(tr_plan_book_find(book, "matmul m"));
    assert_null(tr_plan_book_find(book, "zebra"));
    must(tr_plan_book_print(book, &text));
    assert_string_equal(text, "trireme plans 1\n"
                              "attention heads 3 = 2:engine8\n"
                              "matmul m 1 = brg:avx512_core\n"
                              "matmul m 2 = gemm:jit\n");
    must(tr_plan_book_read(again, text, strlen(text), "plans.txt"));
    assert_int_equal(tr_plan_book_count(again), 3);
    must(tr_plan_book_print(again, &same));
    assert_string_equal(text, same);
    free(text);
    free(same);
    tr_plan_book_destroy(again);
    tr_plan_book_destroy(book);
}

static void test_wanted(void **state) {
    (void)state;
    tr_plan_book *book = new_book();
    const char *key;
    for (int64_t k = 0; k < 40; k++) {
        char text[32];
        const tr_op_desc desc = {.kind = TR_OP_MATMUL, .matmul.k = k % 20};
        (void)snprintf(text, sizeof text, "matmul k %d", (int)desc.matmul.k);
        must(tr_plan_book_want(book, text, &desc));
    }
    for (int i = 0; i < 20; i++) {
        const tr_op_desc *desc = tr_plan_book_wanted(book, i, &key);
        assert_int_equal(desc->matmul.k, i);
        assert_int_equal(atoi(key + strlen("matmul k ")), i);
    }
    assert_null(tr_plan_book_wanted(book, 20, &key));
    assert_int_equal(tr_plan_book_count(book), 0);
    tr_plan_book_destroy(book);
}

static void refuse(const char *text, size_t length, const char *fault) {
    tr_plan_book *book = new_book();
    assert_int_equal(tr_plan_book_read(book, text, length, "runs/a/plans.txt"), TR_ERR_DATA);
    if (!strstr(tr_error_message(), fault))
        fail_msg("\"%s\" is not in \"%s\"", fault, tr_error_message());
    assert_non_null(strstr(tr_error_message(), "(restore the file, or remove it"));
    tr_plan_book_destroy(book);
}

static void test_faults(void **state) {
    (void)state;
    static const char *const wrong[][2] = {
        {"", "runs/a/plans.txt:1: the line does not end"},
        {"trireme plans 1", "plans.txt:1: the line does not end"},
        {"trireme plans 2\n", "plans.txt:1: it must be \"trireme plans 1\""},
        {"trireme plans 1\nmatmul m 1 = a\nmatmul m 2 = b", "plans.txt:3: the line does not end"},
        {"trireme plans 1\n\n", "plans.txt:2: it has no \" = \""},
        {"trireme plans 1\nmatmul m 1 a\n", "plans.txt:2: it has no \" = \""},
        {"trireme plans 1\nmatmul m 1 = a b\n", "plans.txt:2: a plan's name is one word"},
        {"trireme plans 1\nmatmul m 1 = \n", "plans.txt:2: a plan's name is one word"},
        {"trireme plans 1\nmatmull m 1 = a\n", "plans.txt:2: it does not begin with the name"},
        {"trireme plans 1\n = a\n", "plans.txt:2: it does not begin with the name"},
        {"trireme plans 1\nmatmul m 1 = a\nmatmul m 1 = b\n", "plans.txt:3: its description has"},
        {"trireme plans 1\nmatmul m\t1 = a\n", "plans.txt:2: it has a character"},
        {"trireme plans 1\r\n", "plans.txt:1: it has a character"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refuse(wrong[i][0], strlen(wrong[i][0]), wrong[i][1]);
    static const char zero[] = "trireme plans 1\nmatmul m 1 = \0\n";
    refuse(zero, sizeof zero - 1, "plans.txt:2: it has a character");
}

/* Long lines, keys and names, and random bytes in a valid text. */
static void test_hostile(void **state) {
    (void)state;
    static char text[1 << 14];
    for (int length = 1; length < 2000; length += 7) {
        (void)snprintf(text, sizeof text, "trireme plans 1\nmatmul %0*d = a\n", length, 1);
        if (length > TR_PLAN_KEY) refuse(text, strlen(text), "plans.txt:2: it");
        (void)snprintf(text, sizeof text, "trireme plans 1\nmatmul 1 = %0*d\n", length, 1);
        if (length > TR_PLAN_NAME) refuse(text, strlen(text), "plans.txt:2: it");
    }
    uint64_t random = seed;
    for (int round = 0; round < 3000; round++) {
        tr_plan_book *book = new_book();
        int length = snprintf(text, sizeof text,
                              "trireme plans 1\nmatmul m 1 = gemm:jit\nadd rows 2 = other\n");
        for (int64_t k = tr_up_to(&random, 4); k > 0; k--)
            text[tr_up_to(&random, length) - 1] = (char)tr_up_to(&random, 256);
        const tr_status status =
            tr_plan_book_read(book, text, (size_t)(tr_up_to(&random, length + 1) - 1), "plans.txt");
        assert_true(status == TR_OK || status == TR_ERR_DATA);
        tr_plan_book_destroy(book);
    }
}

/* Equal descriptions have the same text, different ones different texts. */
static void test_keys(void **state) {
    (void)state;
    tr_op_context context = {.device = cpu};
    char text[TR_PLAN_KEY], other[TR_PLAN_KEY];
    uint64_t random = seed;
    for (int i = 0; i < 3000; i++) {
        tr_op_desc a = {.kind = TR_OP_MATMUL, .matmul = tr_random_matmul(&random, 2, 2, 2)};
        tr_op_desc b = {.kind = TR_OP_MATMUL, .matmul = tr_random_matmul(&random, 2, 2, 2)};
        if (i % 2) {
            a.kind = b.kind = i % 4 == 1 ? TR_OP_ATTENTION : TR_OP_ATTENTION_DGRAD;
            a.attention = tr_random_attention(&random);
            b.attention = i % 8 < 4 ? a.attention : tr_random_attention(&random);
        }
        tr_plan_key(&context, &a, text, sizeof text);
        tr_plan_key(&context, &b, other, sizeof other);
        assert_int_equal(strcmp(text, other) == 0, tr_op_row_of(a.kind)->same(&a, &b));
    }
    const tr_op_desc add = {.kind = TR_OP_ADD, .rows = {.rows = 1, .width = 1}};
    tr_plan_key(&context, &add, text, sizeof text);
    assert_string_equal(text, "");
    const tr_op_desc product = {.kind = TR_OP_MATMUL, .matmul = {.m = 1, .n = 1, .k = 1}};
    tr_plan_key(&context, &product, text, sizeof text);
    context.compute_units = 128;
    tr_plan_key(&context, &product, other, sizeof other);
    assert_string_not_equal(text, other);
}

/* --- choosing --------------------------------------------------------------------------------- */

/* The plans of an invented library, and their times. */
typedef struct made_up {
    const char *name;
    int microseconds;
    size_t scratch;
} made_up;
static const made_up library[] = {
    {"slow", 4000, 1024}, {"fast", 1000, 512}, {"larger", 10, 2048}, {"refused", 0, 0}};
enum { LIBRARY = sizeof library / sizeof *library };
static int live;

/* Rows of all operands lie apart. */
static const tr_op_desc measured_desc = {
    .kind = TR_OP_MATMUL,
    .matmul = {.m = 2, .n = 3, .k = 4, .lda = 5000, .ldb = 6000, .ldc = 7000}};

/* Checks that the allocations of a measurement's operands reach to their last elements. */
static void check_room(const tr_op_args *args) {
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        const tr_tensor *t = &args->t[i];
        int64_t elements = 1;
        for (int d = 0; d < t->rank; d++) elements += (t->shape[d] - 1) * t->stride[d];
        if (t->rank)
            assert_true(malloc_usable_size(t->data) >= (size_t)elements * tr_dtype_size(t->dtype));
    }
}

static tr_status sleep_a_while(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    (void)stream;
    check_room(args);
    for (int i = 0; i < LIBRARY; i++)
        if (strcmp(op->plan, library[i].name) == 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000 * library[i].microseconds}, NULL);
    return TR_OK;
}

static void release_made_up(tr_op *op) {
    live--;
    free(op);
}

static tr_status list_made_up(const tr_op *op, tr_plan_names *names) {
    (void)op;
    for (int i = 0; i < LIBRARY; i++) tr_plan_names_add(names, library[i].name);
    return TR_OK;
}

static tr_status make_made_up(const tr_op *op, const char *name, tr_op **out) {
    for (int i = 0; i < LIBRARY; i++) {
        if (strcmp(library[i].name, name) != 0) continue;
        if (strcmp(name, "refused") == 0) return TR_FAIL(TR_ERR_DEVICE, "it was only listed");
        TR_TRY(tr_calloc(1, sizeof **out, out));
        **out = *op;
        live++;
        (*out)->scratch_bytes = library[i].scratch;
        (void)snprintf((*out)->plan, sizeof(*out)->plan, "%s", name);
    }
    return TR_OK;
}

/* Chooses among the invented plans, of which the first is proposed. */
static const char *choose(const tr_op_context *context) {
    static const tr_op_plans plans = {.list = list_made_up, .make = make_made_up};
    static char name[TR_PLAN_NAME];
    tr_op proposed = {.context = *context,
                      .desc = measured_desc,
                      .plans = &plans,
                      .run = sleep_a_while,
                      .release = release_made_up};
    tr_op *op;
    must(make_made_up(&proposed, "slow", &op));
    must(tr_op_choose_plan(&op));
    assert_int_equal(op->scratch_bytes, 1024);
    assert_int_equal(live, 1);
    (void)snprintf(name, sizeof name, "%s", op->plan);
    op->release(op);
    return name;
}

/* The fastest plan is taken, unless it needs more scratch than the proposed one, or the library
 * refuses it. */
static void test_choice(void **state) {
    (void)state;
    tr_plan_book *book = new_book();
    tr_op_context context = {.device = ref, .choice = TR_OP_MEASURED, .book = book};
    const char *key;
    char *text;
    context.deterministic = true;
    assert_string_equal(choose(&context), "slow");
    assert_int_equal(tr_plan_book_count(book), 0);
    context.deterministic = false;
    context.choice = TR_OP_RECORDED;
    assert_string_equal(choose(&context), "slow");
    assert_non_null(tr_plan_book_wanted(book, 0, &key));
    assert_null(tr_plan_book_wanted(book, 1, &key));
    context.choice = TR_OP_MEASURED;
    assert_string_equal(choose(&context), "fast");
    assert_int_equal(tr_plan_book_count(book), 1);
    context.choice = TR_OP_RECORDED;
    assert_string_equal(choose(&context), "fast");
    must(tr_plan_book_print(book, &text));
    assert_non_null(strstr(text, " = fast\n"));
    assert_int_equal(tr_plan_book_refused(book), 0);
    tr_plan_book_destroy(book);
    const char *const gone[] = {"larger", "refused", "of-another-version"};
    for (int i = 0; i < 3; i++) {
        context.book = new_book();
        must(tr_plan_book_want(context.book, "matmul", &(tr_op_desc){.kind = TR_OP_MATMUL}));
        char recorded[TR_PLAN_KEY + TR_PLAN_NAME], plain[TR_PLAN_KEY];
        tr_plan_key(&context, &measured_desc, plain, sizeof plain);
        (void)snprintf(recorded, sizeof recorded, "trireme plans 1\n%s = %s\n", plain, gone[i]);
        must(tr_plan_book_read(context.book, recorded, strlen(recorded), "plans.txt"));
        assert_string_equal(choose(&context), "slow");
        assert_int_equal(tr_plan_book_refused(context.book), 1);
        tr_plan_book_destroy(context.book);
    }
    free(text);
    assert_int_equal(live, 0);
}

/* --- oneDNN ----------------------------------------------------------------------------------- */

/* Products of a layer, and one of a few rows; before AVX-512 its A is copied. */
static tr_op_desc product(int i, tr_dtype dtype) {
    static const tr_matmul_desc d[] = {
        {.m = 64, .n = 96, .k = 128, .fused.bias = true},
        {.m = 64, .n = 128, .k = 96, .trans_b = true},
        {.m = 96, .n = 128, .k = 64, .trans_a = true, .accumulate = true},
        {.m = 64, .n = 96, .k = 128, .fused.residual = true},
        {.m = 7, .n = 5, .k = 300, .trans_a = true, .lda = 9, .ldc = 8},
    };
    if (i >= (int)(sizeof d / sizeof *d)) return (tr_op_desc){.kind = TR_OP_COUNT};
    tr_op_desc desc = {.kind = TR_OP_MATMUL, .matmul = d[i]};
    desc.matmul.a = desc.matmul.b = dtype;
    desc.matmul.c = desc.matmul.accumulate ? TR_F32 : dtype;
    return desc;
}

static tr_op_context recorded; /* in which prepare_recorded chooses */
static char taken[TR_PLAN_NAME];
static tr_op_prepare_fn prepare_proposed;

static tr_status prepare_recorded(const tr_op_context *context, const tr_op_desc *desc,
                                  tr_op **out) {
    TR_TRY(prepare_proposed(context, desc, out));
    (*out)->context = recorded;
    TR_TRY(tr_op_choose_plan(out));
    (*out)->context = *context;
    (void)snprintf(taken, sizeof taken, "%s", (*out)->plan);
    return TR_OK;
}

/* Compares a product with the plan of that name with ref. */
static void check_plan(const tr_op_desc *desc, const char *name) {
    const tr_op_case c = {.desc = *desc};
    tr_op_check check;
    tr_op_data got;
    char key[TR_PLAN_KEY];
    tr_device_ops ops = *cpu->ops;
    const tr_device_ops *all = cpu->ops;
    recorded = (tr_op_context){.device = cpu, .choice = TR_OP_RECORDED, .book = new_book()};
    tr_plan_key(&recorded, desc, key, sizeof key);
    must(tr_plan_book_add(recorded.book, key, name));
    tr_op_check_open(&c, desc->matmul.a, seed, ref, &check);
    prepare_proposed = ops.prepare[TR_OP_MATMUL];
    ops.prepare[TR_OP_MATMUL] = prepare_recorded;
    cpu->ops = &ops;
    tr_op_check_run(&check, cpu, &got);
    cpu->ops = all;
    assert_string_equal(taken, name);
    assert_int_equal(tr_plan_book_refused(recorded.book), 0);
    tr_op_data_free(&got);
    tr_op_check_close(&check);
    tr_plan_book_destroy(recorded.book);
}

/* Checks all plans of a product that need no more scratch than the proposed one; returns their
 * number. */
static int check_plans(const tr_op_desc *desc) {
    tr_op *op;
    tr_plan_names names = {0};
    int count = 0;
    must(tr_op_prepare(&(tr_op_context){.device = cpu}, desc, &op));
    if (op->plans) must(op->plans->list(op, &names));
    for (int i = 0; i < names.count; i++) {
        tr_op *other = NULL;
        must(op->plans->make(op, names.name[i], &other));
        const bool fits = other && other->scratch_bytes <= op->scratch_bytes;
        if (other) other->release(other);
        if (!fits) continue;
        check_plan(desc, names.name[i]);
        count++;
    }
    tr_op_release(op);
    return count;
}

static void test_every_plan(void **state) {
    (void)state;
    int products = 0, plans = 0;
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int i = 0; product(i, TR_F32).kind != TR_OP_COUNT; i++, products++) {
            const tr_op_desc desc = product(i, bf16 ? TR_BF16 : TR_F32);
            plans += check_plans(&desc);
        }
    if (plans <= products) printf("oneDNN has no second plan on this processor: skipped\n");
}

/* A measured plan is in the library's list, takes at most the proposed scratch, and is the one that
 * a book with the same text gives. Equal descriptions in one context share it. */
static void test_measured(void **state) {
    (void)state;
    tr_plan_book *book = new_book(), *again = new_book();
    char *text;
    tr_op *op[8], *shared, *proposed;
    int count = 0;
    const tr_op_context measured = {.device = cpu, .choice = TR_OP_MEASURED, .book = book};
    const size_t before = tr_device_peak(cpu, TR_MEMORY_DATA);
    for (; product(count, TR_F32).kind != TR_OP_COUNT; count++) {
        const tr_op_desc desc = product(count, TR_F32);
        must(tr_op_prepare(&measured, &desc, &op[count]));
        must(tr_op_prepare(&measured, &desc, &shared));
        must(tr_op_prepare(&(tr_op_context){.device = cpu}, &desc, &proposed));
        assert_ptr_equal(op[count], shared);
        assert_ptr_not_equal(op[count], proposed);
        assert_int_equal(op[count]->scratch_bytes, proposed->scratch_bytes);
        tr_op_release(shared);
        tr_op_release(proposed);
    }
    assert_int_equal(tr_device_peak(cpu, TR_MEMORY_DATA), before);
    must(tr_plan_book_print(book, &text));
    must(tr_plan_book_read(again, text, strlen(text), "plans.txt"));
    const tr_op_context read = {.device = cpu, .choice = TR_OP_RECORDED, .book = again};
    for (int i = 0; i < count; i++) {
        const tr_op_desc desc = product(i, TR_F32);
        char key[TR_PLAN_KEY];
        must(tr_op_prepare(&read, &desc, &shared));
        assert_string_equal(op[i]->plan, shared->plan);
        tr_plan_key(&read, &desc, key, sizeof key);
        if (op[i]->plan[0]) assert_string_equal(op[i]->plan, tr_plan_book_find(again, key));
        tr_op_release(shared);
        tr_op_release(op[i]);
    }
    const char *key;
    assert_null(tr_plan_book_wanted(again, 0, &key));
    assert_int_equal(tr_plan_book_refused(again), 0);
    free(text);
    tr_plan_book_destroy(again);
    tr_plan_book_destroy(book);
}

static int open_devices(void **state) {
    (void)state;
    seed = tr_test_seed(1);
    must(tr_op_open_ref(&ref));
    must(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &cpu));
    return 0;
}

static int close_devices(void **state) {
    (void)state;
    tr_device_close(cpu);
    tr_device_close(ref);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_book),     cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_faults),   cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_keys),     cmocka_unit_test(test_choice),
        cmocka_unit_test(test_measured), cmocka_unit_test(test_every_plan)};
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
