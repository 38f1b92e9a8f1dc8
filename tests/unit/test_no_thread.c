/* Tests a process that cannot start more threads: each part of the program that needs one fails
 * with the remedy and the exit code of an unavailable device, and destroys the locks and conditions
 * that it had made. */
#include "comm/comm.h"
#include "device/device.h"
#include "job/board.h"
#include "job/watchdog.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int refusal = EAGAIN;

/* The linker sends every pthread_create() here. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument) {
    (void)thread, (void)attributes, (void)run, (void)argument;
    return refusal;
}

/* The locks and conditions that were made and not destroyed. */
static int locks;

int __real_pthread_mutex_init(pthread_mutex_t *lock, const pthread_mutexattr_t *attributes);
int __wrap_pthread_mutex_init(pthread_mutex_t *lock, const pthread_mutexattr_t *attributes);
int __wrap_pthread_mutex_init(pthread_mutex_t *lock, const pthread_mutexattr_t *attributes) {
    locks++;
    return __real_pthread_mutex_init(lock, attributes);
}

int __real_pthread_mutex_destroy(pthread_mutex_t *lock);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *lock);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *lock) {
    locks--;
    return __real_pthread_mutex_destroy(lock);
}

int __real_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes);
int __wrap_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes);
int __wrap_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes) {
    locks++;
    return __real_pthread_cond_init(condition, attributes);
}

int __real_pthread_cond_destroy(pthread_cond_t *condition);
int __wrap_pthread_cond_destroy(pthread_cond_t *condition);
int __wrap_pthread_cond_destroy(pthread_cond_t *condition) {
    locks--;
    return __real_pthread_cond_destroy(condition);
}

static int begin(void **state) {
    (void)state;
    locks = 0;
    return 0;
}

static int end(void **state) {
    (void)state;
    assert_int_equal(locks, 0);
    return 0;
}

static void expect_refusal(tr_status status) {
    assert_int_equal(status, TR_ERR_DEVICE);
    assert_non_null(strstr(tr_error_message(), "cannot start a thread for "));
    assert_non_null(strstr(tr_error_message(), ": raise the limit of processes (ulimit -u)"));
    tr_error_clear();
}

static void test_messages(void **state) {
    (void)state;
    tr_world *world[2];
    expect_refusal(tr_world_open_local(2, world));
}

static void test_streams(void **state) {
    (void)state;
    const tr_device_options options = {.threads = 1};
    tr_device *device;
    tr_stream *stream;
    assert_int_equal(tr_device_open("cpu", &options, &device), TR_OK);
    expect_refusal(tr_stream_create(device, &stream));
    tr_device_close(device);
}

static void test_computing(void **state) {
    (void)state;
    const tr_device_options options = {.threads = 2};
    tr_device *device;
    expect_refusal(tr_device_open("cpu", &options, &device));
}

static void test_filtered(void **state) {
    (void)state;
    tr_world *world[2];
    refusal = EPERM;
    assert_int_equal(tr_world_open_local(2, world), TR_ERR_DEVICE);
    assert_non_null(strstr(tr_error_message(), "let the container call clone3: "));
    tr_error_clear();
    refusal = EAGAIN;
}

static void test_watchdog(void **state) {
    (void)state;
    char name[64];
    tr_board *board;
    tr_watchdog *watchdog;
    const tr_watchdog_options options = {0};
    tr_board_make_name(name, sizeof name);
    assert_int_equal(tr_board_open(name, 1, &board), TR_OK);
    tr_board_unlink(name);
    assert_int_equal(tr_board_attach(board, 0), TR_OK);
    expect_refusal(tr_watchdog_start(board, &options, &watchdog));
    tr_board_close(board);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_messages, begin, end),
        cmocka_unit_test_setup_teardown(test_streams, begin, end),
        cmocka_unit_test_setup_teardown(test_computing, begin, end),
        cmocka_unit_test_setup_teardown(test_filtered, begin, end),
        cmocka_unit_test_setup_teardown(test_watchdog, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
