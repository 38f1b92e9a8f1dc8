/* Decoding gives the text back, for any bytes: decode(encode(x)) = x without a normalizer, NFC(x)
 * with NFC, and what docs/data.md says of the others. TRIREME_ROUNDS texts for each tokenizer. */
#include "base/json.h"
#include "support/drawn_texts.h"
#include "support/must.h"
#include "support/scratch.h"
#include "support/seed.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static drawn_texts texts;

static int begin(void **state) {
    drawn_load(&texts);
    return set_up(state);
}

static int end(void **state) {
    drawn_free(&texts);
    return tear_down(state);
}

/* Draws a text and replaces some of its bytes; every fourth text is random bytes only. */
static size_t draw_bytes(uint64_t *random, char text[DRAWN_MAX]) {
    size_t length = drawn_text(&texts, *random, text);
    const bool random_only = tr_up_to(random, 4) == 1;
    for (size_t i = 0; i < length && random_only; i++) text[i] = (char)tr_up_to(random, 256);
    for (int64_t i = tr_up_to(random, 6); i > 1 && length; i--)
        text[(size_t)tr_up_to(random, (int64_t)length) - 1] = (char)tr_up_to(random, 256);
    return length;
}

static void append(tr_byte_list *out, const void *bytes, size_t length) {
    out->byte = realloc(out->byte, out->count + length + 1);
    assert_non_null(out->byte);
    memcpy(out->byte + out->count, bytes, length);
    out->count += length;
}

/* What a text is expected to come back as. */
typedef void expect_fn(const uint8_t *text, size_t length, tr_byte_list *out);

static void expect_same(const uint8_t *text, size_t length, tr_byte_list *out) {
    append(out, text, length);
}

/* NFC of each part that is UTF-8; other bytes stay. */
static void expect_nfc(const uint8_t *text, size_t length, tr_byte_list *out) {
    const uint8_t *p = text, *stop = text + length;
    while (p < stop) {
        const uint8_t *q = p;
        uint32_t cp;
        for (size_t bytes; q < stop; q += bytes) {
            bytes = tr_utf8_next(q, stop, &cp);
            if (!tr_utf8_is_valid(q, bytes)) break;
        }
        if (q > p) {
            uint8_t *normal;
            const utf8proc_ssize_t bytes =
                utf8proc_map(p, q - p, &normal, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
            assert_true(bytes >= 0);
            append(out, normal, (size_t)bytes);
            free(normal);
        }
        for (p = q; p < stop && !tr_utf8_is_valid(p, tr_utf8_next(p, stop, &cp)); p++)
            append(out, p, 1);
    }
}

/* U+2581 stands for a space. */
static void expect_spaces(const uint8_t *text, size_t length, tr_byte_list *out) {
    for (size_t i = 0; i < length; i++) {
        const bool mark = i + 3 <= length && !memcmp(text + i, "\xE2\x96\x81", 3);
        append(out, mark ? " " : (const char *)text + i, 1);
        if (mark) i += 2;
    }
}

/* The same; the decoder of Metaspace removes a space that the text itself begins with. */
static void expect_metaspace(const uint8_t *text, size_t length, tr_byte_list *out) {
    expect_spaces(text, length, out);
    if (out->count && out->byte[0] == ' ') memmove(out->byte, out->byte + 1, --out->count);
}

static void check_one(const tr_tokenizer *t, tr_encoder *encoder, const char *name,
                      const char *text, size_t length, expect_fn *expected) {
    tr_token_list ids = {0};
    tr_byte_list back = {0}, want = {0};
    must(tr_encoder_add(encoder, text, length, TR_ENCODE_NO_SPECIAL, &ids));
    must(tr_tokenizer_decode(t, ids.id, ids.count, 0, &back));
    expected((const uint8_t *)text, length, &want);
    if (back.count != want.count || (want.count && memcmp(back.byte, want.byte, want.count))) {
        for (size_t i = 0; i < length; i++) print_error("\\x%02X", (uint8_t)text[i]);
        fail_msg("%s: this text comes back as another", name);
    }
    free(ids.id);
    free(back.byte);
    free(want.byte);
}

static void check(const char *path, const char *name, expect_fn *expected) {
    enum { JOINED = 16 }; /* texts in one: a long piece is encoded in parts */
    static char text[JOINED * DRAWN_MAX];
    const int64_t rounds = tr_test_rounds(2000);
    uint64_t random = tr_test_seed(11);
    tr_tokenizer *t;
    tr_encoder *encoder;
    must(tr_tokenizer_open(path, &t));
    must(tr_encoder_open(t, &encoder));
    for (int64_t round = 0; round < rounds; round++) {
        size_t length = draw_bytes(&random, text);
        for (int i = 1; i < JOINED && round % JOINED == 0; i++)
            length += draw_bytes(&random, text + length);
        check_one(t, encoder, name, text, length, expected);
    }
    tr_encoder_close(encoder);
    tr_tokenizer_close(t);
}

static void test_all(void **state) {
    (void)state;
    static const struct {
        const char *name;
        expect_fn *expected;
    } kinds[] = {
        {"gpt2", expect_same},     {"llama3", expect_same},         {"o200k", expect_same},
        {"llama2", expect_spaces}, {"metaspace", expect_metaspace},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char path[1024];
        drawn_path(kinds[i].name, ".json", path);
        check(path, kinds[i].name, kinds[i].expected);
    }
}

/* Writes a golden tokenizer without one of its parts, and with another one (NULL: with none), and
 * returns the path. */
static const char *altered(const char *name, const char *part, const char *value) {
    cJSON *json;
    char golden_file[1024];
    drawn_path(name, ".json", golden_file);
    must(tr_json_load("the golden file", golden_file, 256, &json));
    cJSON_DeleteItemFromObjectCaseSensitive(json, part);
    if (value) assert_true(cJSON_AddItemToObject(json, part, cJSON_Parse(value)));
    char *text = cJSON_PrintUnformatted(json);
    const char *path = path_of("altered.json");
    assert_non_null(text);
    write_file(path, text, strlen(text));
    free(text);
    cJSON_Delete(json);
    return path;
}

/* Without the added tokens, some of which take white space along. */
static void test_nfc(void **state) {
    (void)state;
    check(altered("qwen", "added_tokens", NULL), "qwen", expect_nfc);
}

/* A pattern that only PCRE2 knows. */
static void test_other_pattern(void **state) {
    (void)state;
    static const char pre[] =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
        "{\"Regex\": \"\\\\p{L}+|\\\\s|[^x]\"}, \"behavior\": \"Isolated\"}, {\"type\": "
        "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}";
    check(altered("gpt2", "pre_tokenizer", pre), "gpt2 by PCRE2", expect_same);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_other_pattern),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
