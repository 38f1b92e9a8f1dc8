#include "data/source.h"

#include "base/digits.h"
#include "base/input.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "data/format_impl.h"
#include "data/textfile.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 16 }; /* bytes that are read at a time */

typedef struct format {
    const char *name;
    int width; /* bytes of a token; 0: the file says it */
    tr_status (*open)(const char *path, const tr_source_options *options, tr_source *source);
} format;

static const format formats[] = {
    {"bytes", 1, tr_format_open_raw},         {"u16", 2, tr_format_open_raw},
    {"u32", 4, tr_format_open_raw},           {"llmc", 0, tr_format_open_llmc},
    {"megatron", 0, tr_format_open_megatron}, {"text", 0, tr_format_open_text},
    {"instruct", 0, tr_format_open_instruct},
};

static const format *find(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}

const char *tr_source_shows(const char *path) {
    return tr_format_is_megatron(path) ? "megatron" : tr_format_is_llmc(path) ? "llmc" : NULL;
}

tr_status tr_format_open_file(const char *path, tr_source *source) {
    tr_data_file *file = &source->file;
    tr_status status = tr_input_open("the data file", path, &file->fd, &file->bytes);
    if (status != TR_OK) {
        file->fd = -1;
        double number;
        const bool none = status == TR_ERR_NOFILE;
        return TR_FAIL(
            status, "%s (%s)%s", tr_error_message(), source->key,
            none && tr_number_is(path, &number)
                ? "; a weight is above 0 and before its files, like '0.7 a.bin 0.3 b.bin'"
            : none && strchr(path, ',') ? "; put blanks between files, not commas"
                                        : "");
    }
    if (file->bytes == 0)
        return TR_FAIL(TR_ERR_DATA, "the data file '%s' is empty: name another one (%s)", path,
                       source->key);
    return tr_strdup(path, &file->path);
}

/* The file is not mapped: a mapped file that is shortened ends the process with SIGBUS, while a
 * read reports it. A read from the page cache is a copy, as the conversion of mapped tokens is. */
tr_status tr_format_read(const tr_data_file *file, int64_t at, int64_t count, void *to) {
    char *next = to;
    while (count > 0) {
        ssize_t n = pread(file->fd, next, (size_t)count, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return TR_FAIL(TR_ERR_IO, "the data file '%s' cannot be read: %s", file->path,
                           strerror(errno));
        if (n == 0)
            return TR_FAIL(TR_ERR_DATA,
                           "the data file '%s' was shortened while it was in use: byte %" PRId64
                           " of %" PRId64 " is gone; restore the file",
                           file->path, at, file->bytes);
        next += n;
        at += n;
        count -= n;
    }
    return TR_OK;
}

/* Refuses a file that numpy.save wrote: its header would be read as tokens. */
static tr_status check_numpy(const tr_source *source, const char *name) {
    static const char magic[] = "\x93NUMPY";
    char first[sizeof magic] = "";
    if (source->file.bytes < (int64_t)sizeof first) return TR_OK;
    TR_TRY(tr_format_read(&source->file, 0, sizeof magic - 1, first));
    if (memcmp(first, magic, sizeof magic - 1) != 0) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "the data file '%s' is of numpy.save (.npy), and data.format %s has no header: "
                   "write the tokens with tofile",
                   source->file.path, name);
}

/* Refuses a file of bytes that its first ones show as compressed: they would be its tokens. */
static tr_status check_compressed(const tr_source *source) {
    unsigned char first[TR_TEXTFILE_MAGIC];
    const int64_t bytes = tr_min_i64(source->file.bytes, sizeof first);
    TR_TRY(tr_format_read(&source->file, 0, bytes, first));
    const char *program = tr_textfile_compressor(first, (size_t)bytes);
    if (!program) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "the data file '%s' is compressed by %s, and data.format bytes would learn the "
                   "compressed bytes: unpack it, or set data.format to text, which unpacks it",
                   source->file.path, program);
}

