/* A text that is cut where tr_encoder_find_cut says has the ids of the whole, for every kind of
 * tokenizer and text in many scripts; long pieces are encoded in parts. */
#include "support/must.h"
#include "support/seed.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t seed;
static const char *const names[] = {"gpt2",   "llama3",    "qwen", "prefix",
                                    "llama2", "metaspace", "o200k"};

/* Pieces of text: words in several scripts, white space, numbers, marks, symbols, bad bytes. */
static const char *const parts[] = {
    "a",
    "the",
    "Don't",
    "'ll",
    "'",
    "é",
    "e\xCC\x81",
    "straße",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\xC2\xA0",
    "12",
    "3",
    "456789",
    ",",
    ". ",
    "--",
    "/",
    "中文",
    "日本語",
    "。",
    "，",
    "العربية",
    "मानक",
    "\xE0\xB8\x81",
    "한국",
    "\xF0\x9F\x98\x80",
    "\xE2\x80\x8D",
    "\x80",
    "\xFF",
    "<|endoftext|>",
    "</s>",
    "\xE2\x96\x81",
    "\xED\xB2\x80",
    "X",
    "ſ",
};
enum { PARTS = sizeof parts / sizeof *parts };

static tr_tokenizer *open_golden(const char *name) {
    char path[1024];
    tr_tokenizer *t;
    (void)snprintf(path, sizeof path, TRIREME_TEST_GOLDEN "/tokenizers/%s.json", name);
    must(tr_tokenizer_open(path, &t));
    return t;
}

/* Makes a text of `count` random parts of parts[from..to). */
static tr_byte_list make_text(uint64_t *random, int64_t count, int from, int to) {
    tr_byte_list text = {0};
    for (; count > 0; count--) {
        const char *part = parts[from + tr_up_to(random, to - from) - 1];
        const size_t bytes = strlen(part);
        text.byte = realloc(text.byte, text.count + bytes + 1);
        assert_non_null(text.byte);
        memcpy(text.byte + text.count, part, bytes);
        text.count += bytes;
    }
    return text;
}

/* Cuts the text behind `from`, of which the first `seen` bytes are known, and compares the ids of
 * all. Returns the place, or text->count. */
static size_t cut_seen(tr_encoder *e, const tr_byte_list *text, size_t seen, size_t from,
                       unsigned flags, const char *name) {
    tr_token_list whole = {0}, both = {0};
    size_t cut;
    unsigned rest;
    must(tr_encoder_find_cut(e, text->byte, seen, from, flags, &cut, &rest));
    if (cut == seen) return text->count;
    if (cut < text->count) {
        must(tr_encoder_add(e, text->byte, text->count, flags, &whole));
        must(tr_encoder_add(e, text->byte, cut, flags, &both));
        must(tr_encoder_add(e, text->byte + cut, text->count - cut, flags | rest, &both));
        if (whole.count != both.count ||
            memcmp(whole.id, both.id, whole.count * sizeof *whole.id) != 0) {
            const size_t around = cut < 24 ? cut : 24;
            fail_msg("seed %llu, %s: cut before byte %zu of %zu: %.*s|%.24s",
                     (unsigned long long)seed, name, cut, text->count, (int)around,
                     text->byte + cut - around, text->byte + cut);
        }
    }
    free(whole.id);
    free(both.id);
    return cut;
}

static size_t cut_and_compare(tr_encoder *e, const tr_byte_list *text, size_t from, unsigned flags,
                              const char *name) {
    return cut_seen(e, text, text->count, from, flags, name);
}

