/* Damaged tokenizers: random changes of good files, and each kind of fault once. Every one is
 * refused with a sentence and TR_ERR_DATA, or opens and encodes. TRIREME_ROUNDS: how many random
 * files. */
#include "base/input.h"
#include "support/scratch.h"
#include "support/seed.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tr_input_limit limit = {.mib = 16, .failure = TR_ERR_DATA};

/* Writes a tokenizer and returns its path. */
static const char *written(const char *text, size_t length) {
    const char *path = path_of("t.json");
    write_file(path, text, length);
    return path;
}

/* Opens a file and encodes a text with it; only TR_ERR_DATA is an allowed failure. */
static tr_status open_and_use(const char *text, size_t length) {
    static const char sample[] = "The quick  brown\n\nfox's 12345 \xC3\xA9\x80\xFF<|endoftext|> "
                                 "e\xCC\x81 \xE4\xB8\xAD\xE6\x96\x87\t\t aaaaaaaaaaaaaaaaaaaaaa";
    tr_tokenizer *t;
    tr_encoder *encoder;
    tr_token_list ids = {0};
    tr_byte_list back = {0};
    tr_status status = tr_tokenizer_open(written(text, length), &t);
    if (status != TR_OK) {
        assert_null(t);
        assert_int_equal(status, TR_ERR_DATA);
        assert_non_null(strchr(tr_error_message(), '\''));
        return status;
    }
    must(tr_encoder_open(t, &encoder));
    status = tr_encoder_add(encoder, sample, sizeof sample - 1, TR_ENCODE_TEMPLATE, &ids);
    assert_true(status == TR_OK || status == TR_ERR_DATA);
    for (size_t i = 0; i < ids.count; i++)
        assert_true(ids.id[i] >= 0 && ids.id[i] < tr_tokenizer_size(t));
    must(tr_tokenizer_decode(t, ids.id, ids.count, 0, &back));
    free(ids.id);
    free(back.byte);
    tr_encoder_close(encoder);
    tr_tokenizer_close(t);
    return status;
}

/* Makes 1 to 4 random changes: bytes, cut ends, parts that are doubled, moved or removed,
 * numbers. */
static size_t damage(char *text, size_t length, size_t room, uint64_t *random) {
    static const char *const words[] = {"null", "-1",          "1e300",    "{}",
                                        "[]",   "\"\"",        "true",     "0.5",
                                        "[[[",  "\"\\u0000\"", "16777216", "2147483648"};
    for (int64_t n = tr_up_to(random, 4); n > 0 && length > 16; n--) {
        size_t at = (size_t)tr_up_to(random, (int64_t)length) - 1;
        size_t bytes = (size_t)tr_up_to(random, 40), rest = length - at;
        const char *word = words[tr_up_to(random, 12) - 1];
        if (bytes > rest) bytes = rest;
        switch (tr_up_to(random, 6)) {
        case 1: text[at] = (char)tr_up_to(random, 256); break;
        case 2: text[at] = "{}[]\",:0 9a\\"[tr_up_to(random, 12) - 1]; break;
        case 3: /* removed */
            memmove(text + at, text + at + bytes, rest - bytes);
            length -= bytes;
            break;
        case 4: /* doubled */
            if (length + bytes > room) break;
            memmove(text + at + bytes, text + at, rest);
            length += bytes;
            break;
        case 5: /* another value after a colon or a comma */
            while (at < length && text[at] != ':' && text[at] != ',') at++;
            if (at + 1 + strlen(word) < length) memcpy(text + at + 1, word, strlen(word));
            break;
        default:
            if (tr_up_to(random, 8) == 1) length = at + 1;
        }
    }
    return length;
}

static void test_random(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2", "llama3", "qwen", "prefix", "llama2", "metaspace"};
    const int count = (int)tr_test_rounds(300);
    int opened = 0;
    uint64_t random = tr_test_seed(3);
    for (int i = 0; i < count; i++) {
        char path[1024], *good;
        size_t length;
        (void)snprintf(path, sizeof path, TRIREME_TEST_GOLDEN "/tokenizers/%s.json", names[i % 6]);
        must(tr_input_load("golden file", path, limit, &good, &length));
        /* Most of a file is vocabulary; a part of it is cut out, so that faults are elsewhere
         * too. */
        char *text = malloc(length + 4096);
        memcpy(text, good, length);
        size_t size = damage(text, length, length + 4096, &random);
        opened += open_and_use(text, size) == TR_OK;
        free(text);
        free(good);
    }
    print_message("%d of %d damaged files open\n", opened, count);
    assert_true(opened > 0 && opened < count);
}

