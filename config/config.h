/* The configuration of a run: a plain struct, filled from a YAML file and key=value overrides
 * through the table in config/schema.h. Its field names are the keys of the file. */
#pragma once

#include "layers/layer_cut.h"
#include "layers/model.h"

#include <stdio.h>

enum {
    TR_CONFIG_KEYS = 107,
    TR_CONFIG_PATH = 1024,
    TR_CONFIG_PATHS = 4096,
    TR_CONFIG_OFFLOAD = 128
};

/* Where a key got its value. line 0: by default or from the preset; line < 0: override number
 * -line. */
typedef struct tr_config_place {
    int line, column;
} tr_config_place;

typedef struct tr_config {
    tr_model_config model; /* the keys are its fields */
    char preset[32];       /* key: model.preset; "": model.init_from says what the model is */
    char init_from[TR_CONFIG_PATH]; /* key: model.init_from; "": parameters are drawn */
    /* key: model.lora.base; the folder of the model of which model.init_from has updates; "":
     * model.init_from is not an adapter */
    char lora_base[TR_CONFIG_PATH];
    struct {
        char path[TR_CONFIG_PATHS]; /* files, or a mixture: see data/paths.h */
        char format[16];
        char tokenizer[TR_CONFIG_PATH]; /* "": the one that belongs to the data, if there is one */
        char changed[8];      /* refuse or allow: what --resume does when the data differ */
        char documents[8];    /* windows, packed (the default of data.format instruct) */
        int64_t document_end; /* token that ends a document; -1: none */
        char validation[TR_CONFIG_PATH]; /* a fraction of the data, or files of their own */
    } data;
    struct {
        int64_t steps;
        int64_t batch, micro_batch; /* sequences of a step; sequences of a micro-batch */
        char batch_warmup[1536];    /* smaller batches of the first steps: config/batches.h */
        int64_t seed;
        char precision[8];
        int64_t threads; /* of each rank; 0: the machine's cores divided by its ranks */
        bool deterministic;
        int64_t validate_every;     /* steps; 0: never */
        char eval[TR_CONFIG_PATHS]; /* files of multiple-choice questions; "": none */
        int64_t validate_batches;   /* of train.batch sequences; 0: the whole held-out part */
        int64_t sample_every;       /* steps; 0: never */
        char sample_prompts[TR_CONFIG_PATH]; /* a file; "": the end of a line */
        int64_t sample_tokens;
    } train;
    struct {
        char name[16];
        char schedule[16];
        double lr, min_lr;
        int64_t warmup;                        /* steps */
        int64_t horizon;                       /* step; 0: train.steps (tr_config_horizon) */
        char restarts[1536], milestones[1536]; /* steps: config/points.h */
        double milestone_factor;
        int64_t decay, cycle; /* steps; 0: a part of the horizon */
        double clip;          /* global norm; 0: none */
        double weight_decay, beta1, beta2, eps;
        double momentum;
        bool nesterov;
        double clip_value, l1, l2; /* clip_value 0: none */
        char moments[8];           /* their type: fp32, bf16, int8 */
        char gradients[8];         /* type of their sums: fp32, bf16 */
        char master[8];            /* of parameters in bf16: fp32, none */
    } optim;
    struct {
        int64_t pp, tp;
        /* Data ranks: `copies` runs of neighbours, which divide what parallel.zero says and sum
         * first. One key, so copies follows dp (TR_KEY_FACTORS). */
        int64_t dp, copies;
        int64_t zero;   /* what data ranks divide: 1 updates, 2 gradients, 3 parameters, too */
        char reduce[8]; /* type in which gradients travel: fp32, bf16 */
        int64_t virtual_stages;        /* key: parallel.virtual; 0: as the schedule has */
        char schedule[TR_CONFIG_PATH]; /* a name or the path of a CSV file */
        char cut[TR_LAYER_CUT_TEXT];   /* the layers of every stage (layers/layer_cut.h), or auto */
        double deadline;   /* seconds that a rank may wait for another one that is alive */
        char transport[8]; /* for device memory: auto, mpi, nccl */
    } parallel;
    struct {
        int64_t every, keep; /* steps, 0: only at the end; checkpoints */
        int64_t keep_every;  /* steps, 0: only the newest are kept */
        bool background;     /* training goes on while a step is saved */
    } checkpoint;
    struct {
        char action[16]; /* warn, skip, rollback */
        double sigma;    /* standard deviations; 0: no limit */
        int64_t skips;   /* steps in a row */
    } guard;
    struct {
        char dir[TR_CONFIG_PATH];
        int64_t every; /* steps */
        bool noise_scale;
    } log;
    struct {
        char name[16];
        int64_t memory; /* bytes that a rank may use; 0: its share of the free memory */
        /* Between ranks of a host, and between hosts: GB/s, and microseconds. 0: the device's usual
         * one, or none; and those of ranks of a host. */
        double link, link_latency, network, network_latency;
        /* GB/s between a rank's device and its host's memory; 0: `link`, at most the usual one. */
        double host_link;
        int64_t host_ranks;  /* 0: all ranks are on one host */
        int64_t host_memory; /* bytes of a host that offloads may take; 0: its free memory */
        char offload[TR_CONFIG_OFFLOAD]; /* what is kept in the host's memory (tr_config_offload) */
    } device;

    char source[256];                      /* the file, for messages */
    tr_config_place place[TR_CONFIG_KEYS]; /* by index in tr_schema */
} tr_config;

