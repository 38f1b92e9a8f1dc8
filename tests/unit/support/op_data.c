/* Tensors of a case: their shapes, their values, running and comparing. */
#include "base/memory.h"
#include "base/philox.h"
#include "support/op_cases.h"

#include <stdio.h>
#include <stdlib.h>

double tr_dtype_eps(tr_dtype dtype) {
    return dtype == TR_BF16 ? 0x1p-7 : dtype == TR_F64 ? 0x1p-52 : 0x1p-23;
}

double tr_element(const void *memory, tr_dtype dtype, int64_t i) {
    switch (dtype) {
    case TR_F32: return (double)((const float *)memory)[i];
    case TR_BF16: return (double)tr_bf16_to_f32(((const uint16_t *)memory)[i]);
    case TR_F64: return ((const double *)memory)[i];
    case TR_I32: return (double)((const int32_t *)memory)[i];
    default: return (double)((const uint8_t *)memory)[i];
    }
}

void tr_element_set(void *memory, tr_dtype dtype, int64_t i, double value) {
    switch (dtype) {
    case TR_F32: ((float *)memory)[i] = (float)value; break;
    case TR_BF16: ((uint16_t *)memory)[i] = tr_f32_to_bf16((float)value); break;
    case TR_F64: ((double *)memory)[i] = value; break;
    case TR_I32: ((int32_t *)memory)[i] = (int32_t)value; break;
    default: ((uint8_t *)memory)[i] = (uint8_t)value; break;
    }
}

enum { LOSS_SCALE = 8 };

static tr_dtype other(tr_dtype dtype) {
    return dtype == TR_F32 ? TR_BF16 : TR_F32;
}

/* The case's description in a storage type. */
static tr_op_desc describe(const tr_op_case *c, tr_dtype storage) {
    tr_op_desc desc = c->desc;
    switch (desc.kind) {
    case TR_OP_MATMUL:
        desc.matmul.a = desc.matmul.b = storage;
        desc.matmul.c = desc.matmul.accumulate || (c->options & TR_CASE_F32_OUT) ? TR_F32 : storage;
        break;
    case TR_OP_LAYERNORM:
    case TR_OP_LAYERNORM_DGRAD:
    case TR_OP_LAYERNORM_WGRAD: desc.layernorm.dtype = storage; break;
    case TR_OP_RMSNORM:
    case TR_OP_RMSNORM_DGRAD:
    case TR_OP_RMSNORM_WGRAD: desc.rmsnorm.dtype = storage; break;
    case TR_OP_GLU:
    case TR_OP_GLU_DGRAD: desc.glu.dtype = storage; break;
    case TR_OP_ROPE: desc.rope.dtype = storage; break;
    case TR_OP_NORM_ROPE:
    case TR_OP_NORM_ROPE_DGRAD: desc.norm_rope.rope.dtype = storage; break;
    case TR_OP_ATTENTION:
    case TR_OP_ATTENTION_DGRAD:
    case TR_OP_ATTENTION_DECODE: desc.attention.dtype = storage; break;
    case TR_OP_EMBED:
    case TR_OP_EMBED_WGRAD:
    case TR_OP_POSITION:
    case TR_OP_POSITION_WGRAD: desc.embed.dtype = storage; break;
    case TR_OP_DROPOUT_ADD:
    case TR_OP_DROPOUT_DGRAD: desc.dropout.dtype = storage; break;
    case TR_OP_XENT_MAX:
    case TR_OP_XENT_SUM:
    case TR_OP_XENT_LOSS:
    case TR_OP_XENT_DGRAD: desc.xent.dtype = storage; break;
    case TR_OP_ADAMW: desc.adamw.dtype = storage; break;
    case TR_OP_SUMSQ:
    case TR_OP_STEP_FINISH: break;
    default: desc.rows.dtype = storage; desc.rows.to = other(storage);
    }
    return desc;
}

/* --- tensors ---------------------------------------------------------------------------------- */

static tr_op_tensor input(tr_dtype dtype, int64_t count, tr_fill fill) {
    return (tr_op_tensor){
        .present = true, .dtype = dtype, .count = count, .fill = fill, .alias = -1};
}

/* Filled with numbers too, so that an element that is not written shows. */
static tr_op_tensor output(tr_dtype dtype, int64_t count, int64_t terms, double scale) {
    tr_op_tensor t = input(dtype, count, TR_FILL_NORMAL);
    t.output = true;
    t.terms = terms;
    t.scale = scale;
    return t;
}

static tr_op_tensor exact(tr_dtype dtype, int64_t count) {
    return output(dtype, count, 0, 0);
}

/* A sum of numbers of root mean square 1, such as products of standard normal ones. */
static tr_op_tensor sum_of(int64_t terms, tr_dtype dtype, int64_t count) {
    return output(dtype, count, terms, sqrt((double)terms));
}

/* The gradient of a parameter: a run that does not add to it must not read it either. */
static tr_op_tensor gradient(int64_t terms, int64_t count, unsigned options) {
    tr_op_tensor t = sum_of(terms + 1, TR_F32, count);
    if (!(options & TR_CASE_ADDS)) t.fill = TR_FILL_NAN;
    return t;
}

/* What layer norms read: rows with a variance that does not depend on the draw. */
static tr_op_tensor rows_of(tr_dtype dtype, int64_t rows, int64_t width) {
    tr_op_tensor t = input(dtype, rows * width, TR_FILL_SPREAD);
    t.limit = width;
    return t;
}

