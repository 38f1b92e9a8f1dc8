/* What the cuda device asks of a column-major library is the product that op.h describes: the
 * layout is carried out on the host by a plain column-major product and compared with ref, for
 * every matmul of the table and for random ones. */
#include "base/memory.h"
#include "device/cuda/blas_layout.h"
#include "support/op_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t seed;
static tr_device *ref;

/* Element of op(x) as a column-major library reads it. */
static double element(const tr_op_data *data, const tr_blas_matrix *x, int64_t row,
                      int64_t column) {
    int64_t r = x->transposed ? column : row, c = x->transposed ? row : column;
    assert_true(r < x->rows && c < x->columns && x->rows <= x->ld);
    return tr_element(data->memory[x->tensor], x->dtype, c * x->ld + r);
}

/* GELU and its derivative in the library's tanh form, in double precision. */
static double gelu_of(double x) {
    return x / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
}
static double gelu_slope(double x) {
    double s = 1 / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
    return s + x * s * (1 - s) * 1.5957691216057308 * (1 + 3 * 0.044715 * x * x);
}

/* What the epilogue makes of one element of the product. */
static double epilogue_of(tr_op_data *data, const tr_blas_layout *l, int64_t row, int64_t column,
                          double sum) {
    void *aux = data->memory[TR_MATMUL_AUX];
    int64_t at = column * l->aux_ld + row;
    switch (l->epilogue) {
    case TR_BLAS_GELU_AUX_BIAS:
    case TR_BLAS_BIAS: sum += tr_element(data->memory[TR_MATMUL_BIAS], l->vector, row); break;
    default: break;
    }
    switch (l->epilogue) {
    case TR_BLAS_GELU_AUX:
    case TR_BLAS_GELU_AUX_BIAS:
        assert_true(l->aux_ld >= l->result.rows);
        tr_element_set(aux, l->result.dtype, at, sum);
        return gelu_of(sum); /* not of what is stored */
    case TR_BLAS_DGELU: return sum * gelu_slope(tr_element(aux, l->result.dtype, at));
    default: return sum;
    }
}

/* The vector that BGRAD_FIRST sets, added to the bias gradient as the cuda device does. */
static void add_bias_gradient(tr_op_data *data, const tr_blas_layout *l, int64_t inner) {
    assert_int_equal(l->vector, TR_F32);
    for (int64_t row = 0; row < l->result.rows; row++) {
        double sum = 0;
        for (int64_t i = 0; i < inner; i++) sum += element(data, &l->first, row, i);
        void *to = data->memory[TR_MATMUL_DBIAS];
        tr_element_set(to, TR_F32, row, tr_element(to, TR_F32, row) + sum);
    }
}

/* The column-major library: result (+)= op(first) op(second), with its epilogue. */
static void column_major_product(tr_op_data *data) {
    const tr_matmul_desc *d = &data->desc.matmul;
    const tr_blas_layout l = tr_blas_layout_of(d);
    int64_t inner = l.first.transposed ? l.first.rows : l.first.columns;
    assert_int_equal(inner, l.second.transposed ? l.second.columns : l.second.rows);
    assert_int_equal(l.result.rows, l.first.transposed ? l.first.columns : l.first.rows);
    assert_int_equal(l.result.columns, l.second.transposed ? l.second.rows : l.second.columns);
    void *c = data->memory[l.result.tensor];
    for (int64_t column = 0; column < l.result.columns; column++)
        for (int64_t row = 0; row < l.result.rows; row++) {
            int64_t at = column * l.result.ld + row;
            double sum = d->accumulate ? tr_element(c, l.result.dtype, at) : 0;
            for (int64_t i = 0; i < inner; i++)
                sum += element(data, &l.first, row, i) * element(data, &l.second, i, column);
            tr_element_set(c, l.result.dtype, at, epilogue_of(data, &l, row, column, sum));
        }
    if (l.epilogue == TR_BLAS_BGRAD_FIRST) add_bias_gradient(data, &l, inner);
}

