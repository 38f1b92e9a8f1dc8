/* Tests a device's queue: enqueuing does not wait, and work is done in order. */
#include "support/device_tests.h"

#include <string.h>

/* An operator is the first work of the worker thread. */
static void test_queue_begins(void **state) {
    tr_device *device = *state;
    tr_stream *compute = tr_device_compute(device);
    float *a = (float *)on_device(device, COUNT);
    const tr_op_desc desc = {.kind = TR_OP_ADD, .rows = {.rows = 1, .width = 4, .dtype = TR_F32}};
    const tr_tensor x = tr_tensor_vector(a, TR_F32, 4);
    const tr_op_args args = {.t = {[TR_ADD_A] = x, [TR_ADD_B] = x, [TR_ADD_Y] = x}};
    tr_op *add;
    must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &add));
    must(tr_device_start_queue(device));
    must(tr_op_run(add, compute, &args));
    must(tr_stream_sync(compute));
    must(tr_device_start_queue(device));
    tr_op_release(add);
    tr_device_free(device, a);
}

/* While a call at the head of the queue blocks, the thread that enqueues does not block, however
 * much it enqueues, and other threads can use the device. Enqueued work is done in order. */
static void test_queue_holds(void **state) {
    enum { MANY = 3000 };
    tr_device *device = *state;
    tr_stream *compute = tr_device_compute(device), *other;
    tr_event *event;
    tr_op *add;
    atomic_bool go = false;
    float *a = (float *)on_device(device, COUNT), *host = (float *)staging(device, COUNT);
    const tr_op_desc desc = {.kind = TR_OP_ADD, .rows = {.rows = 1, .width = 4, .dtype = TR_F32}};
    const tr_tensor x = tr_tensor_vector(a, TR_F32, 4), y = tr_tensor_vector(a + 4, TR_F32, 4);
    const tr_op_args args = {.t = {[TR_ADD_A] = x, [TR_ADD_B] = y, [TR_ADD_Y] = y}};
    must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &add));
    must(tr_stream_create(device, &other));
    must(tr_event_create(device, &event));
    for (int i = 0; i < 4; i++) host[i] = 1;
    must(tr_stream_call(compute, on_held, &go));
    must(tr_stream_copy(compute, a, host, 4 * sizeof *a));
    for (int i = 0; i < MANY; i++) must(tr_op_run(add, compute, &args));
    for (int i = 0; i < MANY; i++) must(tr_stream_zero(compute, a, sizeof *a));
    must(tr_event_record(event, compute));
    must(tr_stream_copy(other, a + 8, host, sizeof *a));
    must(tr_stream_copy(other, host + 8, a + 8, sizeof *a));
    must(tr_stream_sync(other));
    assert_true(host[8] == 1);
    assert_false(tr_event_reached(event));
    atomic_store(&go, true);
    must(tr_stream_sync(compute));
    assert_true(tr_event_reached(event));
    must(tr_stream_copy(compute, host, a, 8 * sizeof *a));
    must(tr_stream_sync(compute));
    assert_true(host[0] == 0 && host[1] == 1);
    for (int i = 4; i < 8; i++) assert_true(host[i] == (float)MANY);
    tr_op_release(add);
    tr_stream_destroy(other);
    tr_event_destroy(event);
    tr_device_free(device, a);
    tr_device_staging_free(device, host);
}

typedef struct caller {
    tr_stream *stream;
    tr_event *event;
    float *from, *to;
    tr_status status;
} caller;

static void on_calling(void *argument) {
    caller *c = argument;
    c->status = tr_stream_copy(c->stream, c->to, c->from, sizeof *c->to);
    if (c->status == TR_OK) c->status = tr_event_record(c->event, c->stream);
    if (c->status == TR_OK) c->status = tr_stream_sync(c->stream);
    if (c->status == TR_OK && !tr_event_reached(c->event)) c->status = TR_ERR_INTERNAL;
}

/* A function on the worker thread may call the device; that work runs before later work of the
 * queue. */
static void test_queue_calls(void **state) {
    tr_device *device = *state;
    caller c = {.stream = tr_device_compute(device), .status = TR_ERR_INTERNAL};
    float *a = (float *)on_device(device, 2), *host = (float *)staging(device, 2);
    must(tr_event_create(device, &c.event));
    c.from = host;
    c.to = a;
    host[0] = 5;
    host[1] = 0;
    must(tr_event_record(c.event, c.stream));
    must(tr_stream_call(c.stream, on_calling, &c));
    must(tr_stream_copy(c.stream, host + 1, a, sizeof *a));
    must(tr_stream_sync(c.stream));
    must(c.status);
    assert_true(host[1] == 5);
    tr_event_destroy(c.event);
    tr_device_free(device, a);
    tr_device_staging_free(device, host);
}

