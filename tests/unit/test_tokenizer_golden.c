/* The ids of the reference: tests/golden/make_tokenizers.py made the tokenizers and wrote the ids
 * of texts that this test draws again. TRIREME_GOLDEN_TOKENIZERS names another folder of such
 * files. */
#include "base/json.h"
#include "support/drawn_texts.h"
#include "support/must.h"
#include "text/split_known.h"
#include "text/tokenizer.h"
#include "text/train_bpe.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    GROUP = 20,
    FULL = 10,
    STRINGS = 10000,
    SHORT = 41,      /* groups of other modes */
    WHOLE = 4 << 20, /* more bytes than all texts have */
};

static drawn_texts texts;

static const char *path_of(const char *name, const char *end) {
    static char path[1024];
    drawn_path(name, end, path);
    return path;
}

static int load_pool(void **state) {
    (void)state;
    drawn_load(&texts);
    return 0;
}

static int free_pool(void **state) {
    (void)state;
    drawn_free(&texts);
    return 0;
}

static uint64_t hash_ids(const tr_token_list *ids, uint64_t state) {
    state = (state ^ ids->count) * 0x100000001B3u;
    for (size_t i = 0; i < ids->count; i++) state = (state ^ (uint64_t)ids->id[i]) * 0x100000001B3u;
    return state;
}

/* Compares a text's ids with a line "ids COUNT ID ...". */
static void compare_full(const char *name, int number, char *line, const tr_token_list *ids) {
    char *word = strtok(line, " \n"); /* "ids" */
    size_t count = strtoull(strtok(NULL, " \n"), NULL, 10);
    assert_string_equal(word, "ids");
    for (size_t i = 0; i < count; i++) {
        long expected = strtol(strtok(NULL, " \n"), NULL, 10);
        if (i >= ids->count || ids->id[i] != expected)
            fail_msg("%s: text %d, token %zu is %d, but the reference has %ld", name, number, i,
                     i < ids->count ? ids->id[i] : -1, expected);
    }
    if (ids->count != count)
        fail_msg("%s: text %d has %zu tokens, not %zu", name, number, ids->count, count);
}

/* Compares the ids of all texts in one piece, 1 MB, with the next line. */
static void compare_whole(const char *name, tr_encoder *encoder, FILE *golden) {
    char line[64], *whole = malloc(WHOLE);
    tr_token_list ids = {0};
    size_t length = 0;
    for (uint64_t k = 0; k < STRINGS && length + DRAWN_MAX <= WHOLE; k++)
        length += drawn_text(&texts, k, whole + length);
    assert_true(length > 1000000 && length + DRAWN_MAX <= WHOLE);
    must(tr_encoder_add(encoder, whole, length, 0, &ids));
    assert_non_null(fgets(line, sizeof line, golden));
    if (hash_ids(&ids, 0xCBF29CE484222325u) != strtoull(line, NULL, 16))
        fail_msg("%s: all texts in one piece have other ids than the reference", name);
    free(whole);
    free(ids.id);
}

static void compare(const char *name, bool exact_back) {
    static const unsigned modes[] = {0, TR_ENCODE_TEMPLATE, TR_ENCODE_NO_SPECIAL};
    static char line[1 << 16], text[DRAWN_MAX];
    tr_tokenizer *t;
    tr_encoder *encoder;
    tr_token_list ids = {0};
    tr_byte_list back = {0};
    must(tr_tokenizer_open(path_of(name, ".json"), &t));
    must(tr_encoder_open(t, &encoder));
    FILE *golden = fopen(path_of(name, ".ids"), "r");
    assert_non_null(golden);
    assert_non_null(fgets(line, sizeof line, golden)); /* the version */
    for (int number = 0; number < FULL; number++) {
        ids.count = 0;
        must(tr_encoder_add(encoder, text, drawn_text(&texts, (uint64_t)number, text), 0, &ids));
        assert_non_null(fgets(line, sizeof line, golden));
        compare_full(name, number, line, &ids);
    }
    for (size_t mode = 0; mode < 3; mode++)
        for (int group = 0; group < (mode ? SHORT : STRINGS / GROUP); group++) {
            uint64_t hash = 0xCBF29CE484222325u;
            for (int k = group * GROUP; k < (group + 1) * GROUP; k++) {
                size_t length = drawn_text(&texts, (uint64_t)k, text);
                ids.count = back.count = 0;
                must(tr_encoder_add(encoder, text, length, modes[mode], &ids));
                hash = hash_ids(&ids, hash);
                if (!exact_back || modes[mode] == TR_ENCODE_TEMPLATE) continue;
                must(tr_tokenizer_decode(t, ids.id, ids.count, 0, &back));
                assert_int_equal(back.count, length);
                if (length) assert_memory_equal(back.byte, text, length);
            }
            assert_non_null(fgets(line, sizeof line, golden));
            if (hash != strtoull(line, NULL, 16))
                fail_msg("%s, mode %zu: a text from %d to %d has other ids than the reference",
                         name, mode, group * GROUP, (group + 1) * GROUP - 1);
        }
    compare_whole(name, encoder, golden);
    assert_null(fgets(line, sizeof line, golden));
    (void)fclose(golden);
    free(ids.id);
    free(back.byte);
    tr_encoder_close(encoder);
    tr_tokenizer_close(t);
}

