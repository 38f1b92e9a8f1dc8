/* Arithmetic of one element, in FP32, that the cpu device and the kernels of the cuda device share:
 * dropout, GELU, layer norm, cross entropy, the blocks of SUMSQ, STEP_FINISH, UPDATE and QUANTIZE.
 * Uses only IEEE operations that round once (no contraction, and no library functions except sqrt,
 * and log once a row), so the bits are the same everywhere. Exponentials, and a GPU's reciprocals
 * of them, differ between devices, so they are arguments. */
#pragma once

#include "base/philox.h"
#include "device/op.h"

#include <math.h>

/* Returns true when dropout keeps an element: `element` counts within the whole (seq, width) tensor
 * of one global sample. Loops over many elements draw a quad at a time (tr_dropout_bits). */
TR_HOSTDEVICE static inline bool tr_dropout_keeps(const tr_dropout_desc *desc,
                                                  const tr_step_state *state, int64_t sample,
                                                  int64_t element) {
    tr_philox r = tr_dropout_bits(state->seed, desc->site, state->step, sample, element / 4);
    return tr_philox_word(r, element % 4) < tr_dropout_threshold(desc->p);
}

/* Returns the factor of kept elements. */
TR_HOSTDEVICE static inline float tr_dropout_scale(float p) {
    return (float)(1.0 / (1.0 - (double)p));
}

/* gelu(x) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form of Hendrycks and
 * Gimpel (2016) through tanh(u) = 2 / (1 + exp(-2u)) - 1, which loses no digit at either end.
 * The exponent -2u, then gelu with e = exp of it. */
#define TR_GELU_SLOPE 1.5957691216057308f
#define TR_GELU_CUBIC 0.044715f
TR_HOSTDEVICE static inline float tr_gelu_exponent(float x) {
    return -(TR_GELU_SLOPE * (x + TR_GELU_CUBIC * x * x * x));
}
TR_HOSTDEVICE static inline float tr_gelu(float x, float e) {
    return x / (1.0f + e);
}

/* gelu'(x) = s + x s (1 - s) (2u)' with s = 1 / (1 + e) and 1 - s = e s. The exponent is bounded,
 * since e s s must not be infinity times 0. */
TR_HOSTDEVICE static inline float tr_gelu_dgrad_exponent(float x) {
    float z = tr_gelu_exponent(x);
    return z > 80.0f ? 80.0f : z;
}
TR_HOSTDEVICE static inline float tr_gelu_slope(float x, float e, float s) {
    float du2 = TR_GELU_SLOPE * (1.0f + 3.0f * TR_GELU_CUBIC * x * x);
    return s + x * (e * s) * s * du2;
}
TR_HOSTDEVICE static inline float tr_gelu_dgrad(float x, float e) {
    return tr_gelu_slope(x, e, 1.0f / (1.0f + e));
}

/* silu(x) = x / (1 + exp(-x)) (Hendrycks and Gimpel 2016, section 4); e = exp(-x). */
TR_HOSTDEVICE static inline float tr_silu(float x, float e) {
    return x / (1.0f + e);
}
/* silu'(x) = s + x s (1 - s) with s = 1 / (1 + e) and 1 - s = e s; the exponent is bounded as that
 * of tr_gelu_dgrad. */
TR_HOSTDEVICE static inline float tr_silu_dgrad_exponent(float x) {
    return x < -80.0f ? 80.0f : -x;
}
TR_HOSTDEVICE static inline float tr_silu_slope(float x, float e, float s) {
    return s + x * (e * s) * s;
}
TR_HOSTDEVICE static inline float tr_silu_dgrad(float x, float e) {
    return tr_silu_slope(x, e, 1.0f / (1.0f + e));
}

/* The exact GELU x Phi(x), with e = exp of the exponent -x^2/2. Phi(-|x|) = erfc(z)/2 with z =
 * |x| / sqrt 2 is e t Q(t) / 2 with t = 1 / (1 + 0.45 z); Q is erfc(z) exp(z^2) / t as a polynomial
 * of degree 9 between its Chebyshev nodes in t, within 8e-8 of it. */
