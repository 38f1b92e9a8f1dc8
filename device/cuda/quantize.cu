/* The kernel of QUANTIZE. */
#include "device/cuda/eight.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/cuda/rounding.cuh"
#include "device/elementwise.h"

namespace {

/* A thread rounds eight elements. Stored numbers are exact in BF16, so that storing does not round
 * again. */
__global__ void quantize(tr_quantize_desc d, const tr_step_state *state, int64_t sample,
                         int64_t element, bool adds, bool packs, const float *x, tr_bf16 *y) {
    if (state->skip) return;
    for (int64_t at = 8 * tr_first_item(); at < d.count; at += 8 * tr_item_stride()) {
        const tr_eight e = {at, d.count - at < 8 ? d.count - at : 8, packs};
        float sum[8], before[8] = {};
        uint32_t draw[8];
        tr_load_eight(e, x, sum);
        if (adds) tr_load_eight(e, y, before);
        tr_draw_bits(d, state, sample, element + at, draw);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (adds) sum[i] += before[i];
            sum[i] = tr_bf16_to_f32(tr_round_bf16(sum[i], tr_rounding_draw(draw[i], d.use)));
        }
        tr_store_eight(e, sum, y);
    }
}

} // namespace

cudaError_t tr_cuda_launch_quantize(cudaStream_t stream, const tr_quantize_desc *d,
                                    const tr_step_state *state, int64_t sample, int64_t element,
                                    bool adds, const float *x, void *y) {
    return tr_launch(stream, tr_grid(d->count, 8 * TR_THREADS), TR_THREADS, quantize, *d, state,
                     sample, element, adds, tr_aligned(x, y), x, static_cast<tr_bf16 *>(y));
}
