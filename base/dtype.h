/* Element types and their conversions. */
#pragma once

#include "base/half.h"
#include "base/host_device.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum tr_dtype { TR_F32, TR_BF16, TR_F16, TR_F64, TR_I32, TR_U8, TR_DTYPE_COUNT } tr_dtype;

/* The tables are in the order of tr_dtype: C++ has no array designators. */
static inline size_t tr_dtype_size(tr_dtype t) {
    static const size_t size[TR_DTYPE_COUNT] = {4, 2, 2, 8, 4, 1};
    return size[t];
}

static inline const char *tr_dtype_name(tr_dtype t) {
    static const char *const name[TR_DTYPE_COUNT] = {"f32", "bf16", "f16", "f64", "i32", "u8"};
    return name[t];
}

/* Returns the type of sums, row statistics, gradients and optimizer state for storage type t. */
static inline tr_dtype tr_dtype_acc(tr_dtype t) {
    return t == TR_F64 ? TR_F64 : TR_F32;
}

TR_HOSTDEVICE static inline float tr_bf16_to_f32(uint16_t h) {
    return tr_bits_float((uint32_t)h << 16);
}

/* Rounds to nearest, ties to even. A NaN stays a NaN and becomes quiet. */
TR_HOSTDEVICE static inline uint16_t tr_f32_to_bf16(float f) {
    const uint32_t bits = tr_float_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Convert an element of a storage type of 16 bits, TR_BF16 or TR_F16, to FP32 and from it. */
static inline float tr_narrow_load(tr_dtype t, uint16_t h) {
    return t == TR_F16 ? tr_half_widen(h) : tr_bf16_to_f32(h);
}
static inline uint16_t tr_narrow_round(tr_dtype t, float f) {
    return t == TR_F16 ? tr_half_round(f) : tr_f32_to_bf16(f);
}
