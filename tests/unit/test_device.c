/* Tests what every device has besides operators: memory, copies, zeros, streams, events, host
 * calls, staging memory, and the refusal of what does not fit.
 *
 * TRIREME_TEST_DEVICE names the device, "guarded" when it is not set (device/guarded.c: the memory
 * of a GPU without one). Exits with 77 when that device cannot be opened. */
#include "base/memory.h"
#include "base/philox.h"
#include "support/device_tests.h"
#include "support/seed.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t seed;

static uint32_t value(uint64_t i) {
    return tr_philox4x32(seed, i, 0).v[0];
}

static void fill(uint32_t *memory, size_t count, uint64_t first) {
    for (size_t i = 0; i < count; i++) memory[i] = value(first + i);
}

static void check(const uint32_t *memory, size_t count, uint64_t first) {
    for (size_t i = 0; i < count; i++)
        if (memory[i] != value(first + i)) fail_msg("element %zu is wrong", i);
}

/* Allocations are zeroed and aligned; a piece in their middle is zeroed and copied alone. */
static void test_copies(void **state) {
    tr_device *device = *state;
    tr_stream *stream = tr_device_compute(device);
    uint32_t *a = on_device(device, COUNT), *b = on_device(device, COUNT);
    uint32_t *from = staging(device, COUNT), *to = staging(device, COUNT);
    assert_int_equal((uintptr_t)a % TR_ALIGN, 0);
    assert_int_equal((uintptr_t)from % TR_ALIGN, 0);
    fill(from, COUNT, 0);
    memset(to, 0xff, COUNT * sizeof *to);
    must(tr_stream_copy(stream, to, a, COUNT * sizeof *a));
    must(tr_stream_sync(stream));
    for (size_t i = 0; i < COUNT; i++) assert_int_equal(to[i], 0);

    must(tr_stream_copy(stream, a, from, COUNT * sizeof *a));
    must(tr_stream_copy(stream, b, a, COUNT * sizeof *a)); /* device to device */
    must(tr_stream_zero(stream, b + 1001, 77 * sizeof *b));
    must(tr_stream_copy(stream, b + 5000, a + 9, 1234 * sizeof *b));
    must(tr_stream_copy(stream, b, a, 0));
    must(tr_stream_copy(stream, to, b, COUNT * sizeof *b));
    must(tr_stream_sync(stream));
    check(to, 1001, 0);
    for (size_t i = 1001; i < 1078; i++) assert_int_equal(to[i], 0);
    check(to + 1078, 5000 - 1078, 1078);
    check(to + 5000, 1234, 9);
    check(to + 6234, COUNT - 6234, 6234);
    tr_device_free(device, a);
    tr_device_free(device, b);
    tr_device_staging_free(device, from);
    tr_device_staging_free(device, to);
}

/* Two streams pass a piece of memory back and forth; each overwrites what the other has read.
 * Without one of the waits the last value is another. */
static void test_events(void **state) {
    enum { ROUNDS = 40 };
    tr_device *device = *state;
    tr_stream *stream[2] = {NULL, tr_device_compute(device)};
    tr_event *done[2], *never;
    uint32_t *ball = on_device(device, COUNT), *trail = on_device(device, COUNT);
    uint32_t *host = staging(device, COUNT);
    must(tr_event_create(device, &never));
    assert_true(tr_event_reached(never));
    must(tr_stream_create(device, &stream[0]));
    for (int i = 0; i < 2; i++) {
        must(tr_event_create(device, &done[i]));
        assert_non_null(tr_stream_native(stream[i]));
    }
    must(tr_stream_wait(stream[0], never));
    fill(host, COUNT, 0);
    must(tr_stream_copy(stream[0], ball, host, COUNT * sizeof *ball));
    must(tr_event_record(done[0], stream[0]));
    for (int round = 0; round < ROUNDS; round++) {
        /* Stream 1 reads the whole and zeroes the first half; stream 0 restores it. */
        must(tr_stream_wait(stream[1], done[0]));
        must(tr_stream_copy(stream[1], trail, ball, COUNT * sizeof *ball));
        must(tr_stream_zero(stream[1], ball, COUNT / 2 * sizeof *ball));
        must(tr_event_record(done[1], stream[1]));
        must(tr_stream_wait(stream[0], done[1]));
        must(tr_stream_copy(stream[0], ball, trail, COUNT / 2 * sizeof *ball));
        must(tr_stream_zero(stream[0], trail, COUNT * sizeof *ball));
        must(tr_event_record(done[0], stream[0]));
    }
    must(tr_stream_sync(stream[0]));
    assert_true(tr_event_reached(done[0]));
    memset(host, 0, COUNT * sizeof *host);
    must(tr_stream_copy(stream[1], host, ball, COUNT * sizeof *ball));
    must(tr_stream_sync(stream[1]));
    check(host, COUNT, 0);
    tr_stream_destroy(stream[0]);
    for (int i = 0; i < 2; i++) tr_event_destroy(done[i]);
    tr_event_destroy(never);
    tr_device_free(device, ball);
    tr_device_free(device, trail);
    tr_device_staging_free(device, host);
}

