#include "data/textfile.h"

#include "base/input.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum {
    FIRST_ROOM = 1 << 16, /* bytes of text that are read at first */
    RAW = 1 << 18,
    FRAME_BEGIN = 5, /* bytes that show how long the header of zstd's frame is */
};

typedef enum kind { PLAIN, GZIP, ZSTD } kind;

struct tr_textfile {
    char *path;
    int fd;
    int64_t size, used; /* bytes of the file; taken from `raw` */
    kind kind;
    unsigned char *raw; /* [RAW]; raw[at..end) is not used yet */
    size_t at, end;
    bool within; /* compressed data have begun and not ended */
    z_stream gzip;
    bool gzip_open;
    ZSTD_DStream *zstd;
    size_t asked;      /* bytes that zstd wants next: to the end of a block */
    tr_utf8_scan scan; /* of the text that was read */
};

/* Reads more of the file when all of `raw` is used; at the end of the file raw stays empty. */
static tr_status refill(tr_textfile *in) {
    while (in->at == in->end) {
        ssize_t n = read(in->fd, in->raw, RAW);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return TR_FAIL(TR_ERR_IO, "'%s' cannot be read: %s", in->path, strerror(errno));
        in->at = 0;
        in->end = (size_t)n;
        break;
    }
    return TR_OK;
}

static bool ends_with(const char *name, size_t length, const char *end) {
    size_t n = strlen(end);
    return length >= n && memcmp(name + length - n, end, n) == 0;
}

static kind find_kind(const unsigned char *raw, size_t bytes) {
    if (bytes >= 2 && memcmp(raw, "\x1f\x8b", 2) == 0) return GZIP;
    if (bytes >= 4 && memcmp(raw, "\x28\xb5\x2f\xfd", 4) == 0) return ZSTD;
    /* A frame that is passed over: files of parallel compressors begin with one. */
    if (bytes >= 4 && raw[0] >> 4 == 5 && memcmp(raw + 1, "\x2a\x4d\x18", 3) == 0) return ZSTD;
    return PLAIN;
}

const char *tr_textfile_compressor(const unsigned char *first, size_t bytes) {
    static const char *const names[] = {[GZIP] = "gzip", [ZSTD] = "zstd"};
    return names[find_kind(first, bytes)];
}

/* Fails when the name says that the file is compressed, and its first bytes do not. */
static tr_status check_name(const tr_textfile *in) {
    const size_t n = strlen(in->path);
    const bool gz = ends_with(in->path, n, ".gz");
    if (in->kind != PLAIN || (!gz && !ends_with(in->path, n, ".zst"))) return TR_OK;
    return TR_FAIL(
        TR_ERR_DATA,
        "'%s' does not begin as a file of %s does: it was cut off or is not such a file; "
        "if it is plain text, give it another name",
        in->path, gz ? "gzip" : "zstd");
}

static tr_status begin(tr_textfile *in) {
    TR_TRY(tr_calloc(RAW, 1, &in->raw));
    TR_TRY(refill(in));
    in->kind = find_kind(in->raw, in->end);
    TR_TRY(check_name(in));
    if (in->kind == GZIP) {
        in->gzip_open = inflateInit2(&in->gzip, 15 + 16) == Z_OK; /* 16: gzip's header */
        if (!in->gzip_open) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    }
    if (in->kind == ZSTD) {
        in->asked = FRAME_BEGIN;
        in->zstd = ZSTD_createDStream();
        if (!in->zstd) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    }
    return TR_OK;
}

tr_status tr_textfile_open(const char *path, tr_textfile **out) {
    tr_textfile *in;
    TR_TRY(tr_calloc(1, sizeof *in, &in));
    in->fd = -1;
    tr_status status = tr_strdup(path, &in->path);
    if (status == TR_OK) status = tr_input_open("the text file", path, &in->fd, &in->size);
    if (status == TR_OK) status = begin(in);
    if (status != TR_OK) {
        tr_textfile_close(in);
        return status;
    }
    *out = in;
    return TR_OK;
}

void tr_textfile_close(tr_textfile *in) {
    if (!in) return;
    if (in->gzip_open) (void)inflateEnd(&in->gzip);
    if (in->zstd) (void)ZSTD_freeDStream(in->zstd);
    if (in->fd >= 0) (void)close(in->fd);
    free(in->raw);
    free(in->path);
    free(in);
}

static tr_status damaged(const tr_textfile *in, const char *what) {
    return TR_FAIL(TR_ERR_DATA, "'%s' is damaged near byte %" PRId64 ": %s", in->path, in->used,
                   what);
}

static void use(tr_textfile *in, size_t bytes) {
    in->at += bytes;
    in->used += (int64_t)bytes;
}

static tr_status unzip(tr_textfile *in, char *to, size_t size, size_t *got) {
    if (!in->within && inflateReset(&in->gzip) != Z_OK) return damaged(in, "gzip");
    in->within = true;
    in->gzip.next_in = in->raw + in->at;
    in->gzip.avail_in = (uInt)(in->end - in->at);
    in->gzip.next_out = (Bytef *)to;
    in->gzip.avail_out = size < RAW ? (uInt)size : RAW;
    const uInt room = in->gzip.avail_out;
    int result = inflate(&in->gzip, Z_NO_FLUSH);
    use(in, in->end - in->at - in->gzip.avail_in);
    *got = room - in->gzip.avail_out;
    if (result == Z_STREAM_END) in->within = false; /* another member may follow */
    else if (result != Z_OK && result != Z_BUF_ERROR)
        return damaged(in, in->gzip.msg ? in->gzip.msg : "not gzip's data");
    return TR_OK;
}

