/* Megatron's pair of files. PREFIX.bin: the tokens back to back. PREFIX.idx, all little-endian:
 *
 *   9 bytes "MMIDIDX\0\0", u64 version 1, u8 type of a token, u64 sequences, u64 ends
 *   i32 tokens[sequences], i64 first byte[sequences], i64 end[ends]
 *   and in multimodal data i8 mode[sequences]
 *
 * `end` begins with 0; each later one is the number of the sequence behind a document. */
#include "base/input.h"
#include "base/memory.h"
#include "base/text.h"
#include "data/format_impl.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER = 34, PIECE = 4096 };

static const char magic[9] = "MMIDIDX";

/* The index while it is read. */
typedef struct reader {
    tr_data_file file; /* the index */
    int64_t sequences, ends;
    int64_t lengths, firsts, documents; /* where the three lists begin, bytes */
} reader;

/* Returns the bytes of a token of the type's number, 0 for one that is not a whole number. */
static int width_of(unsigned type, bool *is_signed) {
    static const int width[] = {[1] = 1, [2] = 1, [3] = 2, [4] = 4, [5] = 8, [8] = 2};
    *is_signed = type != 1 && type != 8;
    return type < sizeof width / sizeof *width ? width[type] : 0;
}

static tr_status read_header(reader *r, tr_source *source) {
    unsigned char header[HEADER];
    if (r->file.bytes < HEADER)
        return TR_FAIL(TR_ERR_DATA,
                       "the index '%s' has %" PRId64 " bytes, fewer than its header of %d: it was "
                       "cut off",
                       r->file.path, r->file.bytes, HEADER);
    TR_TRY(tr_format_read(&r->file, 0, HEADER, header));
    if (memcmp(header, magic, sizeof magic) != 0)
        return TR_FAIL(TR_ERR_DATA,
                       "'%s' is not an index of Megatron: it does not begin with MMIDIDX; set "
                       "data.format",
                       r->file.path);
    uint64_t version = tr_format_u64(header + 9);
    if (version != 1)
        return TR_FAIL(TR_ERR_DATA,
                       "the index '%s' has version %" PRIu64 " (byte 9); version 1 is known",
                       r->file.path, version);
    source->width = width_of(header[17], &source->is_signed);
    if (source->width == 0)
        return TR_FAIL(TR_ERR_DATA,
                       "the index '%s' says that a token has type %d (byte 17); whole numbers are "
                       "types 1, 2, 3, 4, 5 and 8",
                       r->file.path, header[17]);
    const uint64_t sequences = tr_format_u64(header + 18), ends = tr_format_u64(header + 26);
    const uint64_t rest = (uint64_t)(r->file.bytes - HEADER);
    bool fits = sequences <= rest / 12 && ends <= (rest - 12 * sequences) / 8;
    uint64_t over = fits ? rest - 12 * sequences - 8 * ends : 1;
    if (!fits || (over != 0 && over != sequences))
        return TR_FAIL(TR_ERR_DATA,
                       "the index '%s' has %" PRId64 " bytes, which its %" PRIu64
                       " sequences (byte 18) and %" PRIu64
                       " ends of documents (byte 26) do not fill: it was cut off or damaged",
                       r->file.path, r->file.bytes, sequences, ends);
    r->sequences = (int64_t)sequences;
    r->ends = (int64_t)ends;
    r->lengths = HEADER;
    r->firsts = r->lengths + 4 * r->sequences;
    r->documents = r->firsts + 8 * r->sequences;
    return TR_OK;
}

static tr_status damaged(const reader *r, int64_t at, const char *what) {
    return TR_FAIL(TR_ERR_DATA, "the index '%s' is damaged at byte %" PRId64 ": %s", r->file.path,
                   at, what);
}

/* Checks that each sequence begins where the one before it ends, and that the last one ends with
 * the file. Fills first[sequences + 1], when it is not NULL, with the first token of each. */
