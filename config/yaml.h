/* YAML text as a flat list of scalars with dotted keys and places: `model:\n  layers: 4` and
 * `model.layers: 4` are the same entry. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

typedef struct tr_yaml_entry {
    char *key;                /* path from the root, joined by dots */
    char *value;              /* NULL: nothing follows the colon */
    bool is_list;             /* value: the words of a list, as data/paths.h has them */
    int key_line, key_column; /* from 1, of the last part of the key */
    int line, column;         /* of the value */
} tr_yaml_entry;

typedef struct tr_yaml {
    tr_yaml_entry *entry;
    int count;
} tr_yaml;

/* Parses one document, a mapping of mappings and scalars (an empty document has no entries). Fails
 * with TR_ERR_CONFIG "source:line:column: ..." on bad YAML, lists of anything but scalars and
 * {path: P, weight: W}, aliases, keys that are not
 * scalars, NUL characters and a second document. The caller releases *out with tr_yaml_free. */
tr_status tr_yaml_parse(const char *text, size_t length, const char *source, tr_yaml *out);
void tr_yaml_free(tr_yaml *yaml);
