/* Host memory with checked sizes. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Alignment of every buffer that an operator sees: 64 bytes is an AVX-512 register and a cache
 * line; 256 is what CUDA's vector loads and allocator use. One value on all devices keeps offsets,
 * and so the memory plan, independent of the device. */
enum { TR_ALIGN = 256 };

/* Returns bytes rounded up to a multiple of TR_ALIGN. */
static inline size_t tr_align_up(size_t bytes) {
    return (bytes + TR_ALIGN - 1) / TR_ALIGN * TR_ALIGN;
}

/* Allocates a zeroed array of count elements in *out; the caller frees it with free(). count = 0
 * gives a valid pointer. Fails with TR_ERR_FIT when there is no memory or the size overflows. */
tr_status tr_calloc(size_t count, size_t size, void *out);

/* Grows *array (elements of `size` bytes) by doubling until it holds `need` elements, and updates
 * *capacity. Fails with TR_ERR_FIT, and then changes nothing. */
tr_status tr_grow(void *array, size_t *capacity, size_t need, size_t size);

/* Sets *out to a * b; returns false on overflow. */
static inline bool tr_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

/* Copies a string to *out; the caller frees it with free(). Fails with TR_ERR_FIT. */
tr_status tr_strdup(const char *text, char **out);
