/* Operators in two phases.
 *
 * tr_op_prepare() takes a context and a description (shapes, dtypes, options) before step 1 and
 * returns a plan with its scratch size; tr_op_run() enqueues it on a stream without allocating.
 * Values that change between steps are read from the step-state block in device memory when the
 * operator runs, never passed by value, so clipping and skipping need no host round trip and a
 * captured graph stays valid.
 *
 * All tensors are dense and row-major unless a leading dimension (ld*, in elements; 0 = dense) says
 * otherwise; tr_op_run checks them in debug builds. "storage" is the description's dtype, TR_F32,
 * TR_BF16 or TR_F16; arithmetic is FP32 at least (ref: FP64) and rounds once on the store, or also
 * between fused operators where their notes allow it. Gradients of parameters are FP32; a run
 * writes them, or adds to them where tr_op_args.adds says so: "(+)=" below. Storage TR_F64 is for
 * device ref alone; what is f32 below is then f64 (tr_dtype_acc). TR_OP_LIST lists the operators,
 * for the enum and each device's table. All other properties of an operator are in its row of
 * device/op_table.h. */
#pragma once

#include "base/dtype.h"
#include "device/device.h"
#include "device/op_optimizer.h"
#include "device/tensor.h"

#define TR_OP_LIST(X)                                                                              \
    X(MATMUL, matmul)                                                                              \
    X(BIAS_GRAD, bias_grad)                                                                        \
    X(LAYERNORM, layernorm)                                                                        \
    X(LAYERNORM_DGRAD, layernorm_dgrad)                                                            \
    X(LAYERNORM_WGRAD, layernorm_wgrad)                                                            \
    X(RMSNORM, rmsnorm)                                                                            \
    X(RMSNORM_DGRAD, rmsnorm_dgrad)                                                                \
    X(RMSNORM_WGRAD, rmsnorm_wgrad)                                                                \
    X(ACTIVATION, activation)                                                                      \
    X(ACTIVATION_DGRAD, activation_dgrad)                                                          \
    X(GLU, glu)                                                                                    \
    X(GLU_DGRAD, glu_dgrad)                                                                        \
    X(ROPE, rope)                                                                                  \
    X(NORM_ROPE, norm_rope)                                                                        \
    X(NORM_ROPE_DGRAD, norm_rope_dgrad)                                                            \
    X(ATTENTION, attention)                                                                        \
    X(ATTENTION_DGRAD, attention_dgrad)                                                            \
    X(ATTENTION_DECODE, attention_decode)                                                          \
    X(EMBED, embed)                                                                                \
    X(EMBED_WGRAD, embed_wgrad)                                                                    \
    X(POSITION, position)                                                                          \
    X(POSITION_WGRAD, position_wgrad)                                                              \
    X(DROPOUT_ADD, dropout_add)                                                                    \
    X(DROPOUT_DGRAD, dropout_dgrad)                                                                \
    X(ADD_NORM, add_norm)                                                                          \
    X(XENT_MAX, xent_max)                                                                          \
    X(XENT_SUM, xent_sum)                                                                          \
    X(XENT_LOSS, xent_loss)                                                                        \
    X(XENT_DGRAD, xent_dgrad)                                                                      \
    X(XENT, xent)                                                                                  \
    X(ADD, add)                                                                                    \
    X(CAST, cast)                                                                                  \
    X(ADD_ROWS, add_rows)                                                                          \
    X(SUMSQ, sumsq)                                                                                \
    X(STEP_FINISH, step_finish)                                                                    \
    X(UPDATE, update)                                                                              \
    X(DIRECTION, direction)                                                                        \
    X(DESCEND, descend)                                                                            \
    X(RESCALE, rescale)                                                                            \
    X(FACTOR_SUMS, factor_sums)                                                                    \
    X(FACTOR, factor)                                                                              \
    X(QUANTIZE, quantize)

typedef enum tr_op_kind {
#define TR_OP_ENUM(UPPER, lower) TR_OP_##UPPER,
    TR_OP_LIST(TR_OP_ENUM)
#undef TR_OP_ENUM
        TR_OP_COUNT
} tr_op_kind;

enum { TR_STEP_TEXTS = 16 }; /* the most texts that are decoded together */

/* The values that change between steps, in device memory. The trainer writes them before a step,
 * and STEP_FINISH at its end. */
