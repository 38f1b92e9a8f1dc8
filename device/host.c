#include "device/host_impl.h"

#include "base/cgroup.h"
#include "base/memory.h"
#include "device/queue.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct host_stream {
    tr_stream base;
    tr_queue *works; /* NULL: the inline compute stream */
} host_stream;

/* The last recorded point: work number `ticket` of `works` and all earlier work. NULL: reached. An
 * event, or a wait in another queue, may outlive the stream. */
typedef struct host_event {
    tr_event base;
    pthread_mutex_t lock;
    tr_queue *works;
    uint64_t ticket;
} host_event;

/* --- streams ---------------------------------------------------------------------------------- */

static tr_status submit(tr_stream *base, const tr_work *work) {
    host_stream *stream = (host_stream *)base;
    return stream->works ? tr_queue_push(stream->works, work, NULL) : work->run(work);
}

tr_status tr_host_stream_create(tr_device *device, tr_stream **out) {
    *out = NULL;
    host_stream *stream;
    TR_TRY(tr_calloc(1, sizeof *stream, &stream));
    stream->base.device = device;
    tr_status status = tr_queue_open(false, &stream->works);
    if (status == TR_OK) *out = &stream->base;
    else free(stream);
    return status;
}

void tr_host_stream_destroy(tr_stream *base) {
    host_stream *stream = (host_stream *)base;
    if (!stream->works) return;
    tr_queue_close(stream->works); /* runs all queued work first */
    free(stream);
}

tr_status tr_host_stream_sync(tr_stream *base) {
    host_stream *stream = (host_stream *)base;
    return stream->works ? tr_queue_sync(stream->works) : TR_OK;
}

static tr_status run_copy(const tr_work *work) {
    memmove(work->memory.to, work->memory.from, work->memory.bytes);
    return TR_OK;
}

static tr_status run_zero(const tr_work *work) {
    memset(work->memory.to, 0, work->memory.bytes);
    return TR_OK;
}

static tr_status run_call(const tr_work *work) {
    work->call.function(work->call.argument);
    return TR_OK;
}

tr_status tr_host_stream_copy(tr_stream *stream, void *to, const void *from, size_t bytes) {
    return submit(stream, &(tr_work){.run = run_copy, .memory = {to, from, bytes}});
}

tr_status tr_host_stream_zero(tr_stream *stream, void *memory, size_t bytes) {
    return submit(stream, &(tr_work){.run = run_zero, .memory = {memory, NULL, bytes}});
}

tr_status tr_host_stream_call(tr_stream *stream, void (*function)(void *), void *argument) {
    return submit(stream, &(tr_work){.run = run_call, .call = {function, argument}});
}

/* --- events ----------------------------------------------------------------------------------- */

/* Returns the recorded point, with a reference to its queue (NULL: reached). */
static tr_queue *event_point(host_event *event, uint64_t *ticket) {
    pthread_mutex_lock(&event->lock);
    tr_queue *works = tr_queue_retain(event->works);
    *ticket = event->ticket;
    pthread_mutex_unlock(&event->lock);
    return works;
}

tr_status tr_host_event_create(tr_device *device, tr_event **out) {
    host_event *event;
    TR_TRY(tr_calloc(1, sizeof *event, &event));
    event->base.device = device;
    pthread_mutex_init(&event->lock, NULL);
    *out = &event->base;
    return TR_OK;
}

