#include "device/device_impl.h"

#include <string.h>

static const char *const names[TR_OP_COUNT] = {
#define TR_OP_NAME(UPPER, lower) [TR_OP_##UPPER] = #lower,
    TR_OP_LIST(TR_OP_NAME)
#undef TR_OP_NAME
};

const char *tr_op_name(tr_op_kind kind) {
    return (unsigned)kind < TR_OP_COUNT ? names[kind] : "unknown";
}

/* a * b * c >= 0 elements of 8 bytes fit an address space; each factor is at least `least`. */
static bool sizes_fit(int64_t least, int64_t a, int64_t b, int64_t c) {
    int64_t product;
    return a >= least && b >= least && c >= least && !__builtin_mul_overflow(a, b, &product) &&
           !__builtin_mul_overflow(product, c, &product) && product <= INT64_MAX / 8;
}

static bool is_storage(tr_dtype dtype) {
    return dtype == TR_F32 || dtype == TR_BF16;
}

static const char *epilogue_fault(const tr_matmul_desc *d) {
    bool of_result = d->epilogue == TR_EPILOGUE_GELU || d->epilogue == TR_EPILOGUE_GELU_DGRAD;
    if ((unsigned)d->epilogue > TR_EPILOGUE_BIAS_GRAD) return "there is no such epilogue";
    if (of_result && d->accumulate) return "it does not accumulate what an epilogue changes";
    if (of_result && d->ldc && d->ldc != d->n) return "C is dense with an epilogue";
    if (d->epilogue == TR_EPILOGUE_GELU_DGRAD && d->bias) return "a gradient has no bias";
    if (d->epilogue == TR_EPILOGUE_BIAS_GRAD &&
        (d->trans_b || (d->ldb && d->ldb != d->n) || d->bias))
        return "a bias gradient is that of a dense, untransposed B";
    return NULL;
}

static const char *matmul_fault(const tr_matmul_desc *d) {
    if (!sizes_fit(1, d->m, d->n, d->k)) return "m, n and k must be positive";
    if (!is_storage(d->a) || !is_storage(d->b) || !is_storage(d->c))
        return "its matrices are f32 or bf16";
    if (d->lda && d->lda < (d->trans_a ? d->m : d->k)) return "lda is shorter than a row of A";
    if (d->ldb && d->ldb < (d->trans_b ? d->k : d->n)) return "ldb is shorter than a row of B";
    if (d->ldc && d->ldc < d->n) return "ldc is shorter than a row of C";
    if (!sizes_fit(0, d->lda, d->trans_a ? d->k : d->m, 1) ||
        !sizes_fit(0, d->ldb, d->trans_b ? d->n : d->k, 1) || !sizes_fit(0, d->ldc, d->m, 1))
        return "a leading dimension is out of range";
    if (d->accumulate && d->c != TR_F32) return "it accumulates in f32 only";
    if (d->accumulate && d->bias) return "it has no bias when it accumulates";
    return epilogue_fault(d);
}

static const char *embed_fault(tr_op_kind kind, const tr_embed_desc *d) {
    if (!is_storage(d->dtype)) return "its storage is f32 or bf16";
    if (!sizes_fit(1, d->rows, d->width, 1)) return "rows and width must be positive";
    if (kind == TR_OP_EMBED || kind == TR_OP_EMBED_WGRAD) {
        if (!sizes_fit(1, d->vocab, d->width, 1)) return "vocab must be positive";
        if (d->vocab_begin < 0 || d->vocab_begin > INT32_MAX || d->vocab > INT32_MAX)
            return "the vocabulary's range must fit 31 bits";
        return NULL;
    }
    if (!sizes_fit(1, d->seq, d->width, 1)) return "seq must be positive";
    if (kind == TR_OP_POSITION_WGRAD && (d->decode || d->rows % d->seq))
        return "its rows must be whole sequences";
    return NULL;
}

static const char *rows_fault(tr_op_kind kind, const tr_rows_desc *d) {
    if (!sizes_fit(1, d->rows, d->width, 1)) return "rows and width must be positive";
    if (!is_storage(d->dtype)) return "its storage is f32 or bf16";
    if (kind == TR_OP_CAST && !is_storage(d->to)) return "it casts f32 and bf16";
    return NULL;
}

static const char *layernorm_fault(const tr_layernorm_desc *d) {
    if (!sizes_fit(1, d->rows, d->width, 1)) return "rows and width must be positive";
    if (!(d->eps >= 0)) return "eps must not be negative";
    return is_storage(d->dtype) ? NULL : "its storage is f32 or bf16";
}

static const char *attention_fault(const tr_attention_desc *d) {
    if (!sizes_fit(1, d->heads, d->head_dim, 3) ||
        !sizes_fit(1, d->batch, d->seq, 3 * d->heads * d->head_dim) ||
        !sizes_fit(1, d->seq, d->seq, 1))
        return "batch, seq, heads and head_dim must be positive";
    return is_storage(d->dtype) ? NULL : "its storage is f32 or bf16";
}

static const char *dropout_fault(const tr_dropout_desc *d) {
    if (!sizes_fit(1, d->rows, d->width, 1) || !sizes_fit(1, d->seq, d->width, 1))
        return "rows, width and seq must be positive";
    if (!(d->p >= 0 && d->p < 1)) return "p must lie in [0, 1)";
    return is_storage(d->dtype) ? NULL : "its storage is f32 or bf16";
}

