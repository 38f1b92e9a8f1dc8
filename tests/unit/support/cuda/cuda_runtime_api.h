/* The part of CUDA that device/cuda's kernels use, on the host: found in place of the toolkit's
 * header, it lets a C++ compiler take the .cu files as they are. Kernels run when they are
 * launched, a block after the other, the threads of a block as fibers of one thread that change
 * only at __syncthreads() and shuffles (emulation.cpp).
 *
 * What it shows: arithmetic and order of reductions, indices and tails (with the address sanitizer
 * every access out of bounds, with the undefined-behaviour sanitizer every misaligned pack),
 * barriers that some threads do not reach, and, since threads can be run in the opposite order,
 * most missing barriers. What it does not: the arithmetic of a GPU's own expf, speed, and what
 * depends on caches. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9
} cudaError_t;

static inline cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}
static inline const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : "an error of the emulation";
}

/* A stream is the order in which it runs the blocks of a launch and the threads of a block. */
typedef struct tr_emulated_stream {
    int descending;
} * cudaStream_t;
typedef struct tr_emulated_event *cudaEvent_t;

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

extern "C" {
void __syncthreads(void);
/* Gives `bytes` <= 8 from `value` to the lane `away` and takes its own into `value`. */
void tr_emulated_shuffle_xor(void *value, size_t bytes, int away);
cudaError_t tr_emulated_run(cudaStream_t stream, unsigned blocks, unsigned threads,
                            void (*body)(void *), void *argument);
}

template <typename T> T __shfl_xor_sync(unsigned, T value, int away) {
    tr_emulated_shuffle_xor(&value, sizeof value, away);
    return value;
}

template <typename F>
cudaError_t tr_emulated_launch(cudaStream_t stream, unsigned blocks, unsigned threads, F body) {
    return tr_emulated_run(
        stream, blocks, threads, [](void *f) { (*static_cast<F *>(f))(); }, &body);
}
#endif
