/* An engine, of train/engine_create.c, which creates and releases it, and train/engine.c, which
 * takes its steps. */
#pragma once

#include "train/engine.h"
#include "train/feed.h"
#include "train/values.h"

/* A training step with one of the batches. */
typedef struct tr_step_size {
    int64_t batch;
    int micro_batches;
    tr_stage **stage; /* [stages], NULL for stages of other ranks */
    tr_runner *runner;
} tr_step_size;

struct tr_engine {
    tr_engine_desc desc;
    tr_smaller_batch *smaller; /* the description's */
    tr_layout *layout;
    tr_mesh_groups *groups;
    tr_group *world, *tp; /* two groups of the mesh */
    tr_store *store;
    tr_values *values;
    tr_links *links;
    tr_step_size *size; /* [1 + desc.smaller_count]: of desc.batch, then the smaller ones */
    const tr_step_size *now, *next; /* of a training step, and of the one after it */
    tr_runner *validation;
    tr_optimizer *optimizer;
    tr_decoder *decoder; /* NULL: none */
    tr_memory_plan plan; /* without NCCL's memory, which grows while communicators are set up */
    char *arena;
    char *host;           /* staging: activations that are offloaded; NULL: none */
    tr_step_state *state; /* device */
    tr_feed *feed;
    /* Staging memory, which the compute stream reads and writes on its own: */
    tr_step_state *given, *result;
    tr_sequence_loss *losses; /* [batch] of the last validation */
    double loss_limit, norm_limit, loss_scale;
};

/* Places the gradients where the program of the next training step has its buckets. */
void tr_engine_place_buckets(tr_engine *e);
/* Makes the decoder, in the arena and with the channels of the engine, which destroys it. */
tr_status tr_engine_make_decoder(tr_engine *e);
