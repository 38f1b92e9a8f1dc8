/* The random bits of QUANTIZE and of steps that round. Private to the kernels. */
#pragma once

#include "device/elementwise.h"

/* Draws the bits of elements at .. at + N of a parameter, where N share a Philox call: two calls,
 * unless the elements are of several rows. */
template <int N>
__device__ static inline void tr_draw_bits(const tr_quantize_desc &d, int use,
                                           const tr_step_state *state, int64_t sample, int64_t at,
                                           uint32_t (&draw)[N]) {
    const tr_quantize_box *box;
    int64_t adjacent;
    for (int i = 0; i < N;) {
        const int64_t place = tr_quantize_place(&d, at + i, &box, &adjacent);
        const tr_philox r =
            tr_philox4x32(tr_rounding_key(state->seed, box->name, use), (uint64_t)(place / N),
                          tr_rounding_counter(state->step, sample));
        for (int64_t k = place % N; k < N && i < N && adjacent > 0; k++, adjacent--)
            draw[i++] = tr_quantize_draw(d.to, r, k);
    }
}