static void cuts_change_nothing(void **state) {
    (void)state;
    const int64_t rounds = tr_test_rounds(1500);
    uint64_t random = seed;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        tr_tokenizer *t = open_golden(names[k]);
        tr_encoder *e;
        int64_t found = 0;
        must(tr_encoder_open(t, &e));
        for (int64_t i = 0; i < rounds; i++) {
            tr_byte_list text = make_text(&random, 4 + tr_up_to(&random, 60), 0, PARTS);
            text.byte[text.count] = '\0';
            const size_t from = (size_t)tr_up_to(&random, (int64_t)text.count) - 1;
            const unsigned flags = tr_up_to(&random, 2) == 1 ? TR_ENCODE_NO_SPECIAL : 0;
            found += cut_and_compare(e, &text, from, flags, names[k]) < text.count;
            const size_t seen = from + (size_t)tr_up_to(&random, (int64_t)(text.count - from));
            (void)cut_seen(e, &text, seen, from, flags, names[k]);
            free(text.byte);
        }
        if (found < rounds / 20 && strcmp(names[k], "prefix")) /* which needs longer texts */
            fail_msg("%s: %lld cuts of %lld", names[k], (long long)found, (long long)rounds);
        tr_encoder_close(e);
        tr_tokenizer_close(t);
    }
}

/* White space that is one piece at the end of a text, and two before a word. */
static void ends_of_lines_are_not_divided(void **state) {
    (void)state;
    static const char json[] =
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": "
        "true}, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": "
        "{\"a\": 0, \"\\u010a\": 1, \"\\u010a\\u010a\": 2, \"-\": 3}, \"merges\": [\"\\u010a "
        "\\u010a\"]}}";
    char path[] = "cut-XXXXXX";
    const int fd = mkstemp(path);
    tr_tokenizer *t;
    tr_encoder *e;
    int found = 0;
    uint64_t random = seed;
    assert_int_equal(write(fd, json, sizeof json - 1), sizeof json - 1);
    assert_int_equal(close(fd), 0);
    must(tr_tokenizer_open(path, &t));
    assert_int_equal(unlink(path), 0);
    must(tr_encoder_open(t, &e));
    for (int i = 0; i < 500; i++) {
        char text[40];
        for (int k = 0; k < 39; k++) text[k] = "\n\n\na-"[tr_up_to(&random, 5) - 1];
        const tr_byte_list list = {.byte = text, .count = 39};
        found += cut_and_compare(e, &list, (size_t)i % 30, 0, "line ends") < 39;
    }
    assert_in_range(found, 50, 500);
    tr_encoder_close(e);
    tr_tokenizer_close(t);
}

/* Every script has places for cuts near each other. */
static void every_script_can_be_cut(void **state) {
    (void)state;
    static const char *const scripts[] = {
        "在没有空格的文字里，标点符号分开句子。每一行也结束一个句子。\n",
        "لا توجد هنا أحرف لاتينية على الإطلاق، ولا نقاط.\n",
        "3141592653 5897932384 6264338327\n",
        "мама мыла раму; папа читал газету\n",
        "-- ** -- ++\n",
        "ประโยคภาษาไทย\n",
        "{ ;\n}\n",
    };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        tr_tokenizer *t = open_golden(names[k]);
        tr_encoder *e;
        must(tr_encoder_open(t, &e));
        for (size_t s = 0; s < sizeof scripts / sizeof *scripts; s++) {
            const size_t bytes = strlen(scripts[s]), count = 1 + 16000 / bytes;
            tr_byte_list text = {.byte = malloc(count * bytes + 1), .count = count * bytes};
            for (size_t i = 0; i < count; i++) memcpy(text.byte + i * bytes, scripts[s], bytes);
            text.byte[text.count] = '\0';
            for (size_t from = 1; from < 9000; from += 1 + from) {
                const size_t cut = cut_and_compare(e, &text, from, 0, names[k]);
                if (cut > from + 400)
                    fail_msg("%s, '%s': no cut in 400 bytes from %zu on", names[k], scripts[s],
                             from);
            }
            free(text.byte);
        }
        tr_encoder_close(e);
        tr_tokenizer_close(t);
    }
}

/* Digits without white space are many pieces, in some patterns of three digits counted from the
 * first one. */
