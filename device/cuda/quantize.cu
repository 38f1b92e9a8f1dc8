/* Kernels of QUANTIZE and DEQUANTIZE. */
#include "base/code8.h"
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

/* A warp encodes a block: each lane has two runs of four elements. */
__global__ void encode(tr_quantize_desc d, const tr_step_state *state, int64_t sample,
                       int64_t element, const float *x, uint8_t *y, float *scales) {
    constexpr int RUNS = TR_CODE8_BLOCK / (4 * TR_WARP);
    if (state->skip) return;
    const int64_t blocks = (d.count + TR_CODE8_BLOCK - 1) / TR_CODE8_BLOCK;
    for (int64_t b = tr_first_row(); b < blocks; b += tr_row_stride()) {
        float v[RUNS][4], largest = 0;
        for (int r = 0; r < RUNS; r++)
            for (int i = 0; i < 4; i++) {
                const int64_t at = b * TR_CODE8_BLOCK + 4 * (r * TR_WARP + tr_lane()) + i;
                v[r][i] = at < d.count ? x[at] : 0.0f;
                largest = fmaxf(largest, fabsf(v[r][i]));
            }
        for (int away = TR_WARP / 2; away > 0; away /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, away));
        const float scale = tr_code8_scale(largest);
        if (tr_lane() == 0) scales[b] = scale;
        for (int r = 0; r < RUNS; r++) {
            const int64_t at = b * TR_CODE8_BLOCK + 4 * (r * TR_WARP + tr_lane());
            uint32_t draw[4];
            if (at >= d.count) continue;
            tr_draw_bits(d, d.use, state, sample, element + at, draw);
            for (int i = 0; i < 4 && at + i < d.count; i++)
                y[at + i] = tr_code8_encode(v[r][i], scale, d.code, draw[i]);
        }
    }
}

__global__ void decode(int64_t count, tr_code8 code, const uint8_t *y, const float *scales,
                       float *x) {
    for (int64_t i = tr_first_item(); i < count; i += tr_item_stride())
        x[i] = tr_code8_decode(y[i], scales[i / TR_CODE8_BLOCK], code);
}

} // namespace

cudaError_t tr_cuda_launch_quantize(cudaStream_t stream, const tr_quantize_desc *d,
                                    const tr_step_state *state, int64_t sample, int64_t element,
                                    bool adds, const float *x, void *y, float *scales) {
    if (d->to == TR_U8)
        return tr_launch(stream, tr_grid(d->count, TR_CODE8_BLOCK * (TR_THREADS / TR_WARP)),
                         TR_THREADS, encode, *d, state, sample, element, x, y, scales);
    return tr_launch(stream, tr_grid(d->count, 8 * TR_THREADS), TR_THREADS, quantize, *d, state,
                     sample, element, adds, x, y);
}

cudaError_t tr_cuda_launch_dequantize(cudaStream_t stream, const tr_quantize_desc *d,
                                      const uint8_t *y, const float *scales, float *x) {
    return tr_launch(stream, tr_grid(d->count, TR_THREADS), TR_THREADS, decode, d->count, d->code,
                     y, scales, x);
}
