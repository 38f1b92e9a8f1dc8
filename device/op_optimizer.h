/* Descriptions of the operators at the end of a step: norms, the optimizers' rules, and the
 * rounding of moments, values and gradients. See device/op.h. */
#pragma once

#include "base/code8.h"
#include "base/dtype.h"
#include "base/host_device.h"

#include <stdbool.h>
#include <stdint.h>

/* SUMSQ: OUT f64[1] = sum of X[i]^2 over count elements of dtype f32 or bf16, in an order that
 * depends on the index alone (not on threads or alignment): blocks of 4096 elements, in a block 256
 * lanes by i % 256 each in ascending order, then the lanes by halves (j and j + 128, then j + 64
 * and so on); the blocks' sums likewise, in 256 lanes; all FP64. In parts, for runs of whole blocks
 * of a tensor in different places: BLOCKS writes the sum of each block of X to
 * SUMS f64[tr_sumsq_blocks(count)], and TOTAL sums SUMS f64[count] to OUT. */
enum { TR_SUMSQ_BLOCK = 4096 };
typedef enum tr_sumsq_part { TR_SUMSQ_WHOLE, TR_SUMSQ_BLOCKS, TR_SUMSQ_TOTAL } tr_sumsq_part;
typedef struct tr_sumsq_desc {
    int64_t count;
    tr_dtype dtype;
    tr_sumsq_part part;
} tr_sumsq_desc;
static inline int64_t tr_sumsq_blocks(int64_t count) {
    return (count + TR_SUMSQ_BLOCK - 1) / TR_SUMSQ_BLOCK;
}
enum { TR_SUMSQ_X, TR_SUMSQ_OUT, TR_SUMSQ_SUMS };

/* STEP_FINISH: LOSSES f64[losses][2] as XENT_LOSS writes them, added in order; NORMS f64[norms]
 * added in order. Sets loss, valid, grad_norm, gradient_factor and skip of STATE (a tr_step_state).
 *   grad_norm = sqrt(sum NORMS) / (valid * loss_scale); the clip factor is min(1,
 * max_norm/grad_norm); skip when loss or norm is not finite or above its limit, or no token
 * counts. */
typedef struct tr_step_finish_desc {
    int64_t losses, norms;
} tr_step_finish_desc;
enum { TR_STEP_FINISH_LOSSES, TR_STEP_FINISH_NORMS, TR_STEP_FINISH_STATE };

/* A box of a tensor within a parameter's memory: rows of `cols` adjacent elements, `ld` apart, from
 * element `begin` of the parameter on. Its element (r, c) is element first + r * step + c of the
 * whole tensor, in the order of the parameter's memory. */
typedef struct tr_quantize_box {
    uint64_t name; /* tr_hash_name of the tensor */
    int64_t begin, rows, cols, ld, first, step;
} tr_quantize_box;

/* QUANTIZE: Y bf16[count] = X f32[count], the parameter's elements from args->element on. Each
 * rounds down or up with the probability that makes the mean of Y equal to X (Croci et al. 2022,
 * stochastic rounding), by 16 bits that are a function of seed, attempted step, args->sample, `use`
 * (which tells the moments, values and gradients of a tensor apart), the tensor's name and the
 * element of the whole tensor. Y (+)=: a run that adds rounds the FP32 sum Y + X. A NaN stays one.
 * Reads seed, step and skip from the state; does nothing if skip is set. */
enum { TR_QUANTIZE_BOXES = 4 };
typedef struct tr_quantize_desc {
    int64_t count;
    int use, boxes;
    tr_quantize_box box[TR_QUANTIZE_BOXES];
} tr_quantize_desc;
enum { TR_QUANTIZE_X, TR_QUANTIZE_Y };

/* The rules of UPDATE, and which states they own (of M and V, the means of the gradient and of its
 * square, in this order). g is the gradient of UPDATE, w the master. */
typedef enum tr_update_rule {
    TR_UPDATE_ADAMW,    /* M, V (Loshchilov & Hutter 2019): u = mhat / (sqrt(vhat) + eps) */
    TR_UPDATE_SGD,      /* none: u = g */
    TR_UPDATE_MOMENTUM, /* M: m = momentum m + g; u = m, or with nesterov g + momentum m */
    TR_UPDATE_LION,     /* M (Chen et al. 2023, algorithm 2): u = sign(beta1 m + (1 - beta1) g);
                           m = beta2 m + (1 - beta2) g */
    TR_UPDATE_ROOT,     /* M, of Adafactor's vectors: m = (1 - b) m + b (g^2 + 1e-30) with b =
                           state->square_weight; u = g / sqrt(m) */
    TR_UPDATE_RULES
} tr_update_rule;
enum { TR_UPDATE_STATES = 2 }; /* the most that a rule owns */
/* Returns how many states a rule owns. */
TR_HOSTDEVICE static inline int tr_update_states(tr_update_rule rule) {
    return rule == TR_UPDATE_ADAMW ? 2 : rule == TR_UPDATE_SGD ? 0 : 1;
}

