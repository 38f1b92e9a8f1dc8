/* Kernel of QUANTIZE. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

/* Draws the words of elements at .. at + 4 of a parameter: two quads, unless they are of several
 * rows. */
__device__ void draw_words(const tr_quantize_desc &d, const tr_step_state *state, int64_t at,
                           uint32_t (&draw)[4]) {
    const tr_quantize_box *box;
    int64_t adjacent;
    for (int i = 0; i < 4;) {
        const int64_t place = tr_quantize_place(&d, at + i, &box, &adjacent);
        const tr_philox r = tr_philox4x32(tr_rounding_key(state->seed, box->name, d.use),
                                          (uint64_t)(place / 4), (uint64_t)state->step);
        for (int64_t word = place % 4; word < 4 && i < 4 && adjacent > 0; word++, adjacent--)
            draw[i++] = tr_philox_word(r, word);
    }
}

/* A thread rounds four elements. */
__global__ void quantize(tr_quantize_desc d, const tr_step_state *state, int64_t element,
                         const float *x, tr_bf16 *y) {
    if (state->skip) return;
    const int64_t fours = (d.count + 3) / 4;
    for (int64_t k = tr_first_item(); k < fours; k += tr_item_stride()) {
        uint32_t draw[4];
        draw_words(d, state, element + 4 * k, draw);
        for (int i = 0; i < 4 && 4 * k + i < d.count; i++)
            y[4 * k + i].bits = tr_round_bf16(x[4 * k + i], draw[i]);
    }
}

} // namespace

cudaError_t tr_cuda_launch_quantize(cudaStream_t stream, const tr_quantize_desc *d,
                                    const tr_step_state *state, int64_t element, const float *x,
                                    void *y) {
    return tr_launch(stream, tr_grid(d->count, 4 * TR_THREADS), TR_THREADS, quantize, *d, state,
                     element, x, y);
}
