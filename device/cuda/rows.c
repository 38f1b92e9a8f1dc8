/* Element-wise and row-wise operators of the cuda device. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static int64_t count_of(const tr_op *op) {
    return op->desc.rows.rows * op->desc.rows.width;
}

static tr_status run_add(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_add(tr_cuda_stream_of(stream), op->desc.rows.dtype, count_of(op),
                               args->t[TR_ADD_A], args->t[TR_ADD_B], args->t[TR_ADD_Y]));
    return TR_OK;
}

tr_status tr_cuda_prepare_add(tr_device *device, const tr_op_desc *desc, tr_op **out) {
    return tr_cuda_op_create(device, desc, sizeof(tr_op), 0, run_add, out);
}

static tr_status run_cast(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    TR_CUDA(tr_cuda_launch_cast(tr_cuda_stream_of(stream), d->dtype, d->to, count_of(op),
                                args->t[TR_CAST_X], args->t[TR_CAST_Y]));
    return TR_OK;
}

tr_status tr_cuda_prepare_cast(tr_device *device, const tr_op_desc *desc, tr_op **out) {
    return tr_cuda_op_create(device, desc, sizeof(tr_op), 0, run_cast, out);
}