/* UPDATE: the optimizer's step on count elements; reads lr, bias corrections, gradient_factor and
 * skip from the state: g = GRAD * gradient_factor, clamped to clip_value in size unless that is 0,
 * plus l1 sign(w) + l2 w; M, V, MASTER f32 updated; MASTER -= lr * lr_scale * (u + weight_decay *
 * MASTER); VALUE = MASTER in dtype (NULL or MASTER itself when the model is FP32).
 * GRAD, the states and MASTER may be BF16 instead; a BF16 MASTER has no VALUE. The step widens
 * them, computes as in FP32, and rounds the new states and MASTER to the bits that QUANTIZE would
 * give with `rounding` and the run's element and sample: M with its `use`, a multiple of
 * TR_ROUNDING_USES, V with the next one, MASTER with TR_UPDATE_USE_MASTER more. It does not read
 * the count of `rounding`.
 * With a state_dtype of U8, M and V are codes of base/code8.h with scales M_SCALES and V_SCALES
 * f32[blocks]: code[0], TR_CODE8_SIGNED, or with the rule MOMENTUM also TR_CODE8_EVEN, and code[1],
 * TR_CODE8_SQUARES. Blocks of TR_CODE8_BLOCK elements begin at the first of the operands'
 * elements, whatever the run's element is. The same random bits round them (tr_code8_draw). */
enum { TR_UPDATE_USE_MASTER = TR_UPDATE_STATES };
typedef struct tr_update_desc {
    int64_t count;
    double beta1, beta2, eps, weight_decay;
    tr_dtype dtype;
    double lr_scale;
    tr_update_rule rule;
    double momentum, clip_value, l1, l2;
    bool nesterov;
    bool bf16_grad, bf16_master;
    tr_dtype state_dtype; /* TR_F32 (FP64 in an FP64 model), TR_BF16 or TR_U8 */
    tr_code8 code[TR_UPDATE_STATES];
    tr_quantize_desc rounding; /* boxes is 0 where nothing is rounded */
} tr_update_desc;
enum {
    TR_UPDATE_GRAD,
    TR_UPDATE_MASTER,
    TR_UPDATE_M,
    TR_UPDATE_V,
    TR_UPDATE_VALUE,
    TR_UPDATE_U,
    TR_UPDATE_M_SCALES,
    TR_UPDATE_V_SCALES
};

/* DIRECTION: as UPDATE, but writes U f32[count] = u + weight_decay * MASTER, which may be GRAD if
 * that is f32, and MASTER keeps its values: for optimizers that choose the length of each tensor's
 * step. Has UPDATE's description and operands, with U instead of VALUE, and does not read lr.
 * DESCEND: the step along such a direction U: MASTER -= lr * lr_scale * (factor * r * U +
 * weight_decay * MASTER); MASTER, VALUE and rounding as of UPDATE. NORMS f64[parts][2] has the
 * squared norms of the parts of the whole tensor, of its MASTER and of its U; r is the ratio of
 * their roots, added in ascending order, or 1 where one of them is 0 (You et al. 2020, algorithm
 * 2). parts 0: r is 1, without NORMS. whole above 0: the elements of the whole tensor, and r is
 * Adafactor's (Shazeer & Stern 2018, algorithm 4), with the roots of the mean squares: max(1e-3,
 * that of MASTER) / max(1, that of U). Reads lr and skip from the state. */
typedef struct tr_descend_desc {
    int64_t count, parts, whole;
    double lr_scale, factor, weight_decay;
    tr_dtype dtype;
    bool bf16_master;
    tr_quantize_desc rounding;
} tr_descend_desc;
enum { TR_DESCEND_U, TR_DESCEND_NORMS, TR_DESCEND_MASTER, TR_DESCEND_VALUE };

/* RESCALE: X f32[count] = X / (the root of the sum of its parts' squared norms, as DESCEND adds
 * those of U, + 1e-7). dtype: the storage's, or X's own. */
typedef struct tr_rescale_desc {
    int64_t count, parts;
    tr_dtype dtype;
} tr_rescale_desc;
enum { TR_RESCALE_X, TR_RESCALE_NORMS };

/* Adafactor's second moments of a matrix (Shazeer & Stern 2018, algorithm 4), of which this rank
 * has a part, X f32[rows, cols], or BF16, with all rows or all columns of the whole matrix. Sums
 * are FP64. G is X in FP32, or with `scales` X * gradient_factor of the state, rounded to FP32.
 * FACTOR_SUMS: ROWS f64[rows] and COLS f64[cols] are the sums of squares of each row and column of
 *   G, a row's in the blocks of SUMSQ, a column's in blocks of tr_factor_block(rows) rows; the
 *   blocks' sums are added in ascending order.
 * FACTOR: ROWS and COLS are those of the whole matrix. The states R f32[rows] and C f32[cols]
 * become R = (1 - b) R + b (ROWS + 1e-30 all_cols), C = (1 - b) C + b (COLS + 1e-30 all_rows), with
 * b = state->square_weight; U f32[rows, cols], which may be X if that is f32, becomes
 * G / sqrt(R C / total), where total is the sum of R, or of C; and NORM f64[1], which may be
 * absent, the sum of squares of U: each row's as FACTOR_SUMS adds it, and the rows' as SUMSQ adds
 * blocks. Does nothing if the state's skip is set. */
typedef struct tr_factor_desc {
    int64_t rows, cols, all_rows, all_cols;
    bool scales, bf16_grad; /* bf16_grad: X is BF16 */
    tr_dtype dtype;         /* the storage's, or U's own */
} tr_factor_desc;
enum {
    TR_FACTOR_X,
    TR_FACTOR_ROWS,
    TR_FACTOR_COLS,
    TR_FACTOR_R,
    TR_FACTOR_C,
    TR_FACTOR_NORM,
    TR_FACTOR_U
};
/* Returns the rows of a block: at most 128 blocks. */
TR_HOSTDEVICE static inline int64_t tr_factor_block(int64_t rows) {
    const int64_t even = (rows + 127) / 128;
    return even > 32 ? even : 32;
}
