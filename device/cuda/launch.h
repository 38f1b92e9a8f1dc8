/* Launchers of the own kernels: they enqueue on a stream and return what the launch returned.
 * Shapes and pointers as in device/op.h. Private. */
#pragma once

#include "base/dtype.h"
#include "device/op.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* rows.cu */
cudaError_t tr_cuda_launch_add(cudaStream_t stream, tr_dtype dtype, int64_t count, const void *a,
                               const void *b, void *y);
cudaError_t tr_cuda_launch_cast(cudaStream_t stream, tr_dtype from, tr_dtype to, int64_t count,
                                const void *x, void *y);

/* matmul.cu: t by TR_MATMUL_*, as MATMUL. */
cudaError_t tr_cuda_launch_matmul(cudaStream_t stream, const tr_matmul_desc *desc, void *const *t);

/* attention.cu: heads of at most TR_ATTENTION_MAX_DIM; row_sums: batch * heads * seq floats of
 * scratch. */
enum { TR_ATTENTION_MAX_DIM = 256 };
cudaError_t tr_cuda_launch_attention(cudaStream_t stream, const tr_attention_desc *d,
                                     const void *qkv, void *y, float *lse);
cudaError_t tr_cuda_launch_attention_dgrad(cudaStream_t stream, const tr_attention_desc *d,
                                           const void *dy, const void *qkv, const void *y,
                                           const float *lse, void *dqkv, float *row_sums);

#ifdef __cplusplus
}
#endif