static tr_status unzstd(tr_textfile *in, char *to, size_t size, size_t *got) {
    /* At most one block at a time: an error of the decoder has no position but the block's. */
    const size_t left = in->end - in->at;
    ZSTD_inBuffer from = {in->raw + in->at, left < in->asked ? left : in->asked, 0};
    ZSTD_outBuffer into = {to, size, 0};
    size_t result = ZSTD_decompressStream(in->zstd, &into, &from);
    if (ZSTD_isError(result)) return damaged(in, ZSTD_getErrorName(result));
    use(in, from.pos);
    *got = into.pos;
    in->within = result != 0;
    in->asked = in->within ? result : FRAME_BEGIN;
    return TR_OK;
}

/* Decodes the next bytes of compressed text; *got is 0 where none is left. */
static tr_status decode(tr_textfile *in, char *to, size_t size, size_t *got) {
    const bool end = in->at == in->end; /* text may be left inside the decoder */
    TR_TRY(in->kind == GZIP ? unzip(in, to, size, got) : unzstd(in, to, size, got));
    return end && *got == 0 && in->within ? damaged(in, "it was cut off") : TR_OK;
}

/* Decodes up to the next checksum. */
static tr_status decode_rest(tr_textfile *in) {
    char *piece;
    size_t got = 0;
    tr_status status = TR_OK;
    TR_TRY(tr_calloc(RAW, 1, &piece));
    while (status == TR_OK && in->within) {
        status = refill(in);
        if (status == TR_OK) status = decode(in, piece, RAW, &got);
    }
    free(piece);
    return status;
}

tr_status tr_textfile_judge(tr_textfile *in, tr_status status) {
    tr_error text;
    if (status != TR_ERR_DATA || !in->within) return status;
    tr_error_save(&text);
    if (decode_rest(in) != TR_ERR_DATA) tr_error_restore(&text);
    return status;
}

/* Checks the text that was read last; ends: no other follows. */
static tr_status check(tr_textfile *in, const char *text, size_t count, bool ends) {
    if (tr_utf8_scan_add(&in->scan, (const uint8_t *)text, count) && !(ends && in->scan.have > 0))
        return TR_OK;
    const bool wide = in->scan.at == 0 && in->scan.first >= 0xFE; /* a byte-order mark */
    return TR_FAIL(TR_ERR_DATA,
                   "'%s' is not UTF-8: byte %" PRId64 " of its text (0x%02x) is not part of a "
                   "character; convert the file (iconv -f %s -t UTF-8), or leave such bytes out "
                   "(iconv -c -f UTF-8 -t UTF-8)",
                   in->path, in->scan.at, in->scan.first, wide ? "UTF-16" : "LATIN1");
}

tr_status tr_textfile_read(tr_textfile *in, char *to, size_t size, size_t *got) {
    *got = 0;
    while (*got < size) {
        size_t n = 0;
        TR_TRY(refill(in));
        const bool end = in->at == in->end;
        if (in->kind == PLAIN) {
            n = in->end - in->at < size - *got ? in->end - in->at : size - *got;
            memcpy(to + *got, in->raw + in->at, n);
            use(in, n);
        } else if (!end || in->within) {
            TR_TRY(decode(in, to + *got, size - *got, &n));
        }
        *got += n;
        if (end && n == 0) break;
    }
    return tr_textfile_judge(in, check(in, to, *got, *got < size));
}

tr_status tr_textfile_skip(tr_textfile *in, int64_t bytes) {
    char *piece;
    tr_status status = TR_OK;
    if (in->kind == PLAIN && bytes > (int64_t)in->end && bytes <= in->size) {
        if (lseek(in->fd, bytes, SEEK_SET) != bytes)
            return TR_FAIL(TR_ERR_IO, "'%s' cannot be read: %s", in->path, strerror(errno));
        in->at = in->end = 0;
        in->used = in->scan.at = bytes;
        return TR_OK;
    }
    TR_TRY(tr_calloc(RAW, 1, &piece));
    while (bytes > 0 && status == TR_OK) {
        size_t got, want = bytes < RAW ? (size_t)bytes : RAW;
        status = tr_textfile_read(in, piece, want, &got);
        if (status == TR_OK && got < want)
            status = TR_FAIL(TR_ERR_DATA, "'%s' has become shorter", in->path);
        bytes -= (int64_t)got;
    }
    free(piece);
    return status;
}

int64_t tr_textfile_size(const tr_textfile *in) {
    return in->size;
}

int64_t tr_textfile_used(const tr_textfile *in) {
    return in->used;
}

tr_status tr_textfile_load(const char *path, int64_t mib, tr_byte_list *text) {
    const size_t most = (size_t)mib << 20;
    tr_textfile *input;
    TR_TRY(tr_textfile_open(path, &input));
    tr_status status = TR_OK;
    for (size_t got = 1; status == TR_OK && got > 0;) {
        status = tr_grow(&text->byte, &text->capacity, text->count + FIRST_ROOM, 1);
        if (status != TR_OK) break;
        const size_t room = text->capacity - text->count, left = most + 1 - text->count;
        status = tr_textfile_read(input, text->byte + text->count, room < left ? room : left, &got);
        text->count += got;
        if (status == TR_OK && text->count > most)
            status = TR_FAIL(TR_ERR_DATA,
                             "'%s' has more than %" PRId64 " MiB of text: divide it into files",
                             path, mib);
    }
    tr_textfile_close(input);
    return status;
}

bool tr_textfile_is_json_lines(const char *path) {
    size_t n = strlen(path);
    if (ends_with(path, n, ".gz")) n -= 3;
    else if (ends_with(path, n, ".zst")) n -= 4;
    return ends_with(path, n, ".jsonl") || ends_with(path, n, ".json") ||
           ends_with(path, n, ".ndjson");
}
