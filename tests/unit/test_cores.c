#include "base/cores.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Any number of ranks up to the number of CPUs gets disjoint parts, in order, that cover all
 * CPUs. */
static void parts(void **state) {
    (void)state;
    for (int count = 1; count <= 40; count++) {
        tr_cores all = {.count = count};
        for (int i = 0; i < count; i++) all.cpu[i] = (i * 7 + 3) % 41;
        for (int ranks = 1; ranks <= count; ranks++) {
            int at = 0;
            for (int r = 0; r < ranks; r++) {
                tr_cores part;
                tr_cores_share(&all, r, ranks, &part);
                assert_in_range(part.count, count / ranks, (count + ranks - 1) / ranks);
                assert_memory_equal(part.cpu, all.cpu + at, (size_t)part.count * sizeof *part.cpu);
                at += part.count;
            }
            assert_int_equal(at, count);
        }
    }
}

/* After a process keeps to some CPUs it may use only these, in new threads too; it can also undo
 * that. */
static void keeping(void **state) {
    (void)state;
    tr_cores all, part, now;
    tr_cores_usable(&all);
    assert_in_range(all.count, 1, TR_CORES_MAX);
    tr_cores_share(&all, all.count - 1, all.count, &part);
    assert_int_equal(part.count, 1);
    tr_cores_keep_to(&part);
    tr_cores_usable(&now);
    assert_memory_equal(&now, &part, sizeof now);
    assert_int_equal(sched_getcpu(), part.cpu[0]);
    tr_cores_keep_to(&all);
    tr_cores_usable(&now);
    assert_memory_equal(&now, &all, sizeof now);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts), cmocka_unit_test(keeping)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