/* Fills *config: defaults, then the file, then overrides ("key=value" or "--key=value", the last of
 * equal keys wins), then the preset's values of the model's keys that were not given, or those of
 * model.init_from's config.json, which is not read when all of the model's keys are given, then
 * log.dir ("runs/<name of the file>") if it was not given, then the other defaults of a GPU if
 * device.name is one. The result does not depend on this machine. Fails with TR_ERR_NOFILE when the
 * file, or the folder of model.init_from, does not exist, with TR_ERR_DATA when one is of another
 * kind or its config.json is bad, and with TR_ERR_CONFIG for unknown keys, wrong types, values out
 * of range, keys or sections given twice, a preset of another family than model.family, and keys
 * that contradict config.json. The message begins with "file:line:column: " unless an override is
 * wrong, and names the nearest key or choice. */
tr_status tr_config_load(const char *path, const char *const *overrides, int count,
                         tr_config *config);
/* Like tr_config_load, from text; `source` names the text in messages. */
tr_status tr_config_parse(const char *text, size_t length, const char *source,
                          const char *const *overrides, int count, tr_config *config);

/* Compares the model's keys that are set with config.json in the folder model.init_from, which
 * tr_config_load does only when it reads that file: for a new run. Fails like tr_config_load. */
tr_status tr_config_check_origin(const tr_config *config);

/* Returns the folder of transformers that a new run starts from, "" if there is none, and the
 * folder with an adapter (config/adapter.h) that has its updates, or NULL. */
const char *tr_config_origin(const tr_config *config);
const char *tr_config_adapter(const tr_config *config);

/* Returns true when device.name is cuda or cuda:N. */
bool tr_config_on_gpu(const tr_config *config);
/* Returns true when the device computes in the host's memory. */
bool tr_config_on_host(const tr_config *config);

/* Copies from `saved`, the config of the run to be continued, each key that the user has not set
 * and that has another default on GPUs. So a run keeps its precision on another device. */
void tr_config_keep(tr_config *config, const tr_config *saved);

/* Checks keys against each other: the model's sizes (tr_model_check), batch against dp and
 * micro_batch, stages and layers, the optimizer's keys; with world_size > 0 also pp * tp * dp =
 * world_size. Fails with TR_ERR_CONFIG; the message has file:line:column and the remedy. */
tr_status tr_config_check(const tr_config *config, int world_size);
/* Fails with TR_ERR_CONFIG when a model from another source than the keys has a value that its key
 * does not take: the config of a run of it could not be read again. */
tr_status tr_config_check_ranges(const tr_model_config *model);
/* Checks the keys that only a command that reads the data needs. Fails with TR_ERR_CONFIG when
 * data.path is missing, its format has more tokens than the vocabulary, or data.document_end is
 * missing or not a token. */
