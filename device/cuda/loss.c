/* Cross entropy over a vocabulary that tensor ranks may share. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_xent_max(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_xent_max(tr_cuda_stream_of(stream), &op->desc.xent,
                                    args->t[TR_XENT_LOGITS].data, args->t[TR_XENT_MAX].data));
    return TR_OK;
}

static tr_status run_xent_sum(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_xent_sum(tr_cuda_stream_of(stream), &op->desc.xent,
                                    args->t[TR_XENT_LOGITS].data, args->t[TR_XENT_LABELS].data,
                                    args->t[TR_XENT_MAX].data, args->t[TR_XENT_SUMS].data));
    return TR_OK;
}

static tr_status run_xent_loss(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_xent_loss(tr_cuda_stream_of(stream), &op->desc.xent,
                                     args->t[TR_XENT_LABELS].data, args->t[TR_XENT_SUMS].data,
                                     args->t[TR_XENT_LOSS].data));
    return TR_OK;
}

static tr_status run_xent_dgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_xent_dgrad(tr_cuda_stream_of(stream), &op->desc.xent, args->state,
                                      args->t[TR_XENT_LOGITS].data, args->t[TR_XENT_LABELS].data,
                                      args->t[TR_XENT_MAX].data, args->t[TR_XENT_SUMS].data));
    return TR_OK;
}

static tr_status run_xent(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    tr_device *device = op->context.device;
    TR_CUDA(tr_cuda_launch_xent(tr_cuda_stream_of(stream), &op->desc.xent, device->units,
                                tr_cuda_device_of(device)->shared, args->state,
                                args->t[TR_XENT_LOGITS].data, args->t[TR_XENT_LABELS].data,
                                args->t[TR_XENT_MAX].data, args->t[TR_XENT_SUMS].data));
    return TR_OK;
}

tr_status tr_cuda_prepare_xent_max(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_xent_max, out);
}
tr_status tr_cuda_prepare_xent_sum(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_xent_sum, out);
}
tr_status tr_cuda_prepare_xent_loss(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_xent_loss, out);
}
tr_status tr_cuda_prepare_xent_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                     tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_xent_dgrad, out);
}
tr_status tr_cuda_prepare_xent(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_xent, out);
}
