/* The activations on the GPU: of(x), and slope(dy, x) = f'(x) dy. Exponential and reciprocal are
 * one instruction each of the special function unit, which bounds a kernel less than its bytes do.
 * Private to the kernels. */
#pragma once

#include "device/cuda/exponential.cuh"
#include "device/elementwise.h"

#include <cuda_runtime_api.h>

/* x / (1 + e), as tr_gelu and tr_silu divide it, with e = exp of their exponents. */
struct tr_gelu_function {
    __device__ static float of(float x) {
        return x * tr_reciprocal(1.0f + tr_exp(tr_gelu_exponent(x)));
    }
    __device__ static float slope(float dy, float x) {
        const float e = tr_exp(tr_gelu_dgrad_exponent(x));
        return dy * tr_gelu_slope(x, e, tr_reciprocal(1.0f + e));
    }
};
struct tr_silu_function {
    __device__ static float of(float x) {
        return x * tr_reciprocal(1.0f + tr_exp(-x));
    }
    __device__ static float slope(float dy, float x) {
        const float e = tr_exp(tr_silu_dgrad_exponent(x));
        return dy * tr_silu_slope(x, e, tr_reciprocal(1.0f + e));
    }
};
struct tr_gelu_erf_function {
    __device__ static float of(float x) {
        return tr_gelu_erf(x, tr_exp(tr_gelu_erf_exponent(x)));
    }
    __device__ static float slope(float dy, float x) {
        return dy * tr_gelu_erf_dgrad(x, tr_exp(tr_gelu_erf_exponent(x)));
    }
};
struct tr_relu2_function {
    __device__ static float of(float x) {
        return tr_relu2(x);
    }
    __device__ static float slope(float dy, float x) {
        return dy * tr_relu2_dgrad(x);
    }
};

/* Calls launch(f) with the functions of an activation. */
template <typename F>
static inline cudaError_t tr_dispatch_activation(tr_activation activation, F launch) {
    switch (activation) {
    case TR_ACTIVATION_GELU_ERF: return launch(tr_gelu_erf_function{});
    case TR_ACTIVATION_SILU: return launch(tr_silu_function{});
    case TR_ACTIVATION_RELU2: return launch(tr_relu2_function{});
    default: return launch(tr_gelu_function{});
    }
}
