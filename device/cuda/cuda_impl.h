/* Shared by the files of device/cuda/: the device, its streams and events, the base of an operator,
 * and checks of the libraries' return codes. Host code is C; a .cu file holds kernels and their
 * launchers (launch.h), which take a cudaStream_t and return a cudaError_t. Private. */
#pragma once

#include "device/cuda/libraries.h"
#include "device/device_impl.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

typedef struct tr_cuda_device {
    tr_device base;
    int ordinal;
    int capability; /* 10 * major + minor: 90 for Hopper */
    int shared;     /* bytes of shared memory of a multiprocessor */
    bool warms;     /* several ranks: a library's operators run once when they are prepared */
    cublasLtHandle_t blas;
    cudnnHandle_t dnn; /* bound to the stream that used it last */
    tr_stream *compute;
} tr_cuda_device;

/* With dozens of callbacks queued after work that waits, the driver blocks the calls of all other
 * threads, also of those that would end the wait. So a stream queues only few at a time. */
enum { TR_CUDA_CALLS = 4 };

typedef struct tr_cuda_call {
    struct tr_cuda_stream *stream; /* NULL: free */
    void (*function)(void *argument);
    void *argument;
} tr_cuda_call;

typedef struct tr_cuda_stream {
    tr_stream base;
    cudaStream_t handle;
    pthread_mutex_t lock;
    pthread_cond_t freed;
    tr_cuda_call call[TR_CUDA_CALLS]; /* callbacks that are queued; under the lock */
} tr_cuda_stream;

typedef struct tr_cuda_event {
    tr_event base;
    cudaEvent_t handle;
} tr_cuda_event;

/* Makes an operator in a zeroed object of object_bytes (at least sizeof(tr_op)) that starts with a
 * tr_op: device, desc, scratch_bytes, run, and a `release` that frees the object; an operator that
 * owns more memory replaces it and calls free() on the object last. */
tr_status tr_cuda_op_create(const tr_op_context *context, const tr_op_desc *desc,
                            size_t object_bytes, size_t scratch_bytes,
                            tr_status (*run)(tr_op *op, tr_stream *stream, const tr_op_args *args),
                            tr_op **out);

/* On a device that warms, runs a library's operator once on dummy memory, with `bytes` for the
 * largest tensor. Otherwise the library might load a kernel in the first step, which waits for all
 * work queued on the GPU, also for a receive from another rank (device.c). */
tr_status tr_cuda_warm(tr_op *op, size_t bytes);

/* Returns the status of a runtime call: TR_OK, or a failure with the library's message. */
tr_status tr_cuda_check(cudaError_t error, const char *call, const char *file, int line);
#define TR_CUDA(expr)                                                                              \
    do {                                                                                           \
        tr_status tr_cuda_ = tr_cuda_check((expr), #expr, __FILE__, __LINE__);                     \
        if (tr_cuda_ != TR_OK) return tr_cuda_;                                                    \
    } while (0)

/* Begins a range of NVTX with a name; ends the last one with NULL. */
void tr_cuda_mark(const char *name);

static inline cudaStream_t tr_cuda_stream_of(tr_stream *stream) {
    return ((tr_cuda_stream *)stream)->handle;
}
static inline tr_cuda_device *tr_cuda_device_of(tr_device *device) {
    return (tr_cuda_device *)device;
}

/* Prepares ATTENTION, or with backward ATTENTION_DGRAD, with the program's own kernels. Fails with
 * TR_ERR_DEVICE when heads are too wide for them. */
tr_status tr_cuda_prepare_own_attention(const tr_op_context *context, const tr_op_desc *desc,
                                        bool backward, tr_op **out);

/* The operators, by name. */
#define TR_CUDA_PREPARE(UPPER, lower)                                                              \
    tr_status tr_cuda_prepare_##lower(const tr_op_context *context, const tr_op_desc *desc,        \
                                      tr_op **out);
TR_OP_LIST(TR_CUDA_PREPARE)
#undef TR_CUDA_PREPARE