static tr_op_tensor indices(int64_t count, tr_fill fill, int64_t limit) {
    tr_op_tensor t = input(TR_I32, count, fill);
    t.limit = limit;
    return t;
}

static void make_alias(tr_op_tensor *t, int from, int to) {
    t[from].alias = to;
    t[to].output = t[from].output;
    t[to].terms = t[from].terms;
    t[to].scale = t[from].scale;
    t[to].inner = t[from].inner;
}

static void matmul_tensors(const tr_matmul_desc *d, unsigned options, tr_op_tensor *t) {
    int64_t lda = d->lda ? d->lda : (d->trans_a ? d->m : d->k);
    int64_t ldb = d->ldb ? d->ldb : (d->trans_b ? d->k : d->n);
    int64_t ldc = d->ldc ? d->ldc : d->n;
    t[TR_MATMUL_A] = input(d->a, lda * (d->trans_a ? d->k : d->m), TR_FILL_NORMAL);
    t[TR_MATMUL_B] = input(d->b, ldb * (d->trans_b ? d->n : d->k), TR_FILL_NORMAL);
    t[TR_MATMUL_C] =
        d->accumulate ? gradient(d->k, ldc * d->m, options) : sum_of(d->k + 1, d->c, ldc * d->m);
    if (d->fused.bias) t[TR_MATMUL_BIAS] = input(d->b, d->n, TR_FILL_NORMAL);
    if (d->fused.activate) t[TR_MATMUL_AUX] = t[TR_MATMUL_C];
    if (d->fused.activate_grad) t[TR_MATMUL_AUX] = input(d->c, d->m * d->n, TR_FILL_NORMAL);
    if (d->fused.residual) t[TR_MATMUL_RESIDUAL] = input(d->c, d->m * d->n, TR_FILL_NORMAL);
    if (d->fused.bias_grad) t[TR_MATMUL_DBIAS] = gradient(d->k, d->n, options);
    /* Between the product and what is fused there may be a rounding, or none. */
    if (d->c == TR_BF16 && (d->fused.activate || d->fused.activate_grad || d->fused.residual))
        t[TR_MATMUL_C].inner = tr_dtype_eps(TR_BF16);
}

static void rows_tensors(const tr_op_desc *desc, unsigned options, tr_op_tensor *t) {
    const tr_rows_desc *d = &desc->rows;
    int64_t count = d->rows * d->width;
    bool in_place = options & TR_CASE_IN_PLACE;
    t[0] = input(d->dtype, count, TR_FILL_NORMAL);
    switch (desc->kind) {
    case TR_OP_BIAS_GRAD: t[TR_BIAS_GRAD_DBIAS] = gradient(d->rows, d->width, options); break;
    case TR_OP_ACTIVATION: t[TR_ACTIVATION_Y] = output(d->dtype, count, 1, 1); break;
    case TR_OP_CAST: t[TR_CAST_Y] = exact(d->to, count); break;
    default: /* ACTIVATION_DGRAD, ADD: two inputs, and the output may be the first */
        t[1] = input(d->dtype, count, TR_FILL_NORMAL);
        t[2] = output(d->dtype, count, 1, 1);
        if (in_place) make_alias(t, 2, 0);
    }
}

static void layernorm_tensors(const tr_op_desc *desc, unsigned options, tr_op_tensor *t) {
    const tr_layernorm_desc *d = &desc->layernorm;
    int64_t count = d->rows * d->width;
    t[0] = input(d->dtype, count, TR_FILL_NORMAL);
    switch (desc->kind) {
    case TR_OP_LAYERNORM:
        t[TR_LN_X] = rows_of(d->dtype, d->rows, d->width);
        t[TR_LN_GAMMA] = input(d->dtype, d->width, TR_FILL_GAMMA);
        t[TR_LN_BETA] = input(d->dtype, d->width, TR_FILL_NORMAL);
        t[TR_LN_Y] = output(d->dtype, count, d->width, 1);
        t[TR_LN_MEAN] = output(TR_F32, d->rows, d->width, 1 / sqrt((double)d->width));
        t[TR_LN_RSTD] = output(TR_F32, d->rows, d->width, 0); /* of squares */
        break;
    case TR_OP_LAYERNORM_DGRAD:
        t[TR_LN_DGRAD_X] = rows_of(d->dtype, d->rows, d->width);
        t[TR_LN_DGRAD_GAMMA] = input(d->dtype, d->width, TR_FILL_GAMMA);
        t[TR_LN_DGRAD_MEAN] = input(TR_F32, d->rows, TR_FILL_DERIVED);
        t[TR_LN_DGRAD_RSTD] = input(TR_F32, d->rows, TR_FILL_DERIVED);
        if (!(options & TR_CASE_NO_RESIDUAL))
            t[TR_LN_DGRAD_RESIDUAL] = input(d->dtype, count, TR_FILL_NORMAL);
        t[TR_LN_DGRAD_DX] = output(d->dtype, count, d->width, 1);
        if (options & TR_CASE_IN_PLACE) make_alias(t, TR_LN_DGRAD_DX, TR_LN_DGRAD_RESIDUAL);
        break;
    default:
        t[TR_LN_WGRAD_X] = rows_of(d->dtype, d->rows, d->width);
        t[TR_LN_WGRAD_MEAN] = input(TR_F32, d->rows, TR_FILL_DERIVED);
        t[TR_LN_WGRAD_RSTD] = input(TR_F32, d->rows, TR_FILL_DERIVED);
        t[TR_LN_WGRAD_DGAMMA] = gradient(d->rows, d->width, options);
        t[TR_LN_WGRAD_DBETA] = gradient(d->rows, d->width, options);
    }
}

