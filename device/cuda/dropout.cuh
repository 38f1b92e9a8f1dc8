/* Dropout of a row by a warp. The mask is a function of seed, site, step, global sample and element
 * (base/philox.h), so it is drawn again for the gradient instead of kept. Private to the
 * kernels. */
#pragma once

#include "device/cuda/kernel.cuh"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

/* The mask of one row; every thread makes its own. */
struct tr_row_mask {
    uint64_t key, counter;
    int64_t first; /* element of column 0 */
    uint32_t threshold;
    float scale;

    __device__ static tr_row_mask of(const tr_dropout_desc &d, const tr_step_state *state,
                                     int64_t sample, int64_t row) {
        const int64_t of_sequences = d.first + row;
        const int64_t global = state->first_sample + sample + of_sequences / d.seq;
        return {tr_dropout_key(state->seed, d.site), tr_dropout_counter(state->step, global),
                of_sequences % d.seq * d.width, tr_dropout_threshold(d.p), tr_dropout_scale(d.p)};
    }

    /* value[N] from column c on: kept and scaled, or 0. A pack starts on a quad. */
    template <int N> __device__ void apply(int64_t c, float (&value)[N]) const {
        const int64_t element = first + c;
        if constexpr (N == 1) {
            const tr_philox r = tr_philox4x32(key, (uint64_t)(element / 4), counter);
            value[0] = tr_philox_word(r, element % 4) < threshold ? value[0] * scale : 0.0f;
        } else {
#pragma unroll
            for (int q = 0; q < N / 4; q++) {
                const tr_philox r = tr_philox4x32(key, (uint64_t)(element / 4 + q), counter);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    value[4 * q + i] = r.v[i] < threshold ? value[4 * q + i] * scale : 0.0f;
            }
        }
    }
};

/* DROPOUT_ADD of row r. y may be residual or x: a pack is read before it is written, by the same
 * thread. */
template <typename T, int N>
__device__ void tr_warp_dropout_add(const tr_dropout_desc &d, const tr_step_state *state,
                                    int64_t sample, int64_t r, const T *x, const T *bias,
                                    const T *residual, T *y) {
    const bool dropping = d.p > 0 && state->train;
    tr_row_mask mask = {};
    if (dropping) mask = tr_row_mask::of(d, state, sample, r);
    for (int64_t c = tr_lane() * N; c < d.width; c += TR_WARP * N) {
        const int64_t at = r * d.width + c;
        float v[N], w[N];
        tr_load(x + at, v);
        if (bias) {
            tr_load(bias + c, w);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] += w[i];
        }
        if (dropping) mask.apply(c, v);
        if (residual) {
            tr_load(residual + at, w);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] += w[i];
        }
        tr_store(y + at, v);
    }
}