static void digits_can_be_cut(void **state) {
    (void)state;
    static const char *const dividing[] = {"llama3", "qwen", "o200k", "prefix"};
    static const char *const kinds[] = {"0123456789", "7", "12345x", "<|endoftext|>99"};
    uint64_t random = seed;
    for (size_t k = 0; k < sizeof dividing / sizeof *dividing; k++) {
        tr_tokenizer *t = open_golden(dividing[k]);
        tr_encoder *e;
        must(tr_encoder_open(t, &e));
        for (size_t d = 0; d < sizeof kinds / sizeof *kinds; d++) {
            enum { BYTES = 20000 };
            static char text[BYTES + 1];
            const size_t length = strlen(kinds[d]);
            for (int i = 0; i < BYTES; i++)
                text[i] =
                    d == 0 ? kinds[d][tr_up_to(&random, 10) - 1] : kinds[d][(size_t)i % length];
            const tr_byte_list list = {.byte = text, .count = BYTES};
            for (int i = 0; i < 30; i++) {
                const size_t from = (size_t)tr_up_to(&random, BYTES - 2000);
                const size_t cut = cut_and_compare(e, &list, from, 0, dividing[k]);
                if (cut > from + 400)
                    fail_msg("%s, %s: no cut in 400 bytes from %zu on: %zu", dividing[k], kinds[d],
                             from, cut);
            }
        }
        tr_encoder_close(e);
        tr_tokenizer_close(t);
    }
}

/* Long texts with no or little white space, in which the pieces are followed from the left. */
static void few_spaces_are_enough(void **state) {
    (void)state;
    const int64_t rounds = tr_test_rounds(40);
    uint64_t random = seed;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        tr_tokenizer *t = open_golden(names[k]);
        tr_encoder *e;
        must(tr_encoder_open(t, &e));
        for (int64_t i = 0; i < rounds; i++) {
            const bool valid = i % 2;
            tr_byte_list text = make_text(&random, 2500, valid ? 15 : 0, valid ? 32 : PARTS);
            for (size_t at = 0; at < text.count; at++)
                if (strchr(" \n\t\r", text.byte[at]) && tr_up_to(&random, 3000) > 1)
                    text.byte[at] = "0a-"[tr_up_to(&random, 3) - 1];
            text.byte[text.count] = '\0';
            const size_t from = (size_t)tr_up_to(&random, (int64_t)text.count / 2);
            if (i % 3 == 0) { /* a run of white space that the text is cut off in */
                memset(text.byte + from, ' ', 3000);
                text.byte[from + 1] = '\n';
                text.byte[from + 2999] = '\n';
            }
            (void)cut_seen(e, &text, from + 2500, from + 1, 0, names[k]);
            free(text.byte);
        }
        tr_encoder_close(e);
        tr_tokenizer_close(t);
    }
}

/* A piece of more than 64 KiB is encoded in parts, which begin elsewhere in each half. */
static void long_pieces_have_the_same_ids(void **state) {
    (void)state;
    static const int words[][2] = {{0, 9}, {22, 29}};
    uint64_t random = seed;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        tr_tokenizer *t = open_golden(names[k]);
        tr_encoder *e;
        must(tr_encoder_open(t, &e));
        for (int w = 0; w < 2; w++) {
            tr_byte_list text = make_text(&random, 30000, words[w][0], words[w][1]);
            text.byte[text.count] = '\0';
            for (int i = 0; i < 3; i++)
                (void)cut_and_compare(e, &text, (size_t)tr_up_to(&random, (int64_t)text.count / 2),
                                      0, names[k]);
            free(text.byte);
        }
        tr_encoder_close(e);
        tr_tokenizer_close(t);
    }
}

int main(void) {
    seed = tr_test_seed(17);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_change_nothing),     cmocka_unit_test(ends_of_lines_are_not_divided),
        cmocka_unit_test(every_script_can_be_cut), cmocka_unit_test(digits_can_be_cut),
        cmocka_unit_test(few_spaces_are_enough),   cmocka_unit_test(long_pieces_have_the_same_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
