/* Host memory with checked sizes. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Alignment of every buffer that an operator sees: 64 bytes is an AVX-512 register and a cache line;
 * 256 is what CUDA's vector loads and allocator use. One value on all devices keeps offsets, and so
 * the memory plan, independent of the device. */
enum { TR_ALIGN = 256 };

/* bytes rounded up to TR_ALIGN. */
static inline size_t tr_align_up(size_t bytes) {
    return (bytes + TR_ALIGN - 1) / TR_ALIGN * TR_ALIGN;
}

/* Zeroed array of count elements in *out; TR_ERR_FIT when there is no memory or the product
 * overflows. count = 0 gives a valid pointer. Release with free(). */
tr_status tr_calloc(size_t count, size_t size, void *out);

/* Grows *array (elements of `size` bytes) to hold at least `need`; *capacity is updated. Doubles. */
tr_status tr_grow(void *array, size_t *capacity, size_t need, size_t size);

/* a * b in *out; false on overflow. */
static inline bool tr_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

/* Copy of a string; TR_ERR_FIT without memory. Release with free(). */
tr_status tr_strdup(const char *text, char **out);
