/* The kernel `transpose` of kernels.h. Included by kernels_body.h and kernels_amx.c. */
#pragma once

#include "device/cpu/kernels.h"

#if defined __AVX512F__
#include <immintrin.h>

/* In four rounds, lanes that differ in one bit of their number change places with the row that
 * differs in that bit. */
static void transpose(int64_t rows, int64_t depth, const tr_word *a, int64_t step, tr_word *out,
                      int64_t out_step) {
    const __mmask16 whole = (__mmask16)((1u << rows) - 1);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i x[TR_PANEL];
    for (int64_t j = 0; j < TR_PANEL; j++)
        x[j] = j < depth ? _mm512_maskz_loadu_epi32(whole, a + j * step) : _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int bit = 1; bit < TR_PANEL; bit *= 2) {
        const __mmask16 set = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(bit));
        const __m512i flipped = _mm512_xor_si512(lane, _mm512_set1_epi32(bit));
        /* Indices of 16 and more are lanes of the second operand. */
        const __m512i low = _mm512_mask_add_epi32(lane, set, flipped, _mm512_set1_epi32(TR_PANEL));
        const __m512i high = _mm512_mask_add_epi32(flipped, set, lane, _mm512_set1_epi32(TR_PANEL));
#pragma GCC unroll 16
        for (int j = 0; j < TR_PANEL; j++) {
            if (j & bit) continue;
            const __m512i first = x[j], second = x[j | bit];
            x[j] = _mm512_permutex2var_epi32(first, low, second);
            x[j | bit] = _mm512_permutex2var_epi32(first, high, second);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < TR_PANEL; i++)
        if (i < rows) _mm512_storeu_si512(out + i * out_step, x[i]);
}
#else
static void transpose(int64_t rows, int64_t depth, const tr_word *a, int64_t step, tr_word *out,
                      int64_t out_step) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < TR_PANEL; j++)
            out[i * out_step + j] = j < depth ? a[i + j * step] : 0;
}
#endif
