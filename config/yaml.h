/* YAML text as a flat list of sections and values with dotted keys and places: `model:\n  layers: 4`
 * and `model.layers: 4` have the same value. */
#pragma once

#include "base/status.h"

/* What an entry is: a section, the keys of which are the next entries; or a value: text, a list of
 * texts, a list of {path: P, weight: W}, of {match: P, scale: S} or of {until: STEP, batch:
 * SEQUENCES}. */
typedef enum tr_yaml_kind {
    TR_YAML_SECTION,
    TR_YAML_TEXT,
    TR_YAML_LIST,
    TR_YAML_WEIGHTS,
    TR_YAML_SCALES,
    TR_YAML_BATCHES
} tr_yaml_kind;

typedef struct tr_yaml_entry {
    char *key;         /* path from the root, joined by dots */
    char *value;       /* NULL: a section, or nothing follows the colon */
    tr_yaml_kind kind; /* of a list, value has the words as data/paths.h has them, numbers first */
    int key_line, key_column; /* from 1, of the last part of the key */
    int line, column;         /* of the value */
} tr_yaml_entry;

typedef struct tr_yaml {
    tr_yaml_entry *entry;
    int count;
} tr_yaml;

/* Parses one document, a mapping of mappings and scalars (an empty document has no entries). Fails
 * with TR_ERR_CONFIG "source:line:column: ..." on bad YAML, lists of anything else, aliases, keys
 * that are not scalars, NUL characters and a second document. The caller releases *out with
 * tr_yaml_free. */
tr_status tr_yaml_parse(const char *text, size_t length, const char *source, tr_yaml *out);
void tr_yaml_free(tr_yaml *yaml);