static void set(void *argument) {
    atomic_store((atomic_bool *)argument, true);
}

static tr_status run_failing(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    (void)op, (void)stream, (void)args;
    return TR_FAIL(TR_ERR_DEVICE, "the operator fails");
}

/* The next sync returns the failure; work that was enqueued after the failed item is not done. */
static void test_queue_fails(void **state) {
    tr_device *device = *state;
    tr_stream *compute = tr_device_compute(device), *other;
    tr_op failing = {.context.device = device, .desc = {.kind = TR_OP_SUMSQ}, .run = run_failing};
    double sum;
    const tr_op_args args = {.t = {[TR_SUMSQ_OUT] = tr_tensor_vector(&sum, TR_F64, 1)}};
    tr_event *event;
    atomic_bool called = false;
    must(tr_event_create(device, &event));
    must(tr_op_run(&failing, compute, &args));
    must(tr_stream_call(compute, set, &called));
    must(tr_event_record(event, compute));
    assert_int_equal(tr_stream_sync(compute), TR_ERR_DEVICE);
    assert_non_null(strstr(tr_error_message(), "the operator fails"));
    assert_false(atomic_load(&called));
    /* The work that the event marks was not done and never will be. */
    assert_false(tr_event_reached(event));
    must(tr_stream_create(device, &other));
    assert_int_equal(tr_stream_wait(other, event), TR_ERR_DEVICE);
    tr_stream_destroy(other);
    must(tr_event_record(event, compute));
    must(tr_stream_sync(compute));
    assert_true(tr_event_reached(event));
    tr_event_destroy(event);
    must(tr_stream_call(compute, set, &called));
    must(tr_stream_sync(compute));
    assert_true(atomic_load(&called));
}

static atomic_bool handed_over;
static int early; /* device calls that were made before the queued work was done */

static void nap(void *argument) {
    usleep(20000);
    set(argument);
}
static void look(void) {
    early += !atomic_load(&handed_over);
}
static void look_at_free(tr_device *device, void *memory) {
    (void)device, (void)memory;
    look();
}
static void look_at_event(tr_event *event) {
    (void)event;
    look();
}
static void look_at_op(tr_op *op) {
    (void)op;
    look();
}

static tr_status look_at_prepare(const tr_op_context *context, const tr_op_desc *desc,
                                 tr_op **out) {
    static tr_op op;
    op = (tr_op){.context = *context, .desc = *desc, .release = look_at_op};
    *out = &op;
    look();
    return TR_OK;
}

static void nap_before(tr_stream *stream) {
    atomic_store(&handed_over, false);
    must(tr_stream_call(stream, nap, &handed_over));
}

/* Memory, events and operators that queued work may use are released only after that work, and
 * operators are prepared only after it. */
static void test_queue_settles(void **state) {
    tr_device *device = *state;
    tr_stream *compute = tr_device_compute(device);
    const tr_device_ops *ops = device->ops;
    tr_device_ops looking = *ops;
    tr_event event = {.device = device};
    const tr_op_desc desc = {.kind = TR_OP_ADD, .rows = {.rows = 1, .width = 4, .dtype = TR_F32}};
    tr_op *op;
    uint32_t *a = on_device(device, 1), *host = staging(device, 1);
    looking.free = looking.staging_free = look_at_free;
    looking.event_destroy = look_at_event;
    looking.prepare[TR_OP_ADD] = look_at_prepare;
    device->ops = &looking;
    nap_before(compute);
    tr_device_free(device, a);
    nap_before(compute);
    tr_device_staging_free(device, host);
    nap_before(compute);
    tr_event_destroy(&event);
    nap_before(compute);
    must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &op));
    nap_before(compute);
    tr_op_release(op);
    device->ops = ops;
    assert_int_equal(early, 0);
    ops->free(device, a);
    tr_device_staging_free(device, host);
}

int test_device_queue(tr_device *device) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_queue_begins, device),
        cmocka_unit_test_prestate(test_queue_holds, device),
        cmocka_unit_test_prestate(test_queue_calls, device),
        cmocka_unit_test_prestate(test_queue_fails, device),
        cmocka_unit_test_prestate(test_queue_settles, device),
    };
    return cmocka_run_group_tests_name("queue_tests", tests, NULL, NULL);
}
