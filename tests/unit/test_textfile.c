/* Text files and JSON lines: compressed ones give their text, cut-off ones a sentence; strings of
 * JSON come out as Unicode text, and damaged lines are refused. */
#include "base/philox.h"
#include "base/utf8.h"
#include "data/conversation.h"
#include "data/json_line.h"
#include "data/textfile.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cmocka.h>

enum { TEXT = 700000, ROOM = 2 * TEXT };

static char path[] = "text-XXXXXX";
static char text[TEXT], packed[ROOM], got[ROOM];
static uint64_t seed, draws;

static uint64_t draw(void) {
    return tr_mix64(seed ^ tr_mix64(draws++));
}

static void write_bytes(const char *bytes, size_t count) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

static size_t gzip_with(int level, const char *from, size_t count, char *to) {
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)from;
    z.avail_in = (uInt)count;
    z.next_out = (Bytef *)to;
    z.avail_out = ROOM / 2;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    (void)deflateEnd(&z);
    return z.total_out;
}

static size_t gzip(const char *from, size_t count, char *to) {
    return gzip_with(1, from, count, to);
}

/* With a checksum, as the program zstd writes it. */
static size_t zstd(const char *from, size_t count, char *to, size_t room) {
    ZSTD_CCtx *context = ZSTD_createCCtx();
    assert_non_null(context);
    (void)ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    size_t size = ZSTD_compress2(context, to, room, from, count);
    assert_false(ZSTD_isError(size));
    (void)ZSTD_freeCCtx(context);
    return size;
}

/* Reads the whole file in pieces of a size. */
static tr_status read_all(size_t piece, int64_t skip, size_t *count) {
    tr_textfile *in;
    TR_TRY(tr_textfile_open(path, &in));
    tr_status status = tr_textfile_skip(in, skip);
    size_t n = piece;
    for (*count = 0; status == TR_OK && n == piece; *count += n) {
        assert_true(*count + piece <= ROOM);
        status = tr_textfile_read(in, got + *count, piece, &n);
    }
    if (status == TR_OK) assert_int_equal(tr_textfile_used(in), tr_textfile_size(in));
    tr_textfile_close(in);
    return status;
}

static void has_text(void) {
    static const size_t piece[] = {1000, 4096, 300000, TEXT + 5};
    size_t count;
    for (int i = 0; i < 4; i++) {
        if (read_all(piece[i], 0, &count) != TR_OK) fail_msg("%s", tr_error_message());
        assert_int_equal(count, TEXT);
        assert_memory_equal(got, text, TEXT);
    }
    static const int64_t skip[] = {1, 5000, 500000, TEXT};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(read_all(7000, skip[i], &count), TR_OK);
        assert_int_equal(count, TEXT - skip[i]);
        assert_memory_equal(got, text + skip[i], count);
    }
    assert_int_equal(read_all(7000, TEXT + 1, &count), TR_ERR_DATA);
}

