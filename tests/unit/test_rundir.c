/* Tests the lock of a run directory: one process holds it, its death frees it, and a directory that
 * cannot be locked gives a warning. */
#include "support/scratch.h"
#include "train/rundir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char path[128], note[TR_RUNDIR_NOTE];
static int lock_error; /* errno that a lock fails with; 0: it succeeds */
static int vanishing;  /* how often mkdir() finds a directory that is removed at once */

enum { SYNCS = 8 };
static ino_t synced[SYNCS]; /* the files that were synced, in order */
static int syncs = SYNCS;   /* how many; SYNCS: no more are noted */

/* The linker sends every fcntl(), mkdir() and fsync() here. */
int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...) {
    va_list args;
    va_start(args, command);
    void *argument = va_arg(args, void *);
    va_end(args);
    if (command == F_OFD_SETLK && lock_error) {
        errno = lock_error;
        return -1;
    }
    return __real_fcntl(fd, command, argument);
}

int __real_mkdir(const char *name, mode_t mode);
int __wrap_mkdir(const char *name, mode_t mode);
int __wrap_mkdir(const char *name, mode_t mode) {
    if (vanishing == 0 || access(name, F_OK) == 0) return __real_mkdir(name, mode);
    vanishing--;
    errno = EEXIST;
    return -1;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    struct stat info;
    if (syncs < SYNCS && fstat(fd, &info) == 0) synced[syncs++] = info.st_ino;
    return __real_fsync(fd);
}

static const char *in_scratch(const char *name) {
    (void)snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

static bool exists(const char *name) {
    char whole[160];
    struct stat info;
    (void)snprintf(whole, sizeof whole, "%s%s", path, name);
    return stat(whole, &info) == 0;
}

static void touch(const char *name) {
    char whole[160];
    (void)snprintf(whole, sizeof whole, "%s%s", path, name);
    FILE *f = fopen(whole, "w");
    assert_non_null(f);
    (void)fclose(f);
}

static tr_status take(tr_rundir *out) {
    return tr_rundir_take(path, true, false, NULL, out, note);
}

static void a_second_run_names_the_holder(void **state) {
    (void)state;
    tr_rundir a, b;
    char host[65] = "", name[128];
    (void)in_scratch("deep/er");
    assert_int_equal(take(&a), TR_OK);
    assert_string_equal(note, "");
    assert_int_equal(take(&b), TR_ERR_CONFIG);
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(name, sizeof name, "process %ld on host %s:", (long)getpid(), host);
    assert_non_null(strstr(tr_error_message(), name));
    assert_non_null(strstr(tr_error_message(), "log.dir="));
    tr_rundir_release(&b); /* does nothing */
    assert_int_equal(take(&b), TR_ERR_CONFIG);
    tr_rundir_release(&a);
    assert_int_equal(take(&b), TR_OK);
    tr_rundir_release(&b);
}

/* On another host the same path may be missing, or another run's directory. */
static void another_directory_is_not_taken_for_the_holders(void **state) {
    (void)state;
    tr_rundir a, b;
    char holder[TR_RUNDIR_HOLDER], other[sizeof path], lock[sizeof path + 8];
    (void)in_scratch("theirs");
    (void)strcpy(other, path);
    assert_int_equal(take(&b), TR_OK);
    tr_rundir_begin(&b);
    (void)in_scratch("ours");
    assert_int_equal(tr_rundir_take(path, true, false, "/job", &a, note), TR_OK);
    tr_rundir_begin(&a);
    tr_rundir_holder(&a, holder);
    assert_non_null(strstr(holder, "/job"));
    assert_int_equal(tr_rundir_check_holder(path, holder, 0), TR_OK);
    assert_int_equal(tr_rundir_check_holder(other, holder, 0.2), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "theirs' (log.dir) on host "));
    tr_rundir_release(&b); /* which removes it */
    assert_int_equal(tr_rundir_check_holder(other, holder, 0), TR_ERR_CONFIG);
    assert_int_equal(tr_rundir_check_holder(other, "", 0), TR_OK);
    /* A lock that this rank cannot open is another matter. */
    assert_int_equal(mkdir(other, 0700), 0);
    (void)snprintf(lock, sizeof lock, "%s/lock", other);
    assert_int_equal(symlink("lock", lock), 0);
    assert_int_equal(tr_rundir_check_holder(other, holder, 0), TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), strerror(ELOOP)));
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(rmdir(other), 0);
    tr_rundir_release(&a);
    tr_rundir_holder(&a, holder);
    assert_string_equal(holder, "");
}

