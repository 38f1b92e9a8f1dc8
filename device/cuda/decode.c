/* ATTENTION_DECODE. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_attention_decode(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_attention_decode(
        tr_cuda_stream_of(stream), &op->desc.attention, args->state, args->t[TR_DECODE_QKV].data,
        args->t[TR_DECODE_KCACHE].data, args->t[TR_DECODE_VCACHE].data, args->t[TR_DECODE_Y].data,
        args->scratch));
    return TR_OK;
}

tr_status tr_cuda_prepare_attention_decode(const tr_op_context *context, const tr_op_desc *desc,
                                           tr_op **out) {
    const tr_attention_desc *d = &desc->attention;
    size_t scores = (size_t)(d->batch * d->decode * d->heads * d->seq);
    return tr_cuda_op_create(context, desc, sizeof(tr_op), scores * sizeof(float),
                             run_attention_decode, out);
}
