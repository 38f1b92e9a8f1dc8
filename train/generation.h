/* The objects that decode texts with a trained model on one rank: opened from a run directory or a
 * folder of transformers, in the order of their dependencies. */
#pragma once

#include "config/config.h"
#include "train/decoder.h"
#include "train/store.h"

typedef struct tr_generation_request {
    const char *path; /* a run's directory, or a folder with config.json and safetensors */
    int64_t step;     /* of the run's checkpoint; -1: the newest valid one */
    int rows;         /* texts that are decoded together */
    /* "key=value": the keys that differ from those of the run. Its degrees (parallel.pp, tp and dp)
     * are not used; without one of them here, every rank is a pipeline stage. */
    const char *const *overrides;
    int overrides_count;
} tr_generation_request;

typedef struct tr_generation {
    tr_world *world;
    tr_config config;
    tr_mesh mesh;
    tr_device *device;
    bool on_cpu_instead; /* the run's GPU is not on this machine */
    tr_mesh_groups *groups;
    tr_model *model;
    int *first, *owner; /* of the placement */
    tr_placement placement;
    tr_store *store;
    tr_decoder *decoder;
} tr_generation;

/* Reads the config of the model. Not collective. Fails with TR_ERR_NOFILE when `path` does not
 * exist, and with TR_ERR_DATA when it is neither a run with a checkpoint nor a folder with
 * config.json. */
tr_status tr_generation_config(const tr_generation_request *request, int ranks, tr_config *config);
/* Opens the session with session->config set. Collective: every rank returns the same status. The
 * caller closes the session, also after a failure, and must not move it. */
tr_status tr_generation_open(const tr_generation_request *request, tr_world *world,
                             tr_generation *session);
void tr_generation_close(tr_generation *session);
