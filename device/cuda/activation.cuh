/* The activations on the GPU: of(x), and slope(dy, x) = f'(x) dy. Private to the kernels. */
#pragma once

#include "device/elementwise.h"

#include <cuda_runtime_api.h>

struct tr_gelu_function {
    __device__ static float of(float x) {
        return tr_gelu(x, expf(tr_gelu_exponent(x)));
    }
    __device__ static float slope(float dy, float x) {
        return dy * tr_gelu_dgrad(x, expf(tr_gelu_dgrad_exponent(x)));
    }
};
struct tr_gelu_erf_function {
    __device__ static float of(float x) {
        return tr_gelu_erf(x, expf(tr_gelu_erf_exponent(x)));
    }
    __device__ static float slope(float dy, float x) {
        return dy * tr_gelu_erf_dgrad(x, expf(tr_gelu_erf_exponent(x)));
    }
};
struct tr_silu_function {
    __device__ static float of(float x) {
        return tr_silu(x, expf(-x));
    }
    __device__ static float slope(float dy, float x) {
        return dy * tr_silu_dgrad(x, expf(tr_silu_dgrad_exponent(x)));
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
