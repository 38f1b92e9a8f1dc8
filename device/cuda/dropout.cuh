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

/* The operands of DROPOUT_ADD for one row. */
template <typename T> struct tr_dropout_row {
    const T *bias; /* or NULL */
    bool dropping;
    tr_row_mask mask;

    __device__ static tr_dropout_row of(const tr_dropout_desc &d, const tr_step_state *state,
                                        int64_t sample, int64_t row, const T *bias) {
        const bool dropping = d.p > 0 && state->train;
        return {bias, dropping, dropping ? tr_row_mask::of(d, state, sample, row) : tr_row_mask{}};
    }
    /* Returns N elements of Y, from column c on, from those of X and RESIDUAL (or zeros). */
    template <int N>
    __device__ tr_raw<T, N> add(int64_t c, const tr_raw<T, N> &x,
                                const tr_raw<T, N> &residual) const {
        float v[N], w[N];
        tr_unpack<T>(x, v);
        if (bias) {
            tr_load(bias + c, w);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] += w[i];
        }
        if (dropping) mask.apply(c, v);
        tr_unpack<T>(residual, w);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += w[i];
        return tr_pack<T>(v);
    }
};