#define TR_GELU_ERF_DENSITY 0.3989422804f /* 1 / sqrt(2 pi) */
TR_HOSTDEVICE static inline float tr_gelu_erf_exponent(float x) {
    return -0.5f * x * x;
}
TR_HOSTDEVICE static inline float tr_gelu_erf_phi(float x, float e) {
    float t = 1.0f / (1.0f + 0.45f * 0.70710678f * (x < 0 ? -x : x));
    float q =
        0.2538853330f +
        t * (0.2538811844f +
             t * (0.2283242673f + t * (0.1747127780f + t * (0.1227238461f + t * -0.0303837571f))));
    float t6 = t * t * t * t * t * t;
    q += t6 * (0.1560687961f + t * (-0.3141707644f + t * (0.1979836479f + t * -0.0430253624f)));
    float tail = 0.5f * t * q * e;
    return x > 0 ? 1.0f - tail : tail;
}
TR_HOSTDEVICE static inline float tr_gelu_erf(float x, float e) {
    return x * tr_gelu_erf_phi(x, e);
}
TR_HOSTDEVICE static inline float tr_gelu_erf_dgrad(float x, float e) {
    return tr_gelu_erf_phi(x, e) + x * (TR_GELU_ERF_DENSITY * e);
}

/* max(x, 0)^2; a NaN stays one. */
TR_HOSTDEVICE static inline float tr_relu2(float x) {
    return x < 0 ? 0.0f : x * x;
}
TR_HOSTDEVICE static inline float tr_relu2_dgrad(float x) {
    return x < 0 ? 0.0f : 2.0f * x;
}

/* Layer norm of one element, and its gradient: with n = (x - mean) rstd and g = dy gamma,
 * dx = rstd (g - mean(g) - n mean(g n)), means over the row. */
TR_HOSTDEVICE static inline float tr_layernorm_centred(float x, float mean, float rstd) {
    return (x - mean) * rstd;
}
TR_HOSTDEVICE static inline float tr_layernorm_element(float x, float mean, float rstd, float gamma,
                                                       float beta) {
    return tr_layernorm_centred(x, mean, rstd) * gamma + beta;
}
TR_HOSTDEVICE static inline float tr_layernorm_dgrad(float g, float n, float rstd, float mean_g,
                                                     float mean_gn) {
    return rstd * (g - mean_g - n * mean_gn);
}

/* RMS norm of one element, and its gradient: with n = x rstd and g = dy gamma,
 * dx = rstd (g - n mean(g n)), the mean over the row. */
TR_HOSTDEVICE static inline float tr_rmsnorm_element(float x, float rstd, float gamma) {
    return x * rstd * gamma;
}
TR_HOSTDEVICE static inline float tr_rmsnorm_dgrad(float g, float n, float rstd, float mean_gn) {
    return rstd * (g - n * mean_gn);
}

/* Returns the first element of row r: groups of `group` (or 1) dense rows begin every ld elements
 * (0: dense). */
TR_HOSTDEVICE static inline int64_t tr_rmsnorm_row(const tr_rmsnorm_desc *desc, int64_t ld,
                                                   int64_t r) {
    return ld ? r / desc->group * ld + r % desc->group * desc->width : r * desc->width;
}

/* Cosine and sine of a phase, in turns of 2^-64: position times turns a position, which wraps as
 * the angle does and so loses nothing at any position. The phase is rounded to 32 bits and reduced
 * to an eighth of a turn around a quarter's multiple; there the Taylor series to x^9, with
 * remainders of at most 0.2 ulp of 1. */
#define TR_ROPE_RADIANS 1.4629180792671596e-9f /* 2 pi / 2^32 */
TR_HOSTDEVICE static inline void tr_rope_rotation(uint64_t phase, float *cosine, float *sine) {
    uint32_t turn = (uint32_t)((phase + 0x80000000u) >> 32);
    uint32_t quarter = (turn + 0x20000000u) >> 30;
    float x = (float)(int32_t)(turn - (quarter << 30)) * TR_ROPE_RADIANS, x2 = x * x;
    float s =
        x + x * x2 * (-1.0f / 6 + x2 * (1.0f / 120 + x2 * (-1.0f / 5040 + x2 * (1.0f / 362880))));
    float c = 1.0f + x2 * (-0.5f + x2 * (1.0f / 24 + x2 * (-1.0f / 720 + x2 * (1.0f / 40320))));
    float even = quarter & 1 ? s : c, odd = quarter & 1 ? c : s;
    *cosine = quarter == 1 || quarter == 2 ? -even : even;
    *sine = quarter >= 2 ? -odd : odd;
}

/* Returns the first token that token t sees; `start` is its document's first token, 0 without
 * documents. */