tr_status tr_config_check_data(const tr_config *config);
/* Fails with TR_ERR_CONFIG when the vocabulary is too small for bytes as tokens, which they are
 * where there is no tokenizer. */
tr_status tr_config_check_bytes(const tr_config *config);
/* Fails with TR_ERR_CONFIG when device.name does not compute in train.precision. */
tr_status tr_config_check_precision(const tr_config *config);

/* Writes every key that has a value, as YAML that loads to an equal config. Fails with
 * TR_ERR_IO. */
tr_status tr_config_print(const tr_config *config, FILE *file);
/* Writes the same YAML to *text; the caller frees it with free(). */
tr_status tr_config_text(const tr_config *config, char **text);

/* Fails with TR_ERR_CONFIG when this rank's config differs from that of rank 0, `first`, in a key
 * that all ranks must have alike. The message names the first such key. */
tr_status tr_config_check_same(const tr_config *config, int rank, const tr_config *first);

/* Fails with TR_ERR_DATA when the model differs from that of `saved`, with which the checkpoints in
 * `where` were saved. The message names the first key that differs. Dropout may change. */
tr_status tr_config_check_model(const tr_config *config, const tr_config *saved, const char *where);

/* Fails with TR_ERR_CONFIG when a key of the model differs from `saved`, the config of `run`, the
 * directory of the run that is sampled or evaluated. Dropout may differ, and as with a folder of
 * transformers model.context, and model.rope_scaling of a model that has none. */
tr_status tr_config_check_fixed(const tr_config *config, const tr_config *saved, const char *run);

/* Returns true with data.documents packed: documents end within a sequence. */
bool tr_config_packed(const tr_config *config);
/* Returns data.document_end with data.documents packed, otherwise -1. */
int32_t tr_config_document_end(const tr_config *config);
/* Returns the fraction of the data that is held out. *path (may be NULL) is the file of
 * data.validation, for which the fraction is 0, or NULL. */
double tr_config_validation(const tr_config *config, const char **path);
/* Returns true when the run has a held-out part. */
bool tr_config_validates(const tr_config *config);
/* Returns the step at which the learning rate's schedule ends. */
int64_t tr_config_horizon(const tr_config *config);
/* Writes parallel.dp as the config has it, "8" or "2x4", to text[size]; returns text. */
const char *tr_config_dp_text(const tr_config *config, char *text, size_t size);
enum { TR_CONFIG_MESH = 192 };
/* Writes the ranks with what they divide and how gradients travel, "pp 2 x tp 2 (sequence) x dp 2x4
 * (zero 1, reduce bf16)", without the defaults, to text[size], of which TR_CONFIG_MESH suffice;
 * returns text. It says so when parallel.sequence or parallel.zero divides nothing, and when
 * parallel.reduce has no sums. */
const char *tr_config_mesh_text(const tr_config *config, char *text, size_t size);
/* Returns how many neighbouring data ranks divide what parallel.zero says and sum first. */
int tr_config_near(const tr_config *config);
/* What device.offload says. */
typedef struct tr_config_offloads {
    bool optimizer;        /* the optimizer's state */
    int64_t first, stages; /* that offload activations: the first one, and how many */
} tr_config_offloads;
/* The stages of "activations": all of an order. */
enum { TR_CONFIG_ALL_STAGES = INT32_MAX };
/* Reads device.offload. Returns false when it is malformed. */
bool tr_config_offload(const tr_config *config, tr_config_offloads *out);
/* Writes what tr_config_offload reads. Returns text. */
const char *tr_config_offload_text(const tr_config_offloads *offload, char *text, size_t size);
/* Fails with TR_ERR_CONFIG when device.offload names a stage that an order of `stages` stages does
 * not have. */
tr_status tr_config_check_offload_stages(const tr_config *config, int stages);
/* Returns parallel.cut; NULL: the cut is chosen. */
const char *tr_config_cut(const tr_config *config);
/* Sets *stages to the number of stages of parallel.cut; 0: the cut is chosen. Fails with
 * TR_ERR_CONFIG when it is malformed or of another model. */
tr_status tr_config_cut_stages(const tr_config *config, int *stages);
/* Returns the storage type of train.precision. */
tr_dtype tr_config_dtype(const tr_config *config);