/* Elements from the first row to the end of the last group. */
static int64_t span(const tr_rmsnorm_desc *d, int64_t ld) {
    return ld ? d->rows / d->group * ld : d->rows * d->width;
}

static void rmsnorm_tensors(const tr_op_desc *desc, unsigned options, tr_op_tensor *t) {
    const tr_rmsnorm_desc *d = &desc->rmsnorm;
    const tr_op_tensor x = input(d->dtype, span(d, d->ldx), TR_FILL_NORMAL);
    const tr_op_tensor gamma = input(d->dtype, d->width, TR_FILL_GAMMA);
    const tr_op_tensor rstd = input(TR_F32, d->rows, TR_FILL_DERIVED);
    const tr_op_tensor dy = input(d->dtype, span(d, d->ldy), TR_FILL_NORMAL);
    const tr_op_tensor y = output(d->dtype, span(d, d->ldy), d->width, 1);
    switch (desc->kind) {
    case TR_OP_RMSNORM:
        t[TR_RMS_X] = x;
        t[TR_RMS_GAMMA] = gamma;
        t[TR_RMS_Y] = y;
        t[TR_RMS_RSTD] = output(TR_F32, d->rows, d->width, 0); /* of squares */
        if (!(options & TR_CASE_IN_PLACE)) break;
        make_alias(t, TR_RMS_Y, TR_RMS_X);
        t[TR_RMS_KEPT] = exact(d->dtype, d->rows * d->width);
        break;
    case TR_OP_RMSNORM_DGRAD:
        t[TR_RMS_DGRAD_DY] = dy;
        t[TR_RMS_DGRAD_X] = x;
        t[TR_RMS_DGRAD_GAMMA] = gamma;
        t[TR_RMS_DGRAD_RSTD] = rstd;
        if (!(options & TR_CASE_NO_RESIDUAL)) t[TR_RMS_DGRAD_RESIDUAL] = dy;
        t[TR_RMS_DGRAD_DX] = y;
        if (!(options & TR_CASE_IN_PLACE)) break;
        make_alias(t, TR_RMS_DGRAD_DX,
                   options & TR_CASE_NO_RESIDUAL ? TR_RMS_DGRAD_DY : TR_RMS_DGRAD_RESIDUAL);
        t[TR_RMS_DGRAD_KEPT] = exact(d->dtype, d->rows * d->width);
        break;
    default:
        t[TR_RMS_WGRAD_DY] = dy;
        t[TR_RMS_WGRAD_X] = x;
        t[TR_RMS_WGRAD_RSTD] = rstd;
        t[TR_RMS_WGRAD_DGAMMA] = gradient(d->rows, d->width, options);
    }
}

static void glu_tensors(const tr_op_desc *desc, unsigned options, tr_op_tensor *t) {
    const tr_glu_desc *d = &desc->glu;
    const int64_t count = d->rows * d->width;
    if (desc->kind == TR_OP_GLU) {
        t[TR_GLU_X] = input(d->dtype, 2 * count, TR_FILL_NORMAL);
        t[TR_GLU_Y] = output(d->dtype, count, 1, 1);
        return;
    }
    t[TR_GLU_DGRAD_DY] = input(d->dtype, count, TR_FILL_NORMAL);
    t[TR_GLU_DGRAD_X] = input(d->dtype, 2 * count, TR_FILL_NORMAL);
    t[TR_GLU_DGRAD_DX] = output(d->dtype, 2 * count, 1, 1);
    if (options & TR_CASE_IN_PLACE) make_alias(t, TR_GLU_DGRAD_DX, TR_GLU_DGRAD_X);
}

static void rope_tensors(const tr_rope_desc *d, tr_op_tensor *t) {
    t[TR_ROPE_X] = output(d->dtype, d->rows * d->ld, 1, 1);
    if (d->documents) t[TR_ROPE_STARTS] = indices(d->rows, TR_FILL_STARTS, d->seq);
}

/* A device may round between the norm and the turn, or not. */
static void norm_rope_tensors(const tr_op_desc *desc, tr_op_tensor *t) {
    const tr_rope_desc *d = &desc->norm_rope.rope;
    const int64_t heads = d->rows * d->heads, dense = heads * d->head_size;
    tr_op_tensor x = output(d->dtype, d->rows * d->ld, d->head_size, 1);
    if (d->dtype == TR_BF16) x.inner = tr_dtype_eps(TR_BF16);
    const tr_op_tensor gamma = input(d->dtype, d->head_size, TR_FILL_GAMMA);
    const tr_op_tensor starts =
        d->documents ? indices(d->rows, TR_FILL_STARTS, d->seq) : (tr_op_tensor){.alias = -1};
    if (desc->kind == TR_OP_NORM_ROPE) {
        t[TR_NORM_ROPE_X] = x;
        t[TR_NORM_ROPE_GAMMA] = gamma;
        t[TR_NORM_ROPE_RSTD] = output(TR_F32, heads, d->head_size, 0); /* of squares */
        if (!d->decode) t[TR_NORM_ROPE_KEPT] = exact(d->dtype, dense);
        t[TR_NORM_ROPE_STARTS] = starts;
        return;
    }
    t[TR_NORM_ROPE_DGRAD_DX] = x;
    t[TR_NORM_ROPE_DGRAD_X] = input(d->dtype, dense, TR_FILL_NORMAL);
    t[TR_NORM_ROPE_DGRAD_GAMMA] = gamma;
    t[TR_NORM_ROPE_DGRAD_RSTD] = input(TR_F32, heads, TR_FILL_DERIVED);
    t[TR_NORM_ROPE_DGRAD_DNORMED] = output(d->dtype, dense, 1, 1);
    t[TR_NORM_ROPE_DGRAD_STARTS] = starts;
}

