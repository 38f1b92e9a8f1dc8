/* What the emulations have in place of files that they leave out: attention without cuDNN, which is
 * the own kernels', and the devices that are not ref or cuda. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_attention(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_attention(tr_cuda_stream_of(stream), &op->desc.attention,
                                     args->t[TR_ATTENTION_QKV], args->t[TR_ATTENTION_Y],
                                     args->t[TR_ATTENTION_LSE]));
    return TR_OK;
}

static tr_status run_attention_dgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_attention_dgrad(
        tr_cuda_stream_of(stream), &op->desc.attention, args->t[TR_ATTENTION_DGRAD_DY],
        args->t[TR_ATTENTION_DGRAD_QKV], args->t[TR_ATTENTION_DGRAD_Y],
        args->t[TR_ATTENTION_DGRAD_LSE], args->t[TR_ATTENTION_DGRAD_DQKV], args->scratch));
    return TR_OK;
}

tr_status tr_cuda_prepare_attention(tr_device *device, const tr_op_desc *desc, tr_op **out) {
    return tr_cuda_op_create(device, desc, sizeof(tr_op), 0, run_attention, out);
}
tr_status tr_cuda_prepare_attention_dgrad(tr_device *device, const tr_op_desc *desc, tr_op **out) {
    const tr_attention_desc *d = &desc->attention;
    size_t row_sums = (size_t)(d->batch * d->heads * d->seq) * sizeof(float);
    return tr_cuda_op_create(device, desc, sizeof(tr_op), row_sums, run_attention_dgrad, out);
}

/* No other device than ref is needed beside it. */
static tr_status no_device(int ordinal, const tr_device_options *options, tr_device **out) {
    (void)ordinal, (void)options, (void)out;
    return TR_FAIL(TR_ERR_DEVICE, "the emulation has the devices ref and cuda");
}
const tr_device_ops tr_device_ops_cpu = {.kind = "cpu", .open = no_device};
const tr_device_ops tr_device_ops_guarded = {.kind = "guarded", .open = no_device};
