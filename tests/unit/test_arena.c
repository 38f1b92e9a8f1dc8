/* The packing of the arena: no overlap, and at most 5% over the live peak on every schedule, over a
 * grid of ranks, micro-batches, stages a rank (all alike) and block sizes. The seed picks the part
 * of the grid and the random sizes: PARTS seeds in a row cover all of it. */
#include "base/memory.h"
#include "pipeline/generate.h"
#include "pipeline_cases.h"
#include "support/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { PARTS = 128 };

static const struct {
    const char *name;
    int least, most; /* stages a rank */
} schedules[] = {
    {"gpipe", 1, 1},          {"1f1b", 1, 1},      {"interleaved", 1, 4}, {"bfs", 1, 4},
    {"zb-h1", 1, 1},          {"zb-h2", 1, 1},     {"zb-1p", 1, 1},       {"zb-2p", 1, 1},
    {"interleaved-zb", 1, 4}, {"zbv", 2, 2},       {"v-half", 2, 2},      {"v-min", 2, 2},
    {"1f1b-v", 2, 2},         {"dualpipev", 2, 2}, {"auto", 0, 0},        {"forward", 1, 1}};
enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };

/* Block sizes of the stages. */
typedef enum sizes {
    SIZES_MW,     /* m_W = 0.94 m_B, small edges */
    SIZES_HALF,   /* m_W = 0.5 m_B, large edges */
    SIZES_RANDOM, /* every block and the edges */
    SIZES
} sizes;

static void make_table(sizes kind, int stages, test_random *r, tr_stage_table *t) {
    enum { UNIT = 4096 };
    size_t kept = kind == SIZES_HALF ? 50 : 94, edge = kind == SIZES_HALF ? 12 : 4;
    size_t fi = 100 - kept, fw = kept * 9 / 10, iw = kept / 10;
    if (kind == SIZES_RANDOM) {
        edge = (size_t)test_between(r, 1, 16);
        fi = (size_t)test_between(r, 0, 100);
        fw = (size_t)test_between(r, 0, 100);
        iw = (size_t)test_between(r, 0, 100);
    }
    test_table_chain(stages, fi * UNIT, (edge + fw) * UNIT, iw * UNIT, t);
    for (int k = 0; k < stages; k++) t->cost[k].bytes[TR_LIFE_SCRATCH] = 0;
    for (int e = 0; e < t->edges; e++) t->edge[e].bytes = edge * UNIT;
}

static void expect_no_overlap(const tr_arena_item *items, int n, size_t bytes) {
    for (int a = 0; a < n; a++) {
        const tr_arena_item *x = &items[a];
        assert_true(x->offset % TR_ALIGN == 0 && x->offset + x->bytes <= bytes);
        for (int b = a + 1; b < n; b++) {
            const tr_arena_item *y = &items[b];
            bool in_time = x->start <= y->end && y->start <= x->end;
            bool in_place = x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
            assert_false(in_time && in_place);
        }
    }
}

typedef struct tally {
    double worst;
    char where[160];
    int programs;
} tally;

static void judge(const tr_program *p, const char *what, tally *all) {
    size_t peak = p->live_peak_bytes - p->scratch_bytes;
    expect_no_overlap(p->item, p->items, p->scratch_offset);
    all->programs++;
    double ratio = peak ? (double)p->scratch_offset / (double)peak : 1;
    if (ratio <= all->worst) return;
    all->worst = ratio;
    (void)snprintf(all->where, sizeof all->where, "%s, rank %d", what, p->rank);
}

static void pack_case(const char *name, int v, int p, int m, sizes kind, test_random *r,
                      tally *all) {
    static const char *const kinds[SIZES] = {"mw", "half", "random"};
    tr_schedule_request q = {.name = name,
                             .ranks = p,
                             .micro_batches = m,
                             .chunks = v,
                             .memory = {.mb = 1, .mw = kind == SIZES_HALF ? 0.5 : 0.94}};
    char what[128];
    (void)snprintf(what, sizeof what, "%s, p %d, m %d, v %d, sizes %s", name, p, m, v, kinds[kind]);
    tr_schedule *s = NULL;
    tr_stage_table t;
    tr_program_set *set = NULL;
    if (tr_schedule_make(&q, &s) != TR_OK) fail_msg("%s: %s", what, tr_error_message());
    make_table(kind, s->stages, r, &t);
    if (tr_lower(s, &t, 0.1, &set) != TR_OK) fail_msg("%s: %s", what, tr_error_message());
    for (int k = 0; k < p; k++) judge(&set->program[k], what, all);
    tr_program_set_destroy(set);
    test_table_free(&t);
    tr_schedule_destroy(s);
}

static void test_every_schedule(void **state) {
    (void)state;
    uint64_t seed = tr_test_seed(91731), at = 0;
    test_random r = {tr_mix64(seed)};
    tally all = {.worst = 0};
    for (int n = 0; n < SCHEDULES; n++)
        for (int v = schedules[n].least; v <= schedules[n].most; v++)
            for (int p = 1; p <= 8; p++)
                for (int m = 1; m <= 16; m++)
                    for (int kind = 0; kind < SIZES; kind++)
                        if ((at++ * 77 + seed) % PARTS == 0)
                            pack_case(schedules[n].name, v, p, m, (sizes)kind, &r, &all);
    print_message("%d programs: the arena at most %.4f of the live peak (%s)\n", all.programs,
                  all.worst, all.where);
    assert_true(all.worst <= 1.05);
}

