/* A training run: from a config to committed checkpoints, on one rank of a world. */
#pragma once

#include "comm/board.h"
#include "comm/comm.h"
#include "train/config.h"

typedef struct tr_train_options {
    bool resume;          /* continue from the newest valid step of log.dir */
    int trace;            /* steps of which the timeline is recorded, from this run's second */
    tr_board *board;      /* what this rank does is shown there; its stop request is obeyed */
    FILE *out, *warnings; /* what people read; written by rank 0 */
} tr_train_options;

/* Collective over the world. TR_ERR_STOPPED after a stop request, with a checkpoint saved. When the
 * ranks agreed on a failure every one returns it and *alone is false; *alone is true when this rank
 * failed by itself, and the caller has to end the world (tr_world_abort). */
tr_status tr_train(const tr_config *config, tr_world *world, const tr_train_options *options,
                   bool *alone);
