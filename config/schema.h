/* The keys of a configuration: one table gives name, type, default, range and help of each. */
#pragma once

#include "config/config.h"

typedef enum tr_key_type {
    TR_KEY_INT,      /* int64_t */
    TR_KEY_FLOAT,    /* double */
    TR_KEY_BOOL,     /* bool */
    TR_KEY_ANSWER,   /* tr_answer: a bool whose default is the model family's */
    TR_KEY_TEXT,     /* char[size] */
    TR_KEY_CHOICE,   /* char[size], one of `choices` */
    TR_KEY_SCHEDULE, /* char[size], a schedule's name or a path that ends in .csv */
    TR_KEY_BYTES     /* int64_t; written 512MiB, 16GiB, 8GB or as a plain number */
} tr_key_type;

typedef struct tr_key {
    const char *name; /* "optim.lr" */
    tr_key_type type;
    size_t offset, size;  /* in tr_config */
    double min, max;      /* numbers: both included */
    const char *fallback; /* default, as it would be written; NULL: see help */
    const char *on_gpu;   /* default where device.name is a GPU's; NULL: the same */
    const char *choices;  /* separated by one space */
    const char *example;
    const char *help; /* one sentence */
} tr_key;

extern const tr_key tr_schema[];
extern const int tr_schema_count;

/* Index of the key of this name; -1 when there is none. */
int tr_schema_find(const char *name);
/* Index of the key that was probably meant by a name that is none, its section forgotten or
 * mistaken included; -1 when none is near. */
int tr_schema_nearest(const char *name);
/* True for "model", "data", ...: the first part of some key. */
bool tr_schema_is_section(const char *name);

/* Parses `value` and stores it in the config. A wrong value: TR_ERR_CONFIG with a sentence that
 * starts with the key's name, without a place. */
tr_status tr_key_set(const tr_key *key, const char *value, tr_config *config);
/* The key's value as YAML, in *text (free()). */
tr_status tr_key_text(const tr_key *key, const tr_config *config, char **text);
/* "an integer", "one of fp32, bf16", ...: what the key takes, in buffer. */
const char *tr_key_describe(const tr_key *key, char *buffer, size_t size);
