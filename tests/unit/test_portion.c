/* Tests the portions of parameters that data ranks update under parallel.zero: every element has
 * one owner, portions begin at blocks of the norm, and boxes that are cut hold the same
 * elements. */
#include "device/elementwise.h"
#include "layers/param_layout.h"
#include "support/elements.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

_Static_assert((int)TR_PARAM_BLOCK == (int)TR_SUMSQ_BLOCK, "portions begin at blocks of the norm");

static int64_t blocks_of(int64_t elements) {
    return (elements + TR_PARAM_BLOCK - 1) / TR_PARAM_BLOCK;
}

static void test_portions(void **state) {
    (void)state;
    uint64_t random = tr_test_seed(5);
    for (int round = 0; round < 2000; round++) {
        const int ranks = (int)tr_up_to(&random, 6), runs = (int)tr_up_to(&random, 3);
        tr_mesh mesh = {.degree = {1, ranks * runs, 1}};
        const tr_param param = {.count = tr_up_to(&random, round % 2 ? 9000 : 100000),
                                .turn = (int)tr_up_to(&random, 40),
                                .copies = {1, runs > 1 ? ranks : 0, 1}};
        for (int run = 0; run < runs; run++) {
            int64_t sum = 0, least = INT64_MAX, most = 0, lowest = param.count, end = 0;
            for (int r = 0; r < ranks; r++) {
                const tr_range p = tr_param_portion_of(&param, &mesh, r);
                mesh.index[TR_AXIS_DP] = run * ranks + r;
                const tr_range mine = tr_param_portion(&param, &mesh);
                assert_memory_equal(&mine, &p, sizeof p);
                sum += p.extent;
                if (blocks_of(p.extent) < least) least = blocks_of(p.extent);
                if (blocks_of(p.extent) > most) most = blocks_of(p.extent);
                if (p.extent == 0) continue;
                assert_int_equal(p.begin % TR_PARAM_BLOCK, 0);
                if (p.begin + p.extent < param.count)
                    assert_int_equal(p.extent % TR_PARAM_BLOCK, 0);
                if (p.begin < lowest) lowest = p.begin;
                if (p.begin + p.extent > end) end = p.begin + p.extent;
                for (int other = 0; other < r; other++) {
                    const tr_range q = tr_param_portion_of(&param, &mesh, other);
                    assert_true(p.begin + p.extent <= q.begin || q.begin + q.extent <= p.begin ||
                                q.extent == 0);
                }
            }
            assert_int_equal(sum, param.count);
            assert_int_equal(lowest, 0);
            assert_int_equal(end, param.count);
            assert_true(most - least <= 1);
        }
        const tr_range all = tr_param_portion(&param, NULL);
        assert_int_equal(all.begin, 0);
        assert_int_equal(all.extent, param.count);
    }
}

/* Small parameters do not all belong to the same rank. */
static void test_turns(void **state) {
    (void)state;
    const tr_mesh mesh = {.degree = {1, 3, 1}};
    int64_t load[3] = {0};
    for (int index = 0; index < 9; index++)
        for (int r = 0; r < 3; r++)
            load[r] +=
                tr_param_portion_of(&(tr_param){.count = 70, .turn = index}, &mesh, r).extent;
    for (int r = 0; r < 3; r++) assert_int_equal(load[r], 3 * 70);
}

/* A box of a random tensor, in a local array with random room around it and a random order of
 * axes. */
static tr_global random_box(uint64_t *random, tr_box *box, int64_t *local) {
    tr_global tensor = {.rank = (int)tr_up_to(random, TR_PARAM_RANK), .boxes = 1, .box = box};
    int order[TR_PARAM_RANK];
    int64_t stride = 1;
    *box = (tr_box){.local_offset = tr_up_to(random, 5) - 1};
    for (int d = 0; d < TR_PARAM_RANK; d++) tensor.shape[d] = box->extent[d] = 1;
    for (int d = 0; d < tensor.rank; d++) {
        const int at = (int)tr_up_to(random, d + 1) - 1;
        order[d] = order[at];
        order[at] = d;
        tensor.shape[d] = tr_up_to(random, 6);
        box->extent[d] = tr_up_to(random, tensor.shape[d]);
        box->offset[d] = tr_up_to(random, tensor.shape[d] - box->extent[d] + 1) - 1;
    }
    for (int k = 0; k < tensor.rank; k++) {
        box->local_stride[order[k]] = stride;
        stride *= box->extent[order[k]] + tr_up_to(random, 3) - 1;
    }
    *local = box->local_offset + stride;
    return tensor;
}

static void store(void *context, int64_t global, int64_t local) {
    ((int64_t *)context)[local] = global + 1;
}

static void test_cut_boxes(void **state) {
    (void)state;
    uint64_t random = tr_test_seed(7);
    for (int round = 0; round < 20000; round++) {
        tr_box box, cut[TR_BOX_CUTS];
        int64_t whole[5000] = {0}, parts[5000] = {0}, local;
        const tr_global tensor = random_box(&random, &box, &local);
        assert_true(local < 5000);
        tr_each_element(&tensor, store, whole);
        const int64_t first = tr_up_to(&random, local) - 1,
                      second = first + tr_up_to(&random, local - first);
        const tr_range range[] = {{0, first}, {first, second - first}, {second, local - second}};
        for (int k = 0; k < 3; k++) {
            const int cuts = tr_box_cut(&box, tensor.rank, range[k], cut);
            assert_true(cuts <= TR_BOX_CUTS);
            tr_global some = tensor;
            some.boxes = cuts;
            some.box = cut;
            for (int c = 0; c < cuts; c++)
                for (int d = 0; d < tensor.rank; d++) assert_true(cut[c].extent[d] > 0);
            tr_each_element(&some, store, parts + range[k].begin);
            if (range[k].begin + range[k].extent < local) /* nothing past the range */
                assert_int_equal(parts[range[k].begin + range[k].extent], 0);
        }
        assert_memory_equal(whole, parts, sizeof whole);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_portions),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_cut_boxes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
