/* Tests that a process which is killed at any file-system call of a save leaves the old step or the
 * new one, complete, and that the next start needs no manual work. strace delivers SIGKILL at the
 * k-th call of each kind.
 *
 * All k with TRIREME_LONG=1; otherwise a sample: the last calls of each kind (where the commit is)
 * and some random ones. This program is its own victim: `test_ckpt_kill save ROOT STEP`. */
#include "base/philox.h"
#include "ckpt/ckpt.h"
#include "support/seed.h"

#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 40, COLUMNS = 25, RANKS = 2, OLD = 1, NEW = 2 };

static const char *const calls[] = {"openat",    "mkdir",     "flock",     "fallocate",
                                    "ftruncate", "pwrite64",  "pread64",   "fsync",
                                    "close",     "renameat2", "newfstatat"};
enum { CALLS = sizeof calls / sizeof *calls };

/* --- the victim: two ranks, half of the rows each --------------------------------------------- */

static float value_of(int64_t step, int64_t row, int64_t column) {
    uint32_t bits = (uint32_t)tr_mix64((uint64_t)(step << 40 | row << 20 | column));
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

typedef struct saver {
    tr_world *world;
    const char *root;
    int64_t step;
    int rank;
    tr_status status;
} saver;

static void *save_half(void *argument) {
    saver *s = argument;
    float local[ROWS / RANKS * COLUMNS];
    tr_box box = {.offset = {s->rank * (ROWS / RANKS), 0},
                  .extent = {ROWS / RANKS, COLUMNS},
                  .local_stride = {COLUMNS, 1}};
    for (int64_t i = 0; i < ROWS / RANKS * COLUMNS; i++)
        local[i] = value_of(s->step, box.offset[0] + i / COLUMNS, i % COLUMNS);
    tr_ckpt_tensor tensor = {.name = "weights/w",
                             .rank = 2,
                             .shape = {ROWS, COLUMNS},
                             .boxes = 1,
                             .box = &box,
                             .local = local,
                             .write = true};
    tr_ckpt_state state = {.step = s->step,
                           .next_sample = s->step,
                           .optimizer_step = s->step,
                           .tokens_seen = (double)s->step,
                           .config = "x: 1\n"};
    s->status = tr_ckpt_save(s->world, s->root, &state, &tensor, 1);
    tr_world_close(s->world);
    return NULL;
}

static tr_status save(const char *root, int64_t step) {
    tr_world *world[RANKS];
    saver s[RANKS];
    pthread_t thread[RANKS];
    if (tr_world_open_local(RANKS, world) != TR_OK) return TR_ERR_INTERNAL;
    for (int r = 0; r < RANKS; r++) s[r] = (saver){world[r], root, step, r, TR_OK};
    for (int r = 1; r < RANKS; r++)
        if (pthread_create(&thread[r], NULL, save_half, &s[r]) != 0) return TR_ERR_INTERNAL;
    /* Rank 0, which commits, is the main thread: strace counts calls by thread, and the start of
     * the program must not hide those of the commit. */
    (void)save_half(&s[0]);
    for (int r = 1; r < RANKS; r++) (void)pthread_join(thread[r], NULL);
    return s[0].status;
}

/* --- after the kill --------------------------------------------------------------------------- */

/* Returns the step that is found, after checking all of its bits; -1 when there is none or it is
 * wrong. */
static int64_t load(const char *root) {
    static float local[ROWS * COLUMNS];
    tr_box box = {.extent = {ROWS, COLUMNS}, .local_stride = {COLUMNS, 1}};
    tr_ckpt_tensor tensor = {.name = "weights/w",
                             .rank = 2,
                             .shape = {ROWS, COLUMNS},
                             .boxes = 1,
                             .box = &box,
                             .local = local};
    tr_ckpt_state state;
    tr_world *world;
    tr_ckpt_info skipped = {0};
    int64_t newest;
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    tr_status status = tr_ckpt_newest(root, INT64_MAX, &newest, &skipped);
    if (status == TR_OK) status = tr_ckpt_load(world, root, newest, &tensor, 1, &state, NULL);
    tr_world_close(world);
    if (status != TR_OK || skipped.why[0]) {
        print_message("%s %s\n", skipped.why, status ? tr_error_message() : "");
        return -1;
    }
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
        float want = value_of(state.step, i / COLUMNS, i % COLUMNS);
        if (memcmp(&want, &local[i], sizeof want) != 0) return -1;
    }
    return state.step;
}