static void test_gpt2(void **state) {
    (void)state;
    compare("gpt2", true);
}

static void test_llama3(void **state) {
    (void)state;
    compare("llama3", true);
}

static void test_qwen(void **state) {
    (void)state;
    compare("qwen", false); /* NFC, and added tokens that take white space along */
}

static void test_o200k(void **state) {
    (void)state;
    compare("o200k", true);
}

static void test_prefix(void **state) {
    (void)state;
    compare("prefix", false); /* a space in front of each text */
}

static void test_llama2(void **state) {
    (void)state;
    compare("llama2", false); /* U+2581 comes back as a space */
    compare("metaspace", false);
}

/* Compares which code points a pre-tokenizer takes for parts of words: with one of them between two
 * letters the letters merge into one token. */
static void compare_words(const char *step, uint64_t expected) {
    char path[] = "words-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    (void)dprintf(file,
                  "{\"pre_tokenizer\": %s, \"model\": {\"type\": \"BPE\", "
                  "\"vocab\": {\"a\": 0, \"aa\": 1}, \"merges\": [\"a a\"]}}",
                  step);
    assert_int_equal(close(file), 0);
    tr_tokenizer *t;
    tr_encoder *encoder;
    tr_token_list ids = {0};
    uint64_t hash = 0xCBF29CE484222325u;
    must(tr_tokenizer_open(path, &t));
    must(tr_encoder_open(t, &encoder));
    for (uint32_t cp = 0x80; cp < TR_CP_COUNT; cp++) {
        if (cp == 0xD800) cp = 0xE000;
        uint8_t text[6] = {'a'};
        size_t bytes = tr_utf8_put(cp, text + 1);
        text[bytes + 1] = 'a';
        ids.count = 0;
        must(tr_encoder_add(encoder, (const char *)text, bytes + 2, 0, &ids));
        hash = (hash ^ (ids.count == 1)) * 0x100000001B3u;
    }
    free(ids.id);
    tr_encoder_close(encoder);
    tr_tokenizer_close(t);
    assert_int_equal(remove(path), 0);
    if (hash != expected) fail_msg("%s: other words than the reference", step);
}

static void test_words(void **state) {
    (void)state;
#define SPLIT(regex)                                                                               \
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}, \"behavior\": \"Isolated\"}"
    compare_words("{\"type\": \"Whitespace\"}", 0xC9E1899B8DED33DDu);
    compare_words("{\"type\": \"WhitespaceSplit\"}", 0x9CD6412367BBB772u);
    compare_words("{\"type\": \"Digits\", \"individual_digits\": false}", 0x6F01B3A5B87BBE2Du);
    compare_words("{\"type\": \"Punctuation\", \"behavior\": \"Isolated\"}", 0xFCBA3F15ADE1A8D3u);
    compare_words(SPLIT("\\\\w+"), 0x49AD7117A0D4B961u);
    compare_words(SPLIT("[\\\\w]+"), 0x09DB88A652168843u);
    compare_words(SPLIT("\\\\W+"), 0x49AD7117A0D4B961u);
    compare_words(SPLIT("\\\\b"), 0x49AD7117A0D4B961u);
    compare_words(SPLIT("\\\\B"), 0x21BFC9EEDAF26A69u);
}