/* A file of a few tokens with one part replaced. */
static tr_status with(const char *part, const char *value) {
    static const char *const parts[][2] = {
        {"added", "[{\"id\": 5, \"content\": \"<|endoftext|>\", \"special\": true}]"},
        {"normalizer", "null"},
        {"pre", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}"},
        {"decoder", "{\"type\": \"ByteLevel\"}"},
        {"post", "null"},
        {"type", "\"BPE\""},
        {"more", ""},
        {"vocab", "{\"a\": 0, \"b\": 1, \"ab\": 2, \"c\": 3, \"abc\": 4}"},
        {"merges", "[[\"a\", \"b\"], \"ab c\"]"},
    };
    const char *v[9];
    char *text;
    for (int i = 0; i < 9; i++) v[i] = strcmp(part, parts[i][0]) ? parts[i][1] : value;
    int length = asprintf(&text,
                          "{\"added_tokens\": %s, \"normalizer\": %s, \"pre_tokenizer\": %s, "
                          "\"decoder\": %s, \"post_processor\": %s, \"model\": {\"type\": %s, %s "
                          "\"vocab\": %s, \"merges\": %s}}",
                          v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]);
    assert_true(length > 0);
    tr_status status = open_and_use(text, (size_t)length);
    free(text);
    return status;
}

static void faulty(const char *part, const char *value, const char *words) {
    if (with(part, value) == TR_OK) fail_msg("%s = %s is accepted", part, value);
    if (!strstr(tr_error_message(), words))
        fail_msg("%s = %s: the message has no '%s': %s", part, value, words, tr_error_message());
}

static void test_faults(void **state) {
    (void)state;
    assert_int_equal(with("none", ""), TR_OK);
    faulty("type", "\"Unigram\"", "of the kind 'Unigram'; Trireme reads byte-level BPE");
    faulty("type", "\"WordPiece\"", "of the kind 'WordPiece'");
    faulty("merges", "[[\"a\", \"x\"]]", "model.merges[0] names a token");
    faulty("merges", "[[\"b\", \"a\"]]", "gives a text that is not in the vocabulary");
    faulty("merges", "[[\"a\", \"b\"], [\"a\"]]", "model.merges[1] must be");
    faulty("merges", "[[\"\", \"a\"]]", "model.merges[0]");
    faulty("merges", "{}", "array model.merges");
    faulty("vocab", "{\"a\": 0, \"b\": 0}", "id 0 is given to two tokens");
    faulty("vocab", "{\"a\": 0, \"a\": 1}", "given twice");
    faulty("vocab", "{\"a\": -1}", "must be an id");
    faulty("vocab", "{\"a\": 1.5}", "must be an id");
    faulty("vocab", "{\"a\": 4000000000}", "must be an id");
    faulty("vocab", "{\"a\": \"0\"}", "must be an id");
    faulty("vocab", "{\"a\": 0, \"b\": 1, \"ab\": 2, \"c\": 3, \"abc\": 4, \"\\u0000\": 6}",
           "has a zero character");
    /* An escaped backslash before u0000, a real one after an escaped backslash. */
    assert_int_equal(with("vocab", "{\"a\": 0, \"b\": 1, \"ab\": 2, \"c\": 3, \"abc\": 4, "
                                   "\"\\\\u0000\": 6}"),
                     TR_OK);
    faulty("vocab", "{\"\\\\\\u0000\": 6}", "has a zero character");
    faulty("added", "[{\"id\": 2, \"content\": \"x\"}]", "gives this id to another token");
    faulty("added", "[{\"id\": 9, \"content\": \"ab\"}]", "gives this text another id");
    faulty("added", "[{\"id\": -9, \"content\": \"x\"}]", "added_tokens[0].id must be an id");
    faulty("added", "[{\"id\": 9}]", "added_tokens[0].content must be a string");
    faulty("added", "[9]", "added_tokens[0]");
    faulty("normalizer", "{\"type\": \"Precompiled\"}", "normalizer 'Precompiled'");
    faulty("pre", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}}", "does not compile");
    faulty("pre", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a[b[^c]]\"}}",
           "has at byte 1 a class without an end, or with other classes in it");
    faulty("pre", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[[:alpha:]]\"}}",
           "other classes");
    faulty("pre", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}}", "other classes");
    faulty("pre", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a[-c]]\"}}", "other classes");
    faulty("pre", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[[a]-c]\"}}", "other classes");
    faulty("pre", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a[]b]c]\"}}", "other classes");
    faulty("pre", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a[[[[[[[[[b]]]]]]]]]]\"}}",
           "other classes");
    faulty("pre", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a\"}}",
           "a class without an end");
    faulty("pre", "{\"type\": \"Split\", \"pattern\": {\"String\": \"\"}}", "is an empty text");
    faulty("pre", "{\"type\": \"Metaspace\", \"replacement\": \"__\"}", "must be one character");
    faulty("pre", "{\"type\": \"UnicodeScripts\"}", "pre_tokenizer 'UnicodeScripts'");
    faulty("decoder", "{\"type\": \"WordPiece\"}", "decoder 'WordPiece'");
    faulty("decoder", "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a\"}, \"content\": \"\"}",
           "decoder 'Replace of an expression'");
    faulty("decoder", "{\"type\": \"Strip\", \"content\": \"_\", \"start\": 1, \"stop\": 0}",
           "decoder 'Strip of anything else'");
    faulty("decoder", "{\"type\": \"Strip\", \"content\": \" \", \"start\": 0, \"stop\": 1}",
           "decoder 'Strip of anything else'");
    faulty("decoder", "{\"type\": \"Metaspace\"}",
           "decoder 'that is not ByteLevel after a ByteLevel pre_tokenizer'");
    faulty("decoder", "{\"type\": \"Metaspace\", \"replacement\": 7}",
           "decoder.replacement must be a string");
    faulty("decoder", "{\"type\": \"Metaspace\", \"add_prefix_space\": 1}",
           "decoder.add_prefix_space must be true or false");
    faulty("post", "{\"type\": \"X\"}", "post_processor 'X'");
    faulty("post", "{\"type\": \"TemplateProcessing\", \"single\": {}}",
           "post_processor.single must be an array");
    faulty("post",
           "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}], "
           "\"special_tokens\": {}}",
           "post_processor.special_tokens has no ids of 'x'");
    faulty("post",
           "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}], "
           "\"special_tokens\": {\"x\": {\"ids\": [6]}}}",
           "post_processor adds id 6, but the largest id is 5");
    faulty("post", "{\"type\": \"BertProcessing\", \"cls\": [\"x\"], \"sep\": [\"y\", 1]}",
           "post_processor.cls[1] must be an id");
    faulty("more", "\"dropout\": 0.1,", "model.dropout");
    faulty("more", "\"end_of_word_suffix\": \"</w>\",", "end_of_word_suffix");
    /* A pattern that backtracks without bound. */
    faulty("pre",
           "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
           "{\"Regex\": \"(a+)+(a+)+(a+)+(?:b|c)\"}, \"behavior\": \"Isolated\"}, {\"type\": "
           "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}",
           "match limit");
    /* A match may begin before the place from which it is searched. */
    assert_int_equal(
        with("pre",
             "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
             "{\"Regex\": \"(?<=(?1))r|(\\\\Kb)\"}, \"behavior\": \"Isolated\"}, {\"type\": "
             "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}"),
        TR_OK);
}