static int count_hidden(const char *path) {
    int n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        n += strncmp(e->d_name, ".tmp-", 5) == 0 || strncmp(e->d_name, ".trash-", 7) == 0;
    (void)closedir(dir);
    return n;
}

static char self[512], scratch[256], root[300];

__attribute__((format(printf, 1, 2))) static int shell(const char *format, ...) {
    char command[2000];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(command, sizeof command, format, args);
    va_end(args);
    return system(command);
}

static void start_with_old(void) {
    (void)shell("rm -rf '%s'", scratch);
    assert_int_equal(mkdir(scratch, 0777), 0);
    (void)snprintf(root, sizeof root, "%s/ckpt", scratch);
    assert_int_equal(save(root, OLD), TR_OK);
}

/* Returns the most calls of this kind that one thread makes in a save without faults. */
static int count_calls(const char *name) {
    start_with_old();
    assert_int_equal(shell("strace -qq -ff -o '%s/trace' -e trace=%s '%s' save '%s' %d", scratch,
                           name, self, root, NEW),
                     0);
    assert_int_equal(load(root), NEW);
    char command[700], line[64];
    (void)snprintf(command, sizeof command,
                   "for f in '%s'/trace.*; do grep -c '^%s(' $f; done | sort -n | tail -1", scratch,
                   name);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    int n = fgets(line, sizeof line, pipe) ? (int)strtol(line, NULL, 10) : 0;
    (void)pclose(pipe);
    return n;
}

/* Kills the save at call k. Returns false when the save ended before. */
static bool kill_at(const char *name, int k, int seen[3]) {
    start_with_old();
    int rc = shell("strace -qq -f -o /dev/null -e trace=%s -e inject=%s:signal=SIGKILL:when=%d "
                   "'%s' save '%s' %d 2>/dev/null",
                   name, name, k, self, root, NEW);
    bool killed = rc != 0;
    int64_t found = load(root);
    if (found != OLD && found != NEW) print_message("killed at %s number %d\n", name, k);
    assert_true(found == OLD || found == NEW);
    seen[found]++;
    /* The next start cleans up by itself and can save again. */
    assert_int_equal(tr_ckpt_retain(root, 2, 0), TR_OK);
    assert_int_equal(count_hidden(root), 0);
    assert_int_equal(load(root), found);
    assert_int_equal(save(root, found + 1), TR_OK);
    assert_int_equal(load(root), found + 1);
    return killed;
}

static void test_killed_at_every_call(void **state) {
    (void)state;
    if (shell("strace -qq -o /dev/null true >/dev/null 2>&1") != 0) {
        print_message("strace is missing (package strace) or may not trace here\n");
        skip();
    }
    const bool all = getenv("TRIREME_LONG") != NULL;
    uint64_t seed = tr_test_seed(1);
    int seen[3] = {0}, kills = 0;
    for (int c = 0; c < CALLS; c++) {
        int n = count_calls(calls[c]);
        for (int k = 1; k <= n; k++) {
            /* the commit, else two of the twenty before it */
            uint64_t dice = tr_mix64(seed ^ tr_mix64((uint64_t)(c << 16 | k))) % 20;
            if (!all && k <= n - 2 && (k <= n - 22 || dice >= 2)) continue;
            kills += kill_at(calls[c], k, seen);
        }
    }
    print_message("%d kills: %d times the old step, %d times the new one\n", kills, seen[OLD],
                  seen[NEW]);
    assert_true(kills > 10 && seen[OLD] > 0 && seen[NEW] > 0); /* both sides of the commit */
}

/* The k-th call fails instead: the save returns 74 and leaves no files, or it succeeds. */
static void fail_at(const char *name, const char *error, int k) {
    start_with_old();
    int rc = shell("strace -qq -f -o /dev/null -e trace=%s -e inject=%s:error=%s:when=%d "
                   "'%s' save '%s' %d 2>/dev/null",
                   name, name, error, k, self, root, NEW);
    assert_true(WIFEXITED(rc)); /* no crash, not even at exit */
    int64_t found = load(root);
    bool good = WEXITSTATUS(rc) == 0         ? found == NEW
                : strcmp(name, "fsync") == 0 ? found == OLD || found == NEW
                                             : found == OLD;
    good = good && (WEXITSTATUS(rc) == 0 || WEXITSTATUS(rc) == TR_ERR_IO);
    if (!good || count_hidden(root) != 0)
        print_message("%s of %s number %d: exit code %d, step %" PRId64 " found\n", error, name, k,
                      WEXITSTATUS(rc), found);
    assert_true(good);
    assert_int_equal(count_hidden(root), 0);
}

