/* Replaces the library's header when kernels are emulated. It only declares a handle. */
#pragma once

#include <cuda_runtime_api.h>

typedef struct tr_no_library *cudnnHandle_t;
typedef enum cudnnStatus_t { CUDNN_STATUS_SUCCESS = 0 } cudnnStatus_t;
cudnnStatus_t cudnnCreate(cudnnHandle_t *out);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);
const char *cudnnGetErrorString(cudnnStatus_t status);
