/* Stream and event calls go straight to the device, unless the compute stream has a queue: then a
 * worker thread issues them in order. The worker may block, because nothing queued after the
 * current item has been issued to the device yet.
 *
 * An event that the worker will record is not reached before the worker has recorded it; after a
 * failure it is never reached. */
#include "device/queue.h"

#include <stdio.h>

/* Returns the queue for this caller: NULL for the worker thread, which issues at once. */
static tr_queue *queue_before(const tr_stream *stream) {
    return stream->queue && !tr_queue_is_caller(stream->queue) ? stream->queue : NULL;
}

static tr_queue *queue_of(tr_device *device) {
    return queue_before(tr_device_compute(device));
}

void tr_device_wait_issued(tr_device *device) {
    tr_queue *queue = queue_of(device);
    if (queue) tr_queue_wait(queue, tr_queue_last(queue));
}

static tr_status hand_enter(const tr_work *work) {
    tr_device *device = work->stream->device;
    return device->ops->enter(device);
}

tr_status tr_device_start_queue(tr_device *device) {
    tr_stream *stream = tr_device_compute(device);
    if (device->ops->on_host || stream->queue) return TR_OK;
    tr_queue *queue;
    TR_TRY(tr_queue_open(true, &queue));
    tr_status status = TR_OK;
    if (device->ops->enter)
        status = tr_queue_push(queue, &(tr_work){.run = hand_enter, .stream = stream}, NULL);
    if (status == TR_OK) stream->queue = queue;
    else tr_queue_close(queue);
    return status;
}

/* --- streams ---------------------------------------------------------------------------------- */

tr_status tr_stream_create(tr_device *device, tr_stream **out) {
    return device->ops->stream_create(device, out);
}

void tr_stream_destroy(tr_stream *stream) {
    if (stream) stream->device->ops->stream_destroy(stream);
}

tr_device *tr_stream_device(const tr_stream *stream) {
    return stream->device;
}

void *tr_stream_native(tr_stream *stream) {
    return stream->device->ops->stream_native(stream);
}

tr_status tr_stream_sync(tr_stream *stream) {
    tr_queue *queue = queue_before(stream);
    tr_status status = queue ? tr_queue_sync(queue) : TR_OK;
    if (status == TR_OK) return stream->device->ops->stream_sync(stream);
    (void)stream->device->ops->stream_sync(stream); /* waits for work issued before the failure */
    return status;
}

static tr_status submit(tr_queue *queue, const tr_work *work) {
    return queue ? tr_queue_push(queue, work, NULL) : work->run(work);
}

static tr_status hand_copy(const tr_work *work) {
    return work->stream->device->ops->stream_copy(work->stream, work->memory.to, work->memory.from,
                                                  work->memory.bytes);
}

tr_status tr_stream_copy(tr_stream *stream, void *to, const void *from, size_t bytes) {
    return submit(queue_before(stream),
                  &(tr_work){.run = hand_copy, .stream = stream, .memory = {to, from, bytes}});
}

static tr_status hand_zero(const tr_work *work) {
    return work->stream->device->ops->stream_zero(work->stream, work->memory.to,
                                                  work->memory.bytes);
}

tr_status tr_stream_zero(tr_stream *stream, void *memory, size_t bytes) {
    return submit(queue_before(stream),
                  &(tr_work){.run = hand_zero, .stream = stream, .memory = {memory, NULL, bytes}});
}

/* All earlier work has finished and no later work has been issued. */
static tr_status run_call(const tr_work *work) {
    TR_TRY(work->stream->device->ops->stream_sync(work->stream));
    work->call.function(work->call.argument);
    return TR_OK;
}

tr_status tr_stream_call(tr_stream *stream, void (*function)(void *), void *argument) {
    tr_queue *queue = queue_before(stream);
    if (!queue) return stream->device->ops->stream_call(stream, function, argument);
    return tr_queue_push(
        queue, &(tr_work){.run = run_call, .stream = stream, .call = {function, argument}}, NULL);
}

static tr_status hand_op(const tr_work *work) {
    return work->op.op->run(work->op.op, work->stream, &work->op.args);
}

#if !defined(NDEBUG) || defined(TRIREME_CHECKS_OPERANDS)
enum { CHECKS_OPERANDS = true };
#else
enum { CHECKS_OPERANDS = false };
#endif

tr_status tr_op_run(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    if (CHECKS_OPERANDS) TR_TRY(tr_op_check_args(op, args));
    tr_queue *queue = queue_before(stream);
    if (!queue) return op->run(op, stream, args);
    return tr_queue_push(queue, &(tr_work){.run = hand_op, .stream = stream, .op = {op, *args}},
                         NULL);
}

/* --- events ----------------------------------------------------------------------------------- */

tr_status tr_event_create(tr_device *device, tr_event **out) {
    return device->ops->event_create(device, out);
}

void tr_event_destroy(tr_event *event) {
    if (!event) return;
    tr_device_wait_issued(event->device);
    event->device->ops->event_destroy(event);
}

static tr_status hand_record(const tr_work *work) {
    TR_TRY(work->stream->device->ops->event_record(work->event, work->stream));
    atomic_store(&work->event->recorded, work->number);
    return TR_OK;
}

static bool is_recorded(tr_event *event) {
    return atomic_load(&event->recorded) >= atomic_load(&event->ticket);
}

tr_status tr_event_record(tr_event *event, tr_stream *stream) {
    tr_queue *queue = queue_before(stream);
    uint64_t ticket = 0;
    const tr_work work = {.run = hand_record, .stream = stream, .event = event};
    if (queue) TR_TRY(tr_queue_push(queue, &work, &ticket));
    else TR_TRY(hand_record(&work));
    atomic_store(&event->ticket, ticket);
    return TR_OK;
}

static tr_status hand_wait(const tr_work *work) {
    return work->stream->device->ops->stream_wait(work->stream, work->event);
}

/* Waits until the device has been told to record the event. */
static tr_status wait_recorded(tr_event *event) {
    tr_queue *queue = queue_of(event->device);
    if (queue) tr_queue_wait(queue, atomic_load(&event->ticket));
    if (is_recorded(event)) return TR_OK;
    return TR_FAIL(TR_ERR_DEVICE, "a stream of device %s has failed before an event",
                   event->device->name);
}

tr_status tr_stream_wait(tr_stream *stream, tr_event *event) {
    tr_queue *queue = queue_before(stream);
    const tr_work work = {.run = hand_wait, .stream = stream, .event = event};
    if (!queue) TR_TRY(wait_recorded(event));
    return submit(queue, &work);
}

bool tr_event_reached(tr_event *event) {
    return is_recorded(event) && event->device->ops->event_reached(event);
}

/* --- profilers -------------------------------------------------------------------------------- */

static tr_status hand_mark(const tr_work *work) {
    work->stream->device->ops->mark(work->name[0] ? work->name : NULL);
    return TR_OK;
}

void tr_device_mark(tr_device *device, const char *name) {
    if (!device->ops->mark) return;
    tr_stream *stream = tr_device_compute(device);
    tr_queue *queue = queue_before(stream);
    if (!queue) {
        device->ops->mark(name);
        return;
    }
    tr_work work = {.run = hand_mark, .stream = stream};
    if (name) (void)snprintf(work.name, sizeof work.name, "%s", name);
    (void)tr_queue_push(queue, &work, NULL);
}