/* Characters of 1 to 4 bytes, all complete: 7000 and the places to skip to are between two. */
static void write_text(void) {
    static const char *const character[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    static const size_t ends[] = {1, 5000, TEXT / 2, 500000, TEXT};
    int next = 0;
    for (size_t i = 0; i < TEXT;) {
        const char *c = draw() % 8 ? NULL : character[draw() % 3];
        const size_t length = c ? strlen(c) : 1;
        if (i == ends[next]) next++;
        if (i + length > ends[next]) c = NULL;
        if (c) memcpy(text + i, c, length);
        else text[i] = "words and lines\n"[draw() % 16];
        i += c ? length : 1;
    }
}

static void compressed_files_give_their_text(void **state) {
    (void)state;
    size_t half = TEXT / 2, size, count;
    write_text();
    write_bytes(text, TEXT);
    has_text();
    size = gzip(text, TEXT, packed);
    write_bytes(packed, size);
    has_text();
    size = gzip(text, half, packed); /* two members in one file */
    size += gzip(text + half, TEXT - half, packed + size);
    write_bytes(packed, size);
    has_text();
    size = zstd(text, half, packed, ROOM);
    size += zstd(text + half, TEXT - half, packed + size, ROOM - size);
    write_bytes(packed, size);
    has_text();
    /* Cut off in the middle, and damaged. */
    for (int kind = 0; kind < 2; kind++) {
        size = kind ? zstd(text, TEXT, packed, ROOM) : gzip(text, TEXT, packed);
        for (size_t cut = 20; cut < size; cut += size / 37) {
            write_bytes(packed, cut);
            assert_int_equal(read_all(TEXT, 0, &count), TR_ERR_DATA);
            assert_non_null(strstr(tr_error_message(), "it was cut off"));
        }
        for (size_t i = 0; i < 20; i++) packed[size / 2 + i] = (char)draw();
        write_bytes(packed, size);
        assert_int_equal(read_all(TEXT, 0, &count), TR_ERR_DATA);
        /* Even where the damage reads as other text, or as data that go on past the file's end. */
        assert_non_null(strstr(tr_error_message(), "is damaged near byte "));
    }
    write_bytes("", 0);
    assert_int_equal(read_all(10, 0, &count), TR_OK);
    assert_int_equal(count, 0);
}

/* Damage in a later block of zstd is not at byte 0. */
static void damage_has_a_position(void **state) {
    (void)state;
    size_t count, size;
    for (size_t i = 0; i < TEXT; i++) text[i] = (char)('a' + draw() % 26);
    size = zstd(text, TEXT, packed, ROOM);
    assert_true(size > 400000);
    memset(packed + 100000, 0xff, 150000); /* with the headers of blocks */
    write_bytes(packed, size);
    assert_int_equal(read_all(TEXT, 0, &count), TR_ERR_DATA);
    const char *at = strstr(tr_error_message(), "is damaged near byte ");
    assert_non_null(at);
    const long position = strtol(at + strlen("is damaged near byte "), NULL, 10);
    if (position < 1000 || position > 250000) fail_msg("%s", tr_error_message());
}

/* Bytes that are stored as they are: the damage reads as text, and only the checksum tells. */
static void damage_that_reads_as_text_is_named(void **state) {
    enum { BYTES = TEXT / 2 };
    (void)state;
    size_t count, size;
    for (size_t i = 0; i < BYTES; i++) text[i] = (char)(draw() % 128); /* nothing to compress */
    for (int kind = 0; kind < 2; kind++) {
        size = kind ? zstd(text, BYTES, packed, ROOM) : gzip_with(0, text, BYTES, packed);
        packed[5000] = (char)0xff;
        write_bytes(packed, size);
        for (size_t piece = 1000; piece <= BYTES; piece += BYTES - 1000) {
            assert_int_equal(read_all(piece, 0, &count), TR_ERR_DATA);
            if (!strstr(tr_error_message(), "is damaged near byte "))
                fail_msg("%s", tr_error_message());
        }
        /* An intact file is not UTF-8, or has a line that is not JSON. */
        tr_textfile *in;
        text[9] = (char)0xff;
        size = kind ? zstd(text, BYTES, packed, ROOM) : gzip_with(0, text, BYTES, packed);
        write_bytes(packed, size);
        assert_int_equal(read_all(1000, 0, &count), TR_ERR_DATA);
        assert_non_null(strstr(tr_error_message(), "is not UTF-8: byte 9 "));
        text[9] = 'a';
        size = kind ? zstd(text, BYTES, packed, ROOM) : gzip_with(0, text, BYTES, packed);
        for (int damaged = 0; damaged < 2; damaged++) {
            if (damaged) packed[size - (kind ? 1 : 5)] ^= 1; /* of the checksum */
            write_bytes(packed, size);
            assert_int_equal(tr_textfile_open(path, &in), TR_OK);
            assert_int_equal(tr_textfile_read(in, got, 1000, &count), TR_OK);
            assert_int_equal(tr_textfile_judge(in, TR_OK), TR_OK);
            assert_int_equal(tr_textfile_judge(in, TR_FAIL(TR_ERR_DATA, "line 1: no JSON")),
                             TR_ERR_DATA);
            assert_true(damaged == !strstr(tr_error_message(), "line 1: no JSON"));
            tr_textfile_close(in);
        }
    }
}

/* A name that promises compression. */
static void names_of_compressed_files(void **state) {
    (void)state;
    char name[32];
    size_t size, count;
    tr_byte_list all = {0};
    for (int kind = 0; kind < 2; kind++) {
        size = kind ? zstd("words\n", 6, packed, ROOM) : gzip("words\n", 6, packed);
        (void)snprintf(name, sizeof name, "%s.%s", path, kind ? "zst" : "gz");
        for (size_t cut = 0; cut <= size; cut++) {
            write_bytes(packed, cut);
            assert_int_equal(rename(path, name), 0);
            tr_textfile *in = NULL;
            tr_status status = tr_textfile_open(name, &in);
            if (status == TR_OK) status = tr_textfile_read(in, got, 10, &count);
            tr_textfile_close(in);
            assert_int_equal(status, cut < size ? TR_ERR_DATA : TR_OK);
            if (cut < 2) assert_non_null(strstr(tr_error_message(), "does not begin as a file of"));
        }
        assert_memory_equal(got, "words\n", 6);
        assert_int_equal(unlink(name), 0);
    }
    /* A frame that is passed over comes first. */
    memcpy(packed, "\x50\x2a\x4d\x18\3\0\0\0abc", 11);
    write_bytes(packed, 11 + zstd("words\n", 6, packed + 11, ROOM - 11));
    if (tr_textfile_load(path, 1, &all) != TR_OK) fail_msg("%s", tr_error_message());
    assert_int_equal(all.count, 6);
    free(all.byte);
}

static void a_whole_text_has_a_limit(void **state) {
    (void)state;
    enum { MIB = 1 << 20 };
    char *large = malloc(MIB + 1);
    assert_non_null(large);
    memset(large, 'a', MIB + 1);
    for (int over = 0; over < 2; over++) {
        tr_byte_list all = {0};
        write_bytes(large, MIB + (size_t)over);
        tr_status status = tr_textfile_load(path, 1, &all);
        assert_int_equal(status, over ? TR_ERR_DATA : TR_OK);
        if (over) assert_non_null(strstr(tr_error_message(), "has more than 1 MiB of text"));
        else assert_int_equal(all.count, MIB);
        free(all.byte);
    }
    free(large);
}

/* Returns the position of the first invalid byte; `count`: all are valid. */
static size_t first_invalid(size_t count) {
    const uint8_t *p = (const uint8_t *)text, *end = p + count;
    for (uint32_t cp; p < end;) {
        const size_t length = tr_utf8_next(p, end, &cp);
        if (cp >= TR_CP_INVALID && cp < TR_CP_INVALID + 256) break;
        p += length;
    }
    return (size_t)(p - (const uint8_t *)text);
}

/* Text that is not UTF-8 is refused with its first invalid byte, in whatever pieces it is read and
 * also when it is compressed. */
static void text_is_utf8(void **state) {
    (void)state;
    static const char *const part[] = {
        "plain text ",
        "\xc3\xa9",
        "\xe2\x82\xac",
        "\xf0\x9f\x98\x80",
        "\xed\x9f\xbf",
        "\xef\xbf\xbf",
        "\xf4\x8f\xbf\xbf",
        "\xe0\xa0\x80",
        "\xf0\x90\x80\x80",
        "\xff",
        "\x80",
        "\xc3",
        "\xe2\x82",
        "\xf0\x9f\x98",
        "\xc1\xbf",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80",
    };
    enum { VALID = 9, PARTS = sizeof part / sizeof *part };
    const int64_t rounds = tr_test_rounds(400);
    int64_t refused = 0;
    for (int64_t round = 0; round < rounds; round++) {
        size_t length = 0, count;
        for (uint64_t n = draw() % 40; n > 0; n--) {
            const char *p = part[draw() % (draw() % 50 ? VALID : PARTS)];
            memcpy(text + length, p, strlen(p));
            length += strlen(p);
        }
        if (draw() % 2 && length > 0) text[draw() % length] = (char)draw();
        const size_t valid = first_invalid(length);
        if (draw() % 2) write_bytes(text, length);
        else write_bytes(packed, gzip(text, length, packed));
        const tr_status status = read_all(1 + draw() % 30, 0, &count);
        if (valid == length) {
            if (status != TR_OK) fail_msg("%s", tr_error_message());
            assert_int_equal(count, length);
            assert_memory_equal(got, text, length);
            continue;
        }
        char want[100];
        refused++;
        assert_int_equal(status, TR_ERR_DATA);
        (void)snprintf(want, sizeof want, "is not UTF-8: byte %zu of its text (0x%02x) is not",
                       valid, (unsigned char)text[valid]);
        if (!strstr(tr_error_message(), want)) fail_msg("%s\n%s", want, tr_error_message());
    }
    assert_in_range(refused, rounds / 4, rounds);
    /* Behind a part that is passed over, the position is still that in the text. */
    size_t count;
    char place[64];
    write_text();
    text[600000] = (char)0xff; /* perhaps amid a character, which is the fault then */
    text[600001] = 'a';
    write_bytes(text, TEXT);
    assert_int_equal(read_all(7000, 500000, &count), TR_ERR_DATA);
    const size_t at = first_invalid(TEXT);
    assert_in_range(at, 599997, 600000);
    (void)snprintf(place, sizeof place, "byte %zu of its text (0x%02x)", at,
                   (unsigned char)text[at]);
    assert_non_null(strstr(tr_error_message(), place));
    write_bytes("\xff\xfe"
                "a\0",
                4);
    assert_int_equal(read_all(7000, 0, &count), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "(iconv -f UTF-16 -t UTF-8)"));
}

