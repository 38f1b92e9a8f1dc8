/* Tests generators: their orders, sizes and errors. */
#include "pipeline/orders/csv.h"
#include "support/pipeline_cases.h"
#include "support/generate_order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void expect_text(const char *name, int ranks, int m, const char *want) {
    tr_schedule *s = NULL;
    char *text = NULL;
    assert_int_equal(generate_order(name, ranks, ranks, m, &s), TR_OK);
    assert_int_equal(tr_schedule_print(s, false, &text), TR_OK);
    assert_string_equal(text, want);
    free(text);
    tr_schedule_destroy(s);
}

static void test_known_orders(void **state) {
    (void)state;
    expect_text("gpipe", 2, 2, "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
    expect_text("1f1b", 1, 2, "0F0,0B0,0F1,0B1\n");
    expect_text("1f1b", 2, 3, "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
    expect_text("1f1b", 3, 2, "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n");
    expect_text("1f1b", 4, 1, "0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0\n");
    expect_text("forward", 2, 2, "0F0,0F1\n1F0,1F1\n");
}

static void test_every_size_checks(void **state) {
    (void)state;
    static const char *const names[] = {"gpipe", "1f1b", "forward"};
    for (int n = 0; n < 3; n++)
        for (int p = 1; p <= 9; p++)
            for (int m = 1; m <= 20; m++) {
                tr_schedule *s = NULL;
                tr_schedule_report report;
                assert_int_equal(generate_order(names[n], p, p, m, &s), TR_OK);
                assert_int_equal(tr_schedule_check(s, NULL, &report), TR_OK);
                assert_true(report.sums_ascending);
                tr_schedule_destroy(s);
            }
}

static void test_forward_of_keeps_the_placement(void **state) {
    (void)state;
    tr_schedule *v = test_schedule_v(), *s = NULL;
    char *text = NULL;
    assert_int_equal(tr_schedule_forward_of(v, NULL, 2, &s), TR_OK);
    assert_true(s->forward_only);
    assert_int_equal(tr_schedule_check(s, NULL, NULL), TR_OK);
    assert_int_equal(tr_schedule_print(s, false, &text), TR_OK);
    assert_string_equal(text, "0F0,0F1,3F0,3F1\n1F0,2F0,1F1,2F1\n");
    free(text);
    tr_schedule_destroy(s);
    tr_schedule_destroy(v);
}

static void test_errors_say_what_is_wrong(void **state) {
    (void)state;
    tr_schedule *s = NULL;
    assert_int_equal(generate_order("2f2b", 2, 2, 2, &s), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "'2f2b'"));
    assert_non_null(strstr(tr_error_message(), "gpipe, 1f1b, interleaved"));
    assert_int_equal(generate_order("1f1b", 2, 4, 2, &s), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "parallel.virtual"));
    assert_int_equal(generate_order("1f1b", 2, 2, 0, &s), TR_ERR_CONFIG);
    assert_int_equal(generate_order("forward", 1, 1 << 20, 1 << 20, &s), TR_ERR_CONFIG);
    int outside[] = {0, 2};
    assert_int_equal(tr_schedule_create("x", 2, 2, 1, outside, &s), TR_ERR_CONFIG);
    assert_null(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_orders),
        cmocka_unit_test(test_every_size_checks),
        cmocka_unit_test(test_forward_of_keeps_the_placement),
        cmocka_unit_test(test_errors_say_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
