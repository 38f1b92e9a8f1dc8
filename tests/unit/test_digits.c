/* Tests the reading of numbers within a text: where they end, and what is none. */
#include "base/digits.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void decimal_numbers_are_read_and_others_left(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double number;
        int bytes; /* 0: none */
    } cases[] = {
        {"12", 12, 2},   {"-1.5e3,", -1500, 6},  {".5", 0.5, 2}, {"+5.", 5, 3},  {"1e", 1, 1},
        {"0.0x1", 0, 3}, {"1e400", INFINITY, 5}, {"", 0, 0},     {"0x10", 0, 0}, {"-0X1p3", 0, 0},
        {"inf", 0, 0},   {"-nan", 0, 0},         {" 1", 0, 0},   {"--1", 0, 0},  {".", 0, 0},
        {"e5", 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *at = cases[i].text;
        double number = 0;
        assert_int_equal(tr_number_read(&at, &number), cases[i].bytes > 0);
        assert_true(number == cases[i].number && at == cases[i].text + cases[i].bytes);
        assert_int_equal(tr_number_is(cases[i].text, &number),
                         cases[i].bytes > 0 && cases[i].bytes == (int)strlen(cases[i].text));
    }
}

static void whole_numbers_are_read_up_to_the_largest(void **state) {
    (void)state;
    const char *const text = "18446744073709551617", *at = text;
    int64_t n = -1;
    assert_false(tr_digits_read(&at, INT64_MAX, &n));
    assert_ptr_equal(at, text);
    at = text + 17;
    assert_false(tr_digits_read(&at, 616, &n));
    assert_true(tr_digits_read(&at, 617, &n) && n == 617 && !*at);
    assert_false(tr_digits_read(&at, 617, &n));
}

static void units_are_exact_words(void **state) {
    (void)state;
    assert_int_equal(tr_digits_unit(""), 1);
    assert_int_equal(tr_digits_unit("kB"), 1000);
    assert_int_equal(tr_digits_unit("TiB"), INT64_C(1) << 40);
    assert_int_equal(tr_digits_unit("KB"), 0);
    assert_int_equal(tr_digits_unit("GBs"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decimal_numbers_are_read_and_others_left),
        cmocka_unit_test(whole_numbers_are_read_up_to_the_largest),
        cmocka_unit_test(units_are_exact_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
