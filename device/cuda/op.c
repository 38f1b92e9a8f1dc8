/* What every operator of the cuda device is made with, and the runtime's return codes. */
#include "base/memory.h"
#include "device/cuda/cuda_impl.h"

#include <stdlib.h>

tr_status tr_cuda_check(cudaError_t error, const char *call, const char *file, int line) {
    if (error == cudaSuccess) return TR_OK;
    (void)cudaGetLastError(); /* an error that is not sticky must not show up in a later call */
    return tr_fail_at(file, line, error == cudaErrorMemoryAllocation ? TR_ERR_FIT : TR_ERR_DEVICE,
                      "CUDA: %s failed: %s", call, cudaGetErrorString(error));
}

static void op_release(tr_op *op) {
    free(op);
}

tr_status tr_cuda_op_create(tr_device *device, const tr_op_desc *desc, size_t object_bytes,
                            size_t scratch_bytes,
                            tr_status (*run)(tr_op *op, tr_stream *stream, const tr_op_args *args),
                            tr_op **out) {
    tr_op *op;
    TR_TRY(tr_calloc(1, object_bytes, &op));
    op->device = device;
    op->desc = *desc;
    op->scratch_bytes = scratch_bytes;
    op->run = run;
    op->release = op_release;
    *out = op;
    return TR_OK;
}