typedef struct tr_step_state {
    uint64_t seed;
    int64_t step;                    /* attempted step, from 1 */
    int64_t first_sample;            /* global index of the step's first sample */
    int64_t position[TR_STEP_TEXTS]; /* decoding: index of the first token that each text feeds */
    int32_t train;                   /* 0: dropout off */
    int32_t skip; /* set by STEP_FINISH: a loss or gradient is not finite or above its limit, so
                     parameters must not change */
    /* Operators on FP32 and BF16 round these to FP32 when they read them. */
    double loss_scale; /* seeds backward: a power of two; 1 unless a test sets another */
    double lr;
    double bias_correction1, bias_correction2; /* 1 - beta^t of AdamW */
    double square_weight;                      /* t^-0.8 of Adafactor: 1 - beta2 of its step t */
    double max_norm;                           /* clip to this global norm; 0 = no clipping */
    double loss_limit, norm_limit;             /* of steps that change parameters; 0 = no limit */
    double gradient_factor; /* set by STEP_FINISH: clip / (valid tokens * loss_scale) */
    double loss;            /* set by STEP_FINISH: mean over valid tokens, nats */
    double grad_norm;       /* set by STEP_FINISH: of the mean gradient, before clipping */
    double valid;           /* set by STEP_FINISH: tokens that count */
} tr_step_state;

/* Functions of one element. GELU is the tanh form (Hendrycks & Gimpel 2016), GELU_ERF the exact
 * x Phi(x), SILU x / (1 + exp(-x)), RELU2 max(x, 0)^2 (So et al. 2021). */
typedef enum tr_activation {
    TR_ACTIVATION_GELU,
    TR_ACTIVATION_GELU_ERF,
    TR_ACTIVATION_SILU,
    TR_ACTIVATION_RELU2,
    TR_ACTIVATION_COUNT
} tr_activation;

/* Extra work fused into a product, in any combination that the notes allow. A device that cannot
 * fuse it refuses the description; then the operators run in sequence (device/table/matmul.c),
 * which also defines the result. C is dense with all of these except bias and bias_grad. */
typedef struct tr_fusion {
    bool bias;     /* + BIAS[n], of B's dtype, before the rounding */
    bool residual; /* + RESIDUAL[m,n], of C's dtype and other memory, to the product, which may be
                      rounded to C's dtype before; not with an activation */
    bool activate; /* AUX[m,n] = the product (+ bias), of C's dtype; C = activation(AUX), or of AUX
                      before its rounding */
    bool activate_grad;  /* C = activation'(AUX) * the product, which may be rounded to C's dtype
                            before; not with bias */
    bool bias_grad;      /* of a weight gradient A' DY, with B = DY[k,n] dense and untransposed:
                            DBIAS f32[n] (+)= column sums of B; not with bias */
    bool bias_grad_of_a; /* only with bias_grad: of DY' B instead, with trans_a and A = DY[k,m]
                            dense: DBIAS f32[m] (+)= column sums of A */
    tr_activation activation;
} tr_fusion;

/* C[m,n] = op(A)[m,k] op(B)[k,n], and what is fused. op transposes when trans_* is set (A is then
 * stored [k,m], B [n,k]). accumulate: C (+)=, a gradient of a parameter, or an addition to a
 * storage tensor, which is rounded once; nothing but bias_grad is fused. */
typedef struct tr_matmul_desc {
    int64_t m, n, k, lda, ldb, ldc;
    double scale;  /* 0: 1; C = scale * product, rounded once; nothing is fused or added then */
    int64_t align; /* bytes that divide the addresses of A, B and C, which may be columns of wider
                      matrices; 0: TR_ALIGN */
    tr_dtype a, b, c;
    bool trans_a, trans_b, accumulate;
    tr_fusion fused;
} tr_matmul_desc;
enum {
    TR_MATMUL_A,
    TR_MATMUL_B,
    TR_MATMUL_C,
    TR_MATMUL_BIAS,
    TR_MATMUL_RESIDUAL,
    TR_MATMUL_AUX,
    TR_MATMUL_DBIAS
};
/* Return the elements from one row to the next of A, B and C as they are stored: the leading
 * dimension, of which 0 means that the matrix is dense. */