/* A directory in which a job's run has begun is known to the job's restarts, and to them only. */
static void a_restart_knows_its_run(void **state) {
    (void)state;
    static const struct {
        const char *job;
        bool begun, begins;
    } turn[] = {{"/one", false, false}, {"/one", false, true}, {"/one", true, false},
                {"/one", true, false},  {"/on", false, false}, {"/one", false, true},
                {NULL, false, true},    {"/one", false, true}, {"/one", true, true}};
    (void)in_scratch("begun");
    for (size_t i = 0; i < sizeof turn / sizeof *turn; i++) {
        tr_rundir dir;
        assert_int_equal(tr_rundir_take(path, true, false, turn[i].job, &dir, note), TR_OK);
        if (i == 0) touch("/file"); /* otherwise the directory is removed */
        assert_int_equal(dir.begun, turn[i].begun);
        if (turn[i].begins) tr_rundir_begin(&dir);
        tr_rundir_release(&dir);
    }
}

/* Starts a child that takes the directory and waits; *child is its process. */
static int hold_in_child(pid_t *child) {
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    *child = fork();
    if (*child == 0) {
        tr_rundir dir;
        char own[256];
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (tr_rundir_take(path, true, false, NULL, &dir, own) == TR_OK)
            (void)!write(ready[1], "x", 1);
        (void)pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    return close(ready[1]);
}

static void the_death_of_the_holder_frees_it(void **state) {
    (void)state;
    pid_t child;
    tr_rundir dir;
    char name[64];
    (void)in_scratch("killed");
    assert_int_equal(hold_in_child(&child), 0);
    (void)snprintf(name, sizeof name, "process %ld ", (long)child);
    assert_int_equal(take(&dir), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), name));
    (void)kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(take(&dir), TR_OK);
    tr_rundir_release(&dir);
}

/* The lock file names a dead holder until the new one has written its name. */
static void a_dead_holder_is_not_named(void **state) {
    (void)state;
    pid_t child;
    tr_rundir dir;
    char host[65] = "", lock[160];
    (void)in_scratch("renamed");
    assert_int_equal(hold_in_child(&child), 0);
    pid_t dead = fork();
    if (dead == 0) _exit(0);
    assert_int_equal(waitpid(dead, NULL, 0), dead);
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(lock, sizeof lock, "%s/lock", path);
    FILE *f = fopen(lock, "w");
    assert_non_null(f);
    (void)fprintf(f, "host %s\nprocess %ld\n", host, (long)dead);
    (void)fclose(f);
    pid_t writer = fork();
    if (writer == 0) { /* the holder writes its name late */
        (void)usleep(100000);
        f = fopen(lock, "w");
        if (f) (void)fprintf(f, "host %s\nprocess %ld\n", host, (long)child);
        if (f) (void)fclose(f);
        _exit(0);
    }
    char name[64];
    (void)snprintf(name, sizeof name, "process %ld ", (long)child);
    assert_int_equal(take(&dir), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), name));
    assert_int_equal(waitpid(writer, NULL, 0), writer);
    (void)kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void what_cannot_be_locked_is_said(void **state) {
    (void)state;
    static const int errors[] = {ENOLCK, ENOSYS, EOPNOTSUPP};
    tr_rundir dir;
    (void)in_scratch("unlocked");
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        lock_error = errors[i];
        assert_int_equal(take(&dir), TR_OK);
        assert_non_null(strstr(note, "cannot lock"));
        assert_non_null(strstr(note, path));
        tr_rundir_release(&dir);
    }
    lock_error = EIO;
    assert_int_equal(take(&dir), TR_ERR_IO);
    lock_error = 0;
}

static bool are_local(const char *options) {
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
                     "36 22 0:45 / /home rw,noatime shared:9 - %s\n"
                     "37 22 0:46 / /scratch rw - nfs4 other:/x rw,local_lock=none\n",
                     options);
    FILE *f = fmemopen(text, (size_t)n, "r");
    assert_non_null(f);
    bool local = tr_rundir_locks_are_local(f, 0, 45);
    (void)fclose(f);
    return local;
}

