/* A device: memory, streams, events and the operator table (device/op.h).
 *
 * Names: "cpu" (oneDNN and OpenMP), "ref" (plain C, FP64 inside; the tests' oracle, on host
 * memory), "cuda:N" or "cuda", and "guarded" or "guarded:N" (for tests: the cpu device with memory
 * that the host cannot access and a separate compute stream, like a GPU; with a number it stands
 * for that GPU). Streams and events order all work of a device. On host devices the compute stream
 * is the caller (work is done when the call returns) and every other stream is a thread with a
 * queue, so a missing wait is a race as on a GPU. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tr_device tr_device;
typedef struct tr_stream tr_stream;
typedef struct tr_event tr_event;
typedef struct tr_device_ops tr_device_ops;

/* The purpose of device memory: the classes of a plan. A device only counts them. */
typedef enum tr_memory {
    TR_MEMORY_PARAMETERS,
    TR_MEMORY_GRADIENTS,
    TR_MEMORY_OPTIMIZER,
    TR_MEMORY_ACTIVATIONS,
    TR_MEMORY_TRANSFERS, /* landing buffers of messages */
    TR_MEMORY_DATA,      /* tokens, and the vector that the ranks exchange once a step */
    TR_MEMORY_NCCL,      /* NCCL's own memory */
    /* No device memory: */
    TR_MEMORY_OFFLOAD,  /* what device.offload keeps in the host's */
    TR_MEMORY_SNAPSHOT, /* of what is saved in the background */
    TR_MEMORY_CLASSES
} tr_memory;

/* The prepared operators of a device (device/shared.c). */
typedef struct tr_op_set {
    struct tr_op *newest; /* list of all, newest first */
    struct tr_op **chain; /* [chains], lists of those with the same lower bits of tr_op.key */
    size_t chains, count; /* chains: a power of two, or 0 without operators */
} tr_op_set;

/* Every implementation's tr_device begins with this. */
struct tr_device {
    const tr_device_ops *ops;
    char name[16]; /* as opened */
    int threads;   /* OpenMP threads of the cpu device */
    int units;     /* compute units, the multiprocessors of a GPU; 0 on host devices */
    /* Of each class, allocated now and at most; each allocation is rounded up to TR_ALIGN. */
    size_t live[TR_MEMORY_CLASSES], peak[TR_MEMORY_CLASSES];
    struct tr_device_block *blocks; /* the allocations */
    tr_op_set operators;            /* the prepared ones */
};

typedef struct tr_device_options {
    int threads;   /* >= 1 */
    int host_rank; /* this rank's place on its host, by which "cuda" chooses a GPU */
    int ranks; /* that work together; 0 means 1. With more than 1, streams wait for other ranks */
} tr_device_options;

/* Sets variables that CUDA reads when it is first called in this process; values that the user has
 * set stay. Opening a GPU does this, too, but an MPI library may call CUDA before. ranks: as in the
 * options. */
void tr_device_set_environment(int ranks);

/* Returns true for the name of a device, which this machine may not have. */
bool tr_device_is_known(const char *name);
/* Opens a device by name. Fails with TR_ERR_DEVICE and the reason when it cannot be used here; *out
 * is then NULL. The caller closes the device after it has released all memory, streams, events and
 * operators of it. Here and below, closing, freeing and destroying NULL does nothing. */
tr_status tr_device_open(const char *name, const tr_device_options *options, tr_device **out);
void tr_device_close(tr_device *device);

/* Gets the free and total bytes of the device's memory (host: MemAvailable and MemTotal, or what a
 * job's or container's limit leaves of them: base/cgroup.h). */
tr_status tr_device_memory(tr_device *device, size_t *free_bytes, size_t *total_bytes);

/* Gets the same of the host's memory. */
tr_status tr_device_host_memory(size_t *free_bytes, size_t *total_bytes);

/* Writes a name of the hardware to text[size]: processes of one machine that compute on the same
 * hardware get the same text. "host" for host devices. */
tr_status tr_device_identity(tr_device *device, char *text, size_t size);

/* Allocates zeroed device memory, aligned to TR_ALIGN; the caller frees it with tr_device_free.
 * Fails with TR_ERR_FIT. Only one thread at a time may allocate and free. */
