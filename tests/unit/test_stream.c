/* Tests streams and events of host devices: order within a stream, events between streams and with
 * the caller, with random delays. Run it with ThreadSanitizer too, which reports a missing wait as
 * a race. */
#include "base/memory.h"
#include "base/philox.h"
#include "device/device.h"
#include "device/host_impl.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t seed;

/* Returns a random number below n, a function of the counter. */
static uint32_t draw(uint64_t counter, uint32_t n) {
    return tr_philox4x32(seed, counter, 0).v[0] % n;
}

static tr_device *open_device(const char *name) {
    tr_device *device;
    tr_device_options options = {.threads = 1};
    assert_int_equal(tr_device_open(name, &options, &device), TR_OK);
    return device;
}

static int setup(void **state) {
    *state = open_device("ref");
    return 0;
}

static int teardown(void **state) {
    tr_device_close(*state);
    return 0;
}

/* Blocks a stream until the flag is set. */
static void hold_until(void *flag) {
    while (!atomic_load((atomic_bool *)flag)) usleep(1000);
}

static void test_names(void **state) {
    (void)state;
    tr_device_options options = {.threads = 1};
    const char *const unknown[] = {"gpu",     "cud",   "cuda:", "cuda:x",
                                   "cuda:1x", "cpu:0", "",      "cuda:-1"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        tr_device *device = (tr_device *)&options;
        assert_int_equal(tr_device_open(unknown[i], &options, &device), TR_ERR_DEVICE);
        assert_null(device);
        assert_non_null(strstr(tr_error_message(), "there is no device called"));
    }
    tr_device *device = open_device("cpu");
    assert_string_equal(device->name, "cpu");
    assert_string_equal(device->ops->kind, "cpu");
    tr_device_close(device);
    tr_device_close(NULL);
}

/* An order is chosen before a device is opened, so each kind of device states its speed even
 * without the backend; a GPU computes more than a CPU in the time of sending a byte. */
static void test_speeds(void **state) {
    (void)state;
    const char *const hosts[] = {"cpu", "ref", "guarded", "guarded:1", "unknown"};
    const tr_device_speed *gpu = tr_device_speed_of("cuda:3");
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const tr_device_speed *host = tr_device_speed_of(hosts[i]);
        assert_true(host->flops_per_s / host->link_bytes == 20);
    }
    assert_true(gpu->flops_per_s / gpu->link_bytes == 2000);
}

static void test_memory(void **state) {
    tr_device *device = *state;
    size_t available, total;
    assert_int_equal(tr_device_memory(device, &available, &total), TR_OK);
    assert_true(available > 0 && available <= total);
    for (size_t bytes = 0; bytes < 5000; bytes += 617) {
        unsigned char *memory;
        assert_int_equal(tr_device_alloc(device, TR_MEMORY_DATA, bytes, (void **)&memory), TR_OK);
        assert_int_equal((uintptr_t)memory % TR_ALIGN, 0);
        for (size_t i = 0; i < bytes; i++) assert_int_equal(memory[i], 0);
        memset(memory, 0xff, bytes); /* the next allocation must be zeroed nevertheless */
        tr_device_free(device, memory);
    }
    void *memory;
    assert_int_equal(tr_device_alloc(device, TR_MEMORY_DATA, total + 1, &memory), TR_ERR_FIT);
    assert_null(memory);
    assert_int_equal(tr_device_alloc(device, TR_MEMORY_DATA, SIZE_MAX, &memory), TR_ERR_FIT);
}

enum { APPENDS = 300 };
typedef struct append {
    int *list, *length, value;
    useconds_t delay;
} append;

static void do_append(void *argument) {
    append *a = argument;
    if (a->delay) usleep(a->delay);
    a->list[(*a->length)++] = a->value;
}

/* More items than the ring's first size, some of them slow, run first in, first out. */
static void test_order(void **state) {
    tr_stream *stream;
    assert_int_equal(tr_stream_create(*state, &stream), TR_OK);
    int list[APPENDS], length = 0;
    append items[APPENDS];
    for (int i = 0; i < APPENDS; i++) {
        items[i] = (append){list, &length, i, draw((uint64_t)i, 10) ? 0 : draw((uint64_t)i, 300)};
        assert_int_equal(tr_stream_call(stream, do_append, &items[i]), TR_OK);
    }
    assert_int_equal(tr_stream_sync(stream), TR_OK);
    assert_int_equal(length, APPENDS);
    for (int i = 0; i < APPENDS; i++) assert_int_equal(list[i], i);
    tr_stream_destroy(stream);
}

/* Destroying a stream first runs its queued work. */
static void test_destroy_drains(void **state) {
    tr_stream *stream;
    assert_int_equal(tr_stream_create(*state, &stream), TR_OK);
    int list[20], length = 0;
    append items[20];
    for (int i = 0; i < 20; i++) {
        items[i] = (append){list, &length, i, 100};
        assert_int_equal(tr_stream_call(stream, do_append, &items[i]), TR_OK);
    }
    tr_stream_destroy(stream);
    assert_int_equal(length, 20);
}

