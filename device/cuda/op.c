/* Creating operators of the cuda device, and checking the runtime's return codes. */
#include "base/memory.h"
#include "device/cuda/cuda_impl.h"

#include <stdlib.h>

tr_status tr_cuda_check(cudaError_t error, const char *call, const char *file, int line) {
    if (error == cudaSuccess) return TR_OK;
    (void)cudaGetLastError(); /* a later call must not report an error that is not sticky */
    return tr_fail_at(file, line, error == cudaErrorMemoryAllocation ? TR_ERR_FIT : TR_ERR_DEVICE,
                      "CUDA: %s failed: %s", call, cudaGetErrorString(error));
}

static void op_release(tr_op *op) {
    free(op);
}

tr_status tr_cuda_op_create(const tr_op_context *context, const tr_op_desc *desc,
                            size_t object_bytes, size_t scratch_bytes,
                            tr_status (*run)(tr_op *op, tr_stream *stream, const tr_op_args *args),
                            tr_op **out) {
    tr_op *op;
    TR_TRY(tr_calloc(1, object_bytes, &op));
    op->context = *context;
    op->desc = *desc;
    op->scratch_bytes = scratch_bytes;
    op->run = run;
    op->release = op_release;
    *out = op;
    return TR_OK;
}

tr_status tr_cuda_warm(tr_op *op, size_t bytes) {
    tr_device *device = op->context.device;
    const tr_device_ops *ops = device->ops;
    const size_t tensor_bytes = tr_align_up(bytes);
    char *memory;
    if (!tr_cuda_device_of(device)->warms) return TR_OK;
    TR_TRY(ops->alloc(device, tensor_bytes + op->scratch_bytes, (void **)&memory));
    tr_op_args args = {.scratch = memory + tensor_bytes};
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) args.t[i].data = memory;
    tr_stream *stream = ops->compute(device);
    tr_status status = op->run(op, stream, &args);
    if (status == TR_OK) status = ops->stream_sync(stream);
    ops->free(device, memory);
    return status;
}
