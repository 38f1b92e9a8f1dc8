#include "text/json.h"

#include "text/bpe.h"
#include "text/unicode.h"

#include <math.h>
#include <string.h>

tr_status tr_json_parse(const char *path, const char *text, size_t length, cJSON **out) {
    *out = NULL;
    if (!tr_utf8_is_valid((const uint8_t *)text, length))
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s' is not a JSON file: it is not UTF-8", path);
    if (memmem(text, length, "\\u0000", 6)) /* cJSON's strings end there */
        return TR_FAIL(
            TR_ERR_DATA,
            "the tokenizer '%s' contains the character \\u0000, which Trireme does not read", path);
    const char *end = text;
    cJSON *json = cJSON_ParseWithLengthOpts(text, length, &end, 0);
    size_t at = end ? (size_t)(end - text) : 0;
    while (json && at < length && strchr(" \t\r\n", text[at]) && text[at]) at++;
    bool whole = json && at == length;
    if (!whole) {
        cJSON_Delete(json);
        return TR_FAIL(TR_ERR_DATA,
                       "the tokenizer '%s' is not valid JSON at byte %zu%s; is the file complete?",
                       path, at, at >= length ? ", its end" : "");
    }
    *out = json;
    return TR_OK;
}

const cJSON *tr_json_get(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

tr_status tr_json_bool(const char *path, const char *where, const cJSON *object, const char *name,
                       bool missing, bool *out) {
    const cJSON *item = tr_json_get(object, name);
    *out = item ? cJSON_IsTrue(item) : missing;
    if (item && !cJSON_IsBool(item))
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': %s.%s must be true or false", path, where,
                       name);
    return TR_OK;
}

tr_status tr_json_string(const char *path, const char *where, const cJSON *object, const char *name,
                         const char **out) {
    const cJSON *item = tr_json_get(object, name);
    *out = item && cJSON_IsString(item) ? item->valuestring : NULL;
    if (item && !*out)
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': %s.%s must be a string", path, where,
                       name);
    return TR_OK;
}

tr_status tr_json_id(const char *path, const char *where, const cJSON *number, int32_t *out) {
    double value = number && cJSON_IsNumber(number) ? number->valuedouble : -1;
    if (!(value >= 0 && value < TR_BPE_MAX_SIZE && floor(value) >= value))
        return TR_FAIL(TR_ERR_DATA,
                       "the tokenizer '%s': %.200s must be an id, an integer from 0 to %d", path,
                       where, TR_BPE_MAX_SIZE - 1);
    *out = (int32_t)value;
    return TR_OK;
}

const char *tr_json_type(const cJSON *object) {
    const cJSON *type = cJSON_IsObject(object) ? tr_json_get(object, "type") : NULL;
    return type && cJSON_IsString(type) ? type->valuestring : "";
}