static void test_copy_zero(void **state) {
    tr_stream *streams[2] = {tr_device_compute(*state), NULL};
    assert_int_equal(tr_stream_create(*state, &streams[1]), TR_OK);
    for (int i = 0; i < 2; i++) {
        char a[64], b[64];
        memset(a, 'a', sizeof a);
        assert_int_equal(tr_stream_copy(streams[i], b, a, sizeof a), TR_OK);
        assert_int_equal(tr_stream_zero(streams[i], a, 32), TR_OK);
        assert_int_equal(tr_stream_sync(streams[i]), TR_OK);
        assert_int_equal(b[0], 'a');
        assert_int_equal(b[63], 'a');
        assert_int_equal(a[31], 0);
        assert_int_equal(a[32], 'a');
    }
    tr_stream_destroy(streams[1]);
}

static void test_event_states(void **state) {
    tr_stream *stream;
    tr_event *event;
    assert_int_equal(tr_stream_create(*state, &stream), TR_OK);
    assert_int_equal(tr_event_create(*state, &event), TR_OK);
    assert_true(tr_event_reached(event)); /* never recorded */
    assert_int_equal(tr_stream_wait(stream, event), TR_OK);

    atomic_bool first = false, second = false;
    assert_int_equal(tr_stream_call(stream, hold_until, &first), TR_OK);
    assert_int_equal(tr_event_record(event, stream), TR_OK);
    assert_false(tr_event_reached(event));
    assert_int_equal(tr_stream_wait(stream, event),
                     TR_OK); /* a stream that waits for its own past does not deadlock */
    atomic_store(&first, true);
    assert_int_equal(tr_stream_sync(stream), TR_OK);
    assert_true(tr_event_reached(event));

    /* An event that is recorded again on the inline stream is reached at once, whatever the other
     * stream does. */
    assert_int_equal(tr_stream_call(stream, hold_until, &second), TR_OK);
    assert_int_equal(tr_event_record(event, stream), TR_OK);
    assert_int_equal(tr_event_record(event, tr_device_compute(*state)), TR_OK);
    assert_true(tr_event_reached(event));
    atomic_store(&second, true);

    /* An event is valid after its stream is destroyed. */
    assert_int_equal(tr_event_record(event, stream), TR_OK);
    tr_stream_destroy(stream);
    assert_true(tr_event_reached(event));
    tr_event_destroy(event);
    tr_event_destroy(NULL);
    tr_stream_destroy(NULL);
}

typedef struct slot {
    int value;
    useconds_t delay;
} slot;

static void fill(void *argument) {
    slot *s = argument;
    usleep(s->delay);
    s->value = 42;
}

static atomic_bool released;

/* Blocks until released; otherwise a wait for it would never end. */
static void hold(void *argument) {
    slot *s = argument;
    hold_until(&released);
    s->value = 42;
}

/* The inline stream's wait blocks the caller until the other stream has reached the event, and no
 * longer. */
static void test_inline_waits(void **state) {
    tr_stream *stream;
    tr_event *event;
    assert_int_equal(tr_stream_create(*state, &stream), TR_OK);
    assert_int_equal(tr_event_create(*state, &event), TR_OK);
    slot first = {0, 10000}, second = {0, 0};
    assert_int_equal(tr_stream_call(stream, fill, &first), TR_OK);
    assert_int_equal(tr_event_record(event, stream), TR_OK);
    assert_int_equal(tr_stream_call(stream, hold, &second), TR_OK);
    assert_int_equal(tr_stream_wait(tr_device_compute(*state), event), TR_OK);
    assert_int_equal(first.value, 42);
    released = true;
    assert_int_equal(tr_stream_sync(stream), TR_OK);
    assert_int_equal(second.value, 42);
    tr_event_destroy(event);
    tr_stream_destroy(stream);
}

/* A wait is for the last record before the call, not for a later one. */
static void test_wait_captures(void **state) {
    tr_stream *slow, *fast, *waiter;
    tr_event *event;
    assert_int_equal(tr_stream_create(*state, &slow), TR_OK);
    assert_int_equal(tr_stream_create(*state, &fast), TR_OK);
    assert_int_equal(tr_stream_create(*state, &waiter), TR_OK);
    assert_int_equal(tr_event_create(*state, &event), TR_OK);
    slot from = {0, 30000}, to = {0, 0};
    assert_int_equal(tr_stream_call(slow, fill, &from), TR_OK);
    assert_int_equal(tr_event_record(event, slow), TR_OK);
    assert_int_equal(tr_stream_wait(waiter, event), TR_OK);
    assert_int_equal(tr_event_record(event, fast), TR_OK);
    assert_int_equal(tr_stream_copy(waiter, &to.value, &from.value, sizeof to.value), TR_OK);
    assert_int_equal(tr_stream_sync(waiter), TR_OK);
    assert_int_equal(to.value, 42);
    tr_event_destroy(event);
    tr_stream_destroy(slow);
    tr_stream_destroy(fast);
    tr_stream_destroy(waiter);
}

