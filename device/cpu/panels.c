/* Packing of operands: rows of storage to words. */
#include "device/cpu/panels.h"

#include "base/minmax.h"
#include "device/cpu/vec.h"

#include <string.h>

static const void *row_of(const tr_stored_rows *x, int64_t r) {
    return (const char *)x->base + (size_t)(x->offset + r * x->step) * tr_dtype_size(x->dtype);
}

/* Asks for the row that is packed soon. Rows lie further apart than the processor looks ahead. */
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

void tr_pack_left(const tr_stored_rows *x, int64_t rows, int64_t width, tr_word *out) {
    const int64_t words = tr_panel_words(x->dtype, width);
    for (int64_t r = 0; r < rows; r++) copy_row(x, r, width, out + r * words);
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

/* Fills one row of a panel from n <= 16 columns of two rows. */
static inline __attribute__((always_inline)) void
pair_rows(const uint16_t *first, const uint16_t *second, size_t n, tr_word *out) {
    uint16_t low[TR_PANEL] = {0}, high[TR_PANEL] = {0};
    memcpy(low, first, n * sizeof *low);
    memcpy(high, second, n * sizeof *high);
    for (int i = 0; i < TR_PANEL; i++) out[i] = (uint32_t)low[i] | (uint32_t)high[i] << 16;
}

void tr_pack_right(const tr_stored_rows *x, int64_t rows, int64_t width, int64_t depth,
                   tr_word *out) {
    static const uint16_t zeros[TR_PANEL];
    const int64_t whole = width / TR_PANEL * TR_PANEL;
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
        const uint16_t *first = row_of(x, r), *second = r + 1 < rows ? row_of(x, r + 1) : NULL;
        tr_word *to = out + r / 2 * TR_PANEL;
        expect_row(x, r, rows, width);
        expect_row(x, r + 1, rows, width);
        for (int64_t c = 0; c < whole; c += TR_PANEL)
            pair_rows(first + c, second ? second + c : zeros, TR_PANEL, to + c * depth);
        if (whole < width)
            pair_rows(first + whole, second ? second + whole : zeros, (size_t)(width - whole),
                      to + whole * depth);
    }
}

void tr_pack_right_transposed(const tr_stored_rows *x, int64_t rows, int64_t width, tr_word *out) {
    enum { WORDS = 64 };
    const int64_t depth = tr_panel_words(x->dtype, width), numbers = x->dtype == TR_BF16 ? 2 : 1;
    for (int64_t r = 0; r < tr_panel_up(rows); r++) {
        tr_word row[WORDS] = {0}, *to = out + r / TR_PANEL * depth * TR_PANEL + r % TR_PANEL;
        expect_row(x, r, rows, width);
        for (int64_t w = 0; w < depth; w += WORDS) {
            const int64_t n = tr_min_i64(WORDS, depth - w);
            tr_stored_rows part = *x;
            part.offset += w * numbers;
            if (r < rows) copy_row(&part, r, tr_min_i64(WORDS * numbers, width - w * numbers), row);
            for (int64_t i = 0; i < n; i++) to[(w + i) * TR_PANEL] = row[i];
        }
    }
}
