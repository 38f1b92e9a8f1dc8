/* QUANTIZE. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_quantize(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_quantize(tr_cuda_stream_of(stream), &op->desc.quantize, args->state,
                                    args->sample, args->element, args->adds,
                                    args->t[TR_QUANTIZE_X].data, args->t[TR_QUANTIZE_Y].data));
    return TR_OK;
}

tr_status tr_cuda_prepare_quantize(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_quantize, out);
}