static const char *xent_fault(const tr_xent_desc *d) {
    if (!sizes_fit(1, d->rows, d->vocab, 1)) return "rows and vocab must be positive";
    if (d->ld && d->ld < d->vocab) return "ld is shorter than a row of logits";
    if (!sizes_fit(0, d->rows, d->ld, 1)) return "ld is out of range";
    if (d->vocab_begin < 0 || d->vocab_begin > INT32_MAX || d->vocab > INT32_MAX)
        return "the vocabulary's range must fit 31 bits";
    return is_storage(d->dtype) ? NULL : "its storage is f32 or bf16";
}

static const char *adamw_fault(const tr_adamw_desc *d) {
    if (!sizes_fit(0, d->count, 1, 1)) return "count is out of range";
    if (!(d->beta1 >= 0 && d->beta1 < 1 && d->beta2 >= 0 && d->beta2 < 1 && d->eps >= 0))
        return "beta1, beta2 must lie in [0, 1) and eps must not be negative";
    return is_storage(d->dtype) ? NULL : "its storage is f32 or bf16";
}

/* What is wrong with a description, or NULL. */
static const char *fault(const tr_op_desc *desc) {
    switch (desc->kind) {
    case TR_OP_MATMUL: return matmul_fault(&desc->matmul);
    case TR_OP_BIAS_GRAD:
    case TR_OP_GELU:
    case TR_OP_GELU_DGRAD:
    case TR_OP_ADD:
    case TR_OP_CAST: return rows_fault(desc->kind, &desc->rows);
    case TR_OP_LAYERNORM:
    case TR_OP_LAYERNORM_DGRAD:
    case TR_OP_LAYERNORM_WGRAD: return layernorm_fault(&desc->layernorm);
    case TR_OP_ATTENTION:
    case TR_OP_ATTENTION_DGRAD:
    case TR_OP_ATTENTION_DECODE: return attention_fault(&desc->attention);
    case TR_OP_EMBED:
    case TR_OP_EMBED_WGRAD:
    case TR_OP_POSITION:
    case TR_OP_POSITION_WGRAD: return embed_fault(desc->kind, &desc->embed);
    case TR_OP_DROPOUT_ADD:
    case TR_OP_DROPOUT_DGRAD: return dropout_fault(&desc->dropout);
    case TR_OP_XENT_MAX:
    case TR_OP_XENT_SUM:
    case TR_OP_XENT_LOSS: return xent_fault(&desc->xent);
    case TR_OP_SUMSQ: return sizes_fit(0, desc->sumsq.count, 1, 1) ? NULL : "count is out of range";
    case TR_OP_STEP_FINISH:
        return sizes_fit(0, desc->step_finish.losses, 2, 1) &&
                       sizes_fit(0, desc->step_finish.norms, 1, 1)
                   ? NULL
                   : "losses and norms are out of range";
    case TR_OP_ADAMW: return adamw_fault(&desc->adamw);
    case TR_OP_COUNT: break;
    }
    return "there is no such operator";
}

tr_status tr_op_prepare(tr_device *device, const tr_op_desc *desc, tr_op **out) {
    *out = NULL;
    const char *wrong = fault(desc);
    if (wrong) return TR_FAIL(TR_ERR_INTERNAL, "operator %s: %s", tr_op_name(desc->kind), wrong);
    tr_op_prepare_fn prepare = device->ops->prepare[desc->kind];
    if (!prepare)
        return TR_FAIL(TR_ERR_DEVICE, "device %s has no operator %s", device->name,
                       tr_op_name(desc->kind));
    if ((*out = tr_op_share(device, desc))) return TR_OK;
    tr_device_settle(device); /* a library's handle serves one thread at a time */
    if (desc->kind != TR_OP_MATMUL || desc->matmul.epilogue == TR_EPILOGUE_NONE) {
        TR_TRY(prepare(device, desc, out));
    } else {
        if (device->ops->fuse) TR_TRY(device->ops->fuse(device, desc, out));
        if (!*out) {
            TR_TRY(tr_op_prepare_parts(device, desc, out));
            if (device->ops->fuse) (*out)->way = TR_OP_IN_PARTS;
        }
    }
    tr_op_list(*out);
    return TR_OK;
}

void tr_op_release(tr_op *op) {
    if (!op || !tr_op_unshare(op)) return;
    tr_device_settle(op->device);
    op->release(op);
}

double tr_op_flops(const tr_op_desc *desc) {
    const tr_attention_desc *a = &desc->attention;
    /* One of attention's products over the full square: 2 * batch * heads * seq^2 * head_dim. */
    double square = 2.0 * (double)a->seq * (double)a->seq * (double)a->head_dim * (double)a->heads *
                    (double)a->batch;
    switch (desc->kind) {
    case TR_OP_MATMUL:
        return 2.0 * (double)desc->matmul.m * (double)desc->matmul.n * (double)desc->matmul.k;
    case TR_OP_ATTENTION: return square; /* QK', PV: two products, half of each square */
    case TR_OP_ATTENTION_DGRAD: return 2.5 * square; /* QK', dO V', P'dO, dS K, dS'Q */
    case TR_OP_ATTENTION_DECODE: return 2.0 * square / (double)a->seq; /* one full row */
    default: return 0;
    }
}
