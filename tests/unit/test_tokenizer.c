/* Tests tokenizers: reading files, encoding, decoding. */
#include "support/must.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A folder of this process for files that a test writes. */
static char folder[] = "tokenizer-XXXXXX";

static const char *write_file(const char *name, const char *text, size_t length) {
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
    return path;
}

/* A byte-level tokenizer.json of the letters a, b, c, the space and some merges. */
static const char small[] =
    "{\"added_tokens\": [{\"id\": 9, \"content\": \"<|endoftext|>\", \"special\": true,"
    " \"normalized\": false}], \"pre_tokenizer\": {\"type\": \"ByteLevel\","
    " \"add_prefix_space\": false, \"use_regex\": true}, \"decoder\": {\"type\": \"ByteLevel\"},"
    " \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"\u0120\": 3,"
    " \"ab\": 4, \"bc\": 5, \"\u0120a\": 6, \"abab\": 7, \"<|endoftext|>\": 9},"
    " \"merges\": [\"a b\", [\"b\", \"c\"], \"\u0120 a\", \"ab ab\"]}}";

static void expect(const tr_tokenizer *t, const char *text, unsigned flags, const int32_t *id,
                   size_t count) {
    tr_encoder *encoder;
    tr_token_list list = {0};
    must(tr_encoder_open(t, &encoder));
    for (int again = 0; again < 2; again++) { /* the second time uses the cache */
        list.count = 0;
        must(tr_encoder_add(encoder, text, strlen(text), flags, &list));
        assert_int_equal(list.count, count);
        assert_memory_equal(list.id, id, count * sizeof *id);
    }
    tr_byte_list back = {0};
    must(tr_tokenizer_decode(t, list.id, list.count, 0, &back));
    assert_int_equal(back.count, strlen(text));
    assert_memory_equal(back.byte, text, back.count);
    tr_encoder_close(encoder);
    free(list.id);
    free(back.byte);
}
#define EXPECT(t, text, flags, ...)                                                                \
    expect(t, text, flags, (const int32_t[]){__VA_ARGS__},                                         \
           sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void test_small(void **state) {
    (void)state;
    tr_tokenizer *t;
    must(tr_tokenizer_open(write_file("small.json", small, sizeof small - 1), &t));
    assert_int_equal(tr_tokenizer_size(t), 10);
    assert_int_equal(tr_tokenizer_document_end(t), 9);
    assert_true(tr_tokenizer_is_special(t, 9));
    assert_false(tr_tokenizer_is_special(t, 0));
    EXPECT(t, "abc", 0, 4, 2);
    EXPECT(t, "bcab", 0, 5, 4);
    EXPECT(t, "ababab c", 0, 7, 4, 3, 2);
    EXPECT(t, "a  a<|endoftext|> ab", 0, 0, 3, 6, 9, 3, 4);
    tr_tokenizer_close(t);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
