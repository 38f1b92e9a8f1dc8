/* Arithmetic that every device shares, so that its bits are the same everywhere: the dropout mask,
 * the blocks of SUMSQ, STEP_FINISH, and AdamW's update of one element. Only IEEE operations that
 * round once (no contraction, no library functions but sqrt). */
#pragma once

#include "base/philox.h"
#include "device/op.h"

#include <math.h>

/* True when dropout keeps an element: `element` counts within the whole (seq, width) tensor of one
 * global sample. Loops over many elements draw a quad at a time (tr_dropout_bits). */
TR_HOST_DEVICE static inline bool tr_dropout_keeps(const tr_dropout_desc *desc,
                                                   const tr_step_state *state, int64_t sample,
                                                   int64_t element) {
    tr_philox r = tr_dropout_bits(state->seed, desc->site, state->step, sample, element / 4);
    return r.v[element % 4] < tr_dropout_threshold(desc->p);
}

enum { TR_SUMSQ_BLOCK = 4096, TR_SUMSQ_LANES = 8 };

/* Sum of squares of one block, n <= TR_SUMSQ_BLOCK: lanes by i % 8, each ascending, added 0..7. */
TR_HOST_DEVICE static inline double tr_sumsq_block(const float *x, int64_t n) {
    double lane[TR_SUMSQ_LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + TR_SUMSQ_LANES <= n; i += TR_SUMSQ_LANES)
        for (int j = 0; j < TR_SUMSQ_LANES; j++) lane[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i < n; i++, j++) lane[j] += (double)x[i] * (double)x[i];
    for (int j = 0; j < TR_SUMSQ_LANES; j++) sum += lane[j];
    return sum;
}

/* The whole of STEP_FINISH: losses[n_losses][2] and norms[n_norms] into the state. */
TR_HOST_DEVICE static inline void tr_step_finish(const double *losses, int64_t n_losses,
                                                 const double *norms, int64_t n_norms,
                                                 tr_step_state *state) {
    double loss = 0, valid = 0, squares = 0;
    for (int64_t i = 0; i < n_losses; i++) {
        loss += losses[2 * i];
        valid += losses[2 * i + 1];
    }
    for (int64_t i = 0; i < n_norms; i++) squares += norms[i];
    double unit = valid * (double)state->loss_scale;
    state->valid = valid;
    state->loss = valid > 0 ? loss / valid : 0;
    state->grad_norm = unit > 0 ? sqrt(squares) / unit : 0;
    state->skip = !(valid > 0) || !isfinite(loss) || !isfinite(squares);
    double clip = state->max_norm > 0 && state->grad_norm > (double)state->max_norm
                      ? (double)state->max_norm / state->grad_norm
                      : 1;
    state->gradient_factor = state->skip ? 0 : (float)(clip / unit);
}

/* AdamW on one element in FP32; the caller has seen that state->skip is not set. */
TR_HOST_DEVICE static inline void tr_adamw_element(const tr_adamw_desc *desc,
                                                   const tr_step_state *state, float grad,
                                                   float *master, float *m, float *v) {
    float g = grad * state->gradient_factor;
    float m1 = desc->beta1 * *m + (1.0f - desc->beta1) * g;
    float v1 = desc->beta2 * *v + (1.0f - desc->beta2) * g * g;
    float update = m1 / state->bias_correction1 / (sqrtf(v1 / state->bias_correction2) + desc->eps);
    *master -= state->lr * (update + desc->weight_decay * *master);
    *m = m1;
    *v = v1;
}