static void local_locks_are_known_by_the_mount(void **state) {
    (void)state;
    assert_false(are_local("nfs4 server:/home rw,vers=4.2,hard,local_lock=none,addr=10.0.0.1"));
    assert_false(are_local("nfs server:/home rw,vers=3,hard,local_lock=flock,addr=10.0.0.1"));
    assert_true(are_local("nfs server:/home rw,vers=3,nolock,local_lock=all,addr=10.0.0.1"));
    assert_true(are_local("nfs server:/home rw,vers=3,hard,local_lock=posix"));
    assert_true(are_local("lustre 10.0.0.1@tcp:/fs rw,localflock"));
    assert_false(are_local("lustre 10.0.0.1@tcp:/fs rw,flock"));
    assert_false(are_local("ext4 /dev/nolock rw"));
}

static void only_an_untouched_directory_goes(void **state) {
    (void)state;
    tr_rundir dir;
    (void)in_scratch("fresh");
    assert_int_equal(take(&dir), TR_OK);
    assert_true(exists("/lock"));
    tr_rundir_release(&dir);
    assert_false(exists(""));

    assert_int_equal(mkdir(path, 0755), 0); /* a directory that a user made */
    assert_int_equal(take(&dir), TR_OK);
    tr_rundir_release(&dir);
    assert_true(exists(""));
    assert_int_equal(rmdir(path), 0);

    assert_int_equal(take(&dir), TR_OK);
    touch("/metrics.jsonl");
    tr_rundir_release(&dir);
    assert_true(exists("/metrics.jsonl"));
}

static void a_missing_directory_is_not_made_to_resume(void **state) {
    (void)state;
    tr_rundir dir;
    (void)in_scratch("missing");
    assert_int_equal(tr_rundir_take(path, false, false, NULL, &dir, note), TR_ERR_NOFILE);
    assert_false(exists(""));
    tr_rundir_release(&dir);
}

static void a_removed_directory_is_noticed(void **state) {
    (void)state;
    tr_rundir dir, other;
    char moved[160];
    (void)in_scratch("removed");
    assert_int_equal(take(&dir), TR_OK);
    assert_true(tr_rundir_in_place(&dir));
    (void)snprintf(moved, sizeof moved, "%s.moved", path);
    assert_int_equal(rename(path, moved), 0);
    assert_false(tr_rundir_in_place(&dir));
    assert_int_equal(take(&other), TR_OK); /* another run makes the directory */
    assert_false(tr_rundir_in_place(&dir));
    assert_true(tr_rundir_in_place(&other));
    tr_rundir_release(&dir);
    assert_true(exists("/lock")); /* the other run's file */
    tr_rundir_release(&other);
}

/* Another run may remove the directory between its making and its lock. */
/* A power cut does not take the name of a new directory. */
static void new_directories_are_synced_in_their_parents(void **state) {
    (void)state;
    tr_rundir dir;
    struct stat outer, inner;
    char name[160];
    (void)in_scratch("stays/here");
    syncs = 0;
    assert_int_equal(take(&dir), TR_OK);
    assert_in_range(syncs, 2, SYNCS);
    syncs = SYNCS;
    (void)snprintf(name, sizeof name, "%s/stays", scratch);
    assert_int_equal(stat(scratch, &outer) + stat(name, &inner), 0);
    assert_int_equal(synced[0], outer.st_ino);
    assert_int_equal(synced[1], inner.st_ino);
    tr_rundir_release(&dir);
}

static void a_directory_that_vanishes_is_made_again(void **state) {
    (void)state;
    tr_rundir dir;
    (void)in_scratch("vanishing");
    vanishing = 3;
    assert_int_equal(take(&dir), TR_OK);
    assert_int_equal(vanishing, 0);
    assert_true(tr_rundir_in_place(&dir));
    tr_rundir_release(&dir);
    assert_false(exists(""));
    assert_int_equal(symlink("nothing", path), 0); /* no run removes a link */
    assert_int_equal(take(&dir), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "is not a directory"));
    assert_int_equal(unlink(path), 0);
}