TR_HOSTDEVICE static inline int64_t tr_attention_first(const tr_attention_desc *desc, int64_t t,
                                                       int64_t start) {
    int64_t first = desc->window > 0 && t >= desc->window ? t - desc->window + 1 : 0;
    if (start > first) first = start;
    return first < t ? first : t;
}

/* Returns the position of a row of tokens: in its sequence, or, when every sequence feeds `decode`
 * tokens, after those that were fed before. */
TR_HOSTDEVICE static inline int64_t tr_token_position(int64_t decode, int64_t seq,
                                                      const tr_step_state *state, int64_t row) {
    return decode ? state->position[row / decode] + row % decode : row % seq;
}

/* Returns the elements of a row of packed queries, keys and values. */
TR_HOSTDEVICE static inline int64_t tr_attention_row(const tr_attention_desc *desc) {
    return (desc->heads + 2 * desc->kv_heads) * desc->head_size;
}

/* Returns the key head of a query head. */
TR_HOSTDEVICE static inline int64_t tr_attention_kv_head(const tr_attention_desc *desc,
                                                         int64_t head) {
    return head / (desc->heads / desc->kv_heads);
}

/* Returns the factor of scores. */
TR_HOSTDEVICE static inline float tr_attention_scale(const tr_attention_desc *desc) {
    return desc->scale > 0 ? desc->scale : 1.0f / sqrtf((float)desc->head_size);
}

/* Returns the elements from one row of logits to the next. */
TR_HOSTDEVICE static inline int64_t tr_xent_ld(const tr_xent_desc *desc) {
    return desc->ld ? desc->ld : desc->vocab;
}

/* Returns the label's column on the rank with vocab columns from vocab_begin on, or -1. */
TR_HOSTDEVICE static inline int64_t tr_xent_column(const tr_xent_desc *desc, int32_t label) {
    int64_t column = (int64_t)label - desc->vocab_begin;
    return label >= 0 && column >= 0 && column < desc->vocab ? column : -1;
}

/* Returns a row's part of the loss; `sum` and `of_label` as written by XENT_SUM. */
TR_HOSTDEVICE static inline double tr_xent_row_loss(float sum, float of_label) {
    return log((double)sum) - (double)of_label;
}

enum { TR_SUMSQ_LANES = 256 };

/* Returns the sum of the lanes of SUMSQ, of which only the first n may differ from 0: by halves,
 * lane j and lane j + 128, then j + 64 and so on. Overwrites them. */
TR_HOSTDEVICE static inline double tr_sumsq_lanes(double *lane, int64_t n) {
    for (int64_t half = TR_SUMSQ_LANES / 2; half > 0; half /= 2) {
        const int64_t pairs = n - half < half ? n - half : half;
        for (int64_t j = 0; j < pairs; j++) lane[j] += lane[j + half];
    }
    return lane[0];
}

/* Returns the sum of the blocks' sums. */
static inline double tr_sumsq_total(const double *sums, int64_t blocks) {
    double lane[TR_SUMSQ_LANES] = {0};
    for (int64_t b = 0; b < blocks; b++) lane[b % TR_SUMSQ_LANES] += sums[b];
    return tr_sumsq_lanes(lane, blocks);
}

/* Does all of STEP_FINISH: reduces losses[n_losses][2] and norms[n_norms] into the state. */
TR_HOSTDEVICE static inline void tr_step_finish(const double *losses, int64_t n_losses,
                                                const double *norms, int64_t n_norms,
                                                tr_step_state *state) {
    double loss = 0, valid = 0, squares = 0;
    for (int64_t i = 0; i < n_losses; i++) {
        loss += losses[2 * i];
        valid += losses[2 * i + 1];
    }
    for (int64_t i = 0; i < n_norms; i++) squares += norms[i];
    double unit = valid * state->loss_scale;
    state->valid = valid;
    state->loss = valid > 0 ? loss / valid : 0;
    state->grad_norm = unit > 0 ? sqrt(squares) / unit : 0;
    state->skip = !(valid > 0) || !isfinite(loss) || !isfinite(squares) ||
                  (state->loss_limit > 0 && state->loss > state->loss_limit) ||
                  (state->norm_limit > 0 && state->grad_norm > state->norm_limit);
    double clip = state->max_norm > 0 && state->grad_norm > state->max_norm
                      ? state->max_norm / state->grad_norm
                      : 1;
    state->gradient_factor = state->skip ? 0 : clip / unit;
}

/* Returns the position of element i of a parameter in the whole tensor, by which its rounding is
 * drawn; *box is the tensor's, and the next *adjacent elements, from i on, follow each other
 * there. */
