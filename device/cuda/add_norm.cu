/* Kernels of ADD_NORM: a warp adds a row, and then reads its own lanes' sums, rounded to storage,
 * from the first-level cache. */
#include "device/cuda/dropout.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/norm.cuh"
#include "device/cuda/pack.cuh"

namespace {

template <typename T, int N>
__global__ void add_norm(tr_add_norm_desc d, const tr_step_state *state, int64_t sample, T *sum,
                         const T *bias, const T *residual, const T *gamma, const T *beta, T *y,
                         float *means, float *rstds) {
    const int64_t width = d.add.width;
    const float eps = (float)d.eps;
    for (int64_t r = tr_first_row(); r < d.add.rows; r += tr_row_stride()) {
        T *row = sum + r * width, *to = y + r * width;
        tr_warp_dropout_add<T, N>(d.add, state, sample, r, sum, bias, residual, sum);
        if (d.rms) tr_warp_rmsnorm<T, N>(width, eps, row, gamma, to, rstds + r, nullptr);
        else tr_warp_layernorm<T, N>(width, eps, row, gamma, beta, to, means + r, rstds + r);
    }
}

} // namespace

cudaError_t tr_cuda_launch_add_norm(cudaStream_t stream, const tr_add_norm_desc *desc,
                                    const tr_step_state *state, int64_t sample, void *sum,
                                    const void *bias, const void *residual, const void *gamma,
                                    const void *beta, void *y, float *means, float *rstds) {
    const tr_add_norm_desc d = *desc;
    const bool packs =
        tr_rows_aligned(d.add.dtype, d.add.width, sum, bias, residual, gamma, beta, y);
    return tr_dispatch(d.add.dtype, packs, [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(d.add.rows, TR_WARPS), TR_THREADS,
                         add_norm<typename S::type, S::pack>, d, state, sample, sum, bias, residual,
                         gamma, beta, y, means, rstds);
    });
}