static inline int64_t tr_matmul_lda(const tr_matmul_desc *d) {
    if (d->lda) return d->lda;
    return d->trans_a ? d->m : d->k;
}
static inline int64_t tr_matmul_ldb(const tr_matmul_desc *d) {
    if (d->ldb) return d->ldb;
    return d->trans_b ? d->k : d->n;
}
static inline int64_t tr_matmul_ldc(const tr_matmul_desc *d) {
    return d->ldc ? d->ldc : d->n;
}

/* Two-dimensional element-wise and row-wise operators: rows x width.
 * BIAS_GRAD: DBIAS[width] (f32) (+)= column sums of DY.
 * ACTIVATION: Y = f(X). ACTIVATION_DGRAD: DX = f'(X) * DY; DX may be DY. ADD: Y = A + B; Y may be
 * A. CAST: storage dtype -> `to`.
 * ADD_ROWS: Y[width] = the rows of X, added in ascending order in FP32, and rounded once; Y may be
 * a row of X. f64 is added in FP64, on all devices. Equal bits on all devices. */
typedef struct tr_rows_desc {
    int64_t rows, width;
    tr_dtype dtype, to;
    tr_activation activation;
} tr_rows_desc;
enum { TR_BIAS_GRAD_DY, TR_BIAS_GRAD_DBIAS };
enum { TR_ACTIVATION_X, TR_ACTIVATION_Y };
enum { TR_ACTIVATION_DGRAD_DY, TR_ACTIVATION_DGRAD_X, TR_ACTIVATION_DGRAD_DX };
enum { TR_ADD_A, TR_ADD_B, TR_ADD_Y };
enum { TR_CAST_X, TR_CAST_Y };
enum { TR_ADD_ROWS_X, TR_ADD_ROWS_Y };

/* LAYERNORM: Y = (X - MEAN) * RSTD * GAMMA + BETA per row; MEAN, RSTD f32[rows] are outputs.
 * _DGRAD: DX = (gradient through the norm) + RESIDUAL (NULL: none); DX may be RESIDUAL.
 * _WGRAD: DGAMMA, DBETA f32[width] (+)= . GAMMA, BETA in storage dtype. */
typedef struct tr_layernorm_desc {
    int64_t rows, width;
    double eps;
    tr_dtype dtype;
} tr_layernorm_desc;
enum { TR_LN_X, TR_LN_GAMMA, TR_LN_BETA, TR_LN_Y, TR_LN_MEAN, TR_LN_RSTD };
enum {
    TR_LN_DGRAD_DY,
    TR_LN_DGRAD_X,
    TR_LN_DGRAD_GAMMA,
    TR_LN_DGRAD_MEAN,
    TR_LN_DGRAD_RSTD,
    TR_LN_DGRAD_RESIDUAL,
    TR_LN_DGRAD_DX
};
enum {
    TR_LN_WGRAD_DY,
    TR_LN_WGRAD_X,
    TR_LN_WGRAD_MEAN,
    TR_LN_WGRAD_RSTD,
    TR_LN_WGRAD_DGAMMA,
    TR_LN_WGRAD_DBETA
};

/* RMSNORM (Zhang & Sennrich 2019): Y = X * RSTD * GAMMA per row, RSTD = 1 / sqrt(mean(X^2) + eps),
 *   f32[rows], an output; Y may be X. KEPT, dense: X as it was, for gradients after that (NULL: not
 *   kept).
 * _DGRAD: DX = (gradient through the norm) + RESIDUAL (NULL: none); DX may be RESIDUAL or DY. KEPT,
 *   dense: DY as it was, for WGRAD after that (NULL: not kept).
 * _WGRAD: DGAMMA f32[width] (+)= . GAMMA in storage dtype.
 * Rows of X begin as ldx says, those of Y, DY, RESIDUAL and DX as ldy does: 0 is dense; else
 * `group` dense rows begin every ldx or ldy elements, like the query heads of packed QKV, with
 * group = heads and ld = (heads + 2 kv_heads) head_size. */
