#include "base/digits.h"
#include "base/memory.h"
#include "base/thread.h"
#include "device/host_impl.h"
#include "device/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds the table and ordinal of "cuda:1"; "cuda" has ordinal -1. Host devices have no ordinal. */
static const tr_device_ops *find_ops(const char *name, int *ordinal) {
    *ordinal = 0;
    if (strcmp(name, "cpu") == 0) return &tr_device_ops_cpu;
    if (strcmp(name, "ref") == 0) return &tr_device_ops_ref;
    if (strcmp(name, "guarded") == 0) return &tr_device_ops_guarded;
    if (strncmp(name, "guarded:", 8) == 0 && name[8]) return &tr_device_ops_guarded;
    if (strncmp(name, "cuda", 4) != 0) return NULL;
    if (name[4] == '\0') {
        *ordinal = -1;
        return &tr_device_ops_cuda;
    }
    const char *digits = name + 5;
    int64_t n;
    if (name[4] != ':' || !tr_digits_read(&digits, 9999, &n) || *digits) return NULL;
    *ordinal = (int)n;
    return &tr_device_ops_cuda;
}

const tr_device_speed *tr_device_speed_of(const char *name) {
    int ordinal;
    const tr_device_ops *ops = find_ops(name, &ordinal);
    return ops ? &ops->speed : &tr_device_ops_cpu.speed;
}

void tr_device_set_environment(int ranks) {
    /* Beyond this number streams of a process would share queues and wait for each other. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    /* Loading a kernel at its first launch waits until the GPU has done all queued work, under a
     * lock that blocks other threads' calls. If a queued receive waits for another rank, and that
     * rank for this kernel, this is a deadlock. (A library's kernels may be loaded in its own way:
     * device/cuda/op.c warms its operators.) */
    if (ranks > 1) (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

bool tr_device_is_known(const char *name) {
    int ordinal;
    return find_ops(name, &ordinal) != NULL;
}

tr_status tr_device_open(const char *name, const tr_device_options *options, tr_device **out) {
    *out = NULL;
    int ordinal;
    const tr_device_ops *ops = find_ops(name, &ordinal);
    if (!ops)
        return TR_FAIL(TR_ERR_DEVICE,
                       "there is no device called \"%s\": use cpu, ref, cuda or cuda:N", name);
    if (options->threads < 1)
        return TR_FAIL(TR_ERR_INTERNAL, "a device needs at least one thread, not %d",
                       options->threads);
    tr_device *device;
    TR_TRY(tr_thread_check(options->threads - 1, "computing"));
    TR_TRY(ops->open(ordinal, options, &device));
    (void)snprintf(device->name, sizeof device->name, "%s", name);
    *out = device;
    return TR_OK;
}

/* One allocation, recorded so that freeing it can be counted. */
typedef struct tr_device_block {
    struct tr_device_block *next;
    const void *memory;
    tr_memory kind;
    size_t bytes;
} tr_device_block;

void tr_device_close(tr_device *device) {
    if (!device) return;
    for (tr_device_block *b = device->blocks; b;) {
        tr_device_block *next = b->next;
        free(b);
        b = next;
    }
    free(device->operators.chain); /* still there when a caller keeps operators */
    tr_queue_close(tr_device_compute(device)->queue);
    device->ops->close(device);
}

tr_status tr_device_memory(tr_device *device, size_t *free_bytes, size_t *total_bytes) {
    return device->ops->memory(device, free_bytes, total_bytes);
}

tr_status tr_device_host_memory(size_t *free_bytes, size_t *total_bytes) {
    return tr_host_memory(NULL, free_bytes, total_bytes);
}

tr_status tr_device_identity(tr_device *device, char *text, size_t size) {
    if (device->ops->identity) return device->ops->identity(device, text, size);
    (void)snprintf(text, size, "host");
    return TR_OK;
}

void tr_device_count_memory(tr_device *device, tr_memory kind, size_t bytes) {
    device->live[kind] += bytes;
    if (device->live[kind] > device->peak[kind]) device->peak[kind] = device->live[kind];
}

/* Allocates with a function of the device's table, and records the block. */
static tr_status alloc_block(tr_device *device, tr_memory kind, size_t bytes,
                             tr_status (*alloc)(tr_device *device, size_t bytes, void **out),
                             void **out) {
    tr_device_block *block;
    *out = NULL;
    TR_TRY(tr_calloc(1, sizeof *block, &block));
    tr_status status = alloc(device, bytes, out);
    if (status != TR_OK) {
        free(block);
        return tr_trace_at(__FILE__, __LINE__, status);
    }
    *block = (tr_device_block){
        .next = device->blocks, .memory = *out, .kind = kind, .bytes = tr_align_up(bytes)};
    device->blocks = block;
    tr_device_count_memory(device, kind, block->bytes);
    return TR_OK;
}

/* Removes the record of a block. */
static void forget_block(tr_device *device, const void *memory) {
    for (tr_device_block **at = &device->blocks; *at; at = &(*at)->next) {
        tr_device_block *block = *at;
        if (block->memory != memory) continue;
        device->live[block->kind] -= block->bytes;
        *at = block->next;
        free(block);
        break;
    }
}

tr_status tr_device_alloc(tr_device *device, tr_memory kind, size_t bytes, void **out) {
    return alloc_block(device, kind, bytes, device->ops->alloc, out);
}

void tr_device_free(tr_device *device, void *memory) {
    if (!memory) return;
    forget_block(device, memory);
    tr_device_wait_issued(device);
    device->ops->free(device, memory);
}

tr_status tr_device_kept_alloc(tr_device *device, tr_memory kind, size_t bytes, void **out) {
    TR_TRY(alloc_block(device, kind, bytes, device->ops->staging_alloc, out));
    memset(*out, 0, bytes);
    return TR_OK;
}

void tr_device_kept_free(tr_device *device, void *memory) {
    if (!memory) return;
    forget_block(device, memory);
    tr_device_staging_free(device, memory);
}

size_t tr_device_peak(const tr_device *device, tr_memory kind) {
    return device->peak[kind];
}

const char *tr_device_memory_name(tr_memory kind) {
    static const char *const names[TR_MEMORY_CLASSES] = {[TR_MEMORY_PARAMETERS] = "parameters",
                                                         [TR_MEMORY_GRADIENTS] = "gradients",
                                                         [TR_MEMORY_OPTIMIZER] = "optimizer",
                                                         [TR_MEMORY_ACTIVATIONS] = "activations",
                                                         [TR_MEMORY_TRANSFERS] = "transfers",
                                                         [TR_MEMORY_DATA] = "data",
                                                         [TR_MEMORY_NCCL] = "NCCL",
                                                         [TR_MEMORY_OFFLOAD] = "offload",
                                                         [TR_MEMORY_SNAPSHOT] = "snapshot"};
    return names[kind];
}

int tr_device_units(const tr_device *device) {
    return device->units;
}

bool tr_device_on_host(const tr_device *device) {
    return device->ops->on_host;
}

tr_status tr_device_staging_alloc(tr_device *device, size_t bytes, void **out) {
    return device->ops->staging_alloc(device, bytes, out);
}

void tr_device_staging_free(tr_device *device, void *memory) {
    if (!memory) return;
    tr_device_wait_issued(device);
    device->ops->staging_free(device, memory);
}

tr_stream *tr_device_compute(tr_device *device) {
    return device->ops->compute(device);
}
