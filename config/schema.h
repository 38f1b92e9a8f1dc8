/* The keys of a configuration: one table gives name, type, default, range and help of each. */
#pragma once

#include "config/config.h"
#include "config/yaml.h"

typedef enum tr_key_type {
    TR_KEY_INT,      /* int64_t */
    TR_KEY_FACTORS,  /* int64_t[2], the product and the first factor: 8, or 2x4 */
    TR_KEY_FLOAT,    /* double */
    TR_KEY_BOOL,     /* bool */
    TR_KEY_ANSWER,   /* tr_answer: a bool with the model family's default */
    TR_KEY_TEXT,     /* char[size] */
    TR_KEY_PATHS,    /* char[size], the words of data/paths.h; in a file also a list */
    TR_KEY_PATTERNS, /* char[size], patterns with spaces between them; in a file also a list */
    TR_KEY_SCALES,   /* char[size], SCALE PATTERN SCALE PATTERN; in a file also a list */
    TR_KEY_POINTS,   /* char[size], ascending steps (config/points.h); in a file also a list */
    TR_KEY_BATCHES,  /* char[size], BATCH UNTIL BATCH UNTIL (config/batches.h), or a list */
    TR_KEY_SHARE,    /* char[size], a number or a path */
    TR_KEY_CHOICE,   /* char[size], one of `choices` */
    TR_KEY_SCHEDULE, /* char[size], a schedule's name or a path that ends in .csv */
    TR_KEY_DEVICE,   /* char[size], a device's name */
    TR_KEY_BYTES     /* int64_t; written 512MiB, 16GiB, 8GB or as a plain number,
                        0 or at least 4096 */
} tr_key_type;

typedef struct tr_key {
    const char *name; /* "optim.lr" */
    tr_key_type type;
    size_t offset, size;  /* in tr_config */
    double min, max;      /* numbers: both included */
    const char *fallback; /* the default as text; NULL: the help text says it */
    const char *on_gpu;   /* the default when device.name is a GPU; NULL: the same */
    const char *choices;  /* separated by one space */
    const char *example;
    const char *help; /* one sentence */
    bool local; /* ranks may have different values: of their machines, or compared otherwise */
} tr_key;

extern const tr_key tr_schema[];
extern const int tr_schema_count;

/* Returns the index of the key of this name, or -1. */
int tr_schema_find(const char *name);
/* Returns true when the key's name is this one, or ends with it behind a dot: "rank" and
 * "lora.rank" of "model.lora.rank". The separators '.', '-' and '_' are the same: "lora-rank". */
bool tr_schema_ends_with(int index, const char *name);
/* Returns the index of the key that the user probably meant, also when the name's section is
 * missing or wrong, or the name is that of another program; -1 when no key is near. */
int tr_schema_nearest(const char *name);
/* The sections that keys are in: "model", "model.lora", "data", ... */
extern const char *const tr_sections[];
extern const int tr_section_count;
bool tr_schema_is_section(const char *name);
/* Returns the section that a name probably means, train for "trian" and "training", or NULL. */
const char *tr_schema_nearest_section(const char *name);

/* Returns true when the key's value is text in the config. */
bool tr_key_is_text(const tr_key *key);
/* Returns true when the key's value may be of that kind in a file. */
bool tr_key_takes(const tr_key *key, tr_yaml_kind kind);
/* Parses `value` and stores it in the config. Fails with TR_ERR_CONFIG on a wrong value; the
 * sentence begins with the key's name and does not say where it was set. */
tr_status tr_key_set(const tr_key *key, const char *value, tr_config *config);
/* Returns true when the text is a number, a value of TR_KEY_SHARE that is not a path, and sets
 * *share to it. */
bool tr_key_share(const char *text, double *share);
/* Writes the key's value as YAML to *text; the caller frees it with free(). */
tr_status tr_key_text(const tr_key *key, const tr_config *config, char **text);
/* Writes the values that the key takes to buffer ("an integer", "one of fp32, bf16", ...) and
 * returns it. */
const char *tr_key_describe(const tr_key *key, char *buffer, size_t size);
