/* The objects that decode texts with a trained model on one rank: opened from a run directory or a
 * folder of transformers, in the order of their dependencies. */
#pragma once

#include "train/decoder.h"
#include "train/trained.h"

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

/* Opens the session with session->config, which tr_trained_config has read, to decode `rows` texts
 * together. Collective: every rank returns the same status. The caller closes the session, also
 * after a failure, and must not move it. */
tr_status tr_generation_open(const tr_trained *from, int rows, tr_world *world,
                             tr_generation *session);
void tr_generation_close(tr_generation *session);