/* --- JSON lines ------------------------------------------------------------------------------- */

static void reads(const char *line, const char *want) {
    char buffer[400];
    tr_jsonl found;
    assert_true(strlen(line) <= sizeof buffer);
    if (!tr_jsonl_read(line, strlen(line), "text", buffer, &found))
        fail_msg("%s: %s at %zu", line, found.fault, found.at);
    assert_int_equal(found.length, strlen(want));
    assert_memory_equal(found.text, want, found.length);
}

static void refuses(const char *line, size_t at, const char *fault) {
    char buffer[400];
    tr_jsonl found;
    if (tr_jsonl_read(line, strlen(line), "text", buffer, &found)) fail_msg("%s: read", line);
    assert_string_equal(found.fault, fault);
    assert_int_equal(found.at, at);
}

static void strings_come_out_as_text(void **state) {
    (void)state;
    reads("{\"text\": \"a b\"}", "a b");
    reads(" {\"id\":1e-5,\"x\":[{\"text\":\"no\"},[]],\"text\":\"yes\",\"y\":null} \r", "yes");
    reads("{\"text\": \"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t");
    reads("{\"te\\u0078t\": \"\\u00e9\\u20ac\\ud83d\\ude00\"}",
          "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    reads("{\"text\": \"\\ud83d|\\ude00|\\ud83d\\u0041\"}", "\xef\xbf\xbd|\xef\xbf\xbd|\xef\xbf\xbd"
                                                            "A");
    reads("{\"text\":\"first\",\"text\":\"last\"}", "last");
    reads("{\"text\":\"\"}", "");
    char buffer[100];
    tr_jsonl found;
    const char zero[] = "{\"text\": \"a\\u0000b\"}";
    assert_true(tr_jsonl_read(zero, strlen(zero), "text", buffer, &found));
    assert_int_equal(found.length, 3);
    assert_memory_equal(found.text, "a\0b", 3);
    refuses("", 0, "a line is one JSON object, which begins with {");
    refuses("[1]", 0, "a line is one JSON object, which begins with {");
    refuses("{\"a\": 1}", 0, "the object does not have that key");
    refuses("{\"text\": 1}", 9, "the value is not a string");
    refuses("{\"text\": \"a}", 9, "a string does not end");
    refuses("{\"text\": \"a\\x\"}", 11, "an unknown escape");
    refuses("{\"text\": \"\\u12g4\"}", 14, "\\u needs 4 hexadecimal digits");
    refuses("{\"text\": \"a\tb\"}", 11, "a control character within a string");
    refuses("{\"text\": \"a\" \"b\"}", 13, "a comma is missing");
    refuses("{\"text\" \"a\"}", 8, "a colon is missing");
    refuses("{\"a\": 01, \"text\": \"a\"}", 6, "a value is missing");
    refuses("{\"text\": \"a\"} x", 14, "text after the object");
    refuses("{\"text\": \"a\",}", 13, "a string in quotes is missing");
    char deep[300] = "{\"a\":";
    memset(deep + 5, '[', 200);
    refuses(deep, 68, "values are nested too deep");
}

/* Damaged lines: read or refused, without a byte beyond the line or its buffer. */
static void damaged_lines_never_crash(void **state) {
    (void)state;
    static const char good[] = "{\"meta\": {\"n\": [1, -2.5e+3, true]}, \"text\": "
                               "\"a\\n\\ud83d\\ude00 \\u00e9 b\", \"z\": null}";
    static const char likely[] = "{}[]\",:\\u0dDn\"\x01\xff ";
    const int64_t rounds = tr_test_rounds(20000);
    int64_t accepted = 0;
    for (int64_t round = 0; round < rounds; round++) {
        size_t length = sizeof good - 1;
        char bytes[sizeof good];
        memcpy(bytes, good, length);
        for (uint64_t n = 1 + draw() % 3; n > 0; n--)
            bytes[draw() % length] =
                draw() % 2 ? likely[draw() % (sizeof likely - 1)] : (char)draw();
        if (draw() % 3 == 0) length = draw() % length;
        char *line = malloc(length + 1),
             *buffer = malloc(length + 1); /* for the address sanitizer */
        assert_non_null(line);
        assert_non_null(buffer);
        memcpy(line, bytes, length);
        buffer[length] = 77;
        tr_jsonl found;
        if (tr_jsonl_read(line, length, "text", buffer, &found)) {
            accepted++;
            assert_true(found.length < length);
        } else {
            assert_non_null(found.fault);
            assert_true(found.at <= length);
        }
        assert_int_equal(buffer[length], 77);
        free(line);
        free(buffer);
    }
    assert_in_range(accepted, rounds / 200, rounds - rounds / 4);
}

/* Damaged conversations: read or refused, with texts inside of the buffer. */
static void damaged_conversations_never_crash(void **state) {
    (void)state;
    static const char *const good[] = {
        ("{\"id\": [1, {\"role\": 2}], \"messages\": [{\"role\": \"user\", \"content\": "
         "\"a\\n\\ud83d\\ude00\"}, {\"content\": \"\", \"role\": \"assistant\"}]}"),
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"\\u00e9\"}], \"messages\": []}",
        "{\"prompt\": \"a\", \"x\": null, \"completion\": \"b\", \"answer\": \"c\\\\\"}"};
    static const char likely[] = "{}[]\",:\\u0dDn\"\x01\xff ";
    int accepted = 0;
    const int64_t rounds = tr_test_rounds(20000);
    tr_conversation c = {0};
    for (int64_t round = 0; round < rounds; round++) {
        const char *from = good[draw() % 3];
        size_t length = strlen(from);
        char *line = malloc(length + 1); /* for the address sanitizer */
        assert_non_null(line);
        memcpy(line, from, length);
        for (uint64_t n = draw() % 4; n > 0; n--)
            line[draw() % length] =
                draw() % 2 ? likely[draw() % (sizeof likely - 1)] : (char)draw();
        if (draw() % 3 == 0) length = draw() % length;
        line = realloc(line, length + 1);
        assert_non_null(line);
        tr_status status = tr_conversation_read(line, length, &c);
        assert_true(status == TR_OK || status == TR_ERR_DATA);
        accepted += status == TR_OK;
        for (size_t i = 0; status == TR_OK && i < c.count; i++) {
            assert_true(c.turn[i].role <= TR_ROLE_ASSISTANT);
            assert_true(c.turn[i].text >= c.buffer);
            assert_true(c.turn[i].text + c.turn[i].length <= c.buffer + length);
        }
        free(line);
    }
    tr_conversation_free(&c);
    assert_in_range(accepted, rounds / 100, rounds);
}

static int make_path(void **state) {
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

int main(void) {
    seed = tr_test_seed(9);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compressed_files_give_their_text),
        cmocka_unit_test(damage_has_a_position),
        cmocka_unit_test(damage_that_reads_as_text_is_named),
        cmocka_unit_test(names_of_compressed_files),
        cmocka_unit_test(a_whole_text_has_a_limit),
        cmocka_unit_test(text_is_utf8),
        cmocka_unit_test(strings_come_out_as_text),
        cmocka_unit_test(damaged_lines_never_crash),
        cmocka_unit_test(damaged_conversations_never_crash),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