typedef struct visit {
    atomic_int *turn;
    const uint32_t *host;
    int expected;
    bool right;
} visit;

static void on_visit(void *argument) {
    visit *v = argument;
    usleep(2000);
    v->right = atomic_fetch_add(v->turn, 1) == v->expected && v->host[0] == value(1) &&
               v->host[COUNT - 1] == value(COUNT);
}

/* A host function runs after the work queued before it and before the work queued after it. */
static void test_host_calls(void **state) {
    tr_device *device = *state;
    tr_stream *stream = tr_device_compute(device);
    atomic_int turn = 0;
    uint32_t *memory = on_device(device, COUNT), *from = staging(device, COUNT);
    uint32_t *to = staging(device, COUNT);
    visit first = {&turn, to, 0, false}, second = {&turn, to, 1, false};
    fill(from, COUNT, 1);
    memset(to, 0, COUNT * sizeof *to);
    must(tr_stream_copy(stream, memory, from, COUNT * sizeof *from));
    must(tr_stream_copy(stream, to, memory, COUNT * sizeof *from));
    must(tr_stream_call(stream, on_visit, &first));
    must(tr_stream_call(stream, on_visit, &second));
    must(tr_stream_zero(stream, memory, COUNT * sizeof *from));
    must(tr_stream_copy(stream, to, memory, COUNT * sizeof *from));
    must(tr_stream_sync(stream));
    assert_int_equal(atomic_load(&turn), 2);
    assert_true(first.right);
    assert_true(second.right);
    assert_int_equal(to[0], 0);
    tr_device_free(device, memory);
    tr_device_staging_free(device, from);
    tr_device_staging_free(device, to);
}

/* An operator reads what was copied before it, and an operator may be released once it is
 * queued. */
static void test_operator_in_order(void **state) {
    tr_device *device = *state;
    tr_stream *stream = tr_device_compute(device);
    float *a = (float *)on_device(device, COUNT), *host = (float *)staging(device, COUNT);
    const tr_op_desc desc = {.kind = TR_OP_ADD,
                             .rows = {.rows = 1, .width = COUNT, .dtype = TR_F32}};
    tr_op *add;
    for (int i = 0; i < COUNT; i++) host[i] = (float)i;
    must(tr_stream_copy(stream, a, host, COUNT * sizeof *a));
    for (int k = 0; k < 3; k++) {
        must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &add));
        const tr_tensor x = tr_tensor_vector(a, TR_F32, COUNT);
        const tr_op_args args = {.t = {[TR_ADD_A] = x, [TR_ADD_B] = x, [TR_ADD_Y] = x}};
        must(tr_op_run(add, stream, &args));
        tr_op_release(add);
    }
    must(tr_stream_copy(stream, host, a, COUNT * sizeof *a));
    must(tr_stream_sync(stream));
    for (int i = 0; i < COUNT; i++)
        if (host[i] != 8 * (float)i) fail_msg("element %d is %g", i, (double)host[i]);
    tr_device_free(device, a);
    tr_device_staging_free(device, host);
}

/* Asking for an event that is not reached yet must not leave an error: the thread can enqueue more
 * work. */