/* Many micro-batches: still near the peak, and near linear in time (a square would not end). */
static void test_many_micro_batches(void **state) {
    (void)state;
    test_random r = {tr_test_seed(91731) + 1};
    tally all = {.worst = 0};
    tr_schedule_request q = {.name = "zbv", .ranks = 8, .micro_batches = 4096};
    tr_schedule *s = NULL;
    tr_stage_table t;
    tr_program_set *set = NULL;
    assert_int_equal(tr_schedule_make(&q, &s), TR_OK);
    make_table(SIZES_MW, s->stages, &r, &t);
    assert_int_equal(tr_lower(s, &t, 0.1, &set), TR_OK);
    for (int k = 0; k < set->ranks; k++) {
        const tr_program *p = &set->program[k];
        all.worst = fmax(all.worst, (double)p->scratch_offset /
                                        (double)(p->live_peak_bytes - p->scratch_bytes));
    }
    print_message("4096 micro-batches: the arena at most %.4f of the live peak\n", all.worst);
    assert_true(all.worst <= 1.05);
    tr_program_set_destroy(set);
    test_table_free(&t);
    tr_schedule_destroy(s);
}

/* --- against all packings --------------------------------------------------------------------- */

enum { FEW = 8 };

/* The smallest arena of all: items placed in every order, each on top of those placed before that
 * live with it. (Any packing, pushed down and placed from the bottom upwards, is one of them.) */
static size_t smallest(tr_arena_item *items, int n, unsigned placed, size_t size, size_t best) {
    if (size >= best) return best;
    if (placed + 1 == 1u << n) return size;
    for (int k = 0; k < n; k++) {
        if (placed >> k & 1u) continue;
        size_t at = 0;
        for (int j = 0; j < n; j++) {
            bool together = items[j].start <= items[k].end && items[k].start <= items[j].end;
            if ((placed >> j & 1u) && together && items[j].offset + items[j].bytes > at)
                at = items[j].offset + items[j].bytes;
        }
        items[k].offset = at;
        size_t top = at + items[k].bytes;
        best = smallest(items, n, placed | 1u << k, top > size ? top : size, best);
    }
    return best;
}

/* Few items of any sizes: at most 5% over the best of all packings. */
static void test_few_items(void **state) {
    (void)state;
    test_random r = {tr_test_seed(91731) + 2};
    for (int trial = 0; trial < 1000; trial++) {
        tr_arena_item items[FEW], copy[FEW];
        int n = test_between(&r, 1, FEW);
        size_t peak = 0, bytes = 0;
        for (int k = 0; k < n; k++) {
            int start = test_between(&r, 0, 9);
            items[k] = (tr_arena_item){.start = start,
                                       .end = test_between(&r, start, 9),
                                       .bytes = TR_ALIGN * (size_t)test_between(&r, 1, 9)};
            copy[k] = items[k];
        }
        assert_int_equal(tr_arena_live_peak(items, n, &peak), TR_OK);
        assert_int_equal(tr_arena_pack(items, n, &bytes), TR_OK);
        expect_no_overlap(items, n, bytes);
        size_t least = smallest(copy, n, 0, 0, SIZE_MAX);
        assert_true(least >= peak);
        if (100 * bytes > 105 * least)
            fail_msg("trial %d: %zu bytes, and %zu are enough", trial, bytes, least);
    }
}

/* A set whose live peak no packing reaches: 9 where 8 are alive. */
static void test_peak_out_of_reach(void **state) {
    (void)state;
    static const int set[FEW][3] = {{3, 6, 2}, {2, 2, 3}, {6, 7, 3}, {0, 6, 1},
                                    {1, 4, 3}, {5, 6, 2}, {7, 7, 4}, {3, 5, 2}};
    tr_arena_item items[FEW];
    size_t peak = 0, bytes = 0;
    for (int k = 0; k < FEW; k++)
        items[k] = (tr_arena_item){
            .start = set[k][0], .end = set[k][1], .bytes = TR_ALIGN * (size_t)set[k][2]};
    assert_int_equal(tr_arena_live_peak(items, FEW, &peak), TR_OK);
    assert_int_equal(peak, 8 * TR_ALIGN);
    assert_int_equal(smallest(items, FEW, 0, 0, SIZE_MAX), 9 * TR_ALIGN);
    assert_int_equal(tr_arena_pack(items, FEW, &bytes), TR_OK);
    expect_no_overlap(items, FEW, bytes);
    assert_int_equal(bytes, 9 * TR_ALIGN);
}

static void test_bad_sizes(void **state) {
    (void)state;
    size_t bytes = 1;
    assert_int_equal(tr_arena_pack(NULL, 0, &bytes), TR_OK);
    assert_int_equal(bytes, 0);
    tr_arena_item items[3];
    for (int k = 0; k < 3; k++)
        items[k] = (tr_arena_item){.start = 2 * k, .end = 2 * k, .bytes = SIZE_MAX / 128 * 64};
    assert_int_equal(tr_arena_pack(items, 3, &bytes), TR_ERR_FIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_schedule), cmocka_unit_test(test_many_micro_batches),
        cmocka_unit_test(test_few_items), cmocka_unit_test(test_peak_out_of_reach),
        cmocka_unit_test(test_bad_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