static void attention_tensors(const tr_op_desc *desc, tr_op_tensor *t) {
    const tr_attention_desc *d = &desc->attention;
    const int64_t tokens = d->batch * d->seq, width = d->heads * d->head_size;
    const int64_t row = width + 2 * d->kv_heads * d->head_size;
    const int64_t lse = tokens * d->heads, terms = d->seq + d->head_size;
    tr_op_tensor y = output(d->dtype, tokens * width, terms, 1);
    if (d->dtype == TR_BF16) y.inner = tr_dtype_eps(TR_BF16); /* of probabilities */
    switch (desc->kind) {
    case TR_OP_ATTENTION:
        t[TR_ATTENTION_QKV] = input(d->dtype, tokens * row, TR_FILL_NORMAL);
        t[TR_ATTENTION_Y] = y;
        t[TR_ATTENTION_LSE] = output(TR_F32, lse, terms, 1);
        if (d->documents) t[TR_ATTENTION_STARTS] = indices(tokens, TR_FILL_STARTS, d->seq);
        break;
    case TR_OP_ATTENTION_DGRAD:
        t[TR_ATTENTION_DGRAD_DY] = input(d->dtype, tokens * width, TR_FILL_NORMAL);
        t[TR_ATTENTION_DGRAD_QKV] = input(d->dtype, tokens * row, TR_FILL_NORMAL);
        t[TR_ATTENTION_DGRAD_Y] = input(d->dtype, tokens * width, TR_FILL_DERIVED);
        t[TR_ATTENTION_DGRAD_LSE] = input(TR_F32, lse, TR_FILL_DERIVED);
        if (d->documents) t[TR_ATTENTION_DGRAD_STARTS] = indices(tokens, TR_FILL_STARTS, d->seq);
        y.count = tokens * row;
        t[TR_ATTENTION_DGRAD_DQKV] = y;
        break;
    default:
        t[TR_DECODE_QKV] = input(d->dtype, d->batch * row, TR_FILL_NORMAL);
        t[TR_DECODE_KCACHE] = exact(d->dtype, tokens * d->kv_heads * d->head_size);
        t[TR_DECODE_VCACHE] = t[TR_DECODE_KCACHE];
        y.count = d->batch * width;
        t[TR_DECODE_Y] = y;
    }
}

static void embed_tensors(const tr_op_desc *desc, unsigned options, tr_op_tensor *t) {
    const tr_embed_desc *d = &desc->embed;
    int64_t count = d->rows * d->width, past = d->vocab_begin + d->vocab + 5;
    switch (desc->kind) {
    case TR_OP_EMBED:
        t[TR_EMBED_TOKENS] = indices(d->rows, TR_FILL_TOKENS, past);
        t[TR_EMBED_TABLE] = input(d->dtype, d->vocab * d->width, TR_FILL_NORMAL);
        t[TR_EMBED_Y] = exact(d->dtype, count);
        break;
    case TR_OP_EMBED_WGRAD:
        t[TR_EMBED_WGRAD_DY] = input(d->dtype, count, TR_FILL_NORMAL);
        t[TR_EMBED_WGRAD_TOKENS] = indices(d->rows, TR_FILL_TOKENS, past);
        t[TR_EMBED_WGRAD_DTABLE] = gradient(d->rows, d->vocab * d->width, options);
        t[TR_EMBED_WGRAD_DTABLE].scale = 1;
        break;
    case TR_OP_POSITION:
        t[TR_POSITION_X] = input(d->dtype, count, TR_FILL_NORMAL);
        t[TR_POSITION_TABLE] = input(d->dtype, d->seq * d->width, TR_FILL_NORMAL);
        t[TR_POSITION_Y] = output(d->dtype, count, 1, 1);
        if (d->documents) t[TR_POSITION_STARTS] = indices(d->rows, TR_FILL_STARTS, d->seq);
        if (options & TR_CASE_IN_PLACE) make_alias(t, TR_POSITION_Y, TR_POSITION_X);
        break;
    default:
        t[TR_POSITION_WGRAD_DY] = input(d->dtype, count, TR_FILL_NORMAL);
        t[TR_POSITION_WGRAD_DTABLE] = gradient(d->rows, d->seq * d->width, options);
        if (d->documents) t[TR_POSITION_WGRAD_STARTS] = indices(d->rows, TR_FILL_STARTS, d->seq);
    }
}