#define MARK "\xE2\x96\x81" /* U+2581 */

/* Opens a tokenizer of a few tokens with a Metaspace decoder and this post-processor. */
static tr_tokenizer *open_small(const char *scheme, const char *post) {
    char path[] = "small-XXXXXX";
    int file = mkstemp(path);
    tr_tokenizer *t;
    assert_true(file >= 0);
    (void)dprintf(file,
                  "{\"added_tokens\": [{\"id\": 0, \"content\": \"<s>\", \"special\": true}, "
                  "{\"id\": 1, \"content\": \"</s>\", \"special\": true}], \"pre_tokenizer\": "
                  "{\"type\": \"Metaspace\", \"replacement\": \"" MARK "\", "
                  "\"prepend_scheme\": \"first\", \"split\": true}, \"post_processor\": %s, "
                  "\"decoder\": {\"type\": \"Metaspace\", \"replacement\": \"" MARK "\"%s}, "
                  "\"model\": {\"type\": \"BPE\", \"vocab\": {\"<s>\": 0, \"</s>\": 1, "
                  "\"" MARK "\": 2, \"a\": 3, \"b\": 4, \"" MARK "a\": 5, \"ab\": 6}, "
                  "\"merges\": [\"" MARK " a\", \"a b\"]}}",
                  post, scheme);
    assert_int_equal(close(file), 0);
    must(tr_tokenizer_open(path, &t));
    assert_int_equal(remove(path), 0);
    return t;
}