typedef struct tr_rmsnorm_desc {
    int64_t rows, width, group, ldx, ldy;
    double eps;
    tr_dtype dtype;
} tr_rmsnorm_desc;
enum { TR_RMS_X, TR_RMS_GAMMA, TR_RMS_Y, TR_RMS_RSTD, TR_RMS_KEPT };
enum {
    TR_RMS_DGRAD_DY,
    TR_RMS_DGRAD_X,
    TR_RMS_DGRAD_GAMMA,
    TR_RMS_DGRAD_RSTD,
    TR_RMS_DGRAD_RESIDUAL,
    TR_RMS_DGRAD_DX,
    TR_RMS_DGRAD_KEPT
};
enum { TR_RMS_WGRAD_DY, TR_RMS_WGRAD_X, TR_RMS_WGRAD_RSTD, TR_RMS_WGRAD_DGAMMA };

/* Gated linear units (Shazeer 2020). GLU: X[rows, 2, width], gate before up, Y[rows, width] =
 * f(gate) * up. GLU_DGRAD: DX[rows, 2, width] from DY and X; DX may be X. */
typedef struct tr_glu_desc {
    int64_t rows, width;
    tr_activation activation;
    tr_dtype dtype;
} tr_glu_desc;
enum { TR_GLU_X, TR_GLU_Y };
enum { TR_GLU_DGRAD_DY, TR_GLU_DGRAD_X, TR_GLU_DGRAD_DX };

/* Scaling of rotary frequencies beyond the context of pretraining, `original` tokens: positions
 * divided by `factor` (linear), or each frequency by its wavelength: Llama 3's low_factor and
 * high_factor, YaRN's beta_fast and beta_slow (0: 32 and 1) and attention_factor (0: 0.1 ln factor
 * + 1). device/rope.c has the formulas. */
typedef enum tr_rope_kind {
    TR_ROPE_PLAIN,
    TR_ROPE_LINEAR,
    TR_ROPE_LLAMA3,
    TR_ROPE_YARN,
    TR_ROPE_KINDS
} tr_rope_kind;
typedef struct tr_rope_scaling {
    tr_rope_kind kind;
    int64_t original;
    double factor, low_factor, high_factor, beta_fast, beta_slow, attention_factor;
} tr_rope_scaling;

/* ROPE (Su et al. 2021): turns the first `heads` heads of every row of X in place, rows ld elements
 * apart: of packed QKV, the query and key heads. Elements i and i + head_size / 2 of a head are a
 * pair (rotate_half of transformers, not the neighbours of the paper), turned by position *
 * theta^(-2 i / head_size), scaled, and multiplied by YaRN's attention factor. inverse: turned back
 * and multiplied alike, which is the gradient. The position is row % seq (decode:
 * state->position[row / decode] + row % decode, where decode is the number of tokens that a
 * sequence feeds, of at most TR_STEP_TEXTS sequences); documents: minus STARTS i32[rows], the index
 * of the first token of the token's document. */
typedef struct tr_rope_desc {
    int64_t rows, seq, heads, head_size, ld;
    double theta;
    tr_rope_scaling scaling;
    int64_t decode;
    bool inverse, documents;
    tr_dtype dtype;
} tr_rope_desc;
enum { TR_ROPE_X, TR_ROPE_STARTS };

/* NORM_ROPE: RMSNORM of each head, then ROPE, of the first `heads` heads of every row of X in place
 * (Qwen3's query heads, or its key heads). KEPT, dense (rows heads, head_size): X as it was, not
 * when decoding; RSTD f32[rows heads].
 * _DGRAD: DX, the gradient of the result, becomes that of X, which is what KEPT has; DNORMED,
 * dense: the gradient of the norm's result, for RMSNORM_WGRAD. rope.inverse is not set, and
 * decoding has no gradient. */
typedef struct tr_norm_rope_desc {
    tr_rope_desc rope;
    double eps;
} tr_norm_rope_desc;
enum {
    TR_NORM_ROPE_X,
    TR_NORM_ROPE_GAMMA,
    TR_NORM_ROPE_RSTD,
    TR_NORM_ROPE_KEPT,
    TR_NORM_ROPE_STARTS
};
enum {
    TR_NORM_ROPE_DGRAD_DX,
    TR_NORM_ROPE_DGRAD_X,
    TR_NORM_ROPE_DGRAD_GAMMA,
    TR_NORM_ROPE_DGRAD_RSTD,
    TR_NORM_ROPE_DGRAD_DNORMED,
    TR_NORM_ROPE_DGRAD_STARTS
};