TR_HOSTDEVICE static inline int64_t tr_quantize_place(const tr_quantize_desc *d, int64_t i,
                                                      const tr_quantize_box **box,
                                                      int64_t *adjacent) {
    for (int k = 0; k < d->boxes; k++) {
        const int64_t from = i - d->box[k].begin, ld = d->box[k].ld;
        const int64_t row = from < ld ? 0 : from / ld, col = from - row * ld;
        if (from < 0 || row >= d->box[k].rows || col >= d->box[k].cols) continue;
        *box = &d->box[k];
        *adjacent = d->box[k].cols - col;
        return d->box[k].first + row * d->box[k].step + col;
    }
    *box = &d->box[0]; /* boxes hold every element, so this is not reached */
    *adjacent = 1;
    return i;
}

/* Adjacent elements that share a Philox call, with 16 random bits each (tr_philox_half): BF16 cuts
 * off as many bits, and codes are drawn by as many (tr_code8_draw). */
enum { TR_QUANTIZE_SHARERS = 8 };

/* Rounds to BF16 down or up, in size, by 16 random bits: the carry of the bits that are cut off.
 * Returns bits of which the upper half is the result; a NaN stays one. */
TR_HOSTDEVICE static inline uint32_t tr_round_bits(float x, uint32_t draw) {
    const uint32_t bits = tr_float_bits(x);
    return x != x ? bits | 0x400000u : bits + draw;
}
TR_HOSTDEVICE static inline uint16_t tr_round_bf16(float x, uint32_t draw) {
    return (uint16_t)(tr_round_bits(x, draw) >> 16);
}

/* Adafactor's epsilon_1, which is added to each square. */
#define TR_FACTOR_LEAST 1e-30f
/* Returns R or C of FACTOR after a step: `sum` is of `count` squares, and `weight` the step's. */
TR_HOSTDEVICE static inline float tr_factor_moment(double weight, float before, double sum,
                                                   int64_t count) {
    return (float)((1 - weight) * (double)before + weight * (sum + 1e-30 * (double)count));
}
/* Returns what G of FACTOR is X times. */
TR_HOSTDEVICE static inline float tr_factor_scale(const tr_factor_desc *d,
                                                  const tr_step_state *state) {
    return d->scales ? (float)state->gradient_factor : 1.0f;
}
/* The total of FACTOR: lanes by i % 256, each ascending, added in ascending order. */
enum { TR_FACTOR_LANES = 256 };
TR_HOSTDEVICE static inline double tr_factor_lane(const float *x, int64_t n, int lane) {
    double sum = 0;
    for (int64_t i = lane; i < n; i += TR_FACTOR_LANES) sum += (double)x[i];
    return sum;
}
/* Return the factors of a row and of a column of G. */
TR_HOSTDEVICE static inline float tr_factor_row(double total, float r) {
    return (float)sqrt(total / (double)r);
}
TR_HOSTDEVICE static inline float tr_factor_col(float c) {
    return (float)(1 / sqrt((double)c));
}

/* The scalars of UPDATE in FP32. */
typedef struct tr_update_scalars {
    float beta1, beta2, eps, weight_decay, lr, factor;
    float mean_scale, root_scale; /* 1 / bias_correction1, 1 / sqrt(bias_correction2) */
    float momentum, clip_value, l1, l2, square_weight;
    int32_t clamps, regular, nesterov;
} tr_update_scalars;

TR_HOSTDEVICE static inline tr_update_scalars tr_update_round(const tr_update_desc *desc,
                                                              const tr_step_state *state) {
    tr_update_scalars s;
    s.beta1 = (float)desc->beta1;
    s.beta2 = (float)desc->beta2;
    s.eps = (float)desc->eps;
    s.weight_decay = (float)desc->weight_decay;
    s.lr = (float)state->lr * (float)desc->lr_scale;
    s.mean_scale = (float)(1 / state->bias_correction1);
    s.root_scale = (float)(1 / sqrt(state->bias_correction2));
    s.factor = (float)state->gradient_factor;
    s.momentum = (float)desc->momentum;
    s.clip_value = (float)desc->clip_value;
    s.l1 = (float)desc->l1;
    s.l2 = (float)desc->l2;
    s.square_weight = (float)state->square_weight;
    s.clamps = s.clip_value > 0;
    s.regular = s.l1 > 0 || s.l2 > 0;
    s.nesterov = desc->nesterov;
    return s;
}

TR_HOSTDEVICE static inline float tr_sign(float x) {
    return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
}

