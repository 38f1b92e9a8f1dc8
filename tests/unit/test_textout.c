/* Text that comes in pieces: whole characters, U+FFFD for what is none, stop strings. */
#include "train/textout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define FFFD "\xEF\xBF\xBD"

typedef struct seen {
    char text[256];
    size_t length;
    int pieces;
} seen;

static tr_status write_text(void *context, const char *text, size_t length) {
    seen *s = context;
    assert_true(length > 0 && s->length + length < sizeof s->text);
    memcpy(s->text + s->length, text, length);
    s->length += length;
    s->text[s->length] = '\0';
    s->pieces++;
    return TR_OK;
}

/* Adds text[length] in pieces of `piece` bytes. */
static void feed(tr_textout *out, const char *text, size_t length, size_t piece) {
    for (size_t at = 0; at < length; at += piece)
        assert_int_equal(tr_textout_add(out, text + at, at + piece < length ? piece : length - at),
                         TR_OK);
}

/* What comes out is `want`, however the text is cut. */
static void expect(const char *text, const char *const *stop, int stops, const char *want) {
    const size_t length = strlen(text);
    for (size_t piece = 1; piece <= length; piece++) {
        seen s = {0};
        tr_textout out = {.stop = stop, .stops = stops, .write = write_text, .context = &s};
        feed(&out, text, length, piece);
        assert_int_equal(tr_textout_end(&out), TR_OK);
        assert_string_equal(s.text, want);
        tr_textout_release(&out);
    }
}

static void writes_whole_characters(void **state) {
    (void)state;
    seen s = {0};
    tr_textout out = {.write = write_text, .context = &s};
    feed(&out, "a\xE2\x82", 3, 3);
    assert_string_equal(s.text, "a");
    feed(&out, "\xAC", 1, 1);
    assert_string_equal(s.text, "a\xE2\x82\xAC");
    assert_int_equal(s.pieces, 2);
    feed(&out, "\xF0\x9F\x98", 3, 1);
    assert_string_equal(s.text, "a\xE2\x82\xAC");
    assert_int_equal(tr_textout_end(&out), TR_OK);
    assert_string_equal(s.text, "a\xE2\x82\xAC" FFFD);
    tr_textout_release(&out);
}

/* The examples of Unicode 15, tables 3-8 to 3-11. */
static void replaces_invalid_bytes(void **state) {
    (void)state;
    expect("A\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
           "A",
           NULL, 0, "A" FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    expect("\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
           "A",
           NULL, 0, FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    expect("\xF4\x91\x92\x93\xFF"
           "A\x80\xBF"
           "B",
           NULL, 0, FFFD FFFD FFFD FFFD FFFD "A" FFFD FFFD "B");
    expect("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
           "A",
           NULL, 0, FFFD FFFD FFFD FFFD "A");
    expect("\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF", NULL, 0,
           "\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF");
}

static void ends_before_the_first_stop_string(void **state) {
    (void)state;
    const char *const stop[] = {"\n\n", "END", "EN"};
    expect("one\ntwo\n\nthree", stop, 3, "one\ntwo");
    expect("the E then EEND", stop, 2, "the E then E");
    expect("the E then EEND", stop, 3, "the E then E");
    expect("no stop here E", stop, 3, "no stop here E");
    expect("END", stop, 3, "");
    const char *const half[] = {"aab"};
    expect("aaaab", half, 1, "aa");
}

static void holds_back_only_what_may_stop(void **state) {
    (void)state;
    const char *const stop[] = {"END"};
    seen s = {0};
    tr_textout out = {.stop = stop, .stops = 1, .write = write_text, .context = &s};
    feed(&out, "abEN", 4, 4);
    assert_string_equal(s.text, "ab");
    feed(&out, "E", 1, 1);
    assert_string_equal(s.text, "abEN");
    feed(&out, "NDx", 3, 3);
    assert_string_equal(s.text, "abEN");
    assert_true(out.stopped);
    feed(&out, "more", 4, 4);
    assert_int_equal(tr_textout_end(&out), TR_OK);
    assert_string_equal(s.text, "abEN");
    tr_textout_release(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_whole_characters),
        cmocka_unit_test(replaces_invalid_bytes),
        cmocka_unit_test(ends_before_the_first_stop_string),
        cmocka_unit_test(holds_back_only_what_may_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