/* Causal self-attention of `heads` query heads over packed QKV[batch, seq, heads + 2 kv_heads,
 * head_size]: queries, keys, values. heads / kv_heads neighbouring query heads share a key and a
 * value (Ainslie et al. 2023). Scores are multiplied by `scale` (0: 1/sqrt(head_size)). Token t
 * sees itself and tokens before it: with a window, window - 1 of them at most (Beltagy et al. 2020;
 * as Mistral counts it); with `documents`, those from STARTS i32[batch, seq] of t on, the index of
 * the first token of its document, 0 <= start <= t. ATTENTION: Y[batch, seq, heads, head_size]; LSE
 * f32[batch, heads, seq], natural log-sum-exp of the scaled scores. ATTENTION_DGRAD: DQKV from QKV,
 * Y, LSE, DY (Dao et al. 2022, section 3.1); a device may leave Y, which is rounded, aside.
 * ATTENTION_DECODE: seq is the cache's length; QKV[batch, decode, heads + 2 kv_heads, head_size]
 * has the tokens from state->position[batch] on; their keys and values are written to KCACHE,
 * VCACHE [batch, seq, kv_heads, head_size]; Y[batch, decode, heads, head_size]: each token attends
 * to positions up to its own. No documents. */
typedef struct tr_attention_desc {
    int64_t batch, seq, heads, kv_heads, head_size, window;
    int64_t decode; /* of ATTENTION_DECODE: tokens that a sequence feeds, 1 or more */
    float scale;
    bool documents;
    tr_dtype dtype;
} tr_attention_desc;
enum { TR_ATTENTION_QKV, TR_ATTENTION_Y, TR_ATTENTION_LSE, TR_ATTENTION_STARTS };
enum {
    TR_ATTENTION_DGRAD_DY,
    TR_ATTENTION_DGRAD_QKV,
    TR_ATTENTION_DGRAD_Y,
    TR_ATTENTION_DGRAD_LSE,
    TR_ATTENTION_DGRAD_DQKV,
    TR_ATTENTION_DGRAD_STARTS
};
enum { TR_DECODE_QKV, TR_DECODE_KCACHE, TR_DECODE_VCACHE, TR_DECODE_Y };

/* EMBED: Y[row] = TABLE[TOKENS[row] - vocab_begin], zeros when the token is outside this rank's
 *   vocab_begin .. + vocab rows. TOKENS i32[rows], TABLE[vocab, width] storage dtype.
 * EMBED_WGRAD: DTABLE f32[vocab, width] (+)= rows of DY, in row order; 0 where there are none.
 * POSITION: Y[row] = X[row] + TABLE[p], where p is the row's position as ROPE counts it, with
 * STARTS i32[rows] likewise; Y may be X. POSITION_WGRAD: DTABLE[p] f32[seq, width] (+)= rows of DY,
 * in row order; 0 where there are none. */
typedef struct tr_embed_desc {
    int64_t rows, width, seq, vocab_begin, vocab;
    int64_t decode; /* of POSITION: 0, or the tokens that a sequence feeds */
    int64_t first;  /* of POSITION: row 0 is this row of the sequences */
    bool documents; /* of POSITION* */
    tr_dtype dtype;
} tr_embed_desc;
enum { TR_EMBED_TOKENS, TR_EMBED_TABLE, TR_EMBED_Y };
enum { TR_EMBED_WGRAD_DY, TR_EMBED_WGRAD_TOKENS, TR_EMBED_WGRAD_DTABLE };
enum { TR_POSITION_X, TR_POSITION_TABLE, TR_POSITION_Y, TR_POSITION_STARTS };
enum { TR_POSITION_WGRAD_DY, TR_POSITION_WGRAD_DTABLE, TR_POSITION_WGRAD_STARTS };

/* DROPOUT_ADD: Y = RESIDUAL + dropout(X + BIAS); RESIDUAL and BIAS may be NULL. Kept elements are
 *   divided by 1-p. Rounds once. Row r is row s = first + r of the sequences: it belongs to global
 *   sample state->first_sample + args->sample + s / seq. The mask's key (tr_dropout_bits of
 *   base/philox.h) is its element: (s % seq) * width + column.
 *   No dropout when p = 0 or state->train = 0. Y may be RESIDUAL or X.
 * DROPOUT_DGRAD: DX = mask * DY / (1-p); DX may be DY. */
