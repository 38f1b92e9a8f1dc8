/* Reading a JSON file of a tokenizer: values with their names in messages. Private to text/. */
#pragma once

#include "base/json.h"
#include "base/status.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses a file. Fails with TR_ERR_DATA; the sentence has the path and the byte. The caller frees
 * *out with cJSON_Delete. */
tr_status tr_setting_parse(const char *path, const char *text, size_t length, cJSON **out);

/* Reads a member: a bool (`missing` when it is not there), a string (NULL when it is not there).
 * Fail with TR_ERR_DATA when it has another type; `where` names the object in the sentence. */
tr_status tr_setting_bool(const char *path, const char *where, const cJSON *object,
                          const char *name, bool missing, bool *out);
tr_status tr_setting_string(const char *path, const char *where, const cJSON *object,
                            const char *name, const char **out);
/* Reads a number as an id. Fails with TR_ERR_DATA unless it is an integer in [0,
 * TR_BPE_MAX_SIZE). */
tr_status tr_setting_id(const char *path, const char *where, const cJSON *number, int32_t *out);
/* Returns the member "type" of an object, "" when there is none. */
const char *tr_setting_type(const cJSON *object);
