/* MATMUL with an epilogue on devices that do not fuse it: the product, then the device's own
 * operator for the rest, in the order of the stream. Their bits are those of the two operators
 * apart. */
#include "base/memory.h"
#include "device/device_impl.h"

#include <stdlib.h>

typedef struct parts {
    tr_op base;
    tr_op *product, *rest;
} parts;

static tr_status run(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const parts *p = (const parts *)op;
    tr_op_args product = *args, rest = {.scratch = args->scratch, .state = args->state};
    const tr_tensor *t = args->t;
    switch (op->desc.matmul.epilogue) {
    case TR_EPILOGUE_GELU:
        product.t[TR_MATMUL_C] = t[TR_MATMUL_AUX];
        rest.t[TR_ACTIVATION_X] = t[TR_MATMUL_AUX];
        rest.t[TR_ACTIVATION_Y] = t[TR_MATMUL_C];
        break;
    case TR_EPILOGUE_GELU_DGRAD:
        rest.t[TR_ACTIVATION_DGRAD_DY] = rest.t[TR_ACTIVATION_DGRAD_DX] = t[TR_MATMUL_C];
        rest.t[TR_ACTIVATION_DGRAD_X] = t[TR_MATMUL_AUX];
        break;
    default: /* BIAS_GRAD */
        rest.t[TR_BIAS_GRAD_DY] = t[TR_MATMUL_B];
        rest.t[TR_BIAS_GRAD_DBIAS] = t[TR_MATMUL_DBIAS];
    }
    product.t[TR_MATMUL_AUX] = product.t[TR_MATMUL_DBIAS] = (tr_tensor){0};
    TR_TRY(tr_op_run(p->product, stream, &product));
    TR_TRY(tr_op_run(p->rest, stream, &rest));
    return TR_OK;
}

static void release(tr_op *op) {
    parts *p = (parts *)op;
    tr_op_release(p->product);
    tr_op_release(p->rest);
    free(p);
}

/* What is left of a product's description. */
static tr_op_desc rest_of(const tr_matmul_desc *d) {
    switch (d->epilogue) {
    case TR_EPILOGUE_GELU:
        return (tr_op_desc){.kind = TR_OP_ACTIVATION,
                            .rows = {.rows = d->m, .width = d->n, .dtype = d->c}};
    case TR_EPILOGUE_GELU_DGRAD:
        return (tr_op_desc){.kind = TR_OP_ACTIVATION_DGRAD,
                            .rows = {.rows = d->m, .width = d->n, .dtype = d->c}};
    default:
        return (tr_op_desc){.kind = TR_OP_BIAS_GRAD,
                            .rows = {.rows = d->k, .width = d->n, .dtype = d->b}};
    }
}

tr_status tr_op_prepare_parts(tr_device *device, const tr_op_desc *desc, tr_op **out) {
    parts *p;
    tr_status status = TR_OK;
    tr_op_desc product = *desc, rest = rest_of(&desc->matmul);
    product.matmul.epilogue = TR_EPILOGUE_NONE;
    TR_TRY(tr_calloc(1, sizeof *p, &p));
    p->base = (tr_op){.device = device, .desc = *desc, .run = run, .release = release};
    TR_TRY_OUT(tr_op_prepare(device, &product, &p->product));
    TR_TRY_OUT(tr_op_prepare(device, &rest, &p->rest));
    p->base.scratch_bytes = p->product->scratch_bytes > p->rest->scratch_bytes
                                ? p->product->scratch_bytes
                                : p->rest->scratch_bytes;
    *out = &p->base;
out:
    if (status != TR_OK) release(&p->base);
    return status;
}