/* A path of another kind is bad input, and no fault of the disk. */
static void a_file_is_not_taken_for_a_directory(void **state) {
    (void)state;
    char below[192], words[192];
    tr_rundir dir;
    (void)in_scratch("file");
    touch("");
    (void)snprintf(below, sizeof below, "%s//below", path);
    (void)snprintf(words, sizeof words, "'%s' (log.dir) is not a directory", path);
    assert_int_equal(take(&dir), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), words));
    assert_int_equal(tr_rundir_take(below, true, false, NULL, &dir, note), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), words));
    assert_int_equal(unlink(path), 0);
}

static void the_root_folder_is_refused(void **state) {
    (void)state;
    static const char *const roots[] = {"/", "//", "/.", "/tmp/.."};
    tr_rundir dir;
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        const tr_status status = tr_rundir_take(roots[i], true, false, NULL, &dir, note);
        if (status == TR_OK) tr_rundir_release(&dir);
        assert_int_equal(status, TR_ERR_CONFIG);
        assert_non_null(strstr(tr_error_message(), " (log.dir) is the root folder: name a"));
    }
}

/* While runs start and end, a directory that one of them removes is always held by exactly one. */
static void directories_that_vanish_are_held_by_one(void **state) {
    (void)state;
    enum { CHILDREN = 4, ROUNDS = 3000 };
    pid_t child[CHILDREN];
    (void)in_scratch("busy");
    char owner[160];
    (void)snprintf(owner, sizeof owner, "%s.owner", path);
    for (int c = 0; c < CHILDREN; c++) {
        child[c] = fork();
        if (child[c] != 0) continue;
        int failures = 0;
        for (int i = 0; i < ROUNDS; i++) {
            tr_rundir dir;
            char own[256];
            tr_status status = tr_rundir_take(path, true, false, NULL, &dir, own);
            if (status == TR_ERR_CONFIG) continue;
            if (status != TR_OK || !tr_rundir_in_place(&dir)) failures++;
            int fd = open(owner, O_CREAT | O_EXCL | O_WRONLY, 0644);
            if (fd < 0) failures++; /* another process holds it too */
            else (void)close(fd);
            (void)unlink(owner);
            tr_rundir_release(&dir);
        }
        _exit(failures ? 1 : 0);
    }
    for (int c = 0; c < CHILDREN; c++) {
        int status;
        assert_int_equal(waitpid(child[c], &status, 0), child[c]);
        assert_int_equal(status, 0);
    }
}

/* A path that is too long is refused whole: no part of it is made. */
static void long_paths_are_refused(void **state) {
    (void)state;
    char longest[TR_CONFIG_PATH + 200];
    tr_rundir dir;
    int length = snprintf(longest, sizeof longest, "/tmp/trireme-long-%ld", (long)getpid());
    for (; length < TR_CONFIG_PATH + 100; length += 2) memcpy(longest + length, "/x", 3);
    assert_int_equal(tr_rundir_take(longest, true, false, NULL, &dir, note), TR_ERR_USAGE);
    (void)snprintf(longest, sizeof longest, "/tmp/trireme-long-%ld", (long)getpid());
    assert_int_equal(access(longest, F_OK), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_paths_are_refused),
        cmocka_unit_test(a_file_is_not_taken_for_a_directory),
        cmocka_unit_test(the_root_folder_is_refused),
        cmocka_unit_test(a_second_run_names_the_holder),
        cmocka_unit_test(another_directory_is_not_taken_for_the_holders),
        cmocka_unit_test(a_restart_knows_its_run),
        cmocka_unit_test(the_death_of_the_holder_frees_it),
        cmocka_unit_test(a_dead_holder_is_not_named),
        cmocka_unit_test(what_cannot_be_locked_is_said),
        cmocka_unit_test(local_locks_are_known_by_the_mount),
        cmocka_unit_test(only_an_untouched_directory_goes),
        cmocka_unit_test(a_missing_directory_is_not_made_to_resume),
        cmocka_unit_test(a_removed_directory_is_noticed),
        cmocka_unit_test(new_directories_are_synced_in_their_parents),
        cmocka_unit_test(a_directory_that_vanishes_is_made_again),
        cmocka_unit_test(directories_that_vanish_are_held_by_one),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