typedef struct tr_dropout_desc {
    int64_t rows, width, seq, first;
    float p;
    uint64_t site;
    tr_dtype dtype;
} tr_dropout_desc;
enum { TR_DROPOUT_X, TR_DROPOUT_BIAS, TR_DROPOUT_RESIDUAL, TR_DROPOUT_Y };
enum { TR_DROPOUT_DGRAD_DY, TR_DROPOUT_DGRAD_DX };

/* ADD_NORM: a residual addition and the norm of its sum. SUM becomes RESIDUAL + dropout(SUM + BIAS)
 * as in DROPOUT_ADD, rounded to storage; BIAS may be NULL. Y is the LAYERNORM of the rounded SUM,
 * or with `rms` its RMSNORM, which has neither BETA nor MEAN. */
typedef struct tr_add_norm_desc {
    tr_dropout_desc add;
    double eps;
    bool rms;
} tr_add_norm_desc;
enum {
    TR_ADD_NORM_SUM,
    TR_ADD_NORM_BIAS,
    TR_ADD_NORM_RESIDUAL,
    TR_ADD_NORM_GAMMA,
    TR_ADD_NORM_BETA,
    TR_ADD_NORM_Y,
    TR_ADD_NORM_MEAN,
    TR_ADD_NORM_RSTD
};

/* Cross entropy over a vocabulary split by tensor ranks; a reduction of MAX (max) and of SUMS (sum)
 * over the group stands between the first two and the others. LOGITS[rows, vocab] storage dtype,
 * rows ld elements apart; those beyond vocab are neither read nor written. LABELS i32[rows], -1 is
 * a position that does not count.
 * XENT_MAX: MAX f32[rows].
 * XENT_SUM: SUMS f32[rows, 2] = sum exp(logit - MAX), (logit - MAX) of the label or 0 when it is on
 *   another rank.
 * XENT_LOSS: LOSS f64[2] = {sum over rows of log(SUMS0) - SUMS1, rows that count}; reads LABELS and
 *   SUMS.
 * XENT_DGRAD: LOGITS become their gradient: (softmax - onehot) * state->loss_scale, 0 on rows that
 *   do not count.
 * XENT: XENT_MAX, XENT_SUM and XENT_DGRAD, without reductions between them; equal bits. */
typedef struct tr_xent_desc {
    int64_t rows, vocab, vocab_begin, ld;
    tr_dtype dtype;
} tr_xent_desc;
enum { TR_XENT_LOGITS, TR_XENT_LABELS, TR_XENT_MAX, TR_XENT_SUMS, TR_XENT_LOSS };

typedef struct tr_op_desc {
    tr_op_kind kind;
    union {
        tr_matmul_desc matmul;
        tr_rows_desc rows; /* BIAS_GRAD, ACTIVATION*, ADD, CAST, ADD_ROWS */
        tr_layernorm_desc layernorm;
        tr_rmsnorm_desc rmsnorm;
        tr_glu_desc glu;
        tr_rope_desc rope;
        tr_norm_rope_desc norm_rope;
        tr_attention_desc attention;
        tr_embed_desc embed; /* EMBED*, POSITION* */
        tr_dropout_desc dropout;
        tr_add_norm_desc add_norm;
        tr_xent_desc xent;
        tr_sumsq_desc sumsq;
        tr_step_finish_desc step_finish;
        tr_update_desc update; /* UPDATE, DIRECTION */
        tr_descend_desc descend;
        tr_rescale_desc rescale;
        tr_factor_desc factor; /* FACTOR_SUMS, FACTOR */
        tr_quantize_desc quantize;
    };
} tr_op_desc;

enum { TR_OP_MAX_TENSORS = 8 };

/* The arguments of one run, with operands indexed by the enums above. */
typedef struct tr_op_args {
    tr_tensor t[TR_OP_MAX_TENSORS];
    void *scratch; /* at least the plan's scratch_bytes, aligned to TR_ALIGN */
    tr_step_state *state;
    int64_t sample; /* offset of row 0's sample from the step's first; QUANTIZE: offset of the first
                       sample of the micro-batch that X is the gradient of */
    int64_t element; /* the first one in its parameter, where elements are rounded: of QUANTIZE's X,
                        UPDATE, DIRECTION and DESCEND */
    bool adds;       /* to gradients of parameters, which are else written; no other operand */
} tr_op_args;

/* How one of the plans that a library offers for a description is chosen. In a deterministic
 * context always as TR_OP_PROPOSED. */
