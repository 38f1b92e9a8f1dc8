/* Tests the limits of control groups, in folders that look like theirs. */
#include "base/cgroup.h"
#include "support/scratch.h"

#include <sys/stat.h>

enum { GIB = 1 << 30 };

/* Writes a file of a group, and makes the folders above it. */
static void put(const char *name, const char *text) {
    char *path = path_of(name);
    for (char *at = path + strlen(scratch) + 1; (at = strchr(at, '/')) != NULL; *at++ = '/') {
        *at = '\0';
        (void)mkdir(path, 0700);
    }
    write_file(path, text, strlen(text));
}

/* Fails unless a machine of 8 GiB, of which 6 are free, has this much for the process. */
static void expect(const char *list, size_t available, size_t total) {
    size_t is_available = (size_t)6 * GIB, is_total = (size_t)8 * GIB;
    put("list", list);
    tr_cgroup_memory(path_of("list"), scratch, &is_available, &is_total);
    assert_int_equal(is_available, available);
    assert_int_equal(is_total, total);
}

static void test_version_2(void **state) {
    (void)state;
    put("job/memory.max", "4294967296\n");
    put("job/memory.current", "3221225472\n");
    put("job/memory.stat", "anon 1\nfile 2\ninactive_file 1073741824\n");
    put("job/step/memory.max", "max\n");
    put("job/step/memory.current", "5\n");
    expect("0::/job/step\n", (size_t)2 * GIB, (size_t)4 * GIB);
    expect("0::/job/step/gone\n", (size_t)2 * GIB, (size_t)4 * GIB);
    expect("0::/\n", (size_t)6 * GIB, (size_t)8 * GIB);
    put("job/step/memory.max", "1073741824\n"); /* a limit within a limit; 5 bytes are in use */
    expect("0::/job/step\n", GIB - 5, GIB);
    put("job/memory.current",
        "5100273664\n"); /* of the limit that is further out 0.25 GiB are left */
    expect("0::/job/step\n", GIB / 4, GIB);
    put("job/step/memory.current", "2147483648\n"); /* a limit that was lowered */
    expect("0::/job/step\n", 0, GIB);
}

static void test_version_1(void **state) {
    (void)state;
    put("memory/memory.limit_in_bytes", "2147483648\n"); /* as a container sees its own group */
    put("memory/memory.usage_in_bytes", "1073741824\n");
    expect("9:cpu:/x\n4:cpuset,memory:/docker/1\n0::/\n", GIB, (size_t)2 * GIB);
    put("memory/memory.limit_in_bytes", "9223372036854771712\n"); /* no limit */
    expect("4:memory:/docker/1\n", (size_t)6 * GIB, (size_t)8 * GIB);
}

/* Fails unless that many of 8 CPUs are for the process. */
static void expect_cpus(const char *list, int cpus) {
    put("list", list);
    assert_int_equal(tr_cgroup_cpus(path_of("list"), scratch, 8), cpus);
}

static void test_cpus(void **state) {
    (void)state;
    put("job/cpu.max", "350000 100000\n"); /* 3.5 CPUs */
    put("job/step/cpu.max", "max 100000\n");
    expect_cpus("0::/job/step\n", 3);
    put("job/step/cpu.max", "30000 100000\n");
    expect_cpus("0::/job/step\n", 1);
    put("job/cpu.max", "6400000 100000\n"); /* more than there are */
    expect_cpus("0::/job\n", 8);
    put("cpu/docker/cpu.cfs_quota_us", "200000\n");
    expect_cpus("4:cpu,cpuacct:/docker\n", 8); /* without a period */
    put("cpu/docker/cpu.cfs_period_us", "100000\n");
    expect_cpus("4:cpu,cpuacct:/docker\n", 2);
    expect_cpus("4:memory:/docker\n", 8);
    put("cpu/docker/cpu.cfs_quota_us", "-1\n");
    expect_cpus("4:cpu,cpuacct:/docker\n", 8);
    expect_cpus("", 8);
}

static void test_no_groups(void **state) {
    (void)state;
    size_t available = 3, total = 5;
    expect("", (size_t)6 * GIB, (size_t)8 * GIB);
    expect("what is this\n4:memory\n", (size_t)6 * GIB, (size_t)8 * GIB);
    tr_cgroup_memory(path_of("missing"), scratch, &available, &total);
    assert_true(available == 3 && total == 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_2),
        cmocka_unit_test(test_version_1),
        cmocka_unit_test(test_cpus),
        cmocka_unit_test(test_no_groups),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