/* Files without a header. */
tr_status tr_format_open_raw(const char *path, const tr_source_options *options,
                             tr_source *source) {
    source->width = find(options->format)->width;
    const char *shown = source->width == 1 ? tr_source_shows(path) : NULL;
    if (shown)
        return TR_FAIL(TR_ERR_DATA,
                       "the data file '%s' has tokens, and data.format bytes would learn their "
                       "bytes: set data.format to %s (%s)",
                       path, shown, source->key);
    TR_TRY(tr_format_open_file(path, source));
    const int64_t bytes = source->file.bytes;
    TR_TRY(source->width > 1 ? check_numpy(source, options->format) : check_compressed(source));
    if (bytes % source->width)
        return TR_FAIL(TR_ERR_DATA,
                       "the data file '%s' has %" PRId64
                       " bytes, not a multiple of %d: it is not a "
                       "file of data.format %s, or it was cut off",
                       path, bytes, source->width, options->format);
    source->tokens = bytes / source->width;
    return TR_OK;
}

tr_status tr_source_open(const char *path, const tr_source_options *options, tr_source *out) {
    const format *f = find(options->format);
    *out = (tr_source){
        .file.fd = -1, .vocab = options->vocab, .key = options->key ? options->key : "data.path"};
    if (!f)
        return TR_FAIL(TR_ERR_CONFIG,
                       "data.format must be one of bytes, text, u16, u32, llmc, megatron, "
                       "instruct, not '%s'",
                       options->format);
    TR_TRY(f->open(path, options, out));
    if (!out->rows) out->filled = out->tokens;
    return TR_OK;
}

void tr_source_close(tr_source *source) {
    if (source->file.fd >= 0) (void)close(source->file.fd);
    free(source->file.path);
    free(source->end);
    free(source->memory);
    *source = (tr_source){.file.fd = -1};
}

/* Returns the number of a token's bytes, which for 8 unsigned bytes may come out negative: it is no
 * token then either. */
static int64_t number(const tr_source *s, const unsigned char *from) {
    if (s->width == 1) return s->is_signed ? (int8_t)from[0] : from[0];
    if (s->width == 8) return (int64_t)tr_format_u64(from);
    if (s->width == 4)
        return s->is_signed ? (int32_t)tr_format_u32(from) : (int64_t)tr_format_u32(from);
    uint16_t n = (uint16_t)(from[0] | from[1] << 8);
    return s->is_signed ? (int16_t)n : n;
}

/* A vocabulary that is too small contradicts the data; a negative number is no token of any. */
static tr_status no_token(const tr_source *s, int64_t at, int64_t id) {
    return TR_FAIL(id < 0 ? TR_ERR_DATA : TR_ERR_CONFIG,
                   "the data file '%s' has %" PRId64 " at token %" PRId64 " (byte %" PRId64
                   "), and model.vocab %" PRId64 " has tokens 0 to %" PRId64
                   ": raise model.vocab, or check data.format",
                   s->file.path, id, at, s->first + at * s->width, s->vocab, s->vocab - 1);
}

tr_status tr_source_read(const tr_source *s, int64_t first, int64_t count, int32_t *to) {
    unsigned char piece[PIECE];
    const int64_t most = PIECE / s->width;
    if (s->memory) { /* the tokenizer has no more tokens than the vocabulary */
        memcpy(to, s->memory + first, (size_t)count * sizeof *to);
        return TR_OK;
    }
    for (int64_t n; count > 0; first += n, count -= n, to += n) {
        n = count < most ? count : most;
        TR_TRY(tr_format_read(&s->file, s->first + first * s->width, n * s->width, piece));
        for (int64_t i = 0; i < n; i++) {
            const int64_t id = number(s, piece + i * s->width);
            const int64_t plain = s->rows ? id & ~(int64_t)TR_TOKEN_GIVEN : id;
            if (plain < 0 || plain >= s->vocab) return no_token(s, first + i, plain);
            to[i] = (int32_t)id;
        }
    }
    return TR_OK;
}

int64_t tr_source_next_end(const tr_source *s, int64_t token) {
    int64_t low = 0, high = s->ends; /* the first end above `token` is one of low..high */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (s->end[middle] > token) high = middle;
        else low = middle + 1;
    }
    return low < s->ends ? s->end[low] : INT64_MAX;
}
