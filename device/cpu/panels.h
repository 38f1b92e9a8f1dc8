/* Operands of `gemm` (kernels.h), packed from rows of storage in words of its dtype, FP32 or BF16;
 * FP16 is widened to FP32. Private to device/cpu/. */
#pragma once

#include "device/cpu/kernels.h"

/* A matrix in storage: row r begins at element offset + r * step of `base`. */
typedef struct tr_stored_rows {
    tr_dtype dtype;
    const void *base;
    int64_t offset, step;
} tr_stored_rows;

/* Returns the dtype of the words that storage is packed in. */
static inline tr_dtype tr_panel_dtype(tr_dtype storage) {
    return storage == TR_BF16 ? TR_BF16 : TR_F32;
}

/* Returns the number of words that n neighbours along the depth take, which are of either dtype. */
static inline int64_t tr_panel_words(tr_dtype dtype, int64_t n) {
    return dtype == TR_BF16 ? (n + 1) / 2 : n;
}

/* Copies a left operand with the width as depth: out[rows][step], tr_panel_words(width) words of
 * each row. */
void tr_pack_left(const tr_stored_rows *x, int64_t rows, int64_t width, int64_t step, tr_word *out);

/* Packs a left operand that is the transposed matrix, BF16: out[width][step], the words of `rows`
 * and zeros up to a multiple of 16 words. */
void tr_pack_left_transposed(const tr_cpu_kernels *kernels, const tr_stored_rows *x, int64_t rows,
                             int64_t width, int64_t step, tr_word *out);

/* Packs a right operand with the rows as depth: the first tr_panel_words(rows) words of each panel
 * of out[width / 16][depth][16], zeros past the width. */
void tr_pack_right(const tr_cpu_kernels *kernels, const tr_stored_rows *x, int64_t rows,
                   int64_t width, int64_t depth, tr_word *out);

/* Packs a right operand that is the transposed matrix: the first tr_panel_words(width) words of
 * each panel of out[rows / 16][depth][16], zeros past the rows. */
void tr_pack_right_transposed(const tr_cpu_kernels *kernels, const tr_stored_rows *x, int64_t rows,
                              int64_t width, int64_t depth, tr_word *out);
