/* Decomposed operators: an operator that a device refuses runs as the operators of its row in the
 * table, in sequence in the stream, with the same bits as these operators by themselves. */
#include "base/memory.h"
#include "device/device_impl.h"
#include "device/op_table.h"

#include <stdlib.h>
#include <string.h>

typedef struct decomposed {
    tr_op base;
    int count;
    tr_op_part part[TR_OP_MAX_PARTS];
    tr_op *op[TR_OP_MAX_PARTS];
} decomposed;

tr_op_part tr_op_part_of(tr_op_desc desc) {
    tr_op_part part = {.desc = desc};
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) part.from[i] = -1;
    return part;
}

static tr_status run(tr_op *base, tr_stream *stream, const tr_op_args *args) {
    const decomposed *d = (const decomposed *)base;
    for (int k = 0; k < d->count; k++) {
        tr_op_args own = *args;
        memset(own.t, 0, sizeof own.t);
        for (int i = 0; i < TR_OP_MAX_TENSORS; i++)
            if (d->part[k].from[i] >= 0) own.t[i] = args->t[d->part[k].from[i]];
        TR_TRY(tr_op_run(d->op[k], stream, &own));
    }
    return TR_OK;
}

static void release(tr_op *base) {
    decomposed *d = (decomposed *)base;
    for (int k = 0; k < d->count; k++) tr_op_release(d->op[k]);
    free(d);
}

tr_status tr_op_decompose(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    const tr_op_row *row = tr_op_row_of(desc->kind);
    decomposed *d;
    tr_status status = TR_OK;
    if (!row->decompose) return TR_OK;
    TR_TRY(tr_calloc(1, sizeof *d, &d));
    d->base = (tr_op){.context = *context, .desc = *desc, .run = run, .release = release};
    d->count = row->decompose(desc, d->part);
    for (int k = 0; k < d->count; k++) {
        TR_TRY_OUT(tr_op_prepare(context, &d->part[k].desc, &d->op[k]));
        if (d->op[k]->scratch_bytes > d->base.scratch_bytes)
            d->base.scratch_bytes = d->op[k]->scratch_bytes;
    }
    if (d->count > 0) *out = &d->base;
out:
    if (!*out) release(&d->base);
    return status;
}
