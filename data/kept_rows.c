#include "data/kept_rows.h"

#include "base/memory.h"
#include "base/output.h"
#include "data/format_impl.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { NUMBERS = 8, HEADER = 8 * NUMBERS, PIECE = 4096 };

static const char magic[] = "TRROWS 1";

/* --- writing ---------------------------------------------------------------------------------- */

static bool put(FILE *f, uint64_t number, int width) {
    unsigned char byte[8];
    for (int i = 0; i < width; i++) byte[i] = (unsigned char)(number >> 8 * i);
    return fwrite(byte, 1, (size_t)width, f) == (size_t)width;
}

static bool put_rows(const tr_source *s, FILE *f) {
    const int64_t numbers[] = {s->tokens, s->filled,  s->answers, s->documents,
                               s->cut,    s->skipped, s->ends};
    bool good = fwrite(magic, 1, 8, f) == 8;
    for (int i = 0; i < NUMBERS - 1 && good; i++) good = put(f, (uint64_t)numbers[i], 8);
    for (int64_t i = 0; i < s->ends && good; i++) good = put(f, (uint64_t)s->end[i], 8);
    for (int64_t i = 0; i < s->tokens && good; i++) good = put(f, (uint32_t)s->memory[i], 4);
    return good && fflush(f) == 0;
}

tr_status tr_kept_rows_write(const tr_source *rows, const char *path) {
    char temporary[PATH_MAX];
    FILE *f;
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= (int)sizeof temporary)
        return TR_FAIL(TR_ERR_IO, "the path '%s' is too long", path);
    TR_TRY(tr_output_open_for(path, temporary, &f));
    tr_status status = TR_OK;
    if (!put_rows(rows, f))
        status = TR_FAIL(TR_ERR_IO, "'%s' cannot be written: %s", path, strerror(errno));
    return tr_output_replace(temporary, path, f, status);
}

/* --- reading ---------------------------------------------------------------------------------- */

static tr_status damaged(const tr_source *s) {
    return TR_FAIL(TR_ERR_DATA, "'%s' is damaged", s->file.path);
}

static tr_status read_ends(tr_source *s, int64_t count) {
    unsigned char piece[8 * PIECE];
    int64_t before = 0;
    TR_TRY(tr_calloc((size_t)count, sizeof *s->end, &s->end));
    for (int64_t n; s->ends < count;) {
        n = count - s->ends < PIECE ? count - s->ends : PIECE;
        TR_TRY(tr_format_read(&s->file, HEADER + 8 * s->ends, 8 * n, piece));
        for (int64_t i = 0; i < n; i++) {
            const int64_t end = (int64_t)tr_format_u64(piece + 8 * i);
            if (end <= before || end > s->tokens) return damaged(s);
            s->end[s->ends++] = before = end;
        }
    }
    return TR_OK;
}

tr_status tr_kept_rows_open(const char *path, tr_source *s) {
    unsigned char header[HEADER];
    int64_t number[NUMBERS];
    TR_TRY(tr_format_open_file(path, s));
    const int64_t bytes = s->file.bytes;
    if (bytes < HEADER) return damaged(s);
    TR_TRY(tr_format_read(&s->file, 0, HEADER, header));
    for (int i = 1; i < NUMBERS; i++) {
        number[i] = (int64_t)tr_format_u64(header + 8 * i);
        if (number[i] < 0 || number[i] > bytes) return damaged(s);
    }
    const int64_t ends = number[7];
    if (memcmp(header, magic, 8) != 0 || ends > (bytes - HEADER) / 8 ||
        bytes - HEADER - 8 * ends != 4 * number[1] || number[2] > number[1] || number[2] < 1)
        return damaged(s);
    s->tokens = number[1];
    s->filled = number[2];
    s->answers = number[3];
    s->documents = number[4];
    s->cut = number[5];
    s->skipped = number[6];
    s->width = 4;
    s->rows = s->lists_ends = true;
    s->first = HEADER + 8 * ends;
    return read_ends(s, ends);
}