static void dropout_tensors(const tr_op_desc *desc, unsigned options, tr_op_tensor *t) {
    const tr_dropout_desc *d = &desc->dropout;
    int64_t count = d->rows * d->width;
    bool in_place = options & TR_CASE_IN_PLACE;
    t[0] = input(d->dtype, count, TR_FILL_NORMAL);
    if (desc->kind == TR_OP_DROPOUT_DGRAD) {
        t[TR_DROPOUT_DGRAD_DX] = output(d->dtype, count, 1, 1);
        if (in_place) make_alias(t, TR_DROPOUT_DGRAD_DX, TR_DROPOUT_DGRAD_DY);
        return;
    }
    if (!(options & TR_CASE_NO_BIAS))
        t[TR_DROPOUT_BIAS] = input(d->dtype, d->width, TR_FILL_NORMAL);
    if (!(options & TR_CASE_NO_RESIDUAL))
        t[TR_DROPOUT_RESIDUAL] = input(d->dtype, count, TR_FILL_NORMAL);
    t[TR_DROPOUT_Y] = output(d->dtype, count, 1, 1);
    if (in_place) make_alias(t, TR_DROPOUT_Y, TR_DROPOUT_RESIDUAL);
}

static void xent_tensors(const tr_op_desc *desc, tr_op_tensor *t) {
    const tr_xent_desc *d = &desc->xent;
    int64_t count = d->rows * (d->ld ? d->ld : d->vocab);
    if (desc->kind != TR_OP_XENT_MAX)
        t[TR_XENT_LABELS] = indices(d->rows, TR_FILL_LABELS, d->vocab_begin + d->vocab + 5);
    if (desc->kind == TR_OP_XENT_LOSS) {
        t[TR_XENT_SUMS] = input(TR_F32, 2 * d->rows, TR_FILL_SQUARE);
        t[TR_XENT_LOSS] = output(TR_F64, 2, d->rows, 1);
        return;
    }
    t[TR_XENT_LOGITS] = input(d->dtype, count, TR_FILL_NORMAL);
    if (desc->kind == TR_OP_XENT_MAX) {
        t[TR_XENT_MAX] = exact(TR_F32, d->rows);
        return;
    }
    t[TR_XENT_MAX] = input(TR_F32, d->rows, TR_FILL_DERIVED);
    if (desc->kind == TR_OP_XENT_SUM) {
        t[TR_XENT_SUMS] = output(TR_F32, 2 * d->rows, d->vocab, 1);
        return;
    }
    t[TR_XENT_SUMS] = input(TR_F32, 2 * d->rows, TR_FILL_DERIVED);
    t[TR_XENT_LOGITS] = output(d->dtype, count, 1, LOSS_SCALE);
}

static void optimizer_tensors(const tr_op_desc *desc, unsigned options, tr_op_tensor *t) {
    int64_t count = desc->adamw.count;
    int64_t terms = options & TR_CASE_SKIP ? 0 : 1;
    switch (desc->kind) {
    case TR_OP_SUMSQ:
        t[TR_SUMSQ_X] = input(TR_F32, desc->sumsq.count, TR_FILL_NORMAL);
        t[TR_SUMSQ_OUT] = exact(TR_F64, 1);
        break;
    case TR_OP_STEP_FINISH:
        t[TR_STEP_FINISH_LOSSES] = input(TR_F64, 2 * desc->step_finish.losses, TR_FILL_LOSSES);
        t[TR_STEP_FINISH_NORMS] = input(TR_F64, desc->step_finish.norms, TR_FILL_SQUARE);
        t[TR_STEP_FINISH_STATE] = exact(TR_U8, sizeof(tr_step_state));
        t[TR_STEP_FINISH_STATE].fill = TR_FILL_STATE;
        break;
    default:
        t[TR_ADAMW_GRAD] = input(TR_F32, count, TR_FILL_NORMAL);
        t[TR_ADAMW_MASTER] = output(TR_F32, count, terms, 1);
        t[TR_ADAMW_M] = output(TR_F32, count, terms, 1);
        t[TR_ADAMW_V] = output(TR_F32, count, terms, 0); /* of squares */
        t[TR_ADAMW_V].fill = TR_FILL_SQUARE;
        if (!(options & TR_CASE_NO_BIAS))
            t[TR_ADAMW_VALUE] = output(desc->adamw.dtype, count, terms, 1);
    }
}

static void list_tensors(const tr_op_desc *desc, unsigned options, tr_op_tensor *t) {
    switch (desc->kind) {
    case TR_OP_MATMUL: matmul_tensors(&desc->matmul, options, t); break;
    case TR_OP_LAYERNORM:
    case TR_OP_LAYERNORM_DGRAD:
    case TR_OP_LAYERNORM_WGRAD: layernorm_tensors(desc, options, t); break;
    case TR_OP_RMSNORM:
    case TR_OP_RMSNORM_DGRAD:
    case TR_OP_RMSNORM_WGRAD: rmsnorm_tensors(desc, options, t); break;
    case TR_OP_GLU:
    case TR_OP_GLU_DGRAD: glu_tensors(desc, options, t); break;
    case TR_OP_ROPE: rope_tensors(&desc->rope, t); break;
    case TR_OP_NORM_ROPE:
    case TR_OP_NORM_ROPE_DGRAD: norm_rope_tensors(desc, t); break;
    case TR_OP_ATTENTION:
    case TR_OP_ATTENTION_DGRAD:
    case TR_OP_ATTENTION_DECODE: attention_tensors(desc, t); break;
    case TR_OP_EMBED:
    case TR_OP_EMBED_WGRAD:
    case TR_OP_POSITION:
    case TR_OP_POSITION_WGRAD: embed_tensors(desc, options, t); break;
    case TR_OP_DROPOUT_ADD:
    case TR_OP_DROPOUT_DGRAD: dropout_tensors(desc, options, t); break;
    case TR_OP_XENT_MAX:
    case TR_OP_XENT_SUM:
    case TR_OP_XENT_LOSS:
    case TR_OP_XENT_DGRAD: xent_tensors(desc, t); break;
    case TR_OP_SUMSQ:
    case TR_OP_STEP_FINISH:
    case TR_OP_ADAMW: optimizer_tensors(desc, options, t); break;
    default: rows_tensors(desc, options, t);
    }
}

