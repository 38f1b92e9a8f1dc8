/* Compares configs by the schema's keys. */
#pragma once

#include "config/schema.h"

#include <string.h>

/* Returns true when the configs are equal in every key, to the bit (not in source and
 * positions). */
static inline bool same_config(const tr_config *a, const tr_config *b) {
    for (int i = 0; i < tr_schema_count; i++) {
        const tr_key *key = &tr_schema[i];
        const char *x = (const char *)a + key->offset, *y = (const char *)b + key->offset;
        if (tr_key_is_text(key) ? strcmp(x, y) != 0 : memcmp(x, y, key->size) != 0) return false;
    }
    return true;
}
