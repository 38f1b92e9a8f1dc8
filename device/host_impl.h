/* Shared by the devices on host memory (ref, cpu): memory, streams and events. Private to device/.
 *
 * The compute stream is inline: work is done by the caller when a call returns. Every other stream
 * is a queue with a thread (device/queue.h). */
#pragma once

#include "device/device_impl.h"

/* The work of an operator on host memory, done when it returns. It runs in the caller's thread or
 * in a stream's, and reads the step state when it runs. */
typedef tr_status (*tr_host_compute_fn)(tr_op *op, const tr_op_args *args);

/* Base of every host operator; an implementation's own operator starts with it. */
typedef struct tr_host_op {
    tr_op base;
    tr_host_compute_fn compute;
} tr_host_op;

/* Base of every host device; an implementation's own device starts with it. */
typedef struct tr_host_device {
    tr_device base;
    tr_stream *compute;
} tr_host_device;

/* Opens a host device in a zeroed object of object_bytes (0: sizeof(tr_host_device)) that starts
 * with a tr_host_device. tr_host_close frees the object; streams and events must be gone by
 * then. */
tr_status tr_host_open(const tr_device_ops *ops, const tr_device_options *options,
                       size_t object_bytes, tr_device **out);
void tr_host_close(tr_device *device);

/* Makes an operator in a zeroed object of object_bytes (0: sizeof(tr_host_op)) that starts with a
 * tr_host_op: device, desc, scratch_bytes, compute, and a `run` that calls compute inline or queues
 * it with a copy of the arguments (the operator must outlive the queue). `release` frees the
 * object; an implementation that owns more memory replaces it and calls free() on the object
 * last. */
tr_status tr_host_op_create(const tr_op_context *context, const tr_op_desc *desc,
                            size_t object_bytes, size_t scratch_bytes, tr_host_compute_fn compute,
                            tr_op **out);

/* The functions of device/device.h on host memory. */
tr_status tr_host_memory(tr_device *device, size_t *free_bytes, size_t *total_bytes);
tr_status tr_host_alloc(tr_device *device, size_t bytes, void **out);
void tr_host_free(tr_device *device, void *memory);
tr_stream *tr_host_compute(tr_device *device);
void *tr_host_stream_native(tr_stream *stream);
tr_status tr_host_stream_create(tr_device *device, tr_stream **out);
void tr_host_stream_destroy(tr_stream *stream);
tr_status tr_host_stream_sync(tr_stream *stream);
tr_status tr_host_stream_copy(tr_stream *stream, void *to, const void *from, size_t bytes);
tr_status tr_host_stream_zero(tr_stream *stream, void *memory, size_t bytes);
tr_status tr_host_stream_call(tr_stream *stream, void (*function)(void *), void *argument);
tr_status tr_host_stream_wait(tr_stream *stream, tr_event *event);
tr_status tr_host_event_create(tr_device *device, tr_event **out);
void tr_host_event_destroy(tr_event *event);
tr_status tr_host_event_record(tr_event *event, tr_stream *stream);
tr_status tr_host_event_sync(tr_event *event);
bool tr_host_event_reached(tr_event *event);

/* The entries of a host device's table other than kind, open and prepare. */
#define TR_HOST_OPS .close = tr_host_close, TR_HOST_OPS_BUT_CLOSE

/* The same for an implementation that closes in its own way. */
#define TR_HOST_OPS_BUT_CLOSE                                                                      \
    .on_host = true, .memory = tr_host_memory, .alloc = tr_host_alloc, .free = tr_host_free,       \
    .staging_alloc = tr_host_alloc, .staging_free = tr_host_free, .compute = tr_host_compute,      \
    .stream_copy = tr_host_stream_copy, .stream_zero = tr_host_stream_zero,                        \
    .stream_call = tr_host_stream_call, TR_HOST_OPS_STREAMS

/* The entries that neither access device memory nor call functions, and the speed of a CPU and of
 * shared memory. */
#define TR_HOST_OPS_STREAMS                                                                        \
    .speed = {.flops_per_s = 20e9, .link_bytes = 1e9, .memory_bytes = 10e9},                       \
    .stream_native = tr_host_stream_native, .stream_create = tr_host_stream_create,                \
    .stream_destroy = tr_host_stream_destroy, .stream_sync = tr_host_stream_sync,                  \
    .stream_work = tr_host_stream_call, .stream_wait = tr_host_stream_wait,                        \
    .event_create = tr_host_event_create, .event_destroy = tr_host_event_destroy,                  \
    .event_record = tr_host_event_record, .event_reached = tr_host_event_reached
