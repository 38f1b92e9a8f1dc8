/* Tests the search for operands that are not finite: what is read and what is written, between the
 * rows of a matrix, in each type. */
#include "device/finite.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 3, WIDTH = 4, PITCH = 6 };

static tr_device *device;
static tr_op *add;

static const char *found(const tr_op_args *args, bool written) {
    const char *name;
    assert_int_equal(
        tr_op_find_not_finite(add, tr_device_compute(device), args, written, NULL, &name), TR_OK);
    return name;
}

/* A rows x width matrix with space between its rows. */
static tr_tensor spaced(const void *data, tr_dtype dtype) {
    return tr_tensor_narrow(tr_tensor_matrix(data, dtype, ROWS, PITCH), WIDTH);
}

static void reads_and_writes_are_told_apart(void **state) {
    (void)state;
    float a[ROWS * PITCH] = {0}, b[ROWS * PITCH] = {0}, y[ROWS * PITCH] = {0};
    tr_op_args args = {.t = {[TR_ADD_A] = spaced(a, TR_F32),
                             [TR_ADD_B] = spaced(b, TR_F32),
                             [TR_ADD_Y] = spaced(y, TR_F32)}};
    assert_null(found(&args, false));
    assert_null(found(&args, true));
    for (int i = 0; i < ROWS * PITCH; i++) {
        const bool inside = i % PITCH < WIDTH;
        b[i] = i % 2 ? NAN : -INFINITY;
        if (inside) assert_string_equal(found(&args, false), "b");
        else assert_null(found(&args, false));
        assert_null(found(&args, true));
        b[i] = 0;
        y[i] = INFINITY;
        assert_null(found(&args, false));
        if (inside) assert_string_equal(found(&args, true), "y");
        else assert_null(found(&args, true));
        y[i] = 0;
    }
    a[0] = b[0] = NAN;
    assert_string_equal(found(&args, false), "a");
}

static void each_type_and_absent_operands(void **state) {
    (void)state;
    uint16_t half[ROWS * PITCH] = {0};
    double wide[ROWS * PITCH] = {0};
    tr_op_args args = {
        .t = {[TR_ADD_A] = spaced(half, TR_BF16), [TR_ADD_B] = spaced(wide, TR_F64)}};
    assert_null(found(&args, false));
    half[PITCH + 1] = 0x7f80; /* infinity */
    assert_string_equal(found(&args, false), "a");
    half[PITCH + 1] = 0x7f7f; /* the largest number */
    wide[2 * PITCH + 3] = 1e300;
    assert_null(found(&args, false));
    wide[2 * PITCH + 3] = NAN;
    assert_string_equal(found(&args, false), "b");
    int32_t integers[ROWS * PITCH];
    memset(integers, 0xff, sizeof integers); /* NaN as FP32 */
    args.t[TR_ADD_B] = spaced(integers, TR_I32);
    assert_null(found(&args, false));
}

int main(void) {
    const tr_op_desc desc = {.kind = TR_OP_ADD,
                             .rows = {.rows = ROWS, .width = WIDTH, .dtype = TR_F32}};
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_and_writes_are_told_apart),
                                       cmocka_unit_test(each_type_and_absent_operands)};
    if (tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device) != TR_OK) return 1;
    if (tr_op_prepare(&(tr_op_context){.device = device}, &desc, &add) != TR_OK) return 1;
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    tr_op_release(add);
    tr_device_close(device);
    return failures;
}
