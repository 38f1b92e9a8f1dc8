/* ATTENTION and ATTENTION_DGRAD by the own kernels. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static const int32_t *starts_of(const tr_op *op, const tr_op_args *args, int slot) {
    return op->desc.attention.documents ? args->t[slot].data : NULL;
}

static tr_status run_forward(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_attention(tr_cuda_stream_of(stream), &op->desc.attention,
                                     args->t[TR_ATTENTION_QKV].data,
                                     starts_of(op, args, TR_ATTENTION_STARTS),
                                     args->t[TR_ATTENTION_Y].data, args->t[TR_ATTENTION_LSE].data));
    return TR_OK;
}

static tr_status run_backward(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_attention_dgrad(
        tr_cuda_stream_of(stream), &op->desc.attention, args->t[TR_ATTENTION_DGRAD_DY].data,
        args->t[TR_ATTENTION_DGRAD_QKV].data, args->t[TR_ATTENTION_DGRAD_Y].data,
        args->t[TR_ATTENTION_DGRAD_LSE].data, starts_of(op, args, TR_ATTENTION_DGRAD_STARTS),
        args->t[TR_ATTENTION_DGRAD_DQKV].data, args->scratch));
    return TR_OK;
}

tr_status tr_cuda_prepare_own_attention(const tr_op_context *context, const tr_op_desc *desc,
                                        bool backward, tr_op **out) {
    const tr_attention_desc *d = &desc->attention;
    if (d->head_size > TR_ATTENTION_MAX_DIM)
        return TR_FAIL(TR_ERR_DEVICE,
                       "attention heads of %lld are too wide for the cuda device: use more heads, "
                       "of %d at most",
                       (long long)d->head_size, (int)TR_ATTENTION_MAX_DIM);
    const int64_t rows = d->batch * d->heads * d->seq;
    const size_t scratch = backward ? (size_t)rows * TR_ATTENTION_ROW_BYTES : 0;
    TR_TRY(tr_cuda_op_create(context, desc, sizeof(tr_op), scratch,
                             backward ? run_backward : run_forward, out));
    (*out)->way = TR_OP_OWN;
    return TR_OK;
}
