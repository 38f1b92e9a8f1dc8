/* EMBED, POSITION and their weight gradients. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_embed(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_embed(tr_cuda_stream_of(stream), &op->desc.embed,
                                 args->t[TR_EMBED_TOKENS].data, args->t[TR_EMBED_TABLE].data,
                                 args->t[TR_EMBED_Y].data));
    return TR_OK;
}

/* A gradient that is not added to: zeros before rows are added, since some entries have none. */
static tr_status begin_table(const tr_op *op, tr_stream *stream, const tr_op_args *args,
                             const tr_tensor *table) {
    if (args->adds) return TR_OK;
    return op->context.device->ops->stream_zero(stream, table->data, tr_tensor_bytes(table));
}

static tr_status run_embed_wgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_TRY(begin_table(op, stream, args, &args->t[TR_EMBED_WGRAD_DTABLE]));
    TR_CUDA(tr_cuda_launch_embed_wgrad(
        tr_cuda_stream_of(stream), &op->desc.embed, args->t[TR_EMBED_WGRAD_DY].data,
        args->t[TR_EMBED_WGRAD_TOKENS].data, args->t[TR_EMBED_WGRAD_DTABLE].data, args->scratch));
    return TR_OK;
}

static tr_status run_position(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    TR_CUDA(tr_cuda_launch_position(tr_cuda_stream_of(stream), &op->desc.embed, args->state,
                                    t[TR_POSITION_X].data, t[TR_POSITION_TABLE].data,
                                    op->desc.embed.documents ? t[TR_POSITION_STARTS].data : NULL,
                                    t[TR_POSITION_Y].data));
    return TR_OK;
}

static tr_status run_position_wgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_tensor *t = args->t;
    TR_TRY(begin_table(op, stream, args, &t[TR_POSITION_WGRAD_DTABLE]));
    TR_CUDA(tr_cuda_launch_position_wgrad(
        tr_cuda_stream_of(stream), &op->desc.embed, t[TR_POSITION_WGRAD_DY].data,
        op->desc.embed.documents ? t[TR_POSITION_WGRAD_STARTS].data : NULL,
        t[TR_POSITION_WGRAD_DTABLE].data, args->scratch));
    return TR_OK;
}

tr_status tr_cuda_prepare_embed(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_embed, out);
}
/* An operator that sorts its rows by their entries of the table. */
static tr_status prepare_sorted(const tr_op_context *context, const tr_op_desc *desc,
                                tr_status (*run)(tr_op *op, tr_stream *stream,
                                                 const tr_op_args *args),
                                tr_op **out) {
    if (desc->embed.rows > INT32_MAX)
        return TR_FAIL(TR_ERR_DEVICE,
                       "device %s sorts at most 2147483647 tokens at once, not %lld: use a smaller "
                       "train.micro_batch",
                       context->device->name, (long long)desc->embed.rows);
    size_t scratch = (size_t)tr_cuda_sort_keys(desc->embed.rows) * sizeof(uint64_t);
    return tr_cuda_op_create(context, desc, sizeof(tr_op), scratch, run, out);
}
tr_status tr_cuda_prepare_embed_wgrad(const tr_op_context *context, const tr_op_desc *desc,
                                      tr_op **out) {
    return prepare_sorted(context, desc, run_embed_wgrad, out);
}
tr_status tr_cuda_prepare_position(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_position, out);
}
tr_status tr_cuda_prepare_position_wgrad(const tr_op_context *context, const tr_op_desc *desc,
                                         tr_op **out) {
    if (desc->embed.documents) return prepare_sorted(context, desc, run_position_wgrad, out);
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_position_wgrad, out);
}
