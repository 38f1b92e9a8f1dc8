/* The kernel of ROPE: a thread takes a pack of pairs of one row and turns it in all heads, so that
 * cosines and sines are computed once. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

template <typename T, int N>
__global__ void rope(tr_rope_desc d, tr_cuda_rope_table table, const tr_step_state *state,
                     const int32_t *starts, T *x) {
    const int64_t half = d.head_size / 2, packs = half / N;
    for (int64_t item = tr_first_item(); item < d.rows * packs; item += tr_item_stride()) {
        const int64_t row = item / packs, pair = item % packs * N;
        const int64_t index = d.decode ? state->position : row % d.seq;
        const uint64_t position = (uint64_t)(index - (starts ? starts[row] : 0));
        float cosine[N], sine[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            tr_rope_rotation(position * table.turns[pair + i], &cosine[i], &sine[i]);
            cosine[i] *= table.magnitude;
            sine[i] *= d.inverse ? -table.magnitude : table.magnitude;
        }
        for (int64_t h = 0; h < d.heads; h++) {
            T *a = x + row * d.ld + h * d.head_size + pair, *b = a + half;
            float first[N], second[N], v[N];
            tr_load(a, first);
            tr_load(b, second);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] = first[i] * cosine[i] - second[i] * sine[i];
            tr_store(a, v);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] = second[i] * cosine[i] + first[i] * sine[i];
            tr_store(b, v);
        }
    }
}

} // namespace

cudaError_t tr_cuda_launch_rope(cudaStream_t stream, const tr_rope_desc *desc,
                                const tr_cuda_rope_table *table, const tr_step_state *state,
                                const int32_t *starts, void *x) {
    const tr_rope_desc d = *desc;
    const tr_cuda_rope_table t = *table;
    const bool packs =
        tr_rows_aligned(d.dtype, d.head_size / 2, x) && tr_rows_aligned(d.dtype, d.ld);
    return tr_dispatch(d.dtype, packs, [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(d.rows * (d.head_size / 2 / S::pack), TR_THREADS),
                         TR_THREADS, rope<typename S::type, S::pack>, d, t, state, starts, x);
    });
}