/* --- values ----------------------------------------------------------------------------------- */

/* Documents of about five tokens; one always begins with its sequence. */
static int64_t start_of(uint64_t seed, int64_t i, int64_t seq) {
    int64_t t = i % seq;
    while (t > 0 && tr_philox4x32(seed, (uint64_t)(i - i % seq + t), 2).v[0] % 5 != 0) t--;
    return t;
}

static double value_of(const tr_op_tensor *t, uint64_t seed, uint64_t stream, int64_t i) {
    double normal = (double)tr_normal(seed, stream, (uint64_t)i);
    uint32_t bits = tr_philox4x32(seed ^ stream, (uint64_t)i, 1).v[0];
    switch (t->fill) {
    case TR_FILL_GAMMA: return 1 + normal / 4;
    case TR_FILL_SPREAD:
        if (i % t->limit == 0) return 0.5 + fabs(normal);
        if (i % t->limit == 1) return -0.5 - fabs(normal);
        return normal;
    case TR_FILL_SQUARE: return normal * normal;
    case TR_FILL_LABELS:
        if (bits >> 8 & 1 && bits >> 9 & 1) return -1;
        return (double)((bits >> 10) % (uint32_t)t->limit);
    case TR_FILL_NAN: return NAN;
    case TR_FILL_STARTS: return (double)start_of(seed ^ stream, i, t->limit);
    case TR_FILL_TOKENS: return (double)((bits >> 10) % (uint32_t)t->limit);
    case TR_FILL_LOSSES: return i % 2 ? (double)(bits % 100 + 1) : 100 * normal * normal;
    default: return normal;
    }
}

static size_t bytes_of(const tr_op_tensor *t) {
    return (size_t)t->count * tr_dtype_size(t->dtype);
}

void tr_op_data_operands(const tr_op_desc *desc, void *const *memory, int n,
                         tr_tensor t[TR_OP_MAX_TENSORS]) {
    tr_op_operands(desc, t);
    for (int i = 0; i < n; i++)
        if (t[i].rank) t[i].data = memory[i];
}

/* Runs one forward operator of ref on the host memory of `data`. */
static tr_status run_ref(const tr_op_desc *desc, tr_step_state *state, void *const *t, int n) {
    tr_status status = TR_OK;
    tr_device *device = NULL;
    tr_op *op = NULL;
    tr_op_args args = {.state = state};
    tr_op_data_operands(desc, t, n, args.t);
    TR_TRY(tr_device_open("ref", &(tr_device_options){.threads = 1}, &device));
    TR_TRY_OUT(tr_op_prepare(&(tr_op_context){.device = device}, desc, &op));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_DATA, op->scratch_bytes, &args.scratch));
    TR_TRY_OUT(tr_op_run(op, tr_device_compute(device), &args));
out:
    tr_device_free(device, args.scratch);
    tr_op_release(op);
    tr_device_close(device);
    return status;
}

/* The forward pass behind a layer norm's gradients: mean and rstd of X (Y is thrown away). */
static tr_status derive_layernorm(tr_op_data *data, int x, int mean, int rstd) {
    tr_op_desc forward = data->desc;
    forward.kind = TR_OP_LAYERNORM;
    int64_t count = forward.layernorm.rows * forward.layernorm.width;
    void *y, *ones;
    TR_TRY(tr_calloc((size_t)count, 4, &y));
    tr_status status = tr_calloc((size_t)count, 4, &ones);
    if (status == TR_OK) {
        status = run_ref(
            &forward, &data->state,
            (void *[]){data->memory[x], ones, ones, y, data->memory[mean], data->memory[rstd]}, 6);
        free(ones);
    }
    free(y);
    return status;
}

/* The forward pass behind an RMS norm's gradients: rstd of X. */
static tr_status derive_rmsnorm(tr_op_data *data, tr_rmsnorm_desc norm, int x, int rstd) {
    tr_op_desc forward = {.kind = TR_OP_RMSNORM, .rmsnorm = norm};
    forward.rmsnorm.ldy = 0;
    void *y, *ones;
    TR_TRY(tr_calloc((size_t)(forward.rmsnorm.rows * forward.rmsnorm.width), 4, &y));
    tr_status status = tr_calloc((size_t)forward.rmsnorm.width, 4, &ones);
    if (status == TR_OK) {
        status = run_ref(&forward, &data->state,
                         (void *[]){data->memory[x], ones, y, data->memory[rstd]}, 4);
        free(ones);
    }
    free(y);
    return status;
}

static tr_status derive_norm_rope(tr_op_data *data) {
    const tr_rope_desc *d = &data->desc.norm_rope.rope;
    const tr_rmsnorm_desc norm = {.rows = d->rows * d->heads,
                                  .width = d->head_size,
                                  .eps = data->desc.norm_rope.eps,
                                  .dtype = d->dtype};
    return derive_rmsnorm(data, norm, TR_NORM_ROPE_DGRAD_X, TR_NORM_ROPE_DGRAD_RSTD);
}

