/* Numbers in 8 bits by block: 256 of them share a scale, which is a power of two, and each is a
 * small floating-point number relative to it. A number with a sign has 4 bits of exponent and 3 of
 * fraction, so it reaches from 1.875 scales down to 2^-14 with steps of at most 1/8 of itself, and
 * further down in steps of 2^-17. A square, which is not negative, has 5 bits of exponent: it
 * reaches down to 2^-30, and in steps of 2^-33. In the even code, for numbers of which only the
 * error in the norm of the block matters, all steps are 2^-6. Numbers that the code has keep their
 * value in any block that reaches down to them, so what is decoded is encoded again without an
 * error. */
#pragma once

#include "base/host_device.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

TR_HOSTDEVICE static inline uint32_t tr_code8_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

TR_HOSTDEVICE static inline float tr_code8_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns 2^exponent, of a normal number. */
TR_HOSTDEVICE static inline float tr_code8_power(int32_t exponent) {
    return tr_code8_float((uint32_t)(exponent + 127) << 23);
}

/* Returns the scale of a block with this largest size: the smallest power of two, from 2^-100 to
 * 2^126, of which it is at most 1.875; 0 of a block of zeros. */
TR_HOSTDEVICE static inline float tr_code8_scale(float largest) {
    const uint32_t bits = tr_code8_bits(largest);
    int32_t exponent = (int32_t)(bits >> 23) - 127 + ((bits & 0x7fffffu) > 0x700000u);
    if (!(largest > 0)) return 0.0f;
    exponent = exponent < -100 ? -100 : exponent > 126 ? 126 : exponent;
    return tr_code8_power(exponent);
}

/* The exponent, in scales, of the smallest numbers with a step in proportion to their size. */
TR_HOSTDEVICE static inline int32_t tr_code8_low(tr_code8 code) {
    return code == TR_CODE8_SQUARES ? -30 : code == TR_CODE8_SIGNED ? -14 : 0;
}

/* The bits of a number's fraction. */
TR_HOSTDEVICE static inline int32_t tr_code8_fraction(tr_code8 code) {
    return code == TR_CODE8_EVEN ? 6 : 3;
}

/* The code of 1.875 scales, the largest number. */
TR_HOSTDEVICE static inline uint8_t tr_code8_largest(tr_code8 code) {
    return code == TR_CODE8_SQUARES ? 255 : code == TR_CODE8_SIGNED ? 127 : 120;
}

/* Returns the random word of tr_code8_encode for 16 random bits: the middle of the words that begin
 * with them, so the mean is exact to 2^-17 of a step. */
TR_HOSTDEVICE static inline uint32_t tr_code8_draw(uint32_t bits) {
    return bits << 16 | 0x8000u;
}

/* Encodes x. Rounds it down or up in size by the random word `draw`, so that the mean over all
 * words is x; 0x80000000 rounds to nearest. A square above 0 never becomes 0, because the step
 * divides by its root. A number that is not finite becomes the largest one. Has no branches, so
 * that loops of it vectorise. */
TR_HOSTDEVICE static inline uint8_t tr_code8_encode(float x, float scale, tr_code8 code,
                                                    uint32_t draw) {
    const int32_t low = tr_code8_low(code), fraction = tr_code8_fraction(code);
    const int32_t least = (low + 127) << 23; /* the bits of 2^low */
    /* Exact, because scale and its inverse are powers of two. */
    const float size = tr_code8_float(tr_code8_bits(x) & 0x7fffffffu);
    const int32_t exact = (int32_t)tr_code8_bits(size * (scale > 0 ? 1.0f / scale : 0.0f));
    const int32_t bits = exact < 0x3ff00000 ? exact : 0x3ff00000; /* of at most 1.875 */
    /* The number with 24 more bits, to which the draw's bits carry: a floating-point number's own
     * bits from `low` on, or in steps of the smallest number. */
    const bool floats = code != TR_CODE8_EVEN && bits >= least;
    const float small = floats ? 0.0f : tr_code8_float((uint32_t)bits);
    const uint32_t number =
        ((floats ? (uint32_t)(bits - (least - (1 << 23))) << (fraction + 1)
                 : (uint32_t)(int32_t)(small * tr_code8_power(fraction + 24 - low))) +
         (draw >> 8)) >>
        24;
    if (code == TR_CODE8_SQUARES) return (uint8_t)(number + ((number == 0) & (size > 0)));
    return (uint8_t)(x < 0 && number > 0 ? number + 128u : number);
}

TR_HOSTDEVICE static inline float tr_code8_decode(uint8_t number, float scale, tr_code8 code) {
    const bool squares = code == TR_CODE8_SQUARES;
    const int32_t low = tr_code8_low(code), fraction = tr_code8_fraction(code);
    const int32_t size = squares ? number : number & 0x7f;
    const bool floats = code != TR_CODE8_EVEN && size >= 1 << fraction;
    const float y =
        floats ? tr_code8_float((uint32_t)((size << (23 - fraction)) + ((low + 126) << 23)))
               : (float)size * tr_code8_power(low - fraction);
    return (!squares && number > 127 ? -y : y) * scale;
}