static void test_failing_at_every_call(void **state) {
    (void)state;
    if (shell("strace -qq -o /dev/null true >/dev/null 2>&1") != 0) {
        print_message("strace is missing (package strace) or may not trace here\n");
        skip();
    }
    static const struct {
        const char *call, *error;
    } faults[] = {
        {"pwrite64", "ENOSPC"}, {"fsync", "EIO"},     {"fallocate", "ENOSPC"},
        {"mkdir", "EROFS"},     {"renameat2", "EIO"}, {"ftruncate", "ENOSPC"},
    };
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        int n = count_calls(faults[f].call);
        for (int k = 1; k <= n; k++) fail_at(faults[f].call, faults[f].error, k);
    }
    /* Unsupported calls, and those that a container forbids, must not make a save fail. */
    static const char *const refusals[] = {"EOPNOTSUPP", "EPERM"};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        start_with_old();
        assert_int_equal(shell("strace -qq -f -o /dev/null -e trace=fallocate,renameat2 "
                               "-e inject=fallocate:error=%s -e inject=renameat2:error=EINVAL "
                               "'%s' save '%s' %d",
                               refusals[i], self, root, NEW),
                         0);
        assert_int_equal(load(root), NEW);
    }
}

/* A file system that fails once, or goes on failing, while a run looks for its newest step. */
static void test_failing_reads(void **state) {
    (void)state;
    static const struct {
        const char *when;
        int old; /* damaged: its COMMIT is empty */
        int found;
    } cases[] = {{"1", 0, NEW}, {"1..3", 0, NEW}, {"1+", 0, OLD}, {"1", 1, NEW}, {"1+", 1, 100}};
    if (shell("strace -qq -o /dev/null true >/dev/null 2>&1") != 0) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start_with_old();
        assert_int_equal(save(root, NEW), TR_OK);
        if (cases[i].old) assert_int_equal(shell(": >'%s/step-%08d/COMMIT'", root, OLD), 0);
        int rc = shell("strace -qq -f -o /dev/null -P '%s/step-%08d/COMMIT' -e trace=openat "
                       "-e inject=openat:error=EIO:when=%s '%s' newest '%s'",
                       root, NEW, cases[i].when, self, root);
        assert_true(WIFEXITED(rc));
        if (WEXITSTATUS(rc) != (cases[i].found == 100 ? TR_ERR_IO : cases[i].found))
            fail_msg("failing reads %s: %d", cases[i].when, WEXITSTATUS(rc));
    }
}

/* A file system that does not sync directories. */
static void test_directories_without_sync(void **state) {
    (void)state;
    if (shell("strace -qq -o /dev/null true >/dev/null 2>&1") != 0) skip();
    start_with_old();
    assert_int_equal(shell("strace -qq -f -o /dev/null -P '%s' -e trace=fsync "
                           "-e inject=fsync:error=EINVAL '%s' save '%s' %d",
                           root, self, root, NEW),
                     0);
    assert_int_equal(load(root), NEW);
}

/* Returns the newest step, or the status of the search. */
static int newest(const char *folder) {
    tr_ckpt_info skipped = {0};
    int64_t step;
    tr_status status = tr_ckpt_newest(folder, INT64_MAX, &step, &skipped);
    return status == TR_OK ? (int)step : (int)status;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "newest") == 0) return newest(argv[2]);
    if (argc == 4 && strcmp(argv[1], "save") == 0)
        return (int)save(argv[2], strtoll(argv[3], NULL, 10));
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return 1;
    self[n] = '\0';
    const char *base = getenv("TMPDIR");
    (void)snprintf(scratch, sizeof scratch, "%s/trireme-test-kill-%d", base ? base : "/tmp",
                   (int)getpid());
    /* For the victims: a leak sanitizer cannot work under strace. */
    (void)setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_at_every_call), cmocka_unit_test(test_failing_at_every_call),
        cmocka_unit_test(test_failing_reads), cmocka_unit_test(test_directories_without_sync)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)shell("rm -rf '%s'", scratch);
    return failed;
}
