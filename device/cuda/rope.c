/* ROPE, NORM_ROPE and NORM_ROPE_DGRAD. */
#include "device/rope.h"
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

typedef struct cuda_rope {
    tr_op base;
    tr_cuda_rope_table table;
} cuda_rope;

static tr_status run_rope(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_rope(
        tr_cuda_stream_of(stream), &op->desc.rope, &((const cuda_rope *)op)->table, args->state,
        op->desc.rope.documents ? args->t[TR_ROPE_STARTS].data : NULL, args->t[TR_ROPE_X].data));
    return TR_OK;
}

static tr_status run_norm_rope(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    TR_CUDA(tr_cuda_launch_norm_rope(
        tr_cuda_stream_of(stream), &op->desc.norm_rope, &((const cuda_rope *)op)->table,
        args->state, op->desc.norm_rope.rope.documents ? t[TR_NORM_ROPE_STARTS].data : NULL,
        t[TR_NORM_ROPE_X].data, t[TR_NORM_ROPE_GAMMA].data, t[TR_NORM_ROPE_RSTD].data,
        t[TR_NORM_ROPE_KEPT].data));
    return TR_OK;
}

static tr_status run_norm_rope_dgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    TR_CUDA(tr_cuda_launch_norm_rope_dgrad(
        tr_cuda_stream_of(stream), &op->desc.norm_rope, &((const cuda_rope *)op)->table,
        op->desc.norm_rope.rope.documents ? t[TR_NORM_ROPE_DGRAD_STARTS].data : NULL,
        t[TR_NORM_ROPE_DGRAD_DX].data, t[TR_NORM_ROPE_DGRAD_X].data,
        t[TR_NORM_ROPE_DGRAD_GAMMA].data, t[TR_NORM_ROPE_DGRAD_RSTD].data,
        t[TR_NORM_ROPE_DGRAD_DNORMED].data));
    return TR_OK;
}

static tr_status prepare(const tr_op_context *context, const tr_op_desc *desc,
                         const tr_rope_desc *d,
                         tr_status (*run)(tr_op *op, tr_stream *stream, const tr_op_args *args),
                         tr_op **out) {
    if (d->head_size / 2 > TR_CUDA_ROPE_PAIRS)
        return TR_FAIL(TR_ERR_DEVICE,
                       "heads of %lld are too wide for the cuda device: lower model.head_size to "
                       "%d or less",
                       (long long)d->head_size, 2 * (int)TR_CUDA_ROPE_PAIRS);
    TR_TRY(tr_cuda_op_create(context, desc, sizeof(cuda_rope), 0, run, out));
    tr_cuda_rope_table *table = &((cuda_rope *)*out)->table;
    table->magnitude = (float)tr_rope_magnitude(d);
    tr_rope_turns(d, table->turns);
    return TR_OK;
}

tr_status tr_cuda_prepare_rope(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return prepare(context, desc, &desc->rope, run_rope, out);
}
tr_status tr_cuda_prepare_norm_rope(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    return prepare(context, desc, &desc->norm_rope.rope, run_norm_rope, out);
}
tr_status tr_cuda_prepare_norm_rope_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                          tr_op **out) {
    return prepare(context, desc, &desc->norm_rope.rope, run_norm_rope_dgrad, out);
}
