/* The random bits of QUANTIZE and of steps that round. Private to the kernels. */
#pragma once

#include "device/elementwise.h"

/* Draws the bits of eight elements of a parameter from `at` on, as many as share a Philox call: at
 * most two calls, unless the elements are of several rows. */
__device__ static inline void tr_draw_bits(const tr_quantize_desc &d, int use,
                                           const tr_step_state *state, int64_t sample, int64_t at,
                                           uint32_t (&draw)[TR_QUANTIZE_SHARERS]) {
    const tr_quantize_box *box;
    int64_t adjacent;
    for (int i = 0; i < TR_QUANTIZE_SHARERS;) {
        const int64_t place = tr_quantize_place(&d, at + i, &box, &adjacent);
        const tr_philox r = tr_philox4x32(tr_rounding_key(state->seed, box->name, use),
                                          (uint64_t)(place / TR_QUANTIZE_SHARERS),
                                          tr_rounding_counter(state->step, sample));
        for (int64_t k = place % TR_QUANTIZE_SHARERS;
             k < TR_QUANTIZE_SHARERS && i < TR_QUANTIZE_SHARERS && adjacent > 0; k++, adjacent--)
            draw[i++] = tr_philox_half(r, k);
    }
}
