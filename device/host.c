#include "device/host_impl.h"

#include "base/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How far a stream has come: `done` items of all that were ever queued. It is counted by
 * references, because an event, or a wait queued elsewhere, may outlive the stream. Its lock guards
 * the queue. */
typedef struct timeline {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t done;
    int waiters;
    atomic_int references;
} timeline;

typedef enum item_kind { ITEM_COPY, ITEM_ZERO, ITEM_CALL, ITEM_WAIT, ITEM_OP } item_kind;

typedef struct item {
    item_kind kind;
    union {
        struct {
            void *to;
            const void *from;
            size_t bytes;
        } memory; /* ITEM_COPY, ITEM_ZERO */
        struct {
            void (*function)(void *);
            void *argument;
        } call;
        struct {
            timeline *line; /* one reference */
            uint64_t ticket;
        } wait;
        struct {
            tr_host_op *op;
            tr_op_args args;
        } op;
    };
} item;

typedef struct host_stream {
    tr_stream base;
    timeline *line; /* NULL: the inline compute stream, and nothing below is used */
    pthread_t thread;
    pthread_cond_t filled;
    item *ring; /* item number i lies at ring[i % capacity] */
    size_t capacity;
    uint64_t issued, taken;
    bool closing;
    tr_status status; /* first failure since the last sync, and its sentence */
    char message[256];
} host_stream;

/* The point that was recorded last: item `ticket` of `line` and all before it. line NULL: reached.
 */
typedef struct host_event {
    tr_event base;
    pthread_mutex_t lock;
    timeline *line;
    uint64_t ticket;
} host_event;

/* --- timelines -------------------------------------------------------------------------------- */

static tr_status timeline_create(timeline **out) {
    timeline *line;
    TR_TRY(tr_calloc(1, sizeof *line, &line));
    pthread_mutex_init(&line->lock, NULL);
    pthread_cond_init(&line->moved, NULL);
    atomic_init(&line->references, 1);
    *out = line;
    return TR_OK;
}

static timeline *timeline_retain(timeline *line) {
    if (line) atomic_fetch_add(&line->references, 1);
    return line;
}

static void timeline_release(timeline *line) {
    if (!line || atomic_fetch_sub(&line->references, 1) != 1) return;
    pthread_cond_destroy(&line->moved);
    pthread_mutex_destroy(&line->lock);
    free(line);
}

static void timeline_wait(timeline *line, uint64_t ticket) {
    pthread_mutex_lock(&line->lock);
    line->waiters++;
    while (line->done < ticket) pthread_cond_wait(&line->moved, &line->lock);
    line->waiters--;
    pthread_mutex_unlock(&line->lock);
}

/* --- streams ---------------------------------------------------------------------------------- */

static tr_status run_item(item *work) {
    switch (work->kind) {
    case ITEM_COPY: memmove(work->memory.to, work->memory.from, work->memory.bytes); break;
    case ITEM_ZERO: memset(work->memory.to, 0, work->memory.bytes); break;
    case ITEM_CALL: work->call.function(work->call.argument); break;
    case ITEM_WAIT:
        /* The stream, not its caller, waits: what is queued behind must see what the event marks.
         */
        timeline_wait(work->wait.line, work->wait.ticket);
        timeline_release(work->wait.line);
        break;
    case ITEM_OP: return work->op.op->compute(&work->op.op->base, &work->op.args);
    }
    return TR_OK;
}

static void *work_off(void *argument) {
    host_stream *stream = argument;
    timeline *line = stream->line;
    pthread_mutex_lock(&line->lock);
    for (;;) {
        /* An empty queue: sleep until something is queued or the stream closes. */
        while (stream->taken == stream->issued && !stream->closing)
            pthread_cond_wait(&stream->filled, &line->lock);
        if (stream->taken == stream->issued) break;
        item work = stream->ring[stream->taken++ % stream->capacity];
        pthread_mutex_unlock(&line->lock);
        tr_status status = run_item(&work);
        pthread_mutex_lock(&line->lock);
        if (status != TR_OK && stream->status == TR_OK) {
            stream->status = status;
            (void)snprintf(stream->message, sizeof stream->message, "%s", tr_error_message());
        }
        line->done++;
        if (line->waiters) pthread_cond_broadcast(&line->moved);
    }
    pthread_mutex_unlock(&line->lock);
    return NULL;
}

