/* Kernels of dropout: a warp takes a row. */
#include "device/cuda/dropout.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

/* y may be residual or x: a pack is read before it is written, by the same thread. */
template <typename T, int N>
__global__ void dropout_add(tr_dropout_desc d, const tr_step_state *state, int64_t sample,
                            const T *x, const T *bias, const T *residual, T *y) {
    for (int64_t r = tr_first_row(); r < d.rows; r += tr_row_stride()) {
        const auto row = tr_dropout_row<T>::of(d, state, sample, r, bias);
        for (int64_t c = tr_lane() * N; c < d.width; c += TR_WARP * N) {
            const int64_t at = r * d.width + c;
            const tr_raw<T, N> sum =
                row.template add<N>(c, tr_load_raw<N>(x + at), tr_read<N>(residual, at));
            tr_store_raw(y + at, sum);
        }
    }
}

/* dx may be dy. */
template <typename T, int N>
__global__ void dropout_dgrad(tr_dropout_desc d, const tr_step_state *state, int64_t sample,
                              const T *dy, T *dx) {
    const bool dropping = d.p > 0 && state->train;
    for (int64_t r = tr_first_row(); r < d.rows; r += tr_row_stride()) {
        tr_row_mask mask = {};
        if (dropping) mask = tr_row_mask::of(d, state, sample, r);
        for (int64_t c = tr_lane() * N; c < d.width; c += TR_WARP * N) {
            float v[N];
            tr_load(dy + r * d.width + c, v);
            if (dropping) mask.apply(c, v);
            tr_store(dx + r * d.width + c, v);
        }
    }
}

} // namespace

cudaError_t tr_cuda_launch_dropout_add(cudaStream_t stream, const tr_dropout_desc *d,
                                       const tr_step_state *state, int64_t sample, const void *x,
                                       const void *bias, const void *residual, void *y) {
    const tr_dropout_desc desc = *d;
    bool packs = tr_rows_aligned(d->dtype, d->width, x, bias, residual, y);
    return tr_dispatch(d->dtype, packs, [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(desc.rows, TR_WARPS), TR_THREADS,
                         dropout_add<typename S::type, S::pack>, desc, state, sample, x, bias,
                         residual, y);
    });
}

cudaError_t tr_cuda_launch_dropout_dgrad(cudaStream_t stream, const tr_dropout_desc *d,
                                         const tr_step_state *state, int64_t sample, const void *dy,
                                         void *dx) {
    const tr_dropout_desc desc = *d;
    return tr_dispatch(d->dtype, tr_rows_aligned(d->dtype, d->width, dy, dx), [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(desc.rows, TR_WARPS), TR_THREADS,
                         dropout_dgrad<typename S::type, S::pack>, desc, state, sample, dy, dx);
    });
}
