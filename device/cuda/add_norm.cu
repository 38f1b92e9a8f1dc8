/* Kernels of ADD_NORM: a team adds a row and keeps the sums, rounded to storage, for the norm. */
#include "device/cuda/dropout.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/norm.cuh"
#include "device/cuda/pack.cuh"

namespace {

template <typename T, int N>
__global__ void __launch_bounds__(TR_THREADS, 2)
    add_norm(tr_add_norm_desc d, tr_team team, const tr_step_state *state, int64_t sample, T *sum,
             const T *bias, const T *residual, const T *gamma, const T *beta, T *y, float *means,
             float *rstds) {
    const int64_t width = d.add.width;
    const float eps = (float)d.eps;
    for (int64_t r = team.first(); team.goes_on(r); r += team.stride()) {
        const tr_columns_of<N> columns(team, r, width);
        const auto row = tr_dropout_row<T>::of(d.add, state, sample, r, bias);
        T *at = sum + r * width;
        const T *of_residual = residual ? residual + r * width : nullptr;
        tr_kept<T, N> kept, added;
        tr_keep<T>(columns, at, kept);
        tr_keep<T>(columns, of_residual, added);
        const auto add = [&](int64_t c, tr_raw<T, N> &pack, const tr_raw<T, N> &other) {
            pack = row.template add<N>(c, pack, other);
            tr_store_raw(at + c, pack);
        };
        columns.kept([&](int k, int64_t c) { add(c, kept[k], added[k]); });
        columns.rest([&](int64_t c) {
            tr_raw<T, N> pack = tr_load_raw<N>(at + c);
            add(c, pack, tr_read<N>(of_residual, c));
        });
        T *to = y + r * width;
        if (d.rms)
            tr_team_rmsnorm<T>(team, columns, kept, width, eps, at, gamma, to, rstds + r,
                               static_cast<T *>(nullptr));
        else
            tr_team_layernorm<T>(team, columns, kept, width, eps, at, gamma, beta, to, means + r,
                                 rstds + r);
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
        const tr_team team = tr_team_of(d.add.rows, d.add.width / S::pack);
        return tr_launch(stream, tr_team_grid(team), TR_THREADS,
                         add_norm<typename S::type, S::pack>, d, team, state, sample, sum, bias,
                         residual, gamma, beta, y, means, rstds);
    });
}