static tr_status read_sequences(const reader *r, tr_source *source, int64_t *first) {
    unsigned char lengths[4 * PIECE], firsts[8 * PIECE];
    int64_t at = 0; /* byte of the file of tokens */
    for (int64_t s = 0, n; s < r->sequences; s += n) {
        n = r->sequences - s < PIECE ? r->sequences - s : PIECE;
        TR_TRY(tr_format_read(&r->file, r->lengths + 4 * s, 4 * n, lengths));
        TR_TRY(tr_format_read(&r->file, r->firsts + 8 * s, 8 * n, firsts));
        for (int64_t i = 0; i < n; i++) {
            int32_t length = (int32_t)tr_format_u32(lengths + 4 * i);
            if (length < 0)
                return damaged(r, r->lengths + 4 * (s + i), "a sequence has a length below 0");
            if ((int64_t)tr_format_u64(firsts + 8 * i) != at)
                return damaged(r, r->firsts + 8 * (s + i),
                               "a sequence does not begin where the one before it ends");
            if (first) first[s + i] = at / source->width;
            at += (int64_t)length * source->width;
            if (at > source->file.bytes)
                return TR_FAIL(TR_ERR_DATA,
                               "the data file '%s' has %" PRId64
                               " bytes, and its index '%s' lists more: one of the two was cut off, "
                               "or is of other data; copy both again",
                               source->file.path, source->file.bytes, r->file.path);
        }
    }
    if (first) first[r->sequences] = at / source->width;
    if (at != source->file.bytes)
        return TR_FAIL(TR_ERR_DATA,
                       "the data file '%s' has %" PRId64 " bytes, and its index '%s' lists %" PRId64
                       " of them: one of the two is of other data",
                       source->file.path, source->file.bytes, r->file.path, at);
    source->tokens = at / source->width;
    return TR_OK;
}

/* Checks the list of documents. Fills source->end from first[] when that is not NULL; documents
 * without tokens end nothing. */
static tr_status read_documents(const reader *r, tr_source *source, const int64_t *first) {
    unsigned char numbers[8 * PIECE];
    int64_t before = 0;
    for (int64_t d = 0, n; d < r->ends; d += n) {
        n = r->ends - d < PIECE ? r->ends - d : PIECE;
        TR_TRY(tr_format_read(&r->file, r->documents + 8 * d, 8 * n, numbers));
        for (int64_t i = 0; i < n; i++) {
            int64_t end = (int64_t)tr_format_u64(numbers + 8 * i);
            if (end < before || end > r->sequences || (d + i == 0 && end != 0))
                return damaged(r, r->documents + 8 * (d + i),
                               "the ends of documents are not ascending numbers of sequences from "
                               "0 on");
            before = end;
            if (!first) continue;
            int64_t last = source->ends ? source->end[source->ends - 1] : 0;
            if (first[end] > last) source->end[source->ends++] = first[end];
        }
    }
    source->documents = r->ends > 0 ? r->ends - 1 : 0;
    return TR_OK;
}

static tr_status read_index(reader *r, bool documents, tr_source *source) {
    int64_t *first = NULL;
    tr_status status = TR_OK;
    TR_TRY(read_header(r, source));
    source->lists_ends = true;
    if (documents) {
        TR_TRY_OUT(tr_calloc((size_t)r->sequences + 1, sizeof *first, &first));
        TR_TRY_OUT(tr_calloc((size_t)r->ends, sizeof *source->end, &source->end));
    }
    TR_TRY_OUT(read_sequences(r, source, first));
    TR_TRY_OUT(read_documents(r, source, first));
out:
    free(first);
    return status;
}

size_t tr_source_stem(const char *path) {
    const size_t length = strlen(path);
    const bool pair = tr_text_ends(path, ".bin") || tr_text_ends(path, ".idx");
    return pair && length > 4 ? length - 4 : length;
}

bool tr_format_is_megatron(const char *path) {
    char index[PATH_MAX];
    const int length = snprintf(index, sizeof index, "%.*s.idx", (int)tr_source_stem(path), path);
    return length < (int)sizeof index && access(index, F_OK) == 0;
}

tr_status tr_format_open_megatron(const char *path, const tr_source_options *options,
                                  tr_source *source) {
    const size_t length = tr_source_stem(path);
    char *name;
    reader r = {.file.fd = -1};
    TR_TRY(tr_calloc(length + 5, 1, &name));
    (void)snprintf(name, length + 5, "%.*s.bin", (int)length, path);
    tr_status status = tr_format_open_file(name, source);
    memcpy(name + length, ".idx", 4);
    if (status == TR_ERR_NOFILE && access(name, F_OK) == 0)
        status = TR_FAIL(TR_ERR_DATA, "%s; '%s' exists: the two belong together",
                         tr_error_message(), name);
    if (status == TR_OK) {
        r.file.path = name;
        status = tr_input_open("the index", name, &r.file.fd, &r.file.bytes);
        if (status != TR_OK) {
            if (status == TR_ERR_NOFILE) status = TR_ERR_DATA; /* the user named the .bin file */
            r.file.fd = -1;
            status = TR_FAIL(status, "%s (data.format megatron reads the pair %.*s.bin and .idx)",
                             tr_error_message(), (int)length, path);
        }
    }
    if (status == TR_OK) status = read_index(&r, options->documents, source);
    if (r.file.fd >= 0) (void)close(r.file.fd);
    free(name);
    return status;
}
