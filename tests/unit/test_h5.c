/* HDF5's failures to write a layout are said as those of other writes. */
#include "ckpt/h5.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Makes a layout of 5000 bytes of payload and finishes it with `status`. A limit on a file's size
 * stands for a disk that becomes full: HDF5 writes a layout when the file is closed. */
static tr_status finish_without_room(tr_status status) {
    static const char path[] = "layout.h5";
    const int64_t steps[4] = {1, 2, 3, 4};
    struct rlimit before, small;
    hid_t file;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 128;
    assert_int_equal(tr_h5_create(path, 5000, &file), TR_OK);
    assert_true(tr_h5_set_i64(file, "step", 4, steps));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    if (status != TR_OK) status = TR_FAIL(status, "an earlier failure");
    status = tr_h5_finish(path, 5000, file, status);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)unlink(path);
    return status;
}

static void test_no_room_for_a_layout(void **state) {
    (void)state;
    assert_int_equal(finish_without_room(TR_OK), TR_ERR_IO);
    assert_string_equal(tr_error_message(),
                        "cannot finish the layout of layout.h5: File too large; a checkpoint of "
                        "this run takes at least 5000 bytes: raise the limit on a file's size "
                        "(ulimit -f) (older checkpoints are untouched)");
}

/* The sentence is that of the status. In a process of its own, because HDF5 leaks a file that it
 * cannot close. */
static void test_earlier_failure(void **state) {
    (void)state;
    int end = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(finish_without_room(TR_ERR_INTERNAL) != TR_ERR_INTERNAL ||
              strcmp(tr_error_message(), "an earlier failure") != 0);
    assert_int_equal(waitpid(child, &end, 0), child);
    assert_int_equal(end, 0);
}

static void test_no_folder(void **state) {
    (void)state;
    hid_t file;
    assert_int_equal(tr_h5_create("no/such/folder.h5", 5000, &file), TR_ERR_IO);
    assert_string_equal(tr_error_message(), "cannot lay out no/such/folder.h5: No such file or "
                                            "directory (older checkpoints are untouched)");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_room_for_a_layout),
                                       cmocka_unit_test(test_earlier_failure),
                                       cmocka_unit_test(test_no_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