/* Returns the gradient of an element with weight w as the rules see it. */
TR_HOSTDEVICE static inline float tr_update_gradient(const tr_update_scalars *s, float grad,
                                                     float w) {
    float g = grad * s->factor;
    if (s->clamps) g = g > s->clip_value ? s->clip_value : g < -s->clip_value ? -s->clip_value : g;
    return s->regular ? g + (s->l1 * tr_sign(w) + s->l2 * w) : g;
}

/* Returns the direction of one element with gradient g, as the rules see it; m and v may be
 * NULL when the rule does not own them. */
TR_HOSTDEVICE static inline float tr_update_follow(const tr_update_scalars *s, tr_update_rule rule,
                                                   float g, float master, float *m, float *v) {
    float update = g;
    if (rule == TR_UPDATE_ADAMW) {
        *m = s->beta1 * *m + (1.0f - s->beta1) * g;
        *v = s->beta2 * *v + (1.0f - s->beta2) * g * g;
        update = *m * s->mean_scale / (sqrtf(*v) * s->root_scale + s->eps);
    } else if (rule == TR_UPDATE_MOMENTUM) {
        *m = s->momentum * *m + g;
        update = s->nesterov ? g + s->momentum * *m : *m;
    } else if (rule == TR_UPDATE_LION) {
        update = tr_sign(s->beta1 * *m + (1.0f - s->beta1) * g);
        *m = s->beta2 * *m + (1.0f - s->beta2) * g;
    } else if (rule == TR_UPDATE_ROOT) {
        *m = (1.0f - s->square_weight) * *m + s->square_weight * (g * g + TR_FACTOR_LEAST);
        update = g / sqrtf(*m);
    }
    return update + s->weight_decay * master;
}

/* Does DIRECTION on one element in FP32 and returns it. The caller must check that the state's skip
 * is not set. */
TR_HOSTDEVICE static inline float tr_update_direction(const tr_update_scalars *s,
                                                      tr_update_rule rule, float grad, float master,
                                                      float *m, float *v) {
    return tr_update_follow(s, rule, tr_update_gradient(s, grad, master), master, m, v);
}

/* Returns the weight after a step along a direction. */
TR_HOSTDEVICE static inline float tr_update_step(const tr_update_scalars *s, float master,
                                                 float direction) {
    return master - s->lr * direction;
}

/* Does UPDATE on one element in FP32, like tr_update_direction. */
TR_HOSTDEVICE static inline void tr_update_element(const tr_update_scalars *s, tr_update_rule rule,
                                                   float grad, float *master, float *m, float *v) {
    *master = tr_update_step(s, *master, tr_update_direction(s, rule, grad, *master, m, v));
}

/* Returns r of DESCEND. */
TR_HOSTDEVICE static inline double tr_descend_ratio(const double *norms, int64_t parts,
                                                    int64_t whole) {
    double master = 0, direction = 0;
    for (int64_t i = 0; i < parts; i++) {
        master += norms[2 * i];
        direction += norms[2 * i + 1];
    }
    if (whole > 0) {
        const double size = sqrt(master / (double)whole), length = sqrt(direction / (double)whole);
        return (size > 1e-3 ? size : 1e-3) / (length > 1 ? length : 1);
    }
    return master > 0 && direction > 0 ? sqrt(master) / sqrt(direction) : 1;
}

/* Returns what RESCALE multiplies by. */
TR_HOSTDEVICE static inline double tr_rescale_factor(const double *norms, int64_t parts) {
    double sum = 0;
    for (int64_t i = 0; i < parts; i++) sum += norms[2 * i + 1];
    return 1 / (sqrt(sum) + 1e-7);
}

/* The scalars of DESCEND in FP32. */
typedef struct tr_descend_scalars {
    float lr, factor, weight_decay;
} tr_descend_scalars;

TR_HOSTDEVICE static inline tr_descend_scalars
tr_descend_round(const tr_descend_desc *desc, const tr_step_state *state, const double *norms) {
    tr_descend_scalars s;
    s.lr = (float)state->lr * (float)desc->lr_scale;
    s.factor = (float)(desc->factor * tr_descend_ratio(norms, desc->parts, desc->whole));
    s.weight_decay = (float)desc->weight_decay;
    return s;
}

TR_HOSTDEVICE static inline float tr_descend_element(const tr_descend_scalars *s, float u,
                                                     float master) {
    return master - s->lr * (s->factor * u + s->weight_decay * master);
}
