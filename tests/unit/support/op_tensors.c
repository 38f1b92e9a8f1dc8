/* Tensors of a case: their shapes, how they are filled, and how exact they are. */
#include "support/op_tensors.h"


#include <math.h>

static tr_dtype other(tr_dtype dtype) {
    return dtype == TR_F32 ? TR_BF16 : TR_F32;
}

/* Whether a storage type has less than FP32. */
static bool is_narrow(tr_dtype dtype) {
    return dtype == TR_BF16 || dtype == TR_F16;
}

tr_op_desc tr_op_case_desc(const tr_op_case *c, tr_dtype storage) {
    tr_op_desc desc = c->desc;
    switch (desc.kind) {
    case TR_OP_MATMUL:
        desc.matmul.a = desc.matmul.b = storage;
        desc.matmul.c = storage;
        if (desc.matmul.accumulate && !(c->options & TR_CASE_STORAGE)) desc.matmul.c = TR_F32;
        if (c->options & TR_CASE_F32_OUT) desc.matmul.c = TR_F32;
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
    case TR_OP_ADD_NORM: desc.add_norm.add.dtype = storage; break;
    case TR_OP_XENT_MAX:
    case TR_OP_XENT_SUM:
    case TR_OP_XENT_LOSS:
    case TR_OP_XENT_DGRAD:
    case TR_OP_XENT: desc.xent.dtype = storage; break;
    case TR_OP_UPDATE:
    case TR_OP_DIRECTION: desc.update.dtype = storage; break;
    case TR_OP_DESCEND: desc.descend.dtype = storage; break;
    case TR_OP_RESCALE: desc.rescale.dtype = storage; break;
    case TR_OP_FACTOR_SUMS:
    case TR_OP_FACTOR: desc.factor.dtype = storage; break;
    case TR_OP_QUANTIZE:
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
    if (d->accumulate) t[TR_MATMUL_C].dtype = d->c;
    if (d->fused.bias) t[TR_MATMUL_BIAS] = input(d->b, d->n, TR_FILL_NORMAL);
    if (d->fused.activate) t[TR_MATMUL_AUX] = t[TR_MATMUL_C];
    if (d->fused.activate_grad) t[TR_MATMUL_AUX] = input(d->c, d->m * d->n, TR_FILL_NORMAL);
    if (d->fused.residual) t[TR_MATMUL_RESIDUAL] = input(d->c, d->m * d->n, TR_FILL_NORMAL);
    if (d->fused.bias_grad)
        t[TR_MATMUL_DBIAS] = gradient(d->k, d->fused.bias_grad_of_a ? d->m : d->n, options);
    /* Between the product and what is fused there may be a rounding, or none. */
    if (is_narrow(d->c) && (d->fused.activate || d->fused.activate_grad || d->fused.residual))
        t[TR_MATMUL_C].inner = tr_dtype_eps(d->c);
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
    case TR_OP_ADD_ROWS: t[TR_ADD_ROWS_Y] = exact(d->dtype, d->width); break;
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
    if (is_narrow(d->dtype)) x.inner = tr_dtype_eps(d->dtype);
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
    if (is_narrow(d->dtype)) y.inner = tr_dtype_eps(d->dtype); /* of probabilities */
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
        t[TR_DECODE_QKV] = input(d->dtype, d->batch * d->decode * row, TR_FILL_NORMAL);
        t[TR_DECODE_KCACHE] = exact(d->dtype, tokens * d->kv_heads * d->head_size);
        t[TR_DECODE_VCACHE] = t[TR_DECODE_KCACHE];
        y.count = d->batch * d->decode * width;
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

/* A sum in bf16 or f16 may be rounded to another number than ref's, and the norm reads it. */
static void add_norm_tensors(const tr_add_norm_desc *d, unsigned options, tr_op_tensor *t) {
    const int64_t rows = d->add.rows, width = d->add.width;
    const tr_dtype dtype = d->add.dtype;
    t[TR_ADD_NORM_SUM] = output(dtype, rows * width, 1, 1);
    if (!(options & TR_CASE_NO_BIAS)) t[TR_ADD_NORM_BIAS] = input(dtype, width, TR_FILL_NORMAL);
    t[TR_ADD_NORM_RESIDUAL] = rows_of(dtype, rows, width);
    t[TR_ADD_NORM_GAMMA] = input(dtype, width, TR_FILL_GAMMA);
    t[TR_ADD_NORM_Y] = output(dtype, rows * width, width, 1);
    t[TR_ADD_NORM_RSTD] = output(TR_F32, rows, width, 0); /* of squares */
    if (!d->rms) {
        t[TR_ADD_NORM_BETA] = input(dtype, width, TR_FILL_NORMAL);
        t[TR_ADD_NORM_MEAN] = output(TR_F32, rows, width, 1 / sqrt((double)width));
    }
    for (int i = TR_ADD_NORM_Y; i <= TR_ADD_NORM_RSTD && is_narrow(dtype); i++)
        t[i].inner = tr_dtype_eps(dtype);
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
    if (desc->kind == TR_OP_XENT_DGRAD || desc->kind == TR_OP_XENT)
        t[TR_XENT_LOGITS] = output(d->dtype, count, 1, TR_OP_LOSS_SCALE);
    t[TR_XENT_MAX] = desc->kind == TR_OP_XENT_MAX || desc->kind == TR_OP_XENT
                         ? exact(TR_F32, d->rows)
                         : input(TR_F32, d->rows, TR_FILL_DERIVED);
    if (desc->kind == TR_OP_XENT_SUM || desc->kind == TR_OP_XENT)
        t[TR_XENT_SUMS] = output(TR_F32, 2 * d->rows, d->vocab, 1);
    if (desc->kind == TR_OP_XENT_DGRAD)
        t[TR_XENT_SUMS] = input(TR_F32, 2 * d->rows, TR_FILL_DERIVED);
}

/* Sums have one order on all devices. */
static void factor_tensors(const tr_factor_desc *d, tr_op_kind kind, unsigned options,
                           tr_op_tensor *t) {
    const int64_t count = d->rows * d->cols, terms = options & TR_CASE_SKIP ? 0 : 1;
    t[TR_FACTOR_X] = input(d->bf16_grad ? TR_BF16 : TR_F32, count, TR_FILL_NORMAL);
    if (kind == TR_OP_FACTOR_SUMS) {
        t[TR_FACTOR_ROWS] = exact(TR_F64, d->rows);
        t[TR_FACTOR_COLS] = exact(TR_F64, d->cols);
        return;
    }
    t[TR_FACTOR_U] = output(TR_F32, count, 2 * terms, 4);
    if (options & TR_CASE_IN_PLACE) make_alias(t, TR_FACTOR_U, TR_FACTOR_X);
    t[TR_FACTOR_ROWS] = input(TR_F64, d->rows, TR_FILL_MEAN_SQUARE);
    t[TR_FACTOR_COLS] = input(TR_F64, d->cols, TR_FILL_MEAN_SQUARE);
    t[TR_FACTOR_R] = output(TR_F32, d->rows, terms, 1);
    t[TR_FACTOR_C] = output(TR_F32, d->cols, terms, 1);
    t[TR_FACTOR_R].fill = t[TR_FACTOR_C].fill = TR_FILL_MEAN_SQUARE;
    if (!(options & TR_CASE_NO_BIAS)) t[TR_FACTOR_NORM] = exact(TR_F64, 1);
}

static void update_tensors(const tr_op_desc *desc, unsigned options, int64_t count, int64_t terms,
                           tr_op_tensor *t) {
    const tr_update_desc *d = &desc->update;
    const bool directs = desc->kind == TR_OP_DIRECTION;
    const int states = tr_update_states(d->rule);
    const tr_dtype master = d->bf16_master ? TR_BF16 : TR_F32;
    t[TR_UPDATE_GRAD] = input(d->bf16_grad ? TR_BF16 : TR_F32, count, TR_FILL_NORMAL);
    t[TR_UPDATE_MASTER] =
        directs ? input(master, count, TR_FILL_NORMAL) : output(master, count, terms, 1);
    if (states > 0) t[TR_UPDATE_M] = output(d->state_dtype, count, terms, 1);
    if (d->rule == TR_UPDATE_ROOT) t[TR_UPDATE_M].fill = TR_FILL_SQUARE;
    if (states > 1) {
        t[TR_UPDATE_V] = output(d->state_dtype, count, terms, 0); /* of squares */
        t[TR_UPDATE_V].fill = directs ? TR_FILL_MEAN_SQUARE : TR_FILL_SQUARE;
    }
    if (directs) t[TR_UPDATE_U] = output(TR_F32, count, terms, 1);
    if (directs && (options & TR_CASE_IN_PLACE)) make_alias(t, TR_UPDATE_U, TR_UPDATE_GRAD);
    if (!(options & TR_CASE_NO_BIAS) && !directs && !d->bf16_master)
        t[TR_UPDATE_VALUE] = output(d->dtype, count, terms, 1);
}

static void optimizer_tensors(const tr_op_desc *desc, unsigned options, tr_op_tensor *t) {
    int64_t count = desc->update.count;
    int64_t terms = options & TR_CASE_SKIP ? 0 : 1;
    switch (desc->kind) {
    case TR_OP_SUMSQ:
        if (desc->sumsq.part == TR_SUMSQ_TOTAL)
            t[TR_SUMSQ_SUMS] = input(TR_F64, desc->sumsq.count, TR_FILL_SQUARE);
        else t[TR_SUMSQ_X] = input(desc->sumsq.dtype, desc->sumsq.count, TR_FILL_NORMAL);
        if (desc->sumsq.part == TR_SUMSQ_BLOCKS)
            t[TR_SUMSQ_SUMS] = exact(TR_F64, tr_sumsq_blocks(desc->sumsq.count));
        else t[TR_SUMSQ_OUT] = exact(TR_F64, 1);
        break;
    case TR_OP_STEP_FINISH:
        t[TR_STEP_FINISH_LOSSES] = input(TR_F64, 2 * desc->step_finish.losses, TR_FILL_LOSSES);
        t[TR_STEP_FINISH_NORMS] = input(TR_F64, desc->step_finish.norms, TR_FILL_SQUARE);
        t[TR_STEP_FINISH_STATE] = exact(TR_U8, sizeof(tr_step_state));
        t[TR_STEP_FINISH_STATE].fill = TR_FILL_STATE;
        break;
    case TR_OP_RESCALE:
        t[TR_RESCALE_X] = output(TR_F32, desc->rescale.count, 1, 1);
        t[TR_RESCALE_NORMS] = input(TR_F64, 2 * desc->rescale.parts, TR_FILL_MEAN_SQUARE);
        break;
    case TR_OP_DESCEND:
        count = desc->descend.count;
        t[TR_DESCEND_U] = input(TR_F32, count, TR_FILL_NORMAL);
        if (desc->descend.parts > 0)
            t[TR_DESCEND_NORMS] = input(TR_F64, 2 * desc->descend.parts, TR_FILL_MEAN_SQUARE);
        t[TR_DESCEND_MASTER] =
            output(desc->descend.bf16_master ? TR_BF16 : TR_F32, count, terms, 1);
        if (!(options & TR_CASE_NO_BIAS) && !desc->descend.bf16_master)
            t[TR_DESCEND_VALUE] = output(desc->descend.dtype, count, terms, 1);
        break;
    default: update_tensors(desc, options, count, terms, t);
    }
}

static void quantize_tensors(const tr_quantize_desc *d, tr_op_tensor *t) {
    t[TR_QUANTIZE_X] = input(TR_F32, d->count, TR_FILL_NORMAL);
    t[TR_QUANTIZE_Y] = exact(TR_BF16, d->count);
}

void tr_op_case_tensors(const tr_op_desc *desc, unsigned options,
                        tr_op_tensor t[TR_OP_MAX_TENSORS]) {
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
    case TR_OP_ADD_NORM: add_norm_tensors(&desc->add_norm, options, t); break;
    case TR_OP_XENT_MAX:
    case TR_OP_XENT_SUM:
    case TR_OP_XENT_LOSS:
    case TR_OP_XENT_DGRAD:
    case TR_OP_XENT: xent_tensors(desc, t); break;
    case TR_OP_SUMSQ:
    case TR_OP_STEP_FINISH:
    case TR_OP_UPDATE:
    case TR_OP_DIRECTION:
    case TR_OP_DESCEND:
    case TR_OP_RESCALE: optimizer_tensors(desc, options, t); break;
    case TR_OP_QUANTIZE: quantize_tensors(&desc->quantize, t); break;
    case TR_OP_FACTOR_SUMS:
    case TR_OP_FACTOR: factor_tensors(&desc->factor, desc->kind, options, t); break;
    default: rows_tensors(desc, options, t);
    }
}
