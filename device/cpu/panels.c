/* Packing of operands: rows of storage to words. */
#include "device/cpu/panels.h"

#include "base/minmax.h"
#include "device/cpu/vec.h"

#include <string.h>

static const void *row_of(const tr_stored_rows *x, int64_t r) {
    return (const char *)x->base + (size_t)(x->offset + r * x->step) * tr_dtype_size(x->dtype);
}

/* Prefetches the row that is packed next. Rows lie further apart than the processor looks ahead. */
static void expect_row(const tr_stored_rows *x, int64_t r, int64_t rows, int64_t width) {
    enum { AHEAD = 16, LINE = 64 };
    if (r + AHEAD >= rows) return;
    const char *row = row_of(x, r + AHEAD);
    const int64_t bytes = width * (int64_t)tr_dtype_size(x->dtype);
    for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(row + at);
}

/* Copies one row; the second half of the last word of an odd number of BF16 is zero. */
static void copy_row(const tr_stored_rows *x, int64_t r, int64_t width, tr_word *out) {
    if (x->dtype == TR_F16) {
        tr_halves_widen(width, row_of(x, r), (float *)out);
        return;
    }
    out[tr_panel_words(x->dtype, width) - 1] = 0;
    memcpy(out, row_of(x, r), (size_t)width * tr_dtype_size(x->dtype));
}

void tr_pack_left(const tr_stored_rows *x, int64_t rows, int64_t width, int64_t step,
                  tr_word *out) {
    for (int64_t r = 0; r < rows; r++) copy_row(x, r, width, out + r * step);
}

/* Fills one row of a panel from n <= 16 columns of one row. */
static void panel_row(const tr_word *row, int64_t n, tr_word *out) {
    if (n == TR_PANEL) {
        memcpy(out, row, TR_PANEL * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < n; i++) out[i] = row[i];
    for (int64_t i = n; i < TR_PANEL; i++) out[i] = 0;
}

/* Packs two rows of `width` BF16 as words, in panels `panel_step` words apart; zeros past the
 * width. */
static void pair_rows(const tr_cpu_kernels *kernels, const uint16_t *first, const uint16_t *second,
                      int64_t width, tr_word *out, int64_t panel_step) {
    const int64_t panels = width / TR_PANEL, rest = width % TR_PANEL, whole = width - rest;
    kernels->pair(panels, first, second, out, panel_step);
    if (rest == 0) return;
    uint16_t ends[2][TR_PANEL] = {{0}};
    memcpy(ends[0], first + whole, (size_t)rest * sizeof *first);
    memcpy(ends[1], second + whole, (size_t)rest * sizeof *second);
    kernels->pair(1, ends[0], ends[1], out + panels * panel_step, panel_step);
}

/* Calls pair_rows for rows r and r + 1 of x, from column c on; rows past the last one are zero. */
static void pair_stored(const tr_cpu_kernels *kernels, const tr_stored_rows *x, int64_t rows,
                        int64_t r, int64_t c, int64_t width, tr_word *out, int64_t panel_step) {
    static const uint16_t zeros[TR_BLOCK];
    for (int64_t at = 0; at < width; at += TR_BLOCK) {
        const uint16_t *first = r < rows ? (const uint16_t *)row_of(x, r) + c + at : zeros;
        const uint16_t *second = r + 1 < rows ? (const uint16_t *)row_of(x, r + 1) + c + at : zeros;
        pair_rows(kernels, first, second, tr_min_i64(TR_BLOCK, width - at),
                  out + at / TR_PANEL * panel_step, panel_step);
    }
}

void tr_pack_left_transposed(const tr_cpu_kernels *kernels, const tr_stored_rows *x, int64_t rows,
                             int64_t width, int64_t step, tr_word *out) {
    for (int64_t r = 0; r < rows; r += 2 * TR_PANEL) {
        for (int64_t i = 0; i < 2 * TR_PANEL; i++) expect_row(x, r + TR_PANEL + i, rows, width);
        for (int64_t c = 0; c < width; c += TR_PANEL) {
            tr_word square[TR_PANEL][TR_PANEL];
            const int64_t n = tr_min_i64(TR_PANEL, width - c);
            for (int64_t j = 0; j < TR_PANEL; j++)
                pair_stored(kernels, x, rows, r + 2 * j, c, n, square[j], TR_PANEL);
            kernels->transpose(n, TR_PANEL, square[0], TR_PANEL, out + c * step + r / 2, step);
        }
    }
}

void tr_pack_right(const tr_cpu_kernels *kernels, const tr_stored_rows *x, int64_t rows,
                   int64_t width, int64_t depth, tr_word *out) {
    if (x->dtype != TR_BF16) {
        for (int64_t r = 0; r < rows; r++) {
            expect_row(x, r, rows, width);
            for (int64_t c = 0; c < width; c += TR_PANEL) {
                float wide[TR_PANEL];
                const int64_t n = tr_min_i64(TR_PANEL, width - c);
                const float *row = tr_row_load(x->dtype, row_of(x, r), c, n, wide);
                panel_row((const tr_word *)row, n, out + c * depth + r * TR_PANEL);
            }
        }
        return;
    }
    for (int64_t r = 0; r < rows; r += 2) {
        expect_row(x, r, rows, width);
        expect_row(x, r + 1, rows, width);
        pair_stored(kernels, x, rows, r, 0, width, out + r / 2 * TR_PANEL, depth * TR_PANEL);
    }
}

void tr_pack_right_transposed(const tr_cpu_kernels *kernels, const tr_stored_rows *x, int64_t rows,
                              int64_t width, int64_t depth, tr_word *out) {
    const int64_t words = tr_panel_words(x->dtype, width), numbers = x->dtype == TR_BF16 ? 2 : 1;
    for (int64_t r = 0; r < rows; r += TR_PANEL) {
        tr_word square[TR_PANEL][TR_PANEL], *panel = out + r * depth;
        memset(square, 0, sizeof square);
        for (int64_t i = 0; i < TR_PANEL; i++) expect_row(x, r + i, rows, width);
        for (int64_t w = 0; w < words; w += TR_PANEL) {
            const int64_t n = tr_min_i64(TR_PANEL, words - w);
            tr_stored_rows part = *x;
            part.offset += w * numbers;
            for (int64_t i = 0; i < TR_PANEL && r + i < rows; i++)
                copy_row(&part, r + i, tr_min_i64(TR_PANEL * numbers, width - w * numbers),
                         square[i]);
            kernels->transpose(n, TR_PANEL, square[0], TR_PANEL, panel + w * TR_PANEL, TR_PANEL);
        }
    }
}