typedef enum tr_op_choice {
    TR_OP_PROPOSED, /* the device's rule, else the library's first proposal */
    TR_OP_MEASURED, /* the book's; what the book lacks is measured now, and added to it */
    TR_OP_RECORDED  /* the book's; what it lacks is proposed, and noted (tr_plan_book_wanted) */
} tr_op_choice;

/* The context of a plan: the device, and the options that a plan may depend on in addition to the
 * description. Only the device must be set. */
typedef struct tr_op_context {
    tr_device *device;
    bool deterministic; /* the same operands give the same bits in every run on such a device */
    int compute_units;  /* for which products are planned (tr_device_units); 0: all */
    size_t workspace;   /* bytes of scratch that a library may use; 0: its recommendation */
    tr_op_choice choice;
    struct tr_plan_book *book; /* device/plan_book.h; not used by TR_OP_PROPOSED */
} tr_op_context;

/* Makes products leave `units` compute units to kernels that occupy theirs while they wait, like
 * posted receives; a product that is planned for all would run a second wave. Does nothing if no
 * unit would be left, and in a deterministic context, because the number of receives depends on the
 * cut, and another number of units may give other bits. */
void tr_op_context_leave(tr_op_context *context, int units);

/* How a device runs an operator. On devices without libraries always TR_OP_WHOLE. */
typedef enum tr_op_way {
    TR_OP_WHOLE,    /* in one call, of the library if there is one */
    TR_OP_IN_PARTS, /* as its decomposition, because the library has no plan for it */
    TR_OP_OWN       /* in the program's own slow kernel, because the library does not support the
                       description */
} tr_op_way;

enum { TR_PLAN_NAME = 144 }; /* bytes of a plan's name, with the 0 at its end */

/* A prepared operator. Implementations extend it. */
typedef struct tr_op {
    tr_op_context context;
    tr_op_desc desc;
    size_t scratch_bytes; /* as proposed, also where another plan that needs less was chosen */
    tr_op_way way;
    const struct tr_op_plans *plans; /* how to list others (device_impl.h); NULL: there are none */
    char plan[TR_PLAN_NAME]; /* the library's name of the plan in use; "" where plans is NULL */
    int users; /* number of tr_op_prepare calls that returned it and are not released */
    /* In the device's set: neighbours in the list of all, and the next one of the chain. */
    struct tr_op *newer, *older, *chained;
    uint64_t key; /* tr_op_key of the description */
    tr_status (*run)(struct tr_op *op, tr_stream *stream, const tr_op_args *args);
    void (*release)(struct tr_op *op);
} tr_op;

/* Plans an operator; equal descriptions in equal contexts share one operator. Only one thread of a
 * device prepares and releases. Fails with TR_ERR_INTERNAL on an invalid description, and with
 * TR_ERR_DEVICE on one that this device does not support. The caller releases *out with
 * tr_op_release (NULL is allowed). */
tr_status tr_op_prepare(const tr_op_context *context, const tr_op_desc *desc, tr_op **out);
/* Plans an operator of the end of a step: deterministic, by the plan that is proposed first.
 * *scratch becomes at least the bytes that it needs. Otherwise as tr_op_prepare. */
tr_status tr_op_prepare_fixed(tr_device *device, tr_op_desc desc, size_t *scratch, tr_op **out);
/* Runs an operator in stream order; copies args. On a host stream the operator must outlive the
 * work. Debug builds fail with TR_ERR_INTERNAL when an operand does not match the description. */
tr_status tr_op_run(tr_op *op, tr_stream *stream, const tr_op_args *args);
void tr_op_release(tr_op *op);

const char *tr_op_name(tr_op_kind kind);
/* Returns the floating-point operations of one run by the usual count (matmul 2mnk, causal
 * attention half of the square); 0 for element-wise operators. */
double tr_op_flops(const tr_op_desc *desc);
/* Fills dtype, shape and strides of the operands that a valid description implies, without memory.
 * Unused operands have rank 0. */
void tr_op_operands(const tr_op_desc *desc, tr_tensor t[TR_OP_MAX_TENSORS]);
/* Returns the bytes that one run moves between the device and its memory: every operand once, and
 * twice when it is read and written. Gradients of parameters count as written, not as added to. */
double tr_op_bytes(const tr_op_desc *desc);
