/* The guarded device: the cpu device with a GPU's restrictions, so that host code that would be
 * wrong on a GPU fails here, too. Its pointers are addresses that no thread can access; the memory
 * is at a fixed distance, which only its copies and operators use. Its compute stream is a thread,
 * so work is not done when a call returns. Copies to or from the host need staging memory, because
 * a GPU would block the caller for other memory. No address is used twice. Callbacks of all streams
 * run one at a time, and must not call the device. */
#include "base/memory.h"
#include "device/host_impl.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Bytes of each address range: pointers, their memory, staging memory. */
static const size_t room = (size_t)16 << 30;

typedef struct guarded {
    tr_device base;
    tr_device *cpu; /* prepares the operators */
    tr_stream *compute;
    tr_event *passed; /* awaited before an operator is released */
    char *outside;    /* the first of the three ranges */
    pthread_mutex_t lock;
    size_t used, staged;   /* under the lock */
    pthread_mutex_t calls; /* held by the callback that runs */
} guarded;

typedef struct callback {
    guarded *device;
    void (*function)(void *argument);
    void *argument;
} callback;

static _Thread_local bool in_callback;

typedef struct guarded_op {
    tr_op base;
    tr_op *inner;
} guarded_op;

static guarded *of(tr_device *device) {
    return (guarded *)device;
}

static bool inside(const char *range, const void *pointer) {
    uintptr_t p = (uintptr_t)pointer, from = (uintptr_t)range;
    return p >= from && p < from + room;
}

/* Returns the memory of a device pointer, and other pointers unchanged. */
static void *reach(const guarded *g, const void *pointer) {
    char *p = (char *)(uintptr_t)pointer;
    return inside(g->outside, p) ? p + room : p;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Writes the identity: "guarded:N" stands for the N-th GPU of the machine. */
static tr_status guarded_identity(tr_device *device, char *text, size_t size) {
    (void)snprintf(text, size, "%s", strchr(device->name, ':') ? device->name : "host");
    return TR_OK;
}

/* Takes the next addresses of a range, with at least one unused byte after each block. */
static tr_status take(guarded *g, char *range, size_t *used, size_t bytes, void **out) {
    const size_t page = 4096;
    tr_status status = TR_OK;
    *out = NULL;
    pthread_mutex_lock(&g->lock);
    if (bytes >= room - page || (bytes / page + 1) * page > room - *used)
        status = TR_FAIL(TR_ERR_FIT, "the guarded device has no addresses for %zu bytes", bytes);
    else {
        *out = range + *used;
        *used += (bytes / page + 1) * page;
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}

static tr_status guarded_alloc(tr_device *device, size_t bytes, void **out) {
    guarded *g = of(device);
    return take(g, g->outside, &g->used, bytes, out);
}

static tr_status guarded_staging_alloc(tr_device *device, size_t bytes, void **out) {
    guarded *g = of(device);
    return take(g, g->outside + 2 * room, &g->staged, bytes, out);
}

/* Memory is freed when the device is closed. */
static void guarded_free(tr_device *device, void *memory) {
    (void)device, (void)memory;
}

/* --- streams ---------------------------------------------------------------------------------- */

static tr_stream *guarded_compute(tr_device *device) {
    return of(device)->compute;
}

static tr_status refuse_in_callback(void) {
    return in_callback ? TR_FAIL(TR_ERR_INTERNAL, "a callback of a stream calls its device: a GPU "
                                                  "forbids it")
                       : TR_OK;
}

static void call_back(void *argument) {
    callback *call = argument;
    pthread_mutex_lock(&call->device->calls);
    in_callback = true;
    call->function(call->argument);
    in_callback = false;
    pthread_mutex_unlock(&call->device->calls);
    free(call);
}

static tr_status guarded_call(tr_stream *stream, void (*function)(void *), void *argument) {
    callback *call;
    TR_TRY(refuse_in_callback());
    TR_TRY(tr_calloc(1, sizeof *call, &call));
    *call = (callback){of(stream->device), function, argument};
    tr_status status = tr_host_stream_call(stream, call_back, call);
    if (status != TR_OK) free(call);
    return status;
}

static tr_status guarded_copy(tr_stream *stream, void *to, const void *from, size_t bytes) {
    const guarded *g = of(stream->device);
    TR_TRY(refuse_in_callback());
    const char *staging = g->outside + 2 * room;
    if ((!inside(g->outside, to) && !inside(staging, to)) ||
        (!inside(g->outside, from) && !inside(staging, from)))
        return TR_FAIL(TR_ERR_INTERNAL,
                       "a copy of %zu bytes between device and host memory that is not staging "
                       "memory: a GPU would stop the caller for it",
                       bytes);
    return tr_host_stream_copy(stream, reach(g, to), reach(g, from), bytes);
}

static tr_status guarded_zero(tr_stream *stream, void *memory, size_t bytes) {
    return tr_host_stream_zero(stream, reach(of(stream->device), memory), bytes);
}

/* --- operators -------------------------------------------------------------------------------- */

static tr_status run(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const guarded *g = of(op->context.device);
    TR_TRY(refuse_in_callback());
    tr_op *inner = ((guarded_op *)op)->inner;
    tr_op_args own = *args;
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) own.t[i].data = reach(g, args->t[i].data);
    own.scratch = reach(g, args->scratch);
    own.state = reach(g, args->state);
    return inner->run(inner, stream, &own);
}

/* On a GPU an operator may be released while its work is still queued. */
static void release(tr_op *op) {
    guarded *g = of(op->context.device);
    if (tr_host_event_record(g->passed, g->compute) == TR_OK) (void)tr_host_event_sync(g->passed);
    tr_op_release(((guarded_op *)op)->inner);
    free(op);
}

static tr_status prepare(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    guarded_op *op;
    TR_TRY(tr_calloc(1, sizeof *op, &op));
    tr_op_context inner = *context;
    inner.device = of(context->device)->cpu;
    tr_status status = tr_op_prepare(&inner, desc, &op->inner);
    if (status != TR_OK) {
        free(op);
        return status;
    }
    op->base = (tr_op){.context = *context,
                       .desc = *desc,
                       .scratch_bytes = op->inner->scratch_bytes,
                       .run = run,
                       .release = release};
    *out = &op->base;
    return TR_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

static void guarded_close(tr_device *device) {
    guarded *g = of(device);
    if (g->compute) tr_host_stream_destroy(g->compute);
    if (g->passed) tr_host_event_destroy(g->passed);
    tr_device_close(g->cpu);
    if (g->outside) (void)munmap(g->outside, 3 * room);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->calls);
    free(g);
}

static tr_status reserve(guarded *g) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *all = mmap(NULL, 3 * room, PROT_NONE, flags, -1, 0);
    if (all == MAP_FAILED || mprotect((char *)all + room, 2 * room, PROT_READ | PROT_WRITE) != 0)
        return TR_FAIL(TR_ERR_DEVICE, "the guarded device has no addresses: %s", strerror(errno));
    g->outside = all;
    return TR_OK;
}

