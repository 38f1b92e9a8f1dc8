/* A trained model as a user names it: a run's directory, or a folder of transformers. Its config
 * with other keys and another layout, and its parameters. */
#pragma once

#include "comm/mesh.h"
#include "config/config.h"
#include "layers/model.h"
#include "text/tokenizer.h"
#include "train/store.h"

typedef struct tr_trained {
    const char *path; /* a run's directory, or a folder with config.json and safetensors */
    int64_t step;     /* of the run's checkpoint; -1: the newest valid one, or a folder */
    /* "key=value": the keys that differ from those of the run. Its degrees (parallel.pp, tp and dp)
     * are not used; without one of them here, every rank is a pipeline stage. */
    const char *const *overrides;
    int overrides_count;
} tr_trained;

/* Returns true when the path is a folder of transformers, and not a run. */
bool tr_trained_is_folder(const char *path);
/* Returns true when the key is among the overrides. */
bool tr_trained_sets(const tr_trained *from, const char *key);

/* Reads the config of the model, and checks its layout of `ranks` ranks; data_ranks: parallel.dp
 * may be above 1. Not collective. Fails with TR_ERR_NOFILE when `path` does not exist, with
 * TR_ERR_DATA when it is neither a run with a checkpoint nor a folder with config.json, with
 * TR_ERR_CONFIG when an override contradicts its model, and with TR_ERR_USAGE when `step` names a
 * step of a folder. */
tr_status tr_trained_config(const tr_trained *from, int ranks, bool data_ranks, tr_config *config);
/* Opens the tokenizer that the override data.tokenizer names, otherwise that of the run or folder;
 * that of an adapter without one is the tokenizer of its model. *out is NULL when there is none.
 * Fails like tr_tokenizer_open, and with TR_ERR_CONFIG when it has more tokens than the model. */
tr_status tr_trained_open_tokenizer(const tr_trained *from, const tr_config *config,
                                    tr_tokenizer **out);
/* Returns true when bytes are the tokens of a model without a tokenizer. A folder and an imported
 * run say nothing about their data, but only a small vocabulary can be one of bytes. */
bool tr_trained_reads_bytes(const tr_trained *from, const tr_config *config);
/* Compares the config with a folder's weights, before anything as large as the model is made. Does
 * nothing for a run. */
tr_status tr_trained_check(const tr_trained *from, const tr_config *config);

/* Opens the config's device, or the CPU when its GPU is not on this machine, which sets
 * *on_cpu_instead. */
tr_status tr_trained_device(const tr_config *config, tr_world *world, tr_device **out,
                            bool *on_cpu_instead);
/* Fills the parameters of this rank's layers. Collective: every rank returns the same status. */
tr_status tr_trained_load(const tr_trained *from, const tr_config *config, tr_world *world,
                          const tr_mesh *mesh, tr_store *store);