static void test_asked_early(void **state) {
    tr_device *device = *state;
    tr_stream *stream, *compute = tr_device_compute(device);
    tr_event *event;
    tr_op *add;
    atomic_bool go = false;
    float *a = (float *)on_device(device, COUNT), *host = (float *)staging(device, COUNT);
    const tr_op_desc desc = {.kind = TR_OP_ADD,
                             .rows = {.rows = 1, .width = COUNT, .dtype = TR_F32}};
    const tr_tensor x = tr_tensor_vector(a, TR_F32, COUNT);
    const tr_op_args args = {.t = {[TR_ADD_A] = x, [TR_ADD_B] = x, [TR_ADD_Y] = x}};
    must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &add));
    must(tr_stream_create(device, &stream));
    must(tr_event_create(device, &event));
    must(tr_stream_call(stream, on_held, &go));
    must(tr_event_record(event, stream));
    host[COUNT - 1] = 3;
    must(tr_stream_copy(compute, a, host, COUNT * sizeof *a));
    assert_false(tr_event_reached(event));
    must(tr_op_run(add, compute, &args));
    assert_false(tr_event_reached(event));
    must(tr_stream_copy(compute, host, a, COUNT * sizeof *a));
    must(tr_stream_sync(compute));
    assert_true(host[COUNT - 1] == 6);
    atomic_store(&go, true);
    must(tr_stream_sync(stream));
    assert_true(tr_event_reached(event));
    tr_op_release(add);
    tr_stream_destroy(stream);
    tr_event_destroy(event);
    tr_device_free(device, a);
    tr_device_staging_free(device, host);
}

typedef struct errand {
    tr_device *device;
    uint32_t *from, *to;
    tr_stream *stream;
    tr_event *done;
    void *memory;
    int step;
    tr_status status;
} errand;

/* Copies `from` through the device to `to`, on a stream of its own, one step a call. */
static tr_status carry(errand *e) {
    const size_t bytes = COUNT * sizeof *e->to;
    size_t available, total;
    switch (e->step) {
    case 0: return tr_stream_create(e->device, &e->stream);
    case 1: return tr_event_create(e->device, &e->done);
    case 2: return tr_device_alloc(e->device, TR_MEMORY_DATA, bytes, &e->memory);
    case 3: return tr_stream_copy(e->stream, e->memory, e->from, bytes);
    case 4: return tr_stream_zero(e->stream, e->memory, sizeof *e->to);
    case 5: return tr_stream_copy(e->stream, e->to, e->memory, bytes);
    case 6: return tr_event_record(e->done, e->stream);
    case 7: return tr_stream_sync(e->stream);
    case 8: return tr_event_reached(e->done) ? TR_OK : TR_ERR_INTERNAL;
    case 9: return tr_stream_wait(e->stream, e->done);
    case 10: return tr_stream_sync(e->stream);
    case 11: return tr_device_memory(e->device, &available, &total);
    case 12: tr_device_free(e->device, e->memory); return TR_OK;
    case 13: tr_event_destroy(e->done); return TR_OK;
    default: tr_stream_destroy(e->stream); return TR_OK;
    }
}

static void *carry_main(void *argument) {
    errand *e = argument;
    e->status = carry(e);
    return NULL;
}

/* Any thread can use the device like the one that opened it: each call comes from a new thread. */
static void test_other_threads(void **state) {
    errand e = {.device = *state};
    e.from = staging(e.device, COUNT);
    e.to = staging(e.device, COUNT);
    fill(e.from, COUNT, 5);
    memset(e.to, 0xff, COUNT * sizeof *e.to);
    for (e.step = 0; e.step <= 14; e.step++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, carry_main, &e), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        if (e.status != TR_OK) fail_msg("step %d ended with %d", e.step, (int)e.status);
    }
    assert_int_equal(e.to[0], 0);
    check(e.to + 1, COUNT - 1, 6);
    tr_device_staging_free(e.device, e.from);
    tr_device_staging_free(e.device, e.to);
}

typedef struct holding {
    tr_stream *stream;
    atomic_bool go;
    atomic_int runs;
    tr_status status;
} holding;

static void on_held_turn(void *argument) {
    holding *h = argument;
    on_held(&h->go);
    atomic_fetch_add(&h->runs, 1);
}

static void *hold_main(void *argument) {
    holding *h = argument;
    for (int i = 0; i < 100 && h->status == TR_OK; i++)
        h->status = tr_stream_call(h->stream, on_held_turn, h);
    return NULL;
}

/* Many calls may wait in a stream, more than a device's own queue holds, for longer than a second;
 * other threads use the device meanwhile. */