/* The texts are those of tokenizers 0.23.3. */
static void test_metaspace_decoder(void **state) {
    (void)state;
    static const struct {
        const char *scheme;
        int32_t id[3];
        size_t count;
        const char *text;
    } cases[] = {{", \"prepend_scheme\": \"always\"", {5, 4, 5}, 3, "ab a"},
                 {", \"prepend_scheme\": \"first\"", {2, 2, 3}, 3, " a"},
                 {", \"prepend_scheme\": \"first\"", {3, 5}, 2, "a a"},
                 {", \"prepend_scheme\": \"never\"", {5, 4, 5}, 3, " ab a"},
                 {", \"prepend_scheme\": \"never\"", {2, 2, 3}, 3, "  a"},
                 {"", {5, 4, 5}, 3, "ab a"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tr_tokenizer *t = open_small(cases[k].scheme, "null");
        tr_byte_list back = {0};
        must(tr_tokenizer_decode(t, cases[k].id, cases[k].count, 0, &back));
        assert_int_equal(back.count, strlen(cases[k].text));
        assert_memory_equal(back.byte, cases[k].text, back.count);
        free(back.byte);
        tr_tokenizer_close(t);
    }
}

/* RobertaProcessing and BertProcessing put an id before and after a text. */
static void test_frames(void **state) {
    (void)state;
    static const int32_t expected[] = {0, 5, 5, 4, 1};
    static const char *const type[] = {"Roberta", "Bert"};
    for (size_t k = 0; k < 2; k++) {
        char post[160];
        tr_encoder *encoder;
        tr_token_list ids = {0};
        (void)snprintf(post, sizeof post,
                       "{\"type\": \"%sProcessing\", \"sep\": [\"</s>\", 1], \"cls\": [\"<s>\", "
                       "0]}",
                       type[k]);
        tr_tokenizer *t = open_small("", post);
        must(tr_encoder_open(t, &encoder));
        must(tr_encoder_add(encoder, "a ab", 4, TR_ENCODE_TEMPLATE, &ids));
        assert_int_equal(ids.count, 5);
        assert_memory_equal(ids.id, expected, sizeof expected);
        free(ids.id);
        tr_encoder_close(encoder);
        tr_tokenizer_close(t);
    }
}

static void expect_same_json(const cJSON *a, const cJSON *b, const char *key) {
    const cJSON *x = tr_json_get(tr_json_get(a, "model"), key);
    const cJSON *y = tr_json_get(tr_json_get(b, "model"), key);
    assert_non_null(x);
    assert_int_equal(cJSON_GetArraySize(x), cJSON_GetArraySize(y));
    const cJSON *q = y->child;
    for (const cJSON *p = x->child; p; p = p->next, q = q->next) {
        char *joined = NULL; /* a merge is "a b" in one file, ["a", "b"] in the other */
        if (cJSON_IsArray(p))
            assert_true(
                asprintf(&joined, "%s %s", p->child->valuestring, p->child->next->valuestring) > 0);
        const char *text = joined ? joined : p->valuestring;
        if (cJSON_IsNumber(p)) {
            const cJSON *other = cJSON_GetObjectItemCaseSensitive(y, p->string);
            assert_non_null(other);
            assert_int_equal(p->valueint, other->valueint);
        } else {
            assert_string_equal(text, q->valuestring);
        }
        free(joined);
    }
}

/* Training on the same texts gives the reference's tokens and merges. */
static void test_training(void **state) {
    (void)state;
    static const char *const special[] = {"<|endoftext|>"};
    tr_bpe_trainer *trainer;
    tr_byte_list words = {0}, json = {0};
    int32_t tokens;
    if (getenv("TRIREME_GOLDEN_TOKENIZERS")) skip();
    must(tr_bpe_trainer_open(TR_PATTERN_GPT2, &trainer));
    must(tr_bpe_trainer_add(trainer, texts.prose, texts.prose_length));
    int first = texts.count - 24 * 8;
    words.byte = malloc(1 << 20);
    for (int i = 0; i < 20 * 24 * 8; i++) {
        int which = first + i % (24 * 8);
        if (i) words.byte[words.count++] = ' ';
        memcpy(words.byte + words.count, texts.fragment[which], texts.length[which]);
        words.count += texts.length[which];
    }
    must(tr_bpe_trainer_add(trainer, words.byte, words.count));
    must(tr_bpe_trainer_finish(trainer, 1200, special, 1, NULL, NULL, &json, &tokens));
    assert_int_equal(tokens, 1200);
    cJSON *ours, *reference;
    must(tr_json_parse(json.byte, json.count, "ours", &ours));
    must(tr_json_load("the golden file", path_of("gpt2", ".json"), 256, &reference));
    expect_same_json(ours, reference, "vocab");
    expect_same_json(ours, reference, "merges");
    cJSON_Delete(ours);
    cJSON_Delete(reference);
    free(words.byte);
    free(json.byte);
    tr_bpe_trainer_close(trainer);
}

/* A text that is cut where tr_pattern_last_cut says has the pieces of the whole text. */
static void test_cuts(void **state) {
    (void)state;
    static char text[8 * DRAWN_MAX];
    uint8_t *table;
    int cuts = 0;
    must(tr_cp_table(&table));
    for (uint64_t number = 0; number < 3000; number++) {
        const tr_pattern pattern = (tr_pattern)(TR_PATTERN_GPT2 + (int)(number % 5));
        size_t length = 0, at = 0;
        for (uint64_t k = 0; k < 8; k++)
            length += drawn_text(&texts, 8 * number + k, text + length);
        const uint8_t *p = (const uint8_t *)text, *end = p + length;
        const size_t known = length - length / 4;
        const size_t cut = tr_pattern_last_cut(pattern, table, p, known);
        assert_true(cut < known);
        cuts += cut > 0;
        /* Pieces of the whole text, of the part that is known, and of the part before the cut. */
        const size_t lengths[] = {length, known, cut};
        for (size_t i = 0; i < 3 && cut; i++) {
            for (at = 0; at < cut;) at += tr_pattern_next(pattern, table, p + at, p + lengths[i]);
            if (at != cut)
                fail_msg("text %d, pattern %d: no piece of %zu bytes ends at %zu", (int)number,
                         (int)pattern, lengths[i], cut);
        }
        for (at = 0; at < cut;) {
            const size_t whole = tr_pattern_next(pattern, table, p + at, end);
            assert_int_equal(tr_pattern_next(pattern, table, p + at, p + cut), whole);
            at += whole;
        }
    }
    free(table);
    assert_true(cuts > 2500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),     cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_qwen),     cmocka_unit_test(test_o200k),
        cmocka_unit_test(test_prefix),   cmocka_unit_test(test_llama2),
        cmocka_unit_test(test_training), cmocka_unit_test(test_words),
        cmocka_unit_test(test_cuts),     cmocka_unit_test(test_metaspace_decoder),
        cmocka_unit_test(test_frames),
    };
    return cmocka_run_group_tests(tests, load_pool, free_pool);
}
