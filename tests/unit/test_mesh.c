#include "comm/mesh.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
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

/* Returns a part as a set of ranks: bit r is rank r. */
static uint64_t set_of(const tr_mesh *mesh, const tr_mesh_part *part) {
    int ranks[64], size = tr_mesh_part_size(part), mine = -1;
    uint64_t set = 0;
    tr_mesh_part_ranks(mesh, part, ranks);
    for (int i = 0; i < size; i++) {
        if (i > 0) assert_true(ranks[i] > ranks[i - 1]);
        if (ranks[i] == tr_mesh_rank(mesh, mesh->index)) mine = i;
        set |= UINT64_C(1) << ranks[i];
    }
    assert_int_equal(tr_mesh_part_place(mesh, part), mine);
    return set;
}

static void neighbours(void **state) {
    (void)state;
    tr_mesh mesh;
    assert_int_equal(tr_mesh_make(2, 2, 4, 14, 16, &mesh), TR_OK); /* pp 1, dp 1, tp 2 */
    tr_mesh_part part = tr_mesh_self(&mesh);
    assert_int_equal(set_of(&mesh, &part), 1 << 14);
    assert_int_equal(tr_mesh_widen(&mesh, TR_AXIS_TP, 2, &part), TR_OK);
    assert_int_equal(set_of(&mesh, &part), 3 << 14);
    assert_int_equal(tr_mesh_widen(&mesh, TR_AXIS_DP, 0, &part), TR_OK);
    assert_int_equal(set_of(&mesh, &part), 3 << 14 | 3 << 10);
    part = tr_mesh_pair(&mesh, TR_AXIS_PP, 1, 0);
    assert_int_equal(set_of(&mesh, &part), 1 << 14 | 1 << 6);
    part = tr_mesh_self(&mesh);
    assert_int_equal(tr_mesh_widen(&mesh, TR_AXIS_TP, 3, &part), TR_ERR_INTERNAL);
    part = tr_mesh_self(&mesh);
    mesh.index[TR_AXIS_DP] = 0; /* another rank's part */
    assert_int_equal(tr_mesh_part_place(&mesh, &part), -1);
}

enum { MOST_PARTS = 4096 };

struct seen {
    uint64_t set[MOST_PARTS];
    int64_t id[MOST_PARTS];
    int count;
};

/* Fails unless two parts have the same number exactly when they have the same ranks. */
static void see(struct seen *seen, const tr_mesh *mesh, const tr_mesh_part *part) {
    const uint64_t set = set_of(mesh, part);
    const int64_t id = tr_mesh_part_id(mesh, part);
    assert_true(id >= 0);
    for (int i = 0; i < seen->count; i++)
        if ((seen->set[i] == set) != (seen->id[i] == id))
            fail_msg("group %lld of %llx and %lld of %llx", (long long)id, (unsigned long long)set,
                     (long long)seen->id[i], (unsigned long long)seen->set[i]);
    assert_true(seen->count < MOST_PARTS);
    seen->set[seen->count] = set;
    seen->id[seen->count++] = id;
}

static void see_runs(struct seen *seen, const tr_mesh *mesh) {
    const int *n = mesh->degree;
    for (int a = 1; a <= n[0]; a++)
        for (int b = 1; b <= n[1]; b++)
            for (int c = 1; c <= n[2]; c++) {
                if (n[0] % a || n[1] % b || n[2] % c) continue;
                tr_mesh_part part = tr_mesh_self(mesh);
                assert_int_equal(tr_mesh_widen(mesh, TR_AXIS_PP, a, &part), TR_OK);
                assert_int_equal(tr_mesh_widen(mesh, TR_AXIS_DP, b, &part), TR_OK);
                assert_int_equal(tr_mesh_widen(mesh, TR_AXIS_TP, c, &part), TR_OK);
                see(seen, mesh, &part);
            }
}

/* Sees the parts across runs of each length, in each longer run. */
static void see_across(struct seen *seen, const tr_mesh *mesh) {
    for (int axis = 0; axis < TR_AXIS_COUNT; axis++)
        for (int most = 1; most <= mesh->degree[axis]; most++)
            for (int count = 1; count <= most; count++) {
                if (mesh->degree[axis] % most || most % count) continue;
                tr_mesh_part part = tr_mesh_self(mesh);
                tr_mesh_cross(mesh, (tr_axis)axis, count, most, &part);
                see(seen, mesh, &part);
            }
}

static void across(void **state) {
    (void)state;
    tr_mesh mesh;
    assert_int_equal(tr_mesh_make(1, 8, 2, 11, 16, &mesh), TR_OK); /* dp 5, tp 1 */
    tr_mesh_part part = tr_mesh_self(&mesh);
    tr_mesh_cross(&mesh, TR_AXIS_DP, 2, 8, &part);
    assert_int_equal(set_of(&mesh, &part), 1 << 3 | 1 << 7 | 1 << 11 | 1 << 15);
    part = tr_mesh_self(&mesh);
    tr_mesh_cross(&mesh, TR_AXIS_DP, 2, 4, &part);
    assert_int_equal(set_of(&mesh, &part), 1 << 11 | 1 << 15);
    assert_int_equal(tr_mesh_near(&mesh), 8);
    mesh.near = 2;
    assert_int_equal(tr_mesh_near(&mesh), 2);
}

static void numbers(void **state) {
    (void)state;
    static const int degrees[][3] = {{4, 3, 2}, {1, 2, 6}, {5, 1, 4},
                                     {3, 2, 1}, {1, 8, 2}, {1, 1, 1}};
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        struct seen *seen = calloc(1, sizeof *seen);
        const int *n = degrees[i], size = n[0] * n[1] * n[2];
        for (int rank = 0; rank < size; rank++) {
            tr_mesh mesh;
            assert_int_equal(tr_mesh_make(n[0], n[1], n[2], rank, size, &mesh), TR_OK);
            see_runs(seen, &mesh);
            see_across(seen, &mesh);
            for (int axis = 0; axis < TR_AXIS_COUNT; axis++)
                for (int a = 0; a < n[axis]; a++)
                    for (int b = 0; b < a; b++) {
                        bool here = mesh.index[axis] == a || mesh.index[axis] == b;
                        tr_mesh_part pair = tr_mesh_pair(&mesh, (tr_axis)axis, a, b);
                        if (here) see(seen, &mesh, &pair);
                    }
        }
        free(seen);
    }
}

/* A group's number becomes a tag of MPI. Over UCX, Open MPI has tags below 2^23. */
static void numbers_are_tags(void **state) {
    (void)state;
    enum { PP = 16, DP = 128, TP = 8, RANKS = PP * DP * TP };
    tr_mesh mesh;
    assert_int_equal(tr_mesh_make(PP, DP, TP, RANKS - 1, RANKS, &mesh), TR_OK);
    for (int near = 1; near <= DP; near *= 2) {
        tr_mesh_part part = tr_mesh_self(&mesh);
        tr_mesh_cross(&mesh, TR_AXIS_DP, near, DP, &part);
        assert_in_range(tr_mesh_part_id(&mesh, &part), 0, (1 << 23) - 8);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places),           cmocka_unit_test(lines),  cmocka_unit_test(refusals),
        cmocka_unit_test(neighbours),       cmocka_unit_test(across), cmocka_unit_test(numbers),
        cmocka_unit_test(numbers_are_tags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