/* Steps of Replace that multiply a text are refused before it takes the memory. */
static void test_growth(void **state) {
    (void)state;
    enum { STEPS = 5, TIMES = 1000 };
    static char more[TIMES + 1], steps[STEPS * (TIMES + 200)], file[sizeof steps + 400];
    memset(more, 'a', TIMES);
    for (int i = 0; i < STEPS; i++)
        (void)sprintf(steps + strlen(steps),
                      "%s{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, "
                      "\"content\": \"%s\"}",
                      i ? ", " : "", more);
    (void)sprintf(file, "{\"type\": \"Sequence\", \"normalizers\": [%s]}", steps);
    faulty("normalizer", file, "normalizer make a text more than 64 times as long");
    int length =
        sprintf(file,
                "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, "
                "\"merges\": []}, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [%s]}}",
                steps);
    assert_int_equal(open_and_use(file, (size_t)length), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "decoder make more than 268435456 bytes"));
}

static void test_cut(void **state) {
    (void)state;
    char *good;
    size_t length;
    must(tr_input_load("golden file", TRIREME_TEST_GOLDEN "/tokenizers/qwen.json", limit, &good,
                       &length));
    for (size_t at = 0; at < length; at += at < 2000 ? 7 : 997)
        assert_int_equal(open_and_use(good, at), TR_ERR_DATA);
    free(good);
    char deep[20000];
    memset(deep, '[', sizeof deep);
    deep[0] = '{';
    assert_int_equal(open_and_use(deep, sizeof deep), TR_ERR_DATA);
    assert_int_equal(open_and_use("YQ== 0\nYg== 1\n", 14), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "2 ranks up to 1"));
    assert_int_equal(open_and_use("YQ== 0\nY*== 1\n", 14), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "line 2: a line is base64, a space and a rank"));
    assert_int_equal(open_and_use("YQ== 0\nYg== one\n", 16), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "line 2: a line is base64, a space and a rank"));
    assert_int_equal(open_and_use("\n\x0c\n\x05<unk>", 9), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "SentencePiece"));
    tr_tokenizer *t;
    assert_int_equal(tr_tokenizer_open("no-such-file", &t), TR_ERR_NOFILE);
    assert_int_equal(tr_tokenizer_open(".", &t), TR_ERR_DATA);
}

