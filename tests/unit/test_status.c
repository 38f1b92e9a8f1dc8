/* Sentences of failures: one that is too long keeps its beginning and its end, where the remedy
 * is. */
#include "base/status.h"
#include "base/text.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char remedy[] = ": make room, or choose another directory";

/* Writes a path of `bytes` bytes, made of a character of one to four bytes. */
static void write_path(char *path, size_t bytes, const char *character) {
    const size_t width = strlen(character);
    size_t used = 1 + (bytes - 1) % width;
    memset(path, '/', used);
    for (; used < bytes; used += width) memcpy(path + used, character, width);
    path[used] = '\0';
}

static void a_long_sentence_keeps_both_ends(void **state) {
    (void)state;
    static const char *const character[] = {"d", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    char path[5000];
    for (int c = 0; c < 4; c++)
        for (size_t bytes = 900; bytes < 4096; bytes += bytes < 1100 ? 1 : 211) {
            write_path(path, bytes, character[c]);
            assert_int_equal(TR_FAIL(TR_ERR_IO, "'%s' cannot be written%s", path, remedy),
                             TR_ERR_IO);
            const char *said = tr_error_message();
            const size_t length = strlen(said), whole = bytes + 20 + strlen(remedy);
            assert_memory_equal(said, "'/", 2);
            assert_string_equal(said + length - strlen(remedy), remedy);
            assert_int_equal(tr_utf8_valid((const uint8_t *)said, length), length);
            assert_true((strstr(said, " ... ") == NULL) == (whole <= 1023));
            assert_true(length >= (whole <= 1023 ? whole : 1023 - 6) && length <= 1023);
            /* The sentence may be an argument of the next one. */
            (void)TR_FAIL(TR_ERR_IO, "%s (step 12 is saved)", tr_error_message());
            assert_non_null(strstr(tr_error_message(), "another directory (step 12 is saved)"));
        }
}

static void a_text_may_be_cut_in_place(void **state) {
    (void)state;
    char text[128], copy[64];
    for (size_t n = 0; n < sizeof text; n++) {
        for (size_t i = 0; i < n; i++) text[i] = (char)('0' + i % 10);
        text[n] = '\0';
        assert_ptr_equal(tr_text_fit(copy, sizeof copy, text), copy);
        assert_true(strlen(copy) == (n < sizeof copy ? n : sizeof copy - 1));
        assert_string_equal(tr_text_fit(text, sizeof copy, text), copy);
    }
}

/* A precision may cut a character; other bytes that are not UTF-8, as in names, stay. */
static void a_cut_character_becomes_one(void **state) {
    (void)state;
    static const char word[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
    static const char *const said[] = {"a",          "a?",         "a\xc3\xa9",
                                       "a\xc3\xa9?", "a\xc3\xa9?", "a\xc3\xa9\xe2\x82\xac"};
    char text[32];
    for (int n = 1; n <= 6; n++) {
        assert_int_equal(TR_FAIL(TR_ERR_IO, "'%.*s' is", n, word), TR_ERR_IO);
        (void)snprintf(text, sizeof text, "'%s' is", said[n - 1]);
        assert_string_equal(tr_error_message(), text);
    }
    assert_int_equal(TR_FAIL(TR_ERR_IO, "\xff\x80%.*s", 9, word), TR_ERR_IO);
    assert_string_equal(tr_error_message(), "\xff\x80"
                                            "a\xc3\xa9\xe2\x82\xac?");
    assert_int_equal(TR_FAIL(TR_ERR_IO, "%s", word), TR_ERR_IO);
    assert_string_equal(tr_error_message(), word);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_long_sentence_keeps_both_ends),
                                       cmocka_unit_test(a_cut_character_becomes_one),
                                       cmocka_unit_test(a_text_may_be_cut_in_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