tr_status tr_device_alloc(tr_device *device, tr_memory kind, size_t bytes, void **out);
void tr_device_free(tr_device *device, void *memory);
/* Counts bytes that a library has allocated by itself, by measurement. */
void tr_device_count_memory(tr_device *device, tr_memory kind, size_t bytes);
/* Returns the most bytes of a class that were allocated at any time. */
size_t tr_device_peak(const tr_device *device, tr_memory kind);
/* Returns "parameters", "gradients", ... */
const char *tr_device_memory_name(tr_memory kind);

/* Returns true when the device computes on host memory ("cpu", "ref"), so that the host can read
 * its pointers. */
bool tr_device_on_host(const tr_device *device);
/* Allocates host memory that the device's streams can copy to and from without blocking the caller
 * (pinned pages on a GPU), aligned to TR_ALIGN, not zeroed. Fails with TR_ERR_FIT. */
tr_status tr_device_staging_alloc(tr_device *device, size_t bytes, void **out);
void tr_device_staging_free(tr_device *device, void *memory);
/* The same, zeroed and counted as `kind`, for what a plan keeps in the host's memory. Only the
 * thread that may call tr_device_alloc may call these. */
tr_status tr_device_kept_alloc(tr_device *device, tr_memory kind, size_t bytes, void **out);
void tr_device_kept_free(tr_device *device, void *memory);

/* Returns the device's compute stream, which the device owns. */
tr_stream *tr_device_compute(tr_device *device);

/* Starts a worker thread that issues everything enqueued on the compute stream. Functions passed to
 * tr_stream_call run on it, in order, and may block (on other ranks, for instance) or call the
 * device. The enqueuing thread does not wait. After a failure later work is skipped, until
 * tr_stream_sync returns the failure. A second call does nothing; on a host device the caller stays
 * the compute stream. */
tr_status tr_device_start_queue(tr_device *device);

/* Creates another stream. Destroying a stream waits for its queued work. */
tr_status tr_stream_create(tr_device *device, tr_stream **out);
void tr_stream_destroy(tr_stream *stream);
tr_device *tr_stream_device(const tr_stream *stream);
/* Returns the stream's native handle: a cudaStream_t, or on a host device the tr_stream itself. */
void *tr_stream_native(tr_stream *stream);
/* Waits until the stream has done all queued work. */
tr_status tr_stream_sync(tr_stream *stream);
/* Copy between any places of device and host memory, and fill with zeros, in stream order. */
tr_status tr_stream_copy(tr_stream *stream, void *to, const void *from, size_t bytes);
tr_status tr_stream_zero(tr_stream *stream, void *memory, size_t bytes);
/* Calls a host function in stream order. The function must not block or call the device, unless the
 * stream has a queue. On the compute stream of a host device it is called at once. */
tr_status tr_stream_call(tr_stream *stream, void (*function)(void *), void *argument);

/* An event is recorded on a stream. Other streams wait for it in order, without blocking the caller
 * (except the compute stream of a host device). An event that was never recorded counts as reached.
 * If a stream with a queue waits for an event, the event must not be recorded again before that
 * wait. */
tr_status tr_event_create(tr_device *device, tr_event **out);
void tr_event_destroy(tr_event *event);
tr_status tr_event_record(tr_event *event, tr_stream *stream);
tr_status tr_stream_wait(tr_stream *stream, tr_event *event);
bool tr_event_reached(tr_event *event);

/* Returns the compute units, the multiprocessors of a GPU; 0 on host devices. */
int tr_device_units(const tr_device *device);
/* Counts the prepared operators that do not run entirely in the device's library (tr_op.way), which
 * is slow, and writes them to text[size]: "12 x matmul 8192x3072x768 bf16 with gelu in parts, ...".
 * Returns 0 and writes "" when there are none, and on devices without a library. */
int tr_device_fallbacks(const tr_device *device, char *text, size_t size);

/* Marks the begin of a range named `name` for profilers, or with NULL the end of the last one.
 * Costs almost no time without a profiler. */
void tr_device_mark(tr_device *device, const char *name);
