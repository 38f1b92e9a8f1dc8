/* Kernels of gated linear units: a thread takes a pack of gates and the same pack of ups. */
#include "device/cuda/activation.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"

namespace {

template <typename F, typename T, int N>
__global__ void glu(int64_t rows, int64_t width, const T *x, T *y) {
    const int64_t packs = width / N;
    for (int64_t i = tr_first_item(); i < rows * packs; i += tr_item_stride()) {
        const T *gate = x + i / packs * 2 * width + i % packs * N;
        float v[N], up[N];
        tr_load(gate, v);
        tr_load(gate + width, up);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = F::of(v[j]) * up[j];
        tr_store(y + i * N, v);
    }
}

/* dx may be x. */
template <typename F, typename T, int N>
__global__ void glu_dgrad(int64_t rows, int64_t width, const T *dy, const T *x, T *dx) {
    const int64_t packs = width / N;
    for (int64_t i = tr_first_item(); i < rows * packs; i += tr_item_stride()) {
        const int64_t at = i / packs * 2 * width + i % packs * N;
        float g[N], gate[N], up[N];
        tr_load(dy + i * N, g);
        tr_load(x + at, gate);
        tr_load(x + at + width, up);
#pragma unroll
        for (int j = 0; j < N; j++) {
            up[j] = F::slope(g[j] * up[j], gate[j]);
            gate[j] = g[j] * F::of(gate[j]);
        }
        tr_store(dx + at, up);
        tr_store(dx + at + width, gate);
    }
}

} // namespace

cudaError_t tr_cuda_launch_glu(cudaStream_t stream, const tr_glu_desc *desc, const void *x,
                               void *y) {
    const int64_t rows = desc->rows, width = desc->width;
    return tr_dispatch_activation(desc->activation, [=](auto function) {
        return tr_dispatch(
            desc->dtype, tr_rows_aligned(desc->dtype, width, x, y), [=](auto storage) {
                using S = decltype(storage);
                return tr_launch(stream, tr_grid(rows * (width / S::pack), TR_THREADS), TR_THREADS,
                                 glu<decltype(function), typename S::type, S::pack>, rows, width, x,
                                 y);
            });
    });
}

cudaError_t tr_cuda_launch_glu_dgrad(cudaStream_t stream, const tr_glu_desc *desc, const void *dy,
                                     const void *x, void *dx) {
    const int64_t rows = desc->rows, width = desc->width;
    return tr_dispatch_activation(desc->activation, [=](auto function) {
        return tr_dispatch(
            desc->dtype, tr_rows_aligned(desc->dtype, width, dy, x, dx), [=](auto storage) {
                using S = decltype(storage);
                return tr_launch(stream, tr_grid(rows * (width / S::pack), TR_THREADS), TR_THREADS,
                                 glu_dgrad<decltype(function), typename S::type, S::pack>, rows,
                                 width, dy, x, dx);
            });
    });
}
