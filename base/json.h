/* JSON files that other programs wrote, parsed by cJSON; and strings in those that this program
 * writes. */
#pragma once

#include "base/status.h"

#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdio.h>

/* Parses a whole text as one JSON value in *out; the caller frees it with cJSON_Delete. Fails with
 * TR_ERR_DATA when it is not JSON in UTF-8, is nested deeper than 64, has a zero character in a
 * string, or names a key twice in one object; the message begins with `where`, and names the byte
 * or the key. */
tr_status tr_json_parse(const char *text, size_t length, const char *where, cJSON **out);
/* Does the same with a file of at most `mib` MiB. Fails with TR_ERR_NOFILE like tr_input_open;
 * `what` names the file in messages. */
tr_status tr_json_load(const char *what, const char *path, int64_t mib, cJSON **out);

/* Returns the value of a key, or NULL when the object has no such key or its value is null. */
const cJSON *tr_json_get(const cJSON *object, const char *key);
/* Returns true for NULL, null, false, 0, "", [] and {}. */
bool tr_json_is_empty(const cJSON *value);
/* Sets *out to the value of an integer of magnitude at most 2^53; returns false for other values
 * (NULL is one). */
bool tr_json_integer(const cJSON *value, int64_t *out);
/* Writes text to `out` for messages: at most size - 1 bytes, with '?' for control characters and
 * bytes that are not ASCII. Returns out. */
const char *tr_json_quote(const char *text, char *out, size_t size);

/* Writes text[length], which is UTF-8, as a JSON string. */
void tr_json_write_string(FILE *out, const char *text, size_t length);
