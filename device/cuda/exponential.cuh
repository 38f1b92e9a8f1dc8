/* Exponentials and reciprocals of a GPU's special function unit: one instruction each, where expf()
 * and a division take eight and nine. Private to the kernels. */
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>

/* Returns e^x within (2 + |x|) 2^-23 of itself: ex2.approx is within 2^-22, and the rest is the
 * rounding of its argument. Returns 0 where that is subnormal. */
__device__ static inline float tr_exp(float x) {
    const float power = x * 1.4426950408889634f; /* log2 e */
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(power));
    return y;
#else
    return exp2f(power);
#endif
}

/* Returns 1 / x within 2^-23 of itself, for x from 1 to infinity; 0 where that is subnormal. */
__device__ static inline float tr_reciprocal(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / x;
#endif
}