static tr_status guarded_open(int ordinal, const tr_device_options *options, tr_device **out) {
    (void)ordinal;
    tr_status status = TR_OK;
    guarded *g;
    TR_TRY(tr_calloc(1, sizeof *g, &g));
    g->base = (tr_device){.ops = &tr_device_ops_guarded, .threads = options->threads};
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->calls, NULL);
    TR_TRY_OUT(reserve(g));
    TR_TRY_OUT(tr_device_open("cpu", options, &g->cpu));
    TR_TRY_OUT(tr_host_event_create(&g->base, &g->passed));
    TR_TRY_OUT(tr_host_stream_create(&g->base, &g->compute));
out:
    if (status != TR_OK) guarded_close(&g->base);
    else *out = &g->base;
    return status;
}

const tr_device_ops tr_device_ops_guarded = {
    .kind = "guarded",
    .open = guarded_open,
    .close = guarded_close,
    TR_HOST_OPS_STREAMS,
    .on_host = false,
    .memory = tr_host_memory,
    .identity = guarded_identity,
    .alloc = guarded_alloc,
    .free = guarded_free,
    .staging_alloc = guarded_staging_alloc,
    .staging_free = guarded_free,
    .compute = guarded_compute,
    .stream_call = guarded_call,
    .stream_copy = guarded_copy,
    .stream_zero = guarded_zero,
    .prepare =
        {
#define ENTRY(UPPER, lower) [TR_OP_##UPPER] = prepare,
            TR_OP_LIST(ENTRY)
#undef ENTRY
        },
};
