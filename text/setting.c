#include "text/setting.h"

#include "text/bpe.h"

#include <math.h>
#include <stdio.h>

tr_status tr_setting_parse(const char *path, const char *text, size_t length, cJSON **out) {
    char where[600];
    (void)snprintf(where, sizeof where, "the tokenizer '%.500s'", path);
    return tr_json_parse(text, length, where, out);
}

tr_status tr_setting_bool(const char *path, const char *where, const cJSON *object,
                          const char *name, bool missing, bool *out) {
    const cJSON *item = tr_json_get(object, name);
    *out = item ? cJSON_IsTrue(item) : missing;
    if (item && !cJSON_IsBool(item))
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': %s.%s must be true or false", path, where,
                       name);
    return TR_OK;
}

tr_status tr_setting_string(const char *path, const char *where, const cJSON *object,
                            const char *name, const char **out) {
    const cJSON *item = tr_json_get(object, name);
    *out = item && cJSON_IsString(item) ? item->valuestring : NULL;
    if (item && !*out)
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': %s.%s must be a string", path, where,
                       name);
    return TR_OK;
}

tr_status tr_setting_id(const char *path, const char *where, const cJSON *number, int32_t *out) {
    double value = number && cJSON_IsNumber(number) ? number->valuedouble : -1;
    if (!(value >= 0 && value < TR_BPE_MAX_SIZE && floor(value) >= value))
        return TR_FAIL(TR_ERR_DATA,
                       "the tokenizer '%s': %.200s must be an id, an integer from 0 to %d", path,
                       where, TR_BPE_MAX_SIZE - 1);
    *out = (int32_t)value;
    return TR_OK;
}

const char *tr_setting_type(const cJSON *object) {
    const cJSON *type = cJSON_IsObject(object) ? tr_json_get(object, "type") : NULL;
    return type && cJSON_IsString(type) ? type->valuestring : "";
}