void tr_host_event_destroy(tr_event *base) {
    host_event *event = (host_event *)base;
    tr_queue_release(event->works);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

tr_status tr_host_event_record(tr_event *base, tr_stream *stream) {
    host_event *event = (host_event *)base;
    tr_queue *works = tr_queue_retain(((host_stream *)stream)->works);
    uint64_t ticket = works ? tr_queue_last(works) : 0;
    pthread_mutex_lock(&event->lock);
    tr_queue *before = event->works;
    event->works = works;
    event->ticket = ticket;
    pthread_mutex_unlock(&event->lock);
    tr_queue_release(before);
    return TR_OK;
}

/* Waits in the stream's thread, so that later work runs after the event. */
static tr_status run_wait(const tr_work *work) {
    tr_queue_wait(work->point.queue, work->point.ticket);
    tr_queue_release(work->point.queue);
    return TR_OK;
}

tr_status tr_host_stream_wait(tr_stream *stream, tr_event *base) {
    uint64_t ticket;
    tr_queue *works = event_point((host_event *)base, &ticket);
    /* A stream's work already follows its own earlier work. */
    if (!works || works == ((host_stream *)stream)->works) {
        tr_queue_release(works);
        return TR_OK;
    }
    /* On the compute stream this blocks the caller, which is that stream. */
    tr_status status = submit(stream, &(tr_work){.run = run_wait, .point = {works, ticket}});
    if (status != TR_OK) tr_queue_release(works);
    return status;
}

tr_status tr_host_event_sync(tr_event *base) {
    uint64_t ticket;
    tr_queue *works = event_point((host_event *)base, &ticket);
    if (works) tr_queue_wait(works, ticket);
    tr_queue_release(works);
    return TR_OK;
}

bool tr_host_event_reached(tr_event *base) {
    uint64_t ticket;
    tr_queue *works = event_point((host_event *)base, &ticket);
    bool reached = !works || tr_queue_passed(works, ticket);
    tr_queue_release(works);
    return reached;
}

/* --- operators -------------------------------------------------------------------------------- */

static tr_status compute_op(const tr_work *work) {
    return ((tr_host_op *)work->op.op)->compute(work->op.op, &work->op.args);
}

static tr_status run_op(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    if (!((host_stream *)stream)->works) return ((tr_host_op *)op)->compute(op, args);
    return submit(stream, &(tr_work){.run = compute_op, .op = {op, *args}});
}

static void release_op(tr_op *op) {
    free(op);
}

tr_status tr_host_op_create(const tr_op_context *context, const tr_op_desc *desc,
                            size_t object_bytes, size_t scratch_bytes, tr_host_compute_fn compute,
                            tr_op **out) {
    tr_host_op *op;
    TR_TRY(tr_calloc(1, object_bytes ? object_bytes : sizeof *op, &op));
    op->base = (tr_op){.context = *context,
                       .desc = *desc,
                       .scratch_bytes = scratch_bytes,
                       .run = run_op,
                       .release = release_op};
    op->compute = compute;
    *out = &op->base;
    return TR_OK;
}

/* --- the device ------------------------------------------------------------------------------- */

tr_status tr_host_open(const tr_device_ops *ops, const tr_device_options *options,
                       size_t object_bytes, tr_device **out) {
    tr_host_device *device;
    host_stream *compute;
    TR_TRY(tr_calloc(1, object_bytes ? object_bytes : sizeof *device, &device));
    tr_status status = tr_calloc(1, sizeof *compute, &compute);
    if (status != TR_OK) {
        free(device);
        return status;
    }
    compute->base.device = &device->base;
    device->base.ops = ops;
    device->base.threads = options->threads;
    device->compute = &compute->base;
    *out = &device->base;
    return TR_OK;
}

void tr_host_close(tr_device *device) {
    free(((tr_host_device *)device)->compute);
    free(device);
}

void *tr_host_stream_native(tr_stream *stream) {
    return stream;
}

tr_stream *tr_host_compute(tr_device *device) {
    return ((tr_host_device *)device)->compute;
}

tr_status tr_host_memory(tr_device *device, size_t *free_bytes, size_t *total_bytes) {
    (void)device;
    FILE *file = fopen("/proc/meminfo", "re");
    unsigned long long available = 0, total = 0;
    if (file) {
        char line[128];
        while (fgets(line, sizeof line, file)) {
            (void)sscanf(line, "MemTotal: %llu kB", &total);
            (void)sscanf(line, "MemAvailable: %llu kB", &available);
        }
        (void)fclose(file);
    }
    if (!total) return TR_FAIL(TR_ERR_DEVICE, "/proc/meminfo cannot be read: is /proc mounted?");
    *free_bytes = (size_t)available * 1024;
    *total_bytes = (size_t)total * 1024;
    tr_cgroup_memory("/proc/self/cgroup", "/sys/fs/cgroup", free_bytes, total_bytes);
    return TR_OK;
}

/* From this size on the free memory is checked first, because the system allocates more memory than
 * it has, and kills processes later. */
static const size_t large_bytes = (size_t)64 << 20;

/* From this size on memory is on huge pages where the system offers them: a processor remembers the
 * addresses of a few thousand pages, and a model's tensors have hundreds of thousands of 4 KiB. */
static const size_t huge_page = (size_t)2 << 20;

tr_status tr_host_alloc(tr_device *device, size_t bytes, void **out) {
    *out = NULL;
    if (bytes > SIZE_MAX - TR_ALIGN)
        return TR_FAIL(TR_ERR_FIT,
                       "%zu bytes are more than any machine has: make the model smaller", bytes);
    if (bytes >= large_bytes) {
        size_t available, total;
        TR_TRY(tr_host_memory(device, &available, &total));
        if (bytes > available)
            return TR_FAIL(TR_ERR_FIT,
                           "%.1f MiB of host memory are needed, but %.1f MiB are available: use "
                           "more hosts, or a smaller model",
                           (double)bytes / 1048576.0, (double)available / 1048576.0);
    }
    const size_t rounded = tr_align_up(bytes ? bytes : 1);
    const bool large = rounded >= huge_page;
    void *memory;
    if (posix_memalign(&memory, large ? huge_page : TR_ALIGN, rounded) != 0)
        return TR_FAIL(
            TR_ERR_FIT,
            "out of host memory: no room for %zu bytes; use more hosts, or a smaller model", bytes);
    if (large) (void)madvise(memory, rounded, MADV_HUGEPAGE); /* advice, which may be refused */
    memset(memory, 0, rounded);
    *out = memory;
    return TR_OK;
}

void tr_host_free(tr_device *device, void *memory) {
    (void)device;
    free(memory);
}
