/* The configuration of a run: a plain struct, filled from a YAML file and key=value overrides
 * through the table in config/schema.h. Its names are the keys of the file. */
#pragma once

#include "layers/model.h"

#include <stdio.h>

enum { TR_CONFIG_KEYS = 64, TR_CONFIG_PATH = 1024 };

/* Where a key got its value: line 0 = default (or preset), line < 0 = override number -line. */
typedef struct tr_config_place {
    int line, column;
} tr_config_place;

typedef struct tr_config {
    tr_model_config model; /* the keys are its fields */
    char preset[32];       /* key: model.preset */
    struct {
        char path[TR_CONFIG_PATH], format[16];
        char changed[8];      /* refuse, allow: other data than those of the checkpoint */
        char documents[8];    /* windows, packed */
        int64_t document_end; /* token; -1: none */
        double validation;    /* held-out fraction at the end of the file */
    } data;
    struct {
        int64_t steps;
        int64_t batch, micro_batch; /* sequences of a whole step; of one micro-batch */
        int64_t seed;
        char precision[8];
        int64_t threads; /* of each rank; 0: cores of the machine divided by its ranks */
        bool deterministic;
        int64_t validate_every;   /* steps; 0: never */
        int64_t validate_batches; /* of train.batch sequences; 0: the whole held-out part */
    } train;
    struct {
        char name[16];
        double lr, min_lr;
        int64_t warmup; /* steps */
        double clip;    /* global norm; 0: none */
        double weight_decay, beta1, beta2, eps;
    } optim;
    struct {
        int64_t pp, tp, dp;
        int64_t virtual_stages;        /* key: parallel.virtual; 0: as the schedule has */
        char schedule[TR_CONFIG_PATH]; /* a name or the path of a CSV file */
        double deadline;               /* seconds a living rank may wait for another */
        char transport[8];             /* of device memory: auto, mpi, nccl */
    } parallel;
    struct {
        int64_t every, keep; /* steps, 0: only at the end; checkpoints */
    } checkpoint;
    struct {
        char dir[TR_CONFIG_PATH];
        int64_t every; /* steps */
    } log;
    struct {
        char name[16];
        int64_t memory; /* bytes a rank may plan; 0: what is free */
    } device;

    char source[256];                      /* the file, for messages */
    tr_config_place place[TR_CONFIG_KEYS]; /* by index in tr_schema */
} tr_config;

/* Fills *config: defaults, then the file, then overrides ("key=value" or "--key=value", the last of
 * equal keys wins), then the preset's values of the model's keys that were not given, then log.dir
 * ("runs/<name of the file>") when it was not, then the defaults that are others where device.name
 * is a GPU's. What is found on this machine decides nothing. TR_ERR_NOFILE when the file cannot be
 * opened; TR_ERR_CONFIG "file:line:column: ..." (overrides: "key=value: ...") for unknown keys with
 * the nearest one, wrong types, values out of range, keys given twice, and a preset of another
 * family than model.family. */
tr_status tr_config_load(const char *path, const char *const *overrides, int count,
                         tr_config *config);
/* The same from text; `source` names it in messages. */
tr_status tr_config_parse(const char *text, size_t length, const char *source,
                          const char *const *overrides, int count, tr_config *config);

/* True when device.name is cuda or cuda:N. */
bool tr_config_on_gpu(const tr_config *config);

/* Copies from `saved`, the config of the run that is continued, each key that the user has not set
 * and whose default follows the device: on another device the run keeps its precision. */
void tr_config_keep(tr_config *config, const tr_config *saved);

/* Checks what needs more than one key: the model's sizes (tr_model_check), batch against dp and
 * micro_batch, stages and layers, min_lr and lr; with world_size > 0
 * also pp * tp * dp = world_size. TR_ERR_CONFIG with file:line:column and the remedy. */
tr_status tr_config_check(const tr_config *config, int world_size);
/* What a command that reads the data asks besides: TR_ERR_CONFIG when data.path is missing or its
 * format has more tokens than the vocabulary. */
tr_status tr_config_check_data(const tr_config *config);

/* Writes every key that has a value as YAML that loads to an equal config. TR_ERR_IO when writing
 * fails. */
tr_status tr_config_print(const tr_config *config, FILE *file);
/* The same as a string in *text (free()). */
tr_status tr_config_text(const tr_config *config, char **text);

/* TR_ERR_DATA, naming the first key of the model in which the two differ: the checkpoints in
 * `where` were saved with another. Dropout may change. */
tr_status tr_config_check_model(const tr_config *config, const tr_config *saved, const char *where);

/* The token that ends a document, with data.documents packed; -1: a sequence is one document. */
int32_t tr_config_document_end(const tr_config *config);
/* Storage type of train.precision. */
tr_dtype tr_config_dtype(const tr_config *config);