/* Doubles the ring; items keep their numbers. Called with the lock held. */
static tr_status grow_ring(host_stream *stream) {
    size_t capacity = stream->capacity ? 2 * stream->capacity : 64;
    item *ring;
    TR_TRY(tr_calloc(capacity, sizeof *ring, &ring));
    for (uint64_t i = stream->taken; i < stream->issued; i++)
        ring[i % capacity] = stream->ring[i % stream->capacity];
    free(stream->ring);
    stream->ring = ring;
    stream->capacity = capacity;
    return TR_OK;
}

static tr_status enqueue(host_stream *stream, const item *work) {
    timeline *line = stream->line;
    tr_status status = TR_OK;
    pthread_mutex_lock(&line->lock);
    if (stream->issued - stream->taken == stream->capacity) status = grow_ring(stream);
    if (status == TR_OK) {
        stream->ring[stream->issued++ % stream->capacity] = *work;
        pthread_cond_signal(&stream->filled);
    }
    pthread_mutex_unlock(&line->lock);
    return status;
}

static tr_status submit(tr_stream *base, item work) {
    host_stream *stream = (host_stream *)base;
    return stream->line ? enqueue(stream, &work) : run_item(&work);
}

tr_status tr_host_stream_create(tr_device *device, tr_stream **out) {
    *out = NULL;
    host_stream *stream;
    TR_TRY(tr_calloc(1, sizeof *stream, &stream));
    stream->base.device = device;
    tr_status status = timeline_create(&stream->line);
    if (status == TR_OK) status = grow_ring(stream);
    if (status == TR_OK) {
        pthread_cond_init(&stream->filled, NULL);
        if (pthread_create(&stream->thread, NULL, work_off, stream) == 0) {
            *out = &stream->base;
            return TR_OK;
        }
        pthread_cond_destroy(&stream->filled);
        status = TR_FAIL(TR_ERR_DEVICE,
                         "no thread for a stream: raise the limit of processes (ulimit -u)");
    }
    timeline_release(stream->line);
    free(stream->ring);
    free(stream);
    return status;
}

void tr_host_stream_destroy(tr_stream *base) {
    host_stream *stream = (host_stream *)base;
    if (!stream->line) return;
    pthread_mutex_lock(&stream->line->lock);
    stream->closing = true;
    pthread_cond_signal(&stream->filled);
    pthread_mutex_unlock(&stream->line->lock);
    /* The thread ends when its queue is empty: nothing that was queued is lost. */
    pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->filled);
    timeline_release(stream->line);
    free(stream->ring);
    free(stream);
}

tr_status tr_host_stream_sync(tr_stream *base) {
    host_stream *stream = (host_stream *)base;
    timeline *line = stream->line;
    if (!line) return TR_OK;
    char message[sizeof stream->message];
    pthread_mutex_lock(&line->lock);
    uint64_t ticket = stream->issued;
    line->waiters++;
    while (line->done < ticket) pthread_cond_wait(&line->moved, &line->lock);
    line->waiters--;
    tr_status status = stream->status;
    memcpy(message, stream->message, sizeof message);
    stream->status = TR_OK;
    pthread_mutex_unlock(&line->lock);
    return status == TR_OK ? TR_OK : TR_FAIL(status, "%s", message);
}

tr_status tr_host_stream_copy(tr_stream *stream, void *to, const void *from, size_t bytes) {
    return submit(stream, (item){.kind = ITEM_COPY, .memory = {to, from, bytes}});
}

tr_status tr_host_stream_zero(tr_stream *stream, void *memory, size_t bytes) {
    return submit(stream, (item){.kind = ITEM_ZERO, .memory = {memory, NULL, bytes}});
}

tr_status tr_host_stream_call(tr_stream *stream, void (*function)(void *), void *argument) {
    return submit(stream, (item){.kind = ITEM_CALL, .call = {function, argument}});
}

/* --- events ----------------------------------------------------------------------------------- */