static tr_status derive(tr_op_data *data) {
    void **m = data->memory;
    tr_op_desc forward = data->desc;
    switch (data->desc.kind) {
    case TR_OP_LAYERNORM_DGRAD:
        return derive_layernorm(data, TR_LN_DGRAD_X, TR_LN_DGRAD_MEAN, TR_LN_DGRAD_RSTD);
    case TR_OP_LAYERNORM_WGRAD:
        return derive_layernorm(data, TR_LN_WGRAD_X, TR_LN_WGRAD_MEAN, TR_LN_WGRAD_RSTD);
    case TR_OP_RMSNORM_DGRAD:
        return derive_rmsnorm(data, data->desc.rmsnorm, TR_RMS_DGRAD_X, TR_RMS_DGRAD_RSTD);
    case TR_OP_RMSNORM_WGRAD:
        return derive_rmsnorm(data, data->desc.rmsnorm, TR_RMS_WGRAD_X, TR_RMS_WGRAD_RSTD);
    case TR_OP_NORM_ROPE_DGRAD: return derive_norm_rope(data);
    case TR_OP_ATTENTION_DGRAD:
        forward.kind = TR_OP_ATTENTION;
        return run_ref(&forward, &data->state,
                       (void *[]){m[TR_ATTENTION_DGRAD_QKV], m[TR_ATTENTION_DGRAD_Y],
                                  m[TR_ATTENTION_DGRAD_LSE], m[TR_ATTENTION_DGRAD_STARTS]},
                       4);
    case TR_OP_XENT_SUM:
    case TR_OP_XENT_DGRAD:
        forward.kind = TR_OP_XENT_MAX;
        TR_TRY(run_ref(&forward, &data->state, m, TR_XENT_LOSS));
        forward.kind = TR_OP_XENT_SUM;
        return data->desc.kind == TR_OP_XENT_SUM ? TR_OK
                                                 : run_ref(&forward, &data->state, m, TR_XENT_LOSS);
    default: return TR_OK;
    }
}

tr_status tr_op_data_make(const tr_op_case *c, tr_dtype storage, uint64_t seed, tr_op_data *out) {
    *out =
        (tr_op_data){.desc = describe(c, storage), .sample = 2, .adds = c->options & TR_CASE_ADDS};
    tr_op_tensor *t = out->tensor;
    list_tensors(&out->desc, c->options, t);
    out->state = (tr_step_state){.seed = seed,
                                 .step = 3,
                                 .first_sample = 10,
                                 .train = !(c->options & TR_CASE_EVAL),
                                 .skip = !!(c->options & TR_CASE_SKIP),
                                 .loss_scale = LOSS_SCALE,
                                 .lr = 1e-3f,
                                 .bias_correction1 = 0.271f,
                                 .bias_correction2 = 0.142625f,
                                 .max_norm = 0.125f,
                                 .gradient_factor = 0.5f};
    if (out->desc.kind == TR_OP_ATTENTION_DECODE) out->state.position = out->desc.attention.seq / 2;
    if (out->desc.kind == TR_OP_ROPE) out->state.position = out->desc.rope.seq / 2;
    if (out->desc.kind == TR_OP_NORM_ROPE) out->state.position = out->desc.norm_rope.rope.seq / 2;
    if (out->desc.kind == TR_OP_POSITION) out->state.position = out->desc.embed.seq / 2;
    tr_status status = TR_OK;
    for (int i = 0; i < TR_OP_MAX_TENSORS && status == TR_OK; i++) {
        if (!t[i].present || t[i].alias >= 0) continue;
        uint64_t stream = tr_mix64((uint64_t)c->desc.kind * TR_OP_MAX_TENSORS + (uint64_t)i);
        status = tr_calloc((size_t)t[i].count, tr_dtype_size(t[i].dtype), &out->memory[i]);
        if (status != TR_OK) break;
        if (t[i].fill == TR_FILL_STATE) memcpy(out->memory[i], &out->state, sizeof out->state);
        else if (t[i].fill != TR_FILL_DERIVED)
            for (int64_t j = 0; j < t[i].count; j++)
                tr_element_set(out->memory[i], t[i].dtype, j, value_of(&t[i], seed, stream, j));
    }
    if (status == TR_OK) status = derive(out);
    if (status != TR_OK) tr_op_data_free(out);
    return status;
}

tr_status tr_op_data_clone(const tr_op_data *data, tr_op_data *out) {
    *out = *data;
    memset(out->memory, 0, sizeof out->memory);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        if (!data->memory[i]) continue;
        const tr_op_tensor *t = &data->tensor[i];
        tr_status status = tr_calloc((size_t)t->count, tr_dtype_size(t->dtype), &out->memory[i]);
        if (status != TR_OK) {
            tr_op_data_free(out);
            return status;
        }
        memcpy(out->memory[i], data->memory[i], bytes_of(t));
    }
    return TR_OK;
}

void tr_op_data_free(tr_op_data *data) {
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        free(data->memory[i]);
        data->memory[i] = NULL;
    }
}

/* --- running and comparing -------------------------------------------------------------------- */

