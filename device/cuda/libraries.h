/* cuBLASLt and cuDNN, loaded when the first GPU is opened, so a run on CPUs does not need them.
 * Private to device/cuda/. */
#pragma once

#include "base/status.h"

#include <cublasLt.h>
#include <cudnn.h>

/* Loads both libraries. Their functions may be called after this has returned TR_OK. */
tr_status tr_cuda_open_libraries(void);

/* Every library function that device/cuda/ calls has a line in one of these lists and one below
 * them. */
#define TR_CUBLASLT_FUNCTIONS(X)                                                                   \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetStatusName)                                                                       \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)
#define TR_CUDNN_FUNCTIONS(X)                                                                      \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendExecute)                                                                         \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnGetLastErrorString)                                                                     \
    X(cudnnGetStream)                                                                              \
    X(cudnnGetVersion)                                                                             \
    X(cudnnSetStream)

#define TR_CUDA_POINTER(name) extern __typeof__(name) *tr_##name;
TR_CUBLASLT_FUNCTIONS(TR_CUDA_POINTER)
TR_CUDNN_FUNCTIONS(TR_CUDA_POINTER)
#undef TR_CUDA_POINTER

#define cublasLtCreate                       tr_cublasLtCreate
#define cublasLtDestroy                      tr_cublasLtDestroy
#define cublasLtGetStatusName                tr_cublasLtGetStatusName
#define cublasLtMatmul                       tr_cublasLtMatmul
#define cublasLtMatmulAlgoGetHeuristic       tr_cublasLtMatmulAlgoGetHeuristic
#define cublasLtMatmulDescCreate             tr_cublasLtMatmulDescCreate
#define cublasLtMatmulDescDestroy            tr_cublasLtMatmulDescDestroy
#define cublasLtMatmulDescSetAttribute       tr_cublasLtMatmulDescSetAttribute
#define cublasLtMatmulPreferenceCreate       tr_cublasLtMatmulPreferenceCreate
#define cublasLtMatmulPreferenceDestroy      tr_cublasLtMatmulPreferenceDestroy
#define cublasLtMatmulPreferenceSetAttribute tr_cublasLtMatmulPreferenceSetAttribute
#define cublasLtMatrixLayoutCreate           tr_cublasLtMatrixLayoutCreate
#define cublasLtMatrixLayoutDestroy          tr_cublasLtMatrixLayoutDestroy
#define cudnnBackendCreateDescriptor         tr_cudnnBackendCreateDescriptor
#define cudnnBackendDestroyDescriptor        tr_cudnnBackendDestroyDescriptor
#define cudnnBackendExecute                  tr_cudnnBackendExecute
#define cudnnBackendFinalize                 tr_cudnnBackendFinalize
#define cudnnBackendGetAttribute             tr_cudnnBackendGetAttribute
#define cudnnBackendSetAttribute             tr_cudnnBackendSetAttribute
#define cudnnCreate                          tr_cudnnCreate
#define cudnnDestroy                         tr_cudnnDestroy
#define cudnnGetErrorString                  tr_cudnnGetErrorString
#define cudnnGetLastErrorString              tr_cudnnGetLastErrorString
#define cudnnGetStream                       tr_cudnnGetStream
#define cudnnGetVersion                      tr_cudnnGetVersion
#define cudnnSetStream                       tr_cudnnSetStream