/* The recorded point, with a reference to its timeline (NULL: reached). */
static timeline *event_point(host_event *event, uint64_t *ticket) {
    pthread_mutex_lock(&event->lock);
    timeline *line = timeline_retain(event->line);
    *ticket = event->ticket;
    pthread_mutex_unlock(&event->lock);
    return line;
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
    timeline_release(event->line);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

tr_status tr_host_event_record(tr_event *base, tr_stream *stream_base) {
    host_event *event = (host_event *)base;
    host_stream *stream = (host_stream *)stream_base;
    timeline *line = timeline_retain(stream->line);
    uint64_t ticket = 0;
    if (line) {
        pthread_mutex_lock(&line->lock);
        ticket = stream->issued;
        pthread_mutex_unlock(&line->lock);
    }
    pthread_mutex_lock(&event->lock);
    timeline *before = event->line;
    event->line = line;
    event->ticket = ticket;
    pthread_mutex_unlock(&event->lock);
    timeline_release(before);
    return TR_OK;
}

tr_status tr_host_stream_wait(tr_stream *stream, tr_event *base) {
    uint64_t ticket;
    timeline *line = event_point((host_event *)base, &ticket);
    /* A stream is behind its own past already. */
    if (!line || line == ((host_stream *)stream)->line) {
        timeline_release(line);
        return TR_OK;
    }
    /* On the compute stream this blocks the caller, who is that stream. */
    tr_status status = submit(stream, (item){.kind = ITEM_WAIT, .wait = {line, ticket}});
    if (status != TR_OK) timeline_release(line);
    return status;
}

tr_status tr_host_event_sync(tr_event *base) {
    uint64_t ticket;
    timeline *line = event_point((host_event *)base, &ticket);
    if (!line) return TR_OK;
    timeline_wait(line, ticket);
    timeline_release(line);
    return TR_OK;
}

bool tr_host_event_reached(tr_event *base) {
    uint64_t ticket;
    timeline *line = event_point((host_event *)base, &ticket);
    if (!line) return true;
    pthread_mutex_lock(&line->lock);
    bool reached = line->done >= ticket;
    pthread_mutex_unlock(&line->lock);
    timeline_release(line);
    return reached;
}

/* --- operators -------------------------------------------------------------------------------- */

static tr_status run_op(tr_op *op, tr_stream *base, const tr_op_args *args) {
    host_stream *stream = (host_stream *)base;
    tr_host_op *host_op = (tr_host_op *)op;
    if (!stream->line) return host_op->compute(op, args);
    return enqueue(stream, &(item){.kind = ITEM_OP, .op = {host_op, *args}});
}

static void release_op(tr_op *op) {
    free(op);
}

tr_status tr_host_op_create(tr_device *device, const tr_op_desc *desc, size_t object_bytes,
                            size_t scratch_bytes, tr_host_compute_fn compute, tr_op **out) {
    tr_host_op *op;
    TR_TRY(tr_calloc(1, object_bytes ? object_bytes : sizeof *op, &op));
    op->base = (tr_op){.device = device,
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
    return TR_OK;
}

/* From here on the system is asked first: it hands out more memory than it has, and kills later. */
static const size_t large_bytes = (size_t)64 << 20;

tr_status tr_host_alloc(tr_device *device, size_t bytes, void **out) {
    *out = NULL;
    if (bytes > SIZE_MAX - TR_ALIGN)
        return TR_FAIL(TR_ERR_FIT, "%zu bytes are more than any machine has", bytes);
    if (bytes >= large_bytes) {
        size_t available, total;
        TR_TRY(tr_host_memory(device, &available, &total));
        if (bytes > available)
            return TR_FAIL(TR_ERR_FIT, "%.1f MiB of host memory are needed, %.1f MiB are available",
                           (double)bytes / 1048576.0, (double)available / 1048576.0);
    }
    size_t rounded = tr_align_up(bytes ? bytes : 1);
    void *memory = aligned_alloc(TR_ALIGN, rounded);
    if (!memory) return TR_FAIL(TR_ERR_FIT, "out of host memory: %zu bytes were asked for", bytes);
    memset(memory, 0, rounded);
    *out = memory;
    return TR_OK;
}

void tr_host_free(tr_device *device, void *memory) {
    (void)device;
    free(memory);
}
