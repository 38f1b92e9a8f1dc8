/* Tests the balanced cut against an exhaustive search, and its ties and errors. */
#include "base/philox.h"
#include "partition/cut.h"
#include "support/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 10 };

/* Layers, stages, costs, and the largest stage of the best cut as a search by another program found
 * it. */
static const struct {
    int n, p;
    double cost[MOST];
    double largest;
} known[] = {
    {4, 2, {12, 6, 39, 3}, 42},
    {6, 4, {6, 18, 18, 18, 18, 9}, 27},
    {8, 2, {60, 39, 42, 3, 57, 3, 42, 33}, 141},
    {7, 2, {3, 18, 18, 18, 18, 18, 51}, 75},
    {10, 4, {33, 42, 42, 21, 21, 39, 51, 9, 57, 33}, 99},
    {10, 2, {0, 18, 18, 18, 18, 18, 18, 18, 18, 9}, 81},
    {4, 4, {0, 18, 18, 24}, 24},
    {4, 3, {54, 48, 3, 12}, 54},
    {9, 3, {0, 18, 18, 18, 18, 18, 18, 18, 48}, 66},
    {4, 4, {0, 18, 18, 18}, 18},
    {6, 4, {27, 45, 3, 48, 39, 42}, 72},
    {5, 3, {3, 18, 18, 18, 45}, 45},
    {5, 5, {0, 18, 18, 18, 15}, 18},
    {9, 5, {60, 18, 18, 60, 51, 45, 6, 57, 33}, 90},
    {5, 2, {6, 18, 18, 18, 45}, 60},
    {9, 2, {3, 18, 18, 18, 18, 18, 18, 18, 18}, 75},
    {4, 4, {48, 3, 42, 42}, 48},
    {8, 5, {48, 3, 21, 24, 9, 24, 42, 21}, 48},
    {10, 3, {3, 18, 36, 60, 12, 33, 33, 33, 60, 21}, 117},
    {10, 3, {60, 6, 36, 54, 24, 45, 54, 57, 48, 45}, 156},
    {9, 5, {12, 21, 51, 6, 57, 12, 15, 51, 60}, 69},
    {6, 3, {39, 3, 9, 6, 3, 12}, 39},
    {8, 4, {12, 30, 48, 6, 6, 33, 39, 27}, 66},
    {5, 5, {6, 51, 18, 12, 57}, 57},
    {7, 5, {3, 18, 18, 18, 18, 18, 45}, 45},
    {5, 4, {3, 18, 18, 18, 33}, 33},
    {10, 2, {3, 18, 18, 18, 18, 18, 18, 18, 18, 42}, 96},
    {9, 3, {3, 18, 18, 18, 18, 18, 18, 18, 24}, 57},
    {5, 5, {0, 18, 18, 18, 36}, 36},
    {6, 2, {6, 18, 18, 18, 18, 18}, 54},
    {8, 4, {3, 54, 21, 57, 48, 36, 15, 12}, 78},
    {10, 4, {6, 18, 18, 18, 18, 18, 18, 18, 18, 30}, 54},
    {9, 3, {6, 18, 18, 18, 18, 18, 18, 18, 36}, 60},
    {6, 5, {6, 18, 18, 18, 18, 18}, 24},
    {6, 3, {6, 18, 18, 18, 18, 15}, 36},
    {10, 4, {6, 18, 18, 18, 18, 18, 18, 18, 18, 24}, 54},
    {10, 5, {6, 18, 18, 18, 18, 18, 18, 18, 18, 45}, 45},
    {9, 5, {3, 18, 18, 18, 18, 18, 18, 18, 9}, 36},
    {4, 3, {6, 18, 18, 15}, 24},
    {9, 2, {45, 60, 27, 39, 3, 24, 42, 6, 54}, 168},
};

static double largest_stage(const double *cost, const int *first, int p) {
    double largest = 0;
    for (int k = 0; k < p; k++) {
        double sum = 0;
        for (int i = first[k]; i < first[k + 1]; i++) sum += cost[i];
        largest = fmax(largest, sum);
    }
    return largest;
}

/* Cuts without limits of room. */
static tr_status cut_all(const double *cost, const bool *block, int n, int p, int *first) {
    bool found = false;
    const tr_status status = tr_cut_balanced(cost, block, n, p, NULL, first, &found);
    assert_true(found == (status == TR_OK));
    return status;
}

static void test_known_instances(void **state) {
    (void)state;
    for (size_t t = 0; t < sizeof known / sizeof known[0]; t++) {
        int first[MOST + 1];
        assert_int_equal(cut_all(known[t].cost, NULL, known[t].n, known[t].p, first), TR_OK);
        assert_int_equal(first[0], 0);
        assert_int_equal(first[known[t].p], known[t].n);
        assert_true(largest_stage(known[t].cost, first, known[t].p) == known[t].largest);
    }
}

/* Returns the smallest possible largest stage of layers from..n in p stages, each with a block, by
 * trying all cuts. */