tr_status tr_op_data_run(tr_op_data *data, tr_device *device, tr_stream *stream) {
    tr_status status = TR_OK;
    tr_op *op = NULL;
    tr_op_args args = {.sample = data->sample, .adds = data->adds};
    void *state = NULL, *memory[TR_OP_MAX_TENSORS] = {0}, *given[TR_OP_MAX_TENSORS];
    if (!stream) stream = tr_device_compute(device);
    TR_TRY_OUT(
        tr_op_prepare(&(tr_op_context){.device = device, .deterministic = true}, &data->desc, &op));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_DATA, op->scratch_bytes, &args.scratch));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_DATA, sizeof data->state, &state));
    TR_TRY_OUT(tr_stream_copy(stream, state, &data->state, sizeof data->state));
    args.state = state;
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        if (!data->memory[i]) continue;
        size_t bytes = bytes_of(&data->tensor[i]);
        TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_DATA, bytes, &memory[i]));
        TR_TRY_OUT(tr_stream_copy(stream, memory[i], data->memory[i], bytes));
    }
    memcpy(given, memory, sizeof given);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++)
        if (data->tensor[i].present && data->tensor[i].alias >= 0)
            given[i] = memory[data->tensor[i].alias];
    tr_op_data_operands(&data->desc, given, TR_OP_MAX_TENSORS, args.t);
    TR_TRY_OUT(tr_op_run(op, stream, &args));
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++)
        if (data->memory[i])
            TR_TRY_OUT(
                tr_stream_copy(stream, data->memory[i], memory[i], bytes_of(&data->tensor[i])));
    TR_TRY_OUT(tr_stream_sync(stream));
out:
    (void)tr_stream_sync(stream); /* after a failure too: nothing below may be in use */
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) tr_device_free(device, memory[i]);
    tr_device_free(device, state);
    tr_device_free(device, args.scratch);
    tr_op_release(op);
    return status;
}

/* How many times its tolerance element i is off; infinity when only one is a number. */
static double excess(const tr_op_tensor *t, double got, double want, double largest) {
    if (isnan(want) && isnan(got)) return 0;
    double error = fabs(got - want);
    if (error == 0 || got == want) return 0;
    double tolerance =
        tr_dtype_eps(t->dtype) * fabs(want) +
        (4 * tr_dtype_eps(TR_F32) * sqrt((double)t->terms) + t->inner) * fmax(largest, t->scale);
    return !isfinite(error) || t->terms == 0 || tolerance == 0 ? INFINITY : error / tolerance;
}

bool tr_op_data_compare(const tr_op_data *got, const tr_op_data *want, char *message, size_t size) {
    double worst = 1;
    for (int k = 0; k < TR_OP_MAX_TENSORS; k++) {
        const tr_op_tensor *t = &want->tensor[k];
        if (!want->memory[k]) continue;
        if (!t->output || t->terms == 0) {
            if (memcmp(got->memory[k], want->memory[k], bytes_of(t)) == 0) continue;
            if (!t->output) {
                (void)snprintf(message, size, "input %d was changed", k);
                return false;
            }
        }
        double largest = 0;
        for (int64_t i = 0; i < t->count; i++) {
            double magnitude = fabs(tr_element(want->memory[k], t->dtype, i));
            if (isfinite(magnitude)) largest = fmax(largest, magnitude);
        }
        for (int64_t i = 0; i < t->count; i++) {
            double a = tr_element(got->memory[k], t->dtype, i);
            double b = tr_element(want->memory[k], t->dtype, i);
            double times = excess(t, a, b, largest);
            if (times <= worst) continue;
            worst = times;
            (void)snprintf(message, size,
                           "tensor %d, element %lld of %lld: %.9g, should be %.9g (largest %.3g): "
                           "%.3g times the tolerance",
                           k, (long long)i, (long long)t->count, a, b, largest, times);
        }
    }
    return worst <= 1;
}

void tr_op_case_describe(const tr_op_case *c, tr_dtype storage, char *text, size_t size) {
    const tr_matmul_desc *m = &c->desc.matmul;
    const tr_attention_desc *a = &c->desc.attention;
    const char *name = tr_op_name(c->desc.kind), *type = tr_dtype_name(storage);
    switch (c->desc.kind) {
    case TR_OP_MATMUL:
        (void)snprintf(
            text, size, "%s %s m %lld n %lld k %lld%s%s%s%s%s%s%s%s options %u", name, type,
            (long long)m->m, (long long)m->n, (long long)m->k, m->trans_a ? " trans_a" : "",
            m->trans_b ? " trans_b" : "", m->fused.bias ? " bias" : "",
            m->accumulate ? " accumulate" : "", m->fused.activate ? " gelu" : "",
            m->fused.activate_grad ? " gelu_dgrad" : "", m->fused.residual ? " residual" : "",
            m->fused.bias_grad ? " bias_grad" : "", c->options);
        break;
    case TR_OP_ATTENTION:
    case TR_OP_ATTENTION_DGRAD:
    case TR_OP_ATTENTION_DECODE:
        (void)snprintf(text, size,
                       "%s %s batch %lld seq %lld heads %lld / %lld of %lld window %lld%s", name,
                       type, (long long)a->batch, (long long)a->seq, (long long)a->heads,
                       (long long)a->kv_heads, (long long)a->head_size, (long long)a->window,
                       a->documents ? " documents" : "");
        break;
    default: /* every other description starts with its two sizes, or one */
        (void)snprintf(text, size, "%s %s %lld x %lld options %u", name, type,
                       (long long)c->desc.rows.rows, (long long)c->desc.rows.width, c->options);
    }
}
