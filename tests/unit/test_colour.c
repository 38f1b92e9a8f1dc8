/* Tests edge colouring: it is proper, has few colours, and is the same on every rank. */
#include "comm/colour.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST = 64 };

static bool meet(const int *a, const int *b) {
    return a[0] == b[0] || a[0] == b[1] || a[1] == b[0] || a[1] == b[1];
}

/* Colours `edges` edges and checks what the header promises; returns the number of colours. */
static int checked(const int (*edge)[2], int edges) {
    int colour[MOST], degree[MOST] = {0}, most = 0;
    int colours = tr_colour_edges(edge, edges, colour);
    for (int i = 0; i < edges; i++) {
        assert_in_range(colour[i], 0, colours - 1);
        for (int end = 0; end < 2; end++)
            if (++degree[edge[i][end]] > most) most = degree[edge[i][end]];
        for (int j = 0; j < i; j++)
            if (meet(edge[i], edge[j])) assert_int_not_equal(colour[i], colour[j]);
    }
    assert_true(edges == 0 ? colours == 0 : colours <= 2 * most - 1);
    return colours;
}

static void a_line_takes_two(void **state) {
    (void)state;
    int edge[MOST][2];
    for (int i = 0; i < MOST; i++) edge[i][0] = i, edge[i][1] = i + 1;
    assert_int_equal(checked(edge, 0), 0);
    assert_int_equal(checked(edge, 1), 1);
    assert_int_equal(checked(edge, MOST - 1), 2);
}

static void a_star_takes_its_edges(void **state) {
    (void)state;
    int edge[9][2];
    for (int i = 0; i < 9; i++) edge[i][0] = i % 2 ? 0 : i + 1, edge[i][1] = i % 2 ? i + 1 : 0;
    assert_int_equal(checked(edge, 9), 9);
}

static void any_graph(void **state) {
    (void)state;
    uint64_t seed = tr_test_seed(1);
    for (int round = 0; round < 200; round++) {
        int edge[MOST][2], edges = 1 + round % MOST, ends = 2 + round % 12;
        for (int i = 0; i < edges; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            edge[i][0] = (int)((seed >> 33) % (uint64_t)ends);
            edge[i][1] = (edge[i][0] + 1 + (int)((seed >> 45) % (uint64_t)(ends - 1))) % ends;
        }
        (void)checked(edge, edges);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_takes_two),
        cmocka_unit_test(a_star_takes_its_edges),
        cmocka_unit_test(any_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
