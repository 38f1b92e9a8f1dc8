#include "base/json.h"

#include "base/input.h"
#include "base/json_scan.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_EXACT 9007199254740992.0 /* 2^53 */

const char *tr_json_quote(const char *text, char *out, size_t size) {
    size_t i = 0;
    for (; text[i] && i + 1 < size; i++) {
        unsigned char c = (unsigned char)text[i];
        out[i] = c >= 0x20 && c < 0x7f ? text[i] : '?';
    }
    out[i] = '\0';
    return out;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Fails when two members of an object have one name: cJSON keeps both and would return the
 * first. */
static tr_status check_names(const cJSON *object, const char *where) {
    size_t count = 0, i = 0;
    const char **name;
    for (const cJSON *m = object->child; m; m = m->next) count++;
    TR_TRY(tr_calloc(count, sizeof *name, &name));
    for (const cJSON *m = object->child; m; m = m->next) name[i++] = m->string;
    qsort(name, count, sizeof *name, by_text);
    tr_status status = TR_OK;
    for (i = 1; i < count && status == TR_OK; i++) {
        char quoted[96];
        if (!strcmp(name[i - 1], name[i]))
            status = TR_FAIL(TR_ERR_DATA, "%s: the key \"%s\" is given twice in one object", where,
                             tr_json_quote(name[i], quoted, sizeof quoted));
    }
    free(name);
    return status;
}

/* Checks all objects below a value. The nesting is limited by cJSON. */
static tr_status check_tree(const cJSON *value, const char *where) {
    if (cJSON_IsObject(value)) TR_TRY(check_names(value, where));
    for (const cJSON *m = value->child; m; m = m->next)
        if (m->child) TR_TRY(check_tree(m, where));
    return TR_OK;
}

/* Returns where a JSON text has a zero character (\u0000) in a string, or `length`. cJSON would end
 * the string there. */
static size_t find_zero(const char *text, size_t length) {
    for (size_t i = 0; i + 6 <= length; i++) {
        if (text[i] != '\\') continue;
        if (!memcmp(text + i, "\\u0000", 6)) return i;
        i++; /* what is escaped may be another backslash */
    }
    return length;
}

/* Fails unless the text is one value of RFC 8259. cJSON would also take 007, any control character
 * as white space, and a string with a raw zero byte, which then ends there. */
static tr_status check_form(const char *text, size_t length, const char *where) {
    const bool mark = length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0;
    tr_scan scan = {.line = text, .length = length, .at = mark ? 3 : 0};
    if (!tr_scan_value(&scan, 0))
        return TR_FAIL(TR_ERR_DATA, "%s: this is not valid JSON at byte %zu: %s", where,
                       scan.fault_at, scan.fault);
    tr_scan_space(&scan);
    if (scan.at < length)
        return TR_FAIL(TR_ERR_DATA,
                       "%s: the JSON value ends before byte %zu, and other text follows", where,
                       scan.at);
    const size_t zero = find_zero(text, length);
    if (zero == length) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "%s: the text at byte %zu has a zero character (\\u0000): remove it", where,
                   zero);
}

tr_status tr_json_parse(const char *text, size_t length, const char *where, cJSON **out) {
    const char *end = text;
    *out = NULL;
    const size_t valid = tr_utf8_valid((const uint8_t *)text, length);
    if (valid < length)
        return TR_FAIL(TR_ERR_DATA, "%s: this is not JSON: byte %zu is not UTF-8", where, valid);
    TR_TRY(check_form(text, length, where));
    cJSON *value = cJSON_ParseWithLengthOpts(text, length, &end, false);
    if (!value) /* half a surrogate pair, or a number of more than 63 characters */
        return TR_FAIL(TR_ERR_DATA, "%s: this is not valid JSON at byte %zu", where,
                       end ? (size_t)(end - text) : 0);
    tr_status status = check_tree(value, where);
    if (status != TR_OK) cJSON_Delete(value);
    else *out = value;
    return status;
}

tr_status tr_json_load(const char *what, const char *path, int64_t mib, cJSON **out) {
    const tr_input_limit limit = {.mib = mib, .failure = TR_ERR_DATA};
    char *text;
    size_t length;
    TR_TRY(tr_input_load(what, path, limit, &text, &length));
    tr_status status = tr_json_parse(text, length, path, out);
    free(text);
    return status;
}

const cJSON *tr_json_get(const cJSON *object, const char *key) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    return !value || cJSON_IsNull(value) ? NULL : value;
}

bool tr_json_is_empty(const cJSON *value) {
    if (!value || cJSON_IsFalse(value) || cJSON_IsNull(value)) return true;
    if (cJSON_IsNumber(value)) return value->valuedouble == 0;
    if (cJSON_IsString(value)) return !*value->valuestring;
    return (cJSON_IsArray(value) || cJSON_IsObject(value)) && !value->child;
}

bool tr_json_integer(const cJSON *value, int64_t *out) {
    if (!cJSON_IsNumber(value)) return false;
    const double x = value->valuedouble;
    if (!(fabs(x) <= MOST_EXACT) || x != floor(x)) return false;
    *out = (int64_t)x;
    return true;
}

void tr_json_write_string(FILE *out, const char *text, size_t length) {
    (void)fputc('"', out);
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '\n') (void)fputs("\\n", out);
        else if (c < 0x20) (void)fprintf(out, "\\u%04x", c);
        else if (c == '"' || c == '\\') (void)fprintf(out, "\\%c", c);
        else (void)fputc(c, out);
    }
    (void)fputc('"', out);
}
