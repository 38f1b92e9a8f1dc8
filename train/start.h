/* The files that a model's parameters start from: a folder of transformers, and for low-rank
 * updates perhaps an adapter of PEFT. */
#pragma once

#include "ckpt/weights.h"
#include "config/config.h"
#include "train/store.h"

typedef struct tr_start {
    tr_weights weights, updates; /* updates: no files without an adapter */
    double dropout;              /* that the adapter asks for */
} tr_start;

/* Opens the files that the config names, and compares them with its model. Fails like
 * tr_weights_check. The caller closes *out, also after a failure. */
tr_status tr_start_open(const tr_config *config, tr_start *out);
void tr_start_close(tr_start *start);

/* Fills the parameters that `tensors` lists: the model's from its folder; updates from the adapter,
 * without one (a new run) with initial values. Not collective. */
tr_status tr_start_load(tr_start *start, tr_world *world, tr_store *store, uint64_t seed,
                        tr_ckpt_tensor *tensors, int count);
