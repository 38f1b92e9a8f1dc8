#include "comm/mesh.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void places(void **state) {
    (void)state;
    int rank = 0;
    for (int pp = 0; pp < 2; pp++)
        for (int dp = 0; dp < 3; dp++)
            for (int tp = 0; tp < 4; tp++, rank++) {
                tr_mesh mesh;
                assert_int_equal(tr_mesh_make(2, 3, 4, rank, 24, &mesh), TR_OK);
                assert_int_equal(mesh.index[TR_AXIS_PP], pp);
                assert_int_equal(mesh.index[TR_AXIS_DP], dp);
                assert_int_equal(mesh.index[TR_AXIS_TP], tp);
                assert_int_equal(tr_mesh_rank(&mesh, mesh.index), rank);
            }
}

static void lines(void **state) {
    (void)state;
    tr_mesh mesh;
    int ranks[4];
    assert_int_equal(tr_mesh_make(2, 3, 4, 17, 24, &mesh), TR_OK); /* pp 1, dp 1, tp 1 */
    tr_mesh_line(&mesh, TR_AXIS_TP, ranks);
    assert_memory_equal(ranks, ((int[]){16, 17, 18, 19}), sizeof(int[4]));
    tr_mesh_line(&mesh, TR_AXIS_DP, ranks);
    assert_memory_equal(ranks, ((int[]){13, 17, 21}), sizeof(int[3]));
    tr_mesh_line(&mesh, TR_AXIS_PP, ranks);
    assert_memory_equal(ranks, ((int[]){5, 17}), sizeof(int[2]));
}

static void refusals(void **state) {
    (void)state;
    tr_mesh mesh;
    assert_int_equal(tr_mesh_make(2, 1, 2, 0, 8, &mesh), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "parallel.dp=2"));
    assert_int_equal(tr_mesh_make(3, 1, 1, 0, 4, &mesh), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "start 3"));
    assert_int_equal(tr_mesh_make(0, 1, 1, 0, 1, &mesh), TR_ERR_CONFIG);
    assert_int_equal(tr_mesh_make(INT32_MAX, INT32_MAX, INT32_MAX, 0, 1, &mesh), TR_ERR_CONFIG);
    assert_int_equal(tr_mesh_make(1, 2, 1, 2, 2, &mesh), TR_ERR_INTERNAL);
}

static void names(void **state) {
    (void)state;
    assert_string_equal(tr_axis_name(TR_AXIS_PP), "pp");
    assert_string_equal(tr_axis_name(TR_AXIS_DP), "dp");
    assert_string_equal(tr_axis_name(TR_AXIS_TP), "tp");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places),
        cmocka_unit_test(lines),
        cmocka_unit_test(refusals),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
