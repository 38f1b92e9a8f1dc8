/* A device: memory, streams, events and the operator table (device/op.h).
 *
 * Names: "cpu" (oneDNN and OpenMP), "ref" (plain C, FP64 inside; the tests' oracle, on host
 * memory), "cuda:N" or "cuda", and "guarded" or "guarded:N" (for tests: the cpu device with memory
 * that the host cannot touch and a compute stream of its own, as a GPU has; with a number it passes
 * for that GPU). Everything a device does is ordered by streams and events. On host devices the
 * compute stream is the caller (work is done when the call returns) and every other stream is a
 * thread with a queue, so a missing wait is a race there as on a GPU. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tr_device tr_device;
typedef struct tr_stream tr_stream;
typedef struct tr_event tr_event;
typedef struct tr_device_ops tr_device_ops;

/* What device memory is for: the classes of a plan. A device does no more than count them. */
typedef enum tr_memory {
    TR_MEMORY_PARAMETERS,
    TR_MEMORY_GRADIENTS,
    TR_MEMORY_OPTIMIZER,
    TR_MEMORY_ACTIVATIONS,
    TR_MEMORY_TRANSFERS, /* landing buffers of messages */
    TR_MEMORY_DATA,      /* tokens, and what the ranks exchange once a step */
    TR_MEMORY_NCCL,      /* NCCL's own */
    TR_MEMORY_CLASSES
} tr_memory;

/* Every implementation's tr_device starts with this. */
struct tr_device {
    const tr_device_ops *ops;
    char name[16]; /* as opened */
    int threads;   /* OpenMP threads of the cpu device */
    int units;     /* compute units, the multiprocessors of a GPU; 0 on host devices */
    /* Of each class (tr_device_live, tr_device_peak); each allocation is rounded up to TR_ALIGN. */
    size_t live[TR_MEMORY_CLASSES], peak[TR_MEMORY_CLASSES];
    struct tr_device_block *blocks; /* the allocations */
    struct tr_op *operators;        /* the prepared ones */
};

typedef struct tr_device_options {
    int threads;   /* >= 1 */
    int host_rank; /* this rank's place on its host: "cuda" takes the host's GPUs in turn */
    int ranks;     /* that work together, 0 and 1 alike; above, streams wait for other ranks */
} tr_device_options;

/* Sets what CUDA reads from the environment when it is first called in this process; what the user
 * has set stays. Opening a GPU does it too, but an MPI library that knows CUDA may call it before.
 * ranks: as in the options. */
void tr_device_set_environment(int ranks);

/* Opens a device by name. TR_ERR_DEVICE with the reason when it cannot be used here. */
tr_status tr_device_open(const char *name, const tr_device_options *options, tr_device **out);
void tr_device_close(tr_device *device);

/* Free and total bytes of the device's memory (host: MemAvailable and MemTotal). */
tr_status tr_device_memory(tr_device *device, size_t *free_bytes, size_t *total_bytes);

/* Names the piece of hardware in text[size]: processes of one machine that compute on the same one
 * get the same text. "host" for host devices. */
tr_status tr_device_identity(tr_device *device, char *text, size_t size);

/* Device memory, zeroed, aligned to TR_ALIGN; TR_ERR_FIT when there is none. One thread at a time
 * allocates and frees. */
tr_status tr_device_alloc(tr_device *device, tr_memory kind, size_t bytes, void **out);
void tr_device_free(tr_device *device, void *memory);
/* Counts bytes that a library has taken on its own, as was measured. */
void tr_device_took(tr_device *device, tr_memory kind, size_t bytes);
/* Bytes of a class that are allocated now, and the most that ever were. */
size_t tr_device_live(const tr_device *device, tr_memory kind);
size_t tr_device_peak(const tr_device *device, tr_memory kind);
/* "parameters", "gradients", ... */
const char *tr_device_memory_name(tr_memory kind);

/* True when the device computes on host memory ("cpu", "ref"): its pointers can be read here. */
bool tr_device_on_host(const tr_device *device);
/* Host memory that the device's streams copy to and from without stopping the caller (pinned pages
 * on a GPU), aligned to TR_ALIGN, not zeroed; TR_ERR_FIT when there is none. */
tr_status tr_device_staging_alloc(tr_device *device, size_t bytes, void **out);
void tr_device_staging_free(tr_device *device, void *memory);

/* The device's one compute stream: owned by the device. */
tr_stream *tr_device_compute(tr_device *device);

/* Starts a worker thread that issues everything enqueued on the compute stream. Functions passed to
 * tr_stream_call run on it, in order, and may block (on other ranks, for instance) or call the
 * device. The enqueuing thread does not wait. The next tr_stream_sync returns an error; until then
 * later work is skipped. A second call does nothing; on a host device the caller stays the compute
 * stream. */
tr_status tr_device_start_queue(tr_device *device);

/* A further stream. Destroying waits for what is queued. */
tr_status tr_stream_create(tr_device *device, tr_stream **out);
void tr_stream_destroy(tr_stream *stream);
tr_device *tr_stream_device(const tr_stream *stream);
/* What the device's own library calls the stream: a cudaStream_t; a host device's is the tr_stream
 * itself. */
void *tr_stream_native(tr_stream *stream);
/* The caller waits until the stream has done everything that is queued. */
tr_status tr_stream_sync(tr_stream *stream);
/* Stream-ordered copy between any two places of device and host memory, and fill with zeros. */
tr_status tr_stream_copy(tr_stream *stream, void *to, const void *from, size_t bytes);
tr_status tr_stream_zero(tr_stream *stream, void *memory, size_t bytes);
/* Stream-ordered call of a host function, which waits for nothing and calls no device unless the
 * stream is a queued one. On the compute stream of a host device: called at once. */
tr_status tr_stream_call(tr_stream *stream, void (*function)(void *), void *argument);

/* An event is recorded on a stream and waited for by other streams (in order, without blocking the
 * caller unless the waiting stream is the host compute stream) or by the caller. A never recorded
 * event counts as reached. An event that a queued stream waits for must not be recorded again
 * before that wait. */
tr_status tr_event_create(tr_device *device, tr_event **out);
void tr_event_destroy(tr_event *event);
tr_status tr_event_record(tr_event *event, tr_stream *stream);
tr_status tr_stream_wait(tr_stream *stream, tr_event *event);
tr_status tr_event_sync(tr_event *event);
bool tr_event_reached(tr_event *event);

/* Compute units, the multiprocessors of a GPU; 0 on host devices. */
int tr_device_units(const tr_device *device);
/* Counts the prepared operators that run without the library that the device has for them
 * (tr_op.way), which is slow, and names them in text[size]: "12 x matmul 8192x3072x768 bf16 with
 * gelu in parts, ...". 0 and "" when there is none, and on devices whose operators are their own.
 */
int tr_device_fallbacks(const tr_device *device, char *text, size_t size);

/* For profilers: the caller begins what `name` says, or with NULL ends what it began last. Costs
 * nothing worth a name without a profiler. */
void tr_device_mark(tr_device *device, const char *name);
