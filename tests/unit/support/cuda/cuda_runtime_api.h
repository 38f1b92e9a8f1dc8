/* The part of CUDA that device/cuda uses, on the host. The compiler finds this file instead of the
 * toolkit's header, so a C++ compiler can compile the .cu files unchanged. Kernels run when they
 * are launched, one block after another. The threads of a block are fibers of one thread, which
 * switch only at __syncthreads() and shuffles (emulation.cpp).
 *
 * What it tests: arithmetic and order of reductions, indices and tails (with the address sanitizer
 * every access out of bounds, with the undefined-behaviour sanitizer every misaligned pack),
 * barriers that some threads do not reach, and, since threads can be run in the opposite order,
 * most missing barriers. What it does not test: a GPU's own expf, speed, and effects of caches. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNotReady = 600
} cudaError_t;

/* A stream: the order in which it runs the blocks of a launch and the threads of a block, and the
 * queue of other enqueued work (runtime.c), or NULL. */
typedef struct tr_emulated_stream {
    int descending;
    struct tr_stream *queue;
} * cudaStream_t;
typedef struct tr_emulated_event *cudaEvent_t;

#ifdef __cplusplus
extern "C" {
#endif

/* --- the runtime (runtime.c) ------------------------------------------------------------------ */

enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81
};
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **out, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemset(void *memory, int value, size_t bytes);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void *), void *argument);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
/* Waits, before a kernel runs, until all earlier work of its stream is done. */
void tr_emulated_launches(cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifdef __cplusplus
#include <math.h>

#define __global__
#define __device__
#define __host__
#define __shared__             static /* blocks run one after the other */
#define __launch_bounds__(...)        /* nothing */

struct tr_emulated_index {
    unsigned x;
};
extern tr_emulated_index threadIdx, blockIdx, blockDim, gridDim;
extern void *tr_emulated_block_memory; /* of the launch's size; not zeroed */

extern "C" {
void __syncthreads(void);
/* Exchanges `value`, of `bytes` <= 8, with lane (own lane XOR `away`). */
void tr_emulated_shuffle_xor(void *value, size_t bytes, int away);
cudaError_t tr_emulated_run(cudaStream_t stream, unsigned blocks, unsigned threads, size_t bytes,
                            void (*body)(void *), void *argument);
}

template <typename T> T __shfl_xor_sync(unsigned, T value, int away) {
    tr_emulated_shuffle_xor(&value, sizeof value, away);
    return value;
}

template <typename F>
cudaError_t tr_emulated_launch(cudaStream_t stream, unsigned blocks, unsigned threads, size_t bytes,
                               F body) {
    return tr_emulated_run(
        stream, blocks, threads, bytes, [](void *f) { (*static_cast<F *>(f))(); }, &body);
}
#endif
