/* Kernels of the element-wise and row-wise operators. */
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"

namespace {

enum { THREADS = 256 };

unsigned blocks_for(int64_t items) {
    int64_t blocks = (items + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 65536 ? blocks : 65536);
}

__device__ int64_t first_item() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ int64_t item_stride() {
    return (int64_t)gridDim.x * blockDim.x;
}

/* y = a + b by packs; the last count % pack elements one by one. */
template <typename T>
__global__ void add(int64_t packs, int64_t count, const T *a, const T *b, T *y) {
    constexpr int n = tr_pack<T>::size;
    for (int64_t i = first_item(); i < packs; i += item_stride()) {
        float p[n], q[n];
        tr_load_pack(a + i * n, p);
        tr_load_pack(b + i * n, q);
#pragma unroll
        for (int j = 0; j < n; j++) p[j] += q[j];
        tr_store_pack(y + i * n, p);
    }
    for (int64_t i = packs * n + first_item(); i < count; i += item_stride())
        tr_store(y + i, tr_load(a + i) + tr_load(b + i));
}

template <typename T>
cudaError_t launch_add(cudaStream_t stream, int64_t count, const void *a, const void *b, void *y) {
    bool whole = tr_packable(a) && tr_packable(b) && tr_packable(y);
    int64_t packs = whole ? count / tr_pack<T>::size : 0;
    add<T><<<blocks_for(whole ? packs + 1 : count), THREADS, 0, stream>>>(
        packs, count, static_cast<const T *>(a), static_cast<const T *>(b), static_cast<T *>(y));
    return cudaGetLastError();
}

template <typename X, typename Y> __global__ void cast(int64_t count, const X *x, Y *y) {
    for (int64_t i = first_item(); i < count; i += item_stride()) tr_store(y + i, tr_load(x + i));
}

template <typename X, typename Y>
cudaError_t launch_cast(cudaStream_t stream, int64_t count, const void *x, void *y) {
    cast<X, Y><<<blocks_for(count), THREADS, 0, stream>>>(count, static_cast<const X *>(x),
                                                          static_cast<Y *>(y));
    return cudaGetLastError();
}

} // namespace

cudaError_t tr_cuda_launch_add(cudaStream_t stream, tr_dtype dtype, int64_t count, const void *a,
                               const void *b, void *y) {
    return dtype == TR_F32 ? launch_add<float>(stream, count, a, b, y)
                           : launch_add<__nv_bfloat16>(stream, count, a, b, y);
}

cudaError_t tr_cuda_launch_cast(cudaStream_t stream, tr_dtype from, tr_dtype to, int64_t count,
                                const void *x, void *y) {
    if (from == TR_F32)
        return to == TR_F32 ? launch_cast<float, float>(stream, count, x, y)
                            : launch_cast<float, __nv_bfloat16>(stream, count, x, y);
    return to == TR_F32 ? launch_cast<__nv_bfloat16, float>(stream, count, x, y)
                        : launch_cast<__nv_bfloat16, __nv_bfloat16>(stream, count, x, y);
}
