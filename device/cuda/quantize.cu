/* The kernel of QUANTIZE. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/cuda/rounding.cuh"
#include "device/elementwise.h"

namespace {

/* A thread rounds eight elements. */
__global__ void quantize(tr_quantize_desc d, const tr_step_state *state, int64_t sample,
                         int64_t element, bool adds, const float *x, tr_bf16 *y) {
    if (state->skip) return;
    const int64_t eights = (d.count + 7) / 8;
    for (int64_t k = tr_first_item(); k < eights; k += tr_item_stride()) {
        uint32_t draw[8];
        tr_draw_bits(d, d.use, state, sample, element + 8 * k, draw);
        for (int i = 0; i < 8 && 8 * k + i < d.count; i++) {
            float sum = x[8 * k + i];
            if (adds) sum += tr_bf16_to_f32(y[8 * k + i].bits);
            y[8 * k + i].bits = tr_round_bf16(sum, draw[i]);
        }
    }
}

} // namespace

cudaError_t tr_cuda_launch_quantize(cudaStream_t stream, const tr_quantize_desc *d,
                                    const tr_step_state *state, int64_t sample, int64_t element,
                                    bool adds, const float *x, void *y) {
    return tr_launch(stream, tr_grid(d->count, 8 * TR_THREADS), TR_THREADS, quantize, *d, state,
                     sample, element, adds, x, static_cast<tr_bf16 *>(y));
}