enum { STAGES = 4, ROUNDS = 60 };
typedef struct hop {
    const int64_t *from;
    int64_t *to;
    useconds_t delay;
} hop;

static void add_one(void *argument) {
    hop *h = argument;
    if (h->delay) usleep(h->delay);
    *h->to = *h->from + 1;
}

/* A pipeline of streams with one cell between neighbours and random delays: stage s writes its cell
 * when stage s + 1 has read it, and reads that of stage s - 1 when it has been written. */
static void test_pipeline(void **state) {
    tr_stream *stream[STAGES];
    tr_event *written[STAGES], *read_out[STAGES];
    int64_t input[ROUNDS], output[ROUNDS], cell[STAGES];
    static hop work[ROUNDS][STAGES];
    for (int s = 0; s < STAGES; s++) {
        assert_int_equal(tr_stream_create(*state, &stream[s]), TR_OK);
        assert_int_equal(tr_event_create(*state, &written[s]), TR_OK);
        assert_int_equal(tr_event_create(*state, &read_out[s]), TR_OK);
    }
    for (int r = 0; r < ROUNDS; r++) {
        input[r] = 1000 * r;
        for (int s = 0; s < STAGES; s++) {
            uint64_t key = (uint64_t)(1000 + r * STAGES + s);
            work[r][s] = (hop){.from = s ? &cell[s - 1] : &input[r],
                               .to = s < STAGES - 1 ? &cell[s] : &output[r],
                               .delay = draw(key, 3) ? 0 : draw(key, 500)};
            if (s) assert_int_equal(tr_stream_wait(stream[s], written[s - 1]), TR_OK);
            if (s < STAGES - 1) assert_int_equal(tr_stream_wait(stream[s], read_out[s]), TR_OK);
            assert_int_equal(tr_stream_call(stream[s], add_one, &work[r][s]), TR_OK);
            assert_int_equal(tr_event_record(written[s], stream[s]), TR_OK);
            if (s) assert_int_equal(tr_event_record(read_out[s - 1], stream[s]), TR_OK);
        }
    }
    assert_int_equal(tr_stream_sync(stream[STAGES - 1]), TR_OK);
    for (int r = 0; r < ROUNDS; r++) assert_int_equal(output[r], 1000 * r + STAGES);
    for (int s = 0; s < STAGES; s++) {
        tr_stream_destroy(stream[s]);
        tr_event_destroy(written[s]);
        tr_event_destroy(read_out[s]);
    }
}

static tr_status compute_or_fail(tr_op *op, const tr_op_args *args) {
    (void)op;
    int *runs = args->t[TR_SUMSQ_OUT].data;
    if (++*runs == 2) return TR_FAIL(TR_ERR_DATA, "the second run fails");
    return TR_OK;
}

/* The next sync returns a queued operator's failure, once, with its sentence; the queue
 * continues. */
static void test_queued_failure(void **state) {
    tr_stream *stream;
    tr_op *op;
    tr_op_desc desc = {.kind = TR_OP_SUMSQ};
    assert_int_equal(tr_stream_create(*state, &stream), TR_OK);
    assert_int_equal(tr_host_op_create(*state, &desc, 0, 0, compute_or_fail, &op), TR_OK);
    int runs = 0;
    tr_op_args args = {.t = {[TR_SUMSQ_OUT] = tr_tensor_vector(&runs, TR_F64, 1)}};
    for (int i = 0; i < 3; i++) assert_int_equal(tr_op_run(op, stream, &args), TR_OK);
    assert_int_equal(tr_stream_sync(stream), TR_ERR_DATA);
    assert_string_equal(tr_error_message(), "the second run fails");
    assert_int_equal(runs, 3);
    assert_int_equal(tr_stream_sync(stream), TR_OK);
    runs = 1;
    assert_int_equal(tr_op_run(op, tr_device_compute(*state), &args), TR_ERR_DATA);
    op->release(op); /* it is not in the list of prepared operators */
    tr_stream_destroy(stream);
}

int main(void) {
    seed = tr_test_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),          cmocka_unit_test(test_speeds),
        cmocka_unit_test(test_memory),         cmocka_unit_test(test_order),
        cmocka_unit_test(test_destroy_drains), cmocka_unit_test(test_copy_zero),
        cmocka_unit_test(test_event_states),   cmocka_unit_test(test_inline_waits),
        cmocka_unit_test(test_wait_captures),  cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_queued_failure),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
