/* Launching kernels, block memory, dividing items among threads and warps, and reductions in a
 * fixed order. Private to the kernels.
 *
 * Kernels use blocks of whole warps, one dimension, static shared memory or tr_block_memory(),
 * __syncthreads() that all threads of a block reach and shuffles that all lanes of a warp reach:
 * what the emulation of the unit tests (tests/unit/support/cuda/) runs on the host. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <string.h>

enum { TR_THREADS = 256, TR_WARP = 32, TR_WARPS = TR_THREADS / TR_WARP };

/* The most blocks of a grid; with more work each block processes several items in turn. */
#ifndef TR_GRID_LIMIT
#define TR_GRID_LIMIT 65536
#endif

static inline unsigned tr_grid(int64_t items, int64_t items_per_block) {
    int64_t blocks = (items + items_per_block - 1) / items_per_block;
    return (unsigned)(blocks < TR_GRID_LIMIT ? blocks : TR_GRID_LIMIT);
}

/* Enqueues kernel(values...) with `bytes` of block memory. Returns the status of this launch, not
 * of an earlier call of this thread that left an error in cudaGetLastError(). */
template <typename... P>
cudaError_t tr_launch_values(cudaStream_t stream, unsigned blocks, unsigned threads, size_t bytes,
                             void (*kernel)(P...), P... values) {
#ifdef __CUDACC__
    void *pointers[] = {&values...};
    return cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), pointers, bytes, stream);
#else
    return tr_emulated_launch(stream, blocks, threads, bytes, [=] { kernel(values...); });
#endif
}

/* The same; void pointers become those of the kernel's parameters. No blocks: there is nothing to
 * do. */
template <typename... P, typename... A>
cudaError_t tr_launch(cudaStream_t stream, unsigned blocks, unsigned threads, void (*kernel)(P...),
                      A... args) {
    if (blocks == 0) return cudaSuccess;
    return tr_launch_values<P...>(stream, blocks, threads, 0, kernel, static_cast<P>(args)...);
}

/* Returns from the caller at the first launch that fails. */
#define TR_LAUNCH(expr)                                                                            \
    do {                                                                                           \
        cudaError_t tr_error_ = (expr);                                                            \
        if (tr_error_ != cudaSuccess) return tr_error_;                                            \
    } while (0)

/* The same with `bytes` of block memory, of which a multiprocessor gives as much as it can. */
template <typename... P, typename... A>
cudaError_t tr_launch_with_memory(cudaStream_t stream, unsigned blocks, unsigned threads,
                                  size_t bytes, void (*kernel)(P...), A... args) {
    if (blocks == 0) return cudaSuccess;
#ifdef __CUDACC__
    const void *function = reinterpret_cast<const void *>(kernel);
    TR_LAUNCH(
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    TR_LAUNCH(cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared));
#endif
    return tr_launch_values<P...>(stream, blocks, threads, bytes, kernel, static_cast<P>(args)...);
}

/* Returns the block's memory, as many bytes as its launch says, on 16 bytes. */
__device__ static inline void *tr_block_memory() {
#ifdef __CUDACC__
    extern __shared__ uint4 tr_block_bytes[];
    return tr_block_bytes;
#else
    return tr_emulated_block_memory;
#endif
}

/* Starts a copy of 16 bytes, aligned to that, to block memory. Its thread alone may read it, after
 * tr_copy_wait(), which waits for all copies that the thread has started. */
__device__ static inline void tr_copy_start(void *to, const void *from) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from))
                 : "memory");
#else
    memcpy(to, from, 16);
#endif
}
__device__ static inline void tr_copy_wait() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

/* A thread's items are first, first + stride, ... of all threads of the grid. */
__device__ static inline int64_t tr_first_item() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ static inline int64_t tr_item_stride() {
    return (int64_t)gridDim.x * blockDim.x;
}

/* The same for warps: a warp's rows, and the lane within it. */
__device__ static inline int64_t tr_first_row() {
    return tr_first_item() / TR_WARP;
}
__device__ static inline int64_t tr_row_stride() {
    return tr_item_stride() / TR_WARP;
}
__device__ static inline int tr_lane() {
    return (int)(threadIdx.x % TR_WARP);
}
__device__ static inline int tr_warp() {
    return (int)(threadIdx.x / TR_WARP);
}

/* Every lane gets the sum over the warp. */
template <typename T> __device__ static inline T tr_warp_sum(T value) {
#pragma unroll
    for (int away = TR_WARP / 2; away > 0; away /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, away);
    return value;
}

/* Every lane gets the largest value over the warp; NaNs are ignored. */
__device__ static inline float tr_warp_max(float value) {
#pragma unroll
    for (int away = TR_WARP / 2; away > 0; away /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, away));
    return value;
}

/* Every thread gets the sum over a block of THREADS: within warps, then warps in ascending
 * order. */
template <int THREADS, typename T> __device__ static inline T tr_block_sum(T value) {
    __shared__ T part[THREADS / TR_WARP];
    value = tr_warp_sum(value);
    if (tr_lane() == 0) part[tr_warp()] = value;
    __syncthreads();
    T sum = part[0];
#pragma unroll
    for (int w = 1; w < THREADS / TR_WARP; w++) sum += part[w];
    __syncthreads(); /* all threads have read, so the next sum may write */
    return sum;
}

/* Every thread gets the largest value over a block of THREADS; NaNs are ignored. */
template <int THREADS> __device__ static inline float tr_block_max(float value) {
    __shared__ float part[THREADS / TR_WARP];
    value = tr_warp_max(value);
    if (tr_lane() == 0) part[tr_warp()] = value;
    __syncthreads();
    float largest = part[0];
#pragma unroll
    for (int w = 1; w < THREADS / TR_WARP; w++) largest = fmaxf(largest, part[w]);
    __syncthreads();
    return largest;
}
