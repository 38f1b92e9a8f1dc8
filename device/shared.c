/* The operators of a device by context and description. Equal ones share one operator, because a
 * library takes up to a second to plan one. Also lists the operators that run without their
 * library. */
#include "base/memory.h"
#include "base/philox.h"
#include "device/device_impl.h"
#include "device/op_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the device's set ------------------------------------------------------------------------- */

uint64_t tr_op_key(const tr_op_desc *desc) {
    const tr_op_row *row = tr_op_row_of(desc->kind);
    return tr_mix64((row->key ? tr_mix64(row->key(desc)) : 0) ^ (uint64_t)desc->kind);
}

static bool same_context(const tr_op_context *a, const tr_op_context *b) {
    return a->device == b->device && a->deterministic == b->deterministic &&
           a->compute_units == b->compute_units && a->workspace == b->workspace &&
           a->choice == b->choice && a->book == b->book;
}

static bool is(const tr_op *op, const tr_op_context *context, const tr_op_desc *desc) {
    return op->desc.kind == desc->kind && same_context(&op->context, context) &&
           tr_op_row_of(desc->kind)->same(&op->desc, desc);
}

/* Returns the first link of the chain of a key; the set has chains. */
static tr_op **chain_of(const tr_op_set *set, uint64_t key) {
    return &set->chain[key & (set->chains - 1)];
}

static void chain(const tr_op_set *set, tr_op *op) {
    tr_op **first = chain_of(set, op->key);
    op->chained = *first;
    *first = op;
}

/* Makes room for another operator: at least as many chains as operators. */
static tr_status reserve(tr_op_set *set) {
    if (set->count < set->chains) return TR_OK;
    const size_t chains = set->chains ? 2 * set->chains : 64;
    tr_op **old = set->chain;
    TR_TRY(tr_calloc(chains, sizeof *old, &set->chain));
    set->chains = chains;
    for (tr_op *op = set->newest; op; op = op->older) chain(set, op);
    free(old);
    return TR_OK;
}

tr_op *tr_op_share(const tr_op_context *context, const tr_op_desc *desc) {
    const tr_op_set *set = &context->device->operators;
    if (!set->chains) return NULL;
    tr_op *op = *chain_of(set, tr_op_key(desc));
    while (op && !is(op, context, desc)) op = op->chained;
    if (op) op->users++;
    return op;
}

tr_status tr_op_list(tr_op *op) {
    tr_op_set *set = &op->context.device->operators;
    TR_TRY(reserve(set));
    op->users = 1;
    op->key = tr_op_key(&op->desc);
    op->newer = NULL;
    op->older = set->newest;
    if (op->older) op->older->newer = op;
    set->newest = op;
    chain(set, op);
    set->count++;
    return TR_OK;
}

bool tr_op_unshare(tr_op *op) {
    if (--op->users > 0) return false;
    tr_op_set *set = &op->context.device->operators;
    *(op->newer ? &op->newer->older : &set->newest) = op->older;
    if (op->older) op->older->newer = op->newer;
    tr_op **link = chain_of(set, op->key);
    while (*link != op) link = &(*link)->chained;
    *link = op->chained;
    if (--set->count > 0) return true;
    free(set->chain);
    *set = (tr_op_set){0};
    return true;
}

/* --- without a library ------------------------------------------------------------------------ */

/* "matmul 8192x3072x768 bf16 with activation in parts"; "add in parts" of a kind not below. */
static void describe(const tr_op *op, char *text, size_t size) {
    const tr_rope_desc *r = &op->desc.norm_rope.rope;
    const char *way = op->way == TR_OP_IN_PARTS ? "in parts" : "in the own kernel";
    const tr_matmul_desc *m = &op->desc.matmul;
    const tr_attention_desc *a = &op->desc.attention;
    if (op->desc.kind == TR_OP_MATMUL)
        (void)snprintf(text, size, "matmul %lldx%lldx%lld %s%s%s%s%s %s", (long long)m->m,
                       (long long)m->n, (long long)m->k, tr_dtype_name(m->a),
                       m->fused.activate ? " with activation" : "",
                       m->fused.activate_grad ? " with activation_dgrad" : "",
                       m->fused.residual ? " with residual" : "",
                       m->fused.bias_grad ? " with bias_grad" : "", way);
    else if (op->desc.kind == TR_OP_NORM_ROPE || op->desc.kind == TR_OP_NORM_ROPE_DGRAD)
        (void)snprintf(text, size, "%s of %lld heads of %lld %s %s", tr_op_name(op->desc.kind),
                       (long long)r->heads, (long long)r->head_size, tr_dtype_name(r->dtype), way);
    else if (op->desc.kind == TR_OP_ATTENTION || op->desc.kind == TR_OP_ATTENTION_DGRAD ||
             op->desc.kind == TR_OP_ATTENTION_DECODE)
        (void)snprintf(text, size, "%s of %lld heads of %lld %s %s", tr_op_name(op->desc.kind),
                       (long long)a->heads, (long long)a->head_size, tr_dtype_name(a->dtype), way);
    else (void)snprintf(text, size, "%s %s", tr_op_name(op->desc.kind), way);
}

int tr_device_fallbacks(const tr_device *device, char *text, size_t size) {
    int count = 0;
    size_t used = 0;
    if (size > 0) text[0] = '\0';
    for (const tr_op *op = device->operators.newest; op; op = op->older) {
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
