/* The kernel of QUANTIZE. */
#include "device/cuda/eight.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/rounding.cuh"

namespace {

/* A thread rounds eight elements at a time. */
template <bool ADDS>
__global__ void quantize(tr_quantize_desc d, const tr_step_state *state, int64_t sample,
                         int64_t element, bool packs, const float *x, tr_bf16 *y) {
    if (state->skip) return;
    tr_draws draws = tr_draws_begin(d, state, sample);
    tr_each_eight(d.count, packs, [&](auto e) {
        if (e.n <= 0) return;
        float sum[8], before[8];
        tr_load_eight(e, x, sum);
        if (ADDS) tr_load_eight(e, y, before);
        const tr_philox half = tr_draws_of(draws, element + e.at);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (ADDS) sum[i] += before[i];
        tr_round_eight(e, sum, half, d.use, y);
    });
}

} // namespace

cudaError_t tr_cuda_launch_quantize(cudaStream_t stream, const tr_quantize_desc *d,
                                    const tr_step_state *state, int64_t sample, int64_t element,
                                    bool adds, const float *x, void *y) {
    return tr_launch(stream, tr_grid_eight(d->count), TR_THREADS,
                     adds ? quantize<true> : quantize<false>, *d, state, sample, element,
                     tr_aligned(x, y), x, static_cast<tr_bf16 *>(y));
}