/* Sizes that would take quadratic time are refused, each with its place. */
static void test_sizes(void **state) {
    (void)state;
    enum { IDS = 257, CODED = 5464 /* base64 of 4098 bytes */ };
    char text[CODED + 64] = "YQ== 0\n";
    memset(text + 7, 'A', CODED);
    (void)strcpy(text + 7 + CODED, " 1\n");
    assert_int_equal(open_and_use(text, strlen(text)), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "line 2: a token of 4098 bytes"));

    char ids[IDS * 8] = "", parts[IDS * 40] = "", *post;
    for (int i = 0; i < IDS; i++) {
        (void)sprintf(ids + strlen(ids), "%s0", i ? "," : "");
        (void)sprintf(parts + strlen(parts), "%s{\"SpecialToken\": {\"id\": \"x\"}}", i ? "," : "");
    }
    static const char form[] = "{\"type\": \"TemplateProcessing\", \"single\": [%s], "
                               "\"special_tokens\": {\"x\": {\"ids\": [%s]}}}";
    assert_true(asprintf(&post, form, parts, "") > 0);
    faulty("post", post, "post_processor.single has more than 256 parts");
    free(post);
    assert_true(asprintf(&post, form, "{\"SpecialToken\": {\"id\": \"x\"}}", ids) > 0);
    faulty("post", post, "adds more than 256 ids");
    free(post);

    char path[64];
    (void)snprintf(path, sizeof path, "%s/config.json", scratch);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < IDS; i++) (void)fprintf(file, "%s%d", i ? "," : "{\"eos_token_id\": [", i);
    (void)fprintf(file, "]}");
    assert_int_equal(fclose(file), 0);
    faulty("added", "[{\"id\": 999, \"content\": \"x\"}]", "eos_token_id names more than 256 ids");
    assert_int_equal(with("none", ""), TR_OK); /* ids that the tokenizer lacks do not count */
    assert_int_equal(remove(path), 0);
}

/* Text that is not UTF-8 keeps its bytes when an expression of the normalizer sees it before a
 * known pattern cuts it. `regex` is replaced by nothing. */
static void keeps_bytes(const char *regex) {
    static const char sample[] = "\xE9 ab \xC3\xA9\xED\xB2\x80x\xCC\xFF\x80 \xFF\xFF\xF0";
    char *good, *text;
    size_t length;
    must(tr_input_load("golden file", TRIREME_TEST_GOLDEN "/tokenizers/qwen.json", limit, &good,
                       &length));
    char *at = strstr(good, "\"normalizer\":"), *end = at ? strchr(at, '}') : NULL;
    assert_non_null(end);
    int bytes = asprintf(&text,
                         "%.*s\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": ["
                         "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"%s\"}, "
                         "\"content\": \"\"}, {\"type\": \"NFC\"}]%s",
                         (int)(at - good), good, regex, end);
    assert_true(bytes > 0);
    tr_tokenizer *t;
    tr_encoder *encoder;
    tr_token_list ids = {0};
    tr_byte_list back = {0};
    must(tr_tokenizer_open(written(text, (size_t)bytes), &t));
    must(tr_encoder_open(t, &encoder));
    for (size_t from = 0; from < sizeof sample - 1; from++) {
        /* A copy without room behind it, for the sanitizer. */
        size_t part = sizeof sample - 1 - from;
        char *copy = malloc(part);
        memcpy(copy, sample + from, part);
        ids.count = back.count = 0;
        must(tr_encoder_add(encoder, copy, part, 0, &ids));
        must(tr_tokenizer_decode(t, ids.id, ids.count, 0, &back));
        assert_int_equal(back.count, part);
        assert_memory_equal(back.byte, copy, part);
        free(copy);
    }
    free(ids.id);
    free(back.byte);
    tr_encoder_close(encoder);
    tr_tokenizer_close(t);
    free(text);
    free(good);
}

static void test_not_utf8(void **state) {
    (void)state;
    keeps_bytes("\\\\t+");
    keeps_bytes("\\\\t*"); /* also matches nothing, between any two characters */
    keeps_bytes("\\\\t|[\\\\x{10000}-\\\\x{10FFFF}]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults),   cmocka_unit_test(test_cut),
        cmocka_unit_test(test_growth),   cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_not_utf8), cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
