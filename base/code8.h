/* Numbers in 8 bits by block: 256 of them share a scale, which is a power of two, and each is a
 * small floating-point number relative to it. A number with a sign has 4 bits of exponent and 3 of
 * fraction, so it reaches from 1.875 scales down to 2^-14 with steps of at most 1/8 of itself, and
 * further down in steps of 2^-17. A square, which is not negative, has 5 bits of exponent: it
 * reaches down to 2^-30, and in steps of 2^-33. In the even code, for numbers of which only the
 * error in the norm of the block matters, all steps are 2^-6. Numbers that the code has keep their
 * value in any block that reaches down to them, so what is decoded is encoded again without an
 * error. */
#pragma once

#include "base/half.h"
#include "base/host_device.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TR_CODE8_BLOCK = 256 };

typedef enum tr_code8 { TR_CODE8_SIGNED, TR_CODE8_SQUARES, TR_CODE8_EVEN, TR_CODE8_CODES } tr_code8;

/* Returns the number of blocks of `count` numbers. */
TR_HOSTDEVICE static inline int64_t tr_code8_blocks(int64_t count) {
    return (count + TR_CODE8_BLOCK - 1) / TR_CODE8_BLOCK;
}

/* Returns the bytes of `count` numbers: the codes of whole blocks, and after them the blocks'
 * scales in FP32. */
static inline size_t tr_code8_bytes(int64_t count) {
    return (size_t)tr_code8_blocks(count) * (TR_CODE8_BLOCK + sizeof(float));
}

/* Returns the offset of the scales in these bytes. */
static inline size_t tr_code8_scales(int64_t count) {
    return (size_t)tr_code8_blocks(count) * TR_CODE8_BLOCK;
}

/* Returns 2^exponent, of a normal number. */
TR_HOSTDEVICE static inline float tr_code8_power(int32_t exponent) {
    return tr_bits_float((uint32_t)(exponent + 127) << 23);
}

/* Returns the scale of a block with this largest size: the smallest power of two, from 2^-100 to
 * 2^126, such that the size is at most 1.875 scales; 0 for a block of zeros. */
TR_HOSTDEVICE static inline float tr_code8_scale(float largest) {
    const uint32_t bits = tr_float_bits(largest);
    int32_t exponent = (int32_t)(bits >> 23) - 127 + ((bits & 0x7fffffu) > 0x700000u);
    if (!(largest > 0)) return 0.0f;
    exponent = exponent < -100 ? -100 : exponent > 126 ? 126 : exponent;
    return tr_code8_power(exponent);
}

/* Returns the exponent, in scales, of the smallest numbers with a step in proportion to their size;
 * in the even code, that of a bound which no number reaches. */
TR_HOSTDEVICE static inline int32_t tr_code8_low(tr_code8 code) {
    return code == TR_CODE8_SQUARES ? -30 : code == TR_CODE8_SIGNED ? -14 : 1;
}

/* Returns the bits of a number's fraction. */
TR_HOSTDEVICE static inline int32_t tr_code8_fraction(tr_code8 code) {
    return code == TR_CODE8_EVEN ? 7 : 3;
}

/* Returns the code of 1.875 scales, the largest number. */
TR_HOSTDEVICE static inline uint8_t tr_code8_largest(tr_code8 code) {
    return code == TR_CODE8_SQUARES ? 255 : code == TR_CODE8_SIGNED ? 127 : 120;
}

/* Returns the random word of tr_code8_encode for 16 random bits: the middle of the words that begin
 * with them, so the mean is exact to 2^-17 of a step. */
TR_HOSTDEVICE static inline uint32_t tr_code8_draw(uint32_t bits) {
    return bits << 16 | 0x8000u;
}

/* Returns, for half of a size in scales, the size itself from 2^low on, and below, where steps are
 * even, the mean of it and 2^low. The bits of either, down to tr_code8_fraction, count the numbers
 * of the code from tr_code8_zero on. */
TR_HOSTDEVICE static inline float tr_code8_mean(float half, tr_code8 code) {
    const float half_low = tr_code8_power(tr_code8_low(code) - 1);
    return half + (half > half_low ? half : half_low);
}

/* Returns the bits of tr_code8_mean of 0. */
TR_HOSTDEVICE static inline uint32_t tr_code8_zero(tr_code8 code) {
    return (uint32_t)(tr_code8_low(code) - 1 + 127) << 23;
}

/* Returns 1 / (2 scale) of a scale, or 0 of a block of zeros: the exponents of both add up to -1,
 * and the inverse of the largest is subnormal. */
TR_HOSTDEVICE static inline float tr_code8_half_inverse(float scale) {
    const int32_t bits = (253 << 23) - (int32_t)tr_float_bits(scale), least = 1 << 22;
    return tr_bits_float((uint32_t)(bits > least ? bits : least) & -(uint32_t)(scale > 0));
}

/* Encodes x. Rounds it down or up in size by the random word `draw`, so that the mean over all
 * words is x within 2^-17 of a step; 0x80000000 rounds to nearest. A square above 0 never becomes
 * 0, because the step divides by its root. A number that is not finite becomes the largest one. Has
 * no branches, so that loops of it vectorise. tr_code8_encode_high returns a word of which the
 * upper byte is the code. */
TR_HOSTDEVICE static inline uint32_t tr_code8_encode_high(float x, float scale, tr_code8 code,
                                                          uint32_t draw) {
    const int32_t cut = 23 - tr_code8_fraction(code);
    /* Exact, because scale and its inverse are powers of two. */
    const float half = fabsf(x) * tr_code8_half_inverse(scale);
    const int32_t exact = (int32_t)tr_float_bits(tr_code8_mean(half, code)),
                  most = (int32_t)(tr_code8_zero(code) + ((uint32_t)tr_code8_largest(code) << cut));
    uint32_t bits = (uint32_t)(exact < most ? exact : most) + (draw >> (32 - cut));
    const uint32_t least = tr_code8_zero(code) + (1u << cut);
    if (code == TR_CODE8_SQUARES && x != 0 && bits < least) bits = least;
    bits <<= 24 - cut;
    return code == TR_CODE8_SQUARES ? bits
                                    : (bits & 0x7fffffffu) | (tr_float_bits(x) & 0x80000000u);
}
TR_HOSTDEVICE static inline uint8_t tr_code8_encode(float x, float scale, tr_code8 code,
                                                    uint32_t draw) {
    return (uint8_t)(tr_code8_encode_high(x, scale, code, draw) >> 24);
}

TR_HOSTDEVICE static inline float tr_code8_decode(uint8_t number, float scale, tr_code8 code) {
    const bool squares = code == TR_CODE8_SQUARES;
    const uint32_t size = number & (squares ? 0xffu : 0x7fu);
    const float mean = tr_bits_float(tr_code8_zero(code) | size << (23 - tr_code8_fraction(code)));
    const float low = tr_code8_power(tr_code8_low(code));
    const float y = (mean - ((mean > low ? mean : low) - mean)) * scale;
    return tr_bits_float(tr_float_bits(y) | (squares ? 0 : (number & 0x80u) << 24));
}
