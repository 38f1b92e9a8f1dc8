/* Tests what of a JSON file is refused before a value of it is read: all that is not JSON, also
 * what cJSON takes, with its byte. */
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void only_json_is_parsed(void **state) {
    (void)state;
#define TEXT(text) (text), sizeof(text) - 1
    static const struct {
        const char *text;
        size_t length;
        const char *message; /* NULL: it is JSON */
    } cases[] = {
        {TEXT("{\"a\": [1, -2.5e+3, true, null, \"\\ud83d\\ude00\\n\"]}\n"), NULL},
        {TEXT("\xef\xbb\xbf{}"), NULL},
        {TEXT("{\"a\": 1e999}"), NULL}, /* readers of a number refuse infinity */
        {TEXT(""), "x: this is not valid JSON at byte 0: a value is missing"},
        {TEXT("{\"a\": 007}"), "x: this is not valid JSON at byte 6: a value is missing"},
        {TEXT("{\"a\": 1.}"), "x: this is not valid JSON at byte 6: a value is missing"},
        {TEXT("{\"a\": NaN}"), "x: this is not valid JSON at byte 6: a value is missing"},
        {TEXT("{\"a\": 0x10}"), "x: this is not valid JSON at byte 7: a comma is missing"},
        {TEXT("[1,]"), "x: this is not valid JSON at byte 3: a value is missing"},
        {TEXT("{\"a\": \"b"), "x: this is not valid JSON at byte 6: a string does not end"},
        {TEXT("{\"a\": \"b\0c\"}"),
         "x: this is not valid JSON at byte 8: a control character within a string"},
        {TEXT("{\"a\":\0 1}"), "x: this is not valid JSON at byte 5: a value is missing"},
        {TEXT("{\"a\":\f 1}"), "x: this is not valid JSON at byte 5: a value is missing"},
        {TEXT("{}\0"), "x: the JSON value ends before byte 2, and other text follows"},
        {TEXT("{\"a\": \"b\\u0000c\"}"),
         "x: the text at byte 8 has a zero character (\\u0000): remove it"},
        {TEXT("{\"a\": \"\\ud83d\"}"), "x: this is not valid JSON at byte 7"},
        {TEXT("{\"a\": \"\xc3\"}"), "x: this is not JSON: byte 7 is not UTF-8"},
        {TEXT("{\"a\": {\"b\": 1, \"c\": 2, \"b\": 3}}"),
         "x: the key \"b\" is given twice in one object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *value;
        const tr_status status = tr_json_parse(cases[i].text, cases[i].length, "x", &value);
        assert_int_equal(status, cases[i].message ? TR_ERR_DATA : TR_OK);
        if (cases[i].message) assert_string_equal(tr_error_message(), cases[i].message);
        assert_true((value != NULL) == (status == TR_OK));
        cJSON_Delete(value);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_json_is_parsed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