static void test_many_calls(void **state) {
    tr_device *device = *state;
    holding h = {.status = TR_OK};
    pthread_t thread;
    uint32_t *memory = on_device(device, COUNT), *host = staging(device, COUNT);
    must(tr_stream_create(device, &h.stream));
    assert_int_equal(pthread_create(&thread, NULL, hold_main, &h), 0);
    (void)usleep(1200000);
    host[0] = 1;
    must(tr_stream_copy(tr_device_compute(device), host, memory, sizeof *host));
    must(tr_stream_sync(tr_device_compute(device)));
    assert_int_equal(host[0], 0);
    assert_int_equal(atomic_load(&h.runs), 0);
    atomic_store(&h.go, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    must(h.status);
    must(tr_stream_sync(h.stream));
    assert_int_equal(atomic_load(&h.runs), 100);
    tr_stream_destroy(h.stream);
    tr_device_free(device, memory);
    tr_device_staging_free(device, host);
}

/* --- memory ----------------------------------------------------------------------------------- */

static void test_memory(void **state) {
    tr_device *device = *state;
    const tr_memory A = TR_MEMORY_TRANSFERS, B = TR_MEMORY_NCCL;
    size_t available, total, piece = 1 << 20;
    void *memory = &available, *second;
    must(tr_device_memory(device, &available, &total));
    assert_true(available > 0 && available <= total);
    assert_int_equal(tr_device_alloc(device, A, total + 1, &memory), TR_ERR_FIT);
    assert_null(memory);
    assert_int_equal(tr_device_peak(device, A), 0);
    /* The refusal had no side effect: the device can still allocate. */
    must(tr_device_alloc(device, A, piece, &memory));
    must(tr_device_alloc(device, B, 1, &second));
    tr_device_count_memory(device, B, 7);
    assert_int_equal(device->live[A], piece);
    assert_int_equal(device->live[B], TR_ALIGN + 7);
    must(tr_stream_sync(tr_device_compute(device)));
    tr_device_free(device, memory);
    assert_int_equal(device->live[A], 0);
    must(tr_device_alloc(device, A, piece / 2, &memory));
    tr_device_free(device, memory);
    tr_device_free(device, second);
    assert_int_equal(tr_device_peak(device, A), piece);
    assert_int_equal(device->live[B], 7);
    assert_int_equal(tr_device_peak(device, B), TR_ALIGN + 7);
    must(tr_device_alloc(device, A, 0, &memory));
    tr_device_free(device, memory);
}

/* Only a device on the host's memory shows its memory to the host, and the guarded one refuses the
 * copies that a GPU would stop the caller for. */
static void test_pageable_copies(void **state) {
    tr_device *device = *state;
    if (strcmp(device->name, "guarded") != 0) skip();
    assert_false(tr_device_on_host(device));
    tr_stream *stream;
    uint32_t local = 0, *memory = on_device(device, 1);
    must(tr_stream_create(device, &stream));
    assert_int_equal(tr_stream_copy(stream, memory, &local, sizeof local), TR_ERR_INTERNAL);
    assert_int_equal(tr_stream_copy(stream, &local, memory, sizeof local), TR_ERR_INTERNAL);
    tr_stream_destroy(stream);
    tr_device_free(device, memory);
}

int main(void) {
    const char *name = getenv("TRIREME_TEST_DEVICE");
    tr_device *device;
    const tr_device_options options = {.threads = 1};
    tr_status status = tr_device_open(name ? name : "guarded", &options, &device);
    if (status != TR_OK) {
        printf("%s: %s\n", status == TR_ERR_DEVICE ? "skipped" : "failed", tr_error_message());
        return status == TR_ERR_DEVICE ? 77 : 1;
    }
    seed = tr_test_seed(31);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_copies, device),
        cmocka_unit_test_prestate(test_events, device),
        cmocka_unit_test_prestate(test_host_calls, device),
        cmocka_unit_test_prestate(test_operator_in_order, device),
        cmocka_unit_test_prestate(test_asked_early, device),
        cmocka_unit_test_prestate(test_other_threads, device),
        cmocka_unit_test_prestate(test_many_calls, device),
    };
    const struct CMUnitTest memory_tests[] = {
        cmocka_unit_test_prestate(test_memory, device),
        cmocka_unit_test_prestate(test_pageable_copies, device),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    failed += cmocka_run_group_tests(memory_tests, NULL, NULL);
    /* Restrictions of a queue, and the same tests through the queue. */
    if (!tr_device_on_host(device)) {
        failed += test_device_queue(device);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    tr_device_close(device);
    return failed;
}
