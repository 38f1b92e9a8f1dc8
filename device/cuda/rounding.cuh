/* The random bits of QUANTIZE and of steps that round. Private to the kernels. */
#pragma once

#include "device/elementwise.h"

/* Draws the half-words of eight elements of a parameter from `at` on, which each use multiplies
 * (tr_rounding_draw). Mostly these are the elements that share a Philox call; otherwise there are
 * more calls, and `draw` is set without an index that varies, which would keep it out of
 * registers. */
__device__ static inline void tr_draw_bits(const tr_quantize_desc &d, const tr_step_state *state,
                                           int64_t sample, int64_t at,
                                           uint32_t (&draw)[TR_QUANTIZE_SHARERS]) {
    constexpr int n = TR_QUANTIZE_SHARERS;
    for (int i = 0; i < n;) {
        const tr_quantize_box *box;
        int64_t adjacent;
        const int64_t place = tr_quantize_place(&d, at + i, &box, &adjacent);
        const tr_philox r =
            tr_rounding_bits(tr_rounding_key(state->seed, box->name, d.use), (uint64_t)(place / n),
                             tr_rounding_counter(state->step, sample));
        if (place % n == 0 && adjacent >= n && i == 0) {
#pragma unroll
            for (int j = 0; j < n; j++) draw[j] = tr_philox_half(r, j);
            return;
        }
        for (int64_t k = place % n; k < n && i < n && adjacent > 0; k++, i++, adjacent--)
#pragma unroll
            for (int j = 0; j < n; j++)
                if (j == i) draw[j] = tr_philox_half(r, k);
    }
}