static void check_case(const tr_op_case *c) {
    for (int bf16 = 0; bf16 < 2; bf16++) {
        tr_op_check check;
        tr_op_data got;
        tr_op_check_open(c, bf16 ? TR_BF16 : TR_F32, seed, ref, &check);
        must(tr_op_data_clone(&check.start, &got));
        column_major_product(&got);
        tr_op_check_near(&check, &got, "the library's layout");
        tr_op_data_free(&got);
        tr_op_check_close(&check);
    }
}

static void test_table(void **state) {
    (void)state;
    int products = 0;
    for (size_t i = 0; i < tr_op_case_count; i++) {
        if (tr_op_cases[i].desc.kind != TR_OP_MATMUL) continue;
        check_case(&tr_op_cases[i]);
        products++;
    }
    assert_true(products > 0);
}

static uint64_t random_state;
static int64_t up_to(int64_t n) {
    return tr_up_to(&random_state, n);
}

static void test_random(void **state) {
    (void)state;
    random_state = seed;
    for (int i = 0; i < 100; i++) {
        tr_op_desc m = {.kind = TR_OP_MATMUL};
        m.matmul = tr_random_matmul(&random_state, 20, 20, 20);
        tr_matmul_desc e = m.matmul; /* with an epilogue that its other fields allow */
        e.epilogue = (tr_epilogue)up_to(3);
        if (e.epilogue != TR_EPILOGUE_BIAS_GRAD) e.accumulate = false, e.ldc = 0;
        else e.trans_b = false, e.ldb = 0;
        if (e.epilogue != TR_EPILOGUE_GELU) e.bias = false;
        check_case(&(tr_op_case){m, up_to(3) == 1 ? TR_CASE_F32_OUT : 0});
        m.matmul = e;
        check_case(&(tr_op_case){m, e.epilogue == TR_EPILOGUE_BIAS_GRAD ? TR_CASE_F32_OUT : 0});
    }
}

/* Everything that layers/ asks for goes to the library; what it does not document, to the kernel.
 */
static void test_types(void **state) {
    (void)state;
    const tr_dtype f = TR_F32, h = TR_BF16;
    assert_true(tr_blas_has(&(tr_matmul_desc){.a = f, .b = f, .c = f, .bias = true}));
    assert_true(tr_blas_has(&(tr_matmul_desc){.a = h, .b = h, .c = h, .bias = true}));
    assert_true(tr_blas_has(&(tr_matmul_desc){.a = h, .b = h, .c = f, .accumulate = true}));
    assert_false(tr_blas_has(&(tr_matmul_desc){.a = h, .b = h, .c = f, .bias = true}));
    const tr_epilogue gelu = TR_EPILOGUE_GELU, sums = TR_EPILOGUE_BIAS_GRAD;
    assert_true(tr_blas_has(
        &(tr_matmul_desc){.n = 16, .a = h, .b = h, .c = h, .bias = true, .epilogue = gelu}));
    assert_false(tr_blas_has(&(tr_matmul_desc){.n = 12, .a = h, .b = h, .c = h, .epilogue = gelu}));
    assert_true(tr_blas_has(
        &(tr_matmul_desc){.n = 5, .a = h, .b = h, .c = f, .accumulate = true, .epilogue = sums}));
    assert_false(tr_blas_has(&(tr_matmul_desc){.n = 5, .a = h, .b = h, .c = h, .epilogue = sums}));
    assert_false(tr_blas_has(&(tr_matmul_desc){.a = f, .b = h, .c = f}));
    assert_false(tr_blas_has(&(tr_matmul_desc){.a = f, .b = f, .c = h}));
}

static int setup(void **state) {
    (void)state;
    return tr_op_open_ref(&ref);
}

static int teardown(void **state) {
    (void)state;
    tr_device_close(ref);
    return 0;
}

int main(void) {
    seed = tr_test_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_types),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