static double search(const double *cost, const bool *block, int from, int n, int p) {
    double best = INFINITY, sum = 0;
    int blocks = 0;
    if (p == 0) return from == n ? 0 : INFINITY;
    for (int to = from; to < n; to++) {
        sum += cost[to];
        blocks += block[to];
        if (blocks) best = fmin(best, fmax(sum, search(cost, block, to + 1, n, p - 1)));
    }
    return best;
}

static void test_random_instances(void **state) {
    (void)state;
    uint64_t r = tr_test_seed(7);
    for (int t = 0; t < 500; t++) {
        int n = 1 + (int)(tr_mix64(r++) % 10), blocks = 0, first[MOST + 1];
        double cost[MOST];
        bool block[MOST];
        for (int k = 0; k < n; k++) {
            cost[k] = (double)(tr_mix64(r++) % 20);
            block[k] = tr_mix64(r++) % 4 != 0;
            blocks += block[k];
        }
        for (int p = 1; p <= blocks; p++) {
            assert_int_equal(cut_all(cost, block, n, p, first), TR_OK);
            assert_true(first[0] == 0 && first[p] == n);
            for (int k = 0; k < p; k++) {
                int mine = 0;
                for (int i = first[k]; i < first[k + 1]; i++) mine += block[i];
                assert_true(mine >= 1);
            }
            assert_true(largest_stage(cost, first, p) == search(cost, block, 0, n, p));
        }
    }
}

/* Tries every cut in which stage t, the next, and those after it have room. */
static double search_within(const double *cost, const tr_cut_room *room, int t, int from, int n,
                            int p) {
    double best = INFINITY, sum = 0, need = 0;
    if (t == p) return from == n ? 0 : INFINITY;
    for (int to = from; to < n; to++) {
        sum += cost[to];
        need += room->need[t * n + to];
        if (need > room->room[t]) break;
        best = fmin(best, fmax(sum, search_within(cost, room, t + 1, to + 1, n, p)));
    }
    return best;
}

static void test_room(void **state) {
    (void)state;
    uint64_t r = tr_test_seed(8);
    int fit = 0, others = 0;
    for (int t = 0; t < 500; t++) {
        const int n = 2 + (int)(tr_mix64(r++) % 8), p = 1 + (int)(tr_mix64(r++) % (uint64_t)n);
        double cost[MOST], need[MOST * MOST], room[MOST];
        int first[MOST + 1];
        bool found;
        for (int k = 0; k < n; k++) cost[k] = (double)(tr_mix64(r++) % 20);
        for (int k = 0; k < n * p; k++) need[k] = (double)(tr_mix64(r++) % 10);
        for (int k = 0; k < p; k++) room[k] = (double)(tr_mix64(r++) % 40);
        const tr_cut_room of = {.need = need, .room = room};
        const double best = search_within(cost, &of, 0, 0, n, p);
        assert_int_equal(tr_cut_balanced(cost, NULL, n, p, &of, first, &found), TR_OK);
        assert_true(found == !isinf(best));
        fit += found;
        others += !found;
        if (!found) continue;
        assert_true(first[0] == 0 && first[p] == n);
        assert_true(largest_stage(cost, first, p) == best);
        for (int k = 0; k < p; k++) {
            double mine = 0;
            for (int i = first[k]; i < first[k + 1]; i++) mine += need[k * n + i];
            assert_true(mine <= room[k]);
        }
    }
    assert_true(fit > 100 && others > 100);
}

static void expect_cut(int n, const double *cost, int p, const int *want) {
    int first[MOST + 1];
    assert_int_equal(cut_all(cost, NULL, n, p, first), TR_OK);
    for (int k = 0; k <= p; k++) assert_int_equal(first[k], want[k]);
}

static void test_ties(void **state) {
    (void)state;
    static const double ones[] = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1};
    expect_cut(5, ones, 4, (const int[]){0, 1, 2, 3, 5});
    /* The rest is balanced too: 2 2 2 3, not 1 2 3 3. */
    expect_cut(9, ones, 4, (const int[]){0, 2, 4, 6, 9});
    expect_cut(6, ones, 1, (const int[]){0, 6});
    static const double ends[] = {0, 1, 1, 1, 1, 3};
    expect_cut(6, ends, 2, (const int[]){0, 4, 6});
    static const double zeros[] = {0, 0, 0};
    expect_cut(3, zeros, 2, (const int[]){0, 1, 3});
}

static void test_too_many_stages(void **state) {
    (void)state;
    static const double cost[] = {1, 1, 1, 1};
    static const bool block[] = {false, true, true, false};
    int first[5];
    assert_int_equal(cut_all(cost, block, 4, 2, first), TR_OK);
    assert_int_equal(cut_all(cost, block, 4, 3, first), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "parallel.pp=3"));
    assert_non_null(strstr(tr_error_message(), "model.layers=2"));
    assert_int_equal(cut_all(cost, NULL, 4, 0, first), TR_ERR_CONFIG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_instances),
        cmocka_unit_test(test_random_instances),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_too_many_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
