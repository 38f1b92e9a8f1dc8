/* The operators of a device by description: equal descriptions share one operator, since a library
 * takes up to a second to plan one. Also lists the operators that run without their library. */
#include "device/device_impl.h"

#include <stdio.h>
#include <string.h>

/* --- equal descriptions ----------------------------------------------------------------------- */

/* Field by field: padding and the union's other members may differ. */

static bool same_matmul(const tr_matmul_desc *a, const tr_matmul_desc *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->a == b->a && a->b == b->b && a->c == b->c &&
           a->trans_a == b->trans_a && a->trans_b == b->trans_b && a->bias == b->bias &&
           a->accumulate == b->accumulate && a->epilogue == b->epilogue;
}

static bool same_rows(const tr_rows_desc *a, const tr_rows_desc *b) {
    return a->rows == b->rows && a->width == b->width && a->dtype == b->dtype && a->to == b->to;
}

static bool same_layernorm(const tr_layernorm_desc *a, const tr_layernorm_desc *b) {
    return a->rows == b->rows && a->width == b->width && a->eps == b->eps && a->dtype == b->dtype;
}

static bool same_attention(const tr_attention_desc *a, const tr_attention_desc *b) {
    return a->batch == b->batch && a->seq == b->seq && a->heads == b->heads &&
           a->head_dim == b->head_dim && a->dtype == b->dtype;
}

static bool same_embed(const tr_embed_desc *a, const tr_embed_desc *b) {
    return a->rows == b->rows && a->width == b->width && a->seq == b->seq &&
           a->vocab_begin == b->vocab_begin && a->vocab == b->vocab && a->decode == b->decode &&
           a->dtype == b->dtype;
}

static bool same_dropout(const tr_dropout_desc *a, const tr_dropout_desc *b) {
    return a->rows == b->rows && a->width == b->width && a->seq == b->seq && a->p == b->p &&
           a->site == b->site && a->dtype == b->dtype;
}

static bool same_xent(const tr_xent_desc *a, const tr_xent_desc *b) {
    return a->rows == b->rows && a->vocab == b->vocab && a->vocab_begin == b->vocab_begin &&
           a->ld == b->ld && a->dtype == b->dtype && a->accumulate == b->accumulate;
}

static bool same_adamw(const tr_adamw_desc *a, const tr_adamw_desc *b) {
    return a->count == b->count && a->beta1 == b->beta1 && a->beta2 == b->beta2 &&
           a->eps == b->eps && a->weight_decay == b->weight_decay && a->dtype == b->dtype;
}

static bool same(const tr_op_desc *a, const tr_op_desc *b) {
    if (a->kind != b->kind) return false;
    switch (a->kind) {
    case TR_OP_MATMUL: return same_matmul(&a->matmul, &b->matmul);
    case TR_OP_BIAS_GRAD:
    case TR_OP_GELU:
    case TR_OP_GELU_DGRAD:
    case TR_OP_ADD:
    case TR_OP_CAST: return same_rows(&a->rows, &b->rows);
    case TR_OP_LAYERNORM:
    case TR_OP_LAYERNORM_DGRAD:
    case TR_OP_LAYERNORM_WGRAD: return same_layernorm(&a->layernorm, &b->layernorm);
    case TR_OP_ATTENTION:
    case TR_OP_ATTENTION_DGRAD:
    case TR_OP_ATTENTION_DECODE: return same_attention(&a->attention, &b->attention);
    case TR_OP_EMBED:
    case TR_OP_EMBED_WGRAD:
    case TR_OP_POSITION:
    case TR_OP_POSITION_WGRAD: return same_embed(&a->embed, &b->embed);
    case TR_OP_DROPOUT_ADD:
    case TR_OP_DROPOUT_DGRAD: return same_dropout(&a->dropout, &b->dropout);
    case TR_OP_XENT_MAX:
    case TR_OP_XENT_SUM:
    case TR_OP_XENT_LOSS: return same_xent(&a->xent, &b->xent);
    case TR_OP_SUMSQ: return a->sumsq.count == b->sumsq.count;
    case TR_OP_STEP_FINISH:
        return a->step_finish.losses == b->step_finish.losses &&
               a->step_finish.norms == b->step_finish.norms;
    case TR_OP_ADAMW: return same_adamw(&a->adamw, &b->adamw);
    case TR_OP_COUNT: break;
    }
    return false;
}

/* --- the device's list ------------------------------------------------------------------------ */

tr_op *tr_op_share(tr_device *device, const tr_op_desc *desc) {
    tr_op *op = device->operators;
    while (op && !same(&op->desc, desc)) op = op->next;
    if (op) op->users++;
    return op;
}

void tr_op_list(tr_op *op) {
    op->users = 1;
    op->next = op->device->operators;
    op->device->operators = op;
}

bool tr_op_unshare(tr_op *op) {
    if (--op->users > 0) return false;
    tr_op **link = &op->device->operators;
    while (*link != op) link = &(*link)->next;
    *link = op->next;
    return true;
}

/* --- without a library ------------------------------------------------------------------------ */

/* "matmul 8192x3072x768 bf16 with gelu in parts" */
static void describe(const tr_op *op, char *text, size_t size) {
    static const char *const epilogues[] = {[TR_EPILOGUE_GELU] = " with gelu",
                                            [TR_EPILOGUE_GELU_DGRAD] = " with gelu_dgrad",
                                            [TR_EPILOGUE_BIAS_GRAD] = " with bias_grad",
                                            [TR_EPILOGUE_NONE] = ""};
    const char *way = op->way == TR_OP_IN_PARTS ? "in parts" : "in the own kernel";
    const tr_matmul_desc *m = &op->desc.matmul;
    const tr_attention_desc *a = &op->desc.attention;
    if (op->desc.kind == TR_OP_MATMUL)
        (void)snprintf(text, size, "matmul %lldx%lldx%lld %s%s %s", (long long)m->m,
                       (long long)m->n, (long long)m->k, tr_dtype_name(m->a),
                       epilogues[m->epilogue], way);
    else
        (void)snprintf(text, size, "%s of %lld heads of %lld %s %s", tr_op_name(op->desc.kind),
                       (long long)a->heads, (long long)a->head_dim, tr_dtype_name(a->dtype), way);
}

int tr_device_fallbacks(const tr_device *device, char *text, size_t size) {
    int count = 0;
    size_t used = 0;
    if (size > 0) text[0] = '\0';
    for (const tr_op *op = device->operators; op; op = op->next) {
        char one[160];
        if (op->way == TR_OP_WHOLE) continue;
        describe(op, one, sizeof one);
        const char *before = count ? ", " : "";
        count += op->users;
        if (used >= size) continue;
        int length = snprintf(text + used, size - used, "%s%d x %s", before, op->users, one);
        used += (size_t)length;
    }
    if (used >= size && size > 4) memcpy(text + size - 4, "...", 4);
    return count;
}
