/* Replaces device/cuda/libraries.h where kernels are emulated: the emulated libraries are linked
 * with the test. */
#pragma once

#include "base/status.h"

#include <cublasLt.h>
#include <cudnn.h>

/* Replaced by bench_matmul. */
extern __typeof__(cublasLtMatmulAlgoGetHeuristic) *tr_cublasLtMatmulAlgoGetHeuristic;
#define cublasLtMatmulAlgoGetHeuristic tr_cublasLtMatmulAlgoGetHeuristic

static inline tr_status tr_cuda_open_libraries(void) {
    return TR_OK;
}
