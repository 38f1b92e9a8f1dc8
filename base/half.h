/* Storage types of 16 bits, converted so that a value that came from one goes back to the same
 * bits, NaNs included (base/dtype.h makes NaNs quiet, as arithmetic does). */
#pragma once

#include "base/host_device.h"

#include <stdint.h>
#include <string.h>

/* Return the bits of an FP32 number, and the number that has these bits. */
TR_HOSTDEVICE static inline uint32_t tr_float_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
TR_HOSTDEVICE static inline float tr_bits_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Widens IEEE binary16. The product with 2^112 shifts the exponent, and makes subnormal numbers
 * normal; it is exact. */
TR_HOSTDEVICE static inline float tr_half_widen(uint16_t h) {
    float f = tr_bits_float((uint32_t)(h & 0x7fffu) << 13) * 0x1p112f;
    uint32_t bits = tr_float_bits(f);
    if ((h & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u;
    return tr_bits_float(bits | (uint32_t)(h & 0x8000u) << 16);
}

/* Rounds to nearest, ties to even; beyond the range to infinity. A NaN keeps its payload if it
 * fits, else it becomes quiet. */
TR_HOSTDEVICE static inline uint16_t tr_half_round(float f) {
    const uint32_t bits = tr_float_bits(f), sign = bits >> 16 & 0x8000u, all = bits & 0x7fffffffu;
    uint32_t h;
    if (all > 0x7f800000u) {
        h = 0x7c00u | (all >> 13 & 0x3ffu) | (all & 0x1fffu ? 0x200u : 0);
    } else if (all >= 0x477ff000u) { /* 65520 and above */
        h = 0x7c00u;
    } else if (all < 0x38800000u) { /* subnormal: the sum with 0.5 rounds at the last bit */
        h = tr_float_bits(tr_bits_float(all) + 0.5f) - 0x3f000000u;
    } else {
        h = (all - 0x38000000u + 0xfffu + (all >> 13 & 1u)) >> 13;
    }
    return (uint16_t)(sign | h);
}

/* Rounds to bfloat16 in the same way; tr_bf16_to_f32 widens. */
static inline uint16_t tr_bfloat_round(float f) {
    const uint32_t bits = tr_float_bits(f);
    const uint32_t nan = bits >> 16 | (bits & 0xffffu ? 0x40u : 0);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
