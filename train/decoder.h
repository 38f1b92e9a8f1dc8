/* Decoding on the ranks of a mesh: the logits of the next token, with a key/value cache. Pipeline
 * ranks hold the stages of a placement, tensor ranks a part of each layer, and each rank the cache
 * of its own layers and heads. The placement changes no bit of the logits. */
#pragma once

#include "comm/mesh_groups.h"
#include "layers/placement.h"
#include "pipeline/program/run.h"

typedef struct tr_decoder tr_decoder;

typedef struct tr_decoder_desc {
    tr_world *world;
    tr_device *device;
    tr_mesh mesh; /* the ranks with this rank's index of the data axis decode */
    tr_mesh_groups *groups;
    /* Of this tensor rank; the parameters of this rank's layers have values. Its sequence is the
     * length of the caches. */
    const tr_model *model;
    int64_t rows;                  /* texts that are decoded together, at most TR_STEP_TEXTS */
    const tr_placement *placement; /* owners are pipeline ranks */
    /* Channels between the owners of neighbouring stages, for messages of tr_decoder_chunk tokens
     * of every row, and `bytes` (at least tr_cached_bytes) of device memory. No message or queued
     * work uses either between two calls of the decoder. NULL: the decoder makes its own. */
    const tr_links *links;
    void *memory;
    size_t bytes;
} tr_decoder_desc;

/* Prepares this rank's layers, and makes the memory and the channels that were not given.
 * Collective, if it makes channels: then the ranks agree on a failure. Everything that desc
 * points to must outlive the decoder. */
tr_status tr_decoder_create(const tr_decoder_desc *desc, tr_decoder **out);
void tr_decoder_destroy(tr_decoder *decoder);

/* Return the texts that are decoded together, and how many tokens of each tr_decoder_prefill
 * takes. */
int64_t tr_decoder_rows(const tr_decoder *decoder);
int64_t tr_decoder_chunk(const tr_decoder *decoder);

/* Runs tokens[rows], one of each row, at position[rows], which are below the length of the caches;
 * they must hold the positions before it. Every rank of the mesh with one data index calls it with
 * the same arguments. Fails when another rank is lost. */
tr_status tr_decoder_step(tr_decoder *decoder, const int32_t *tokens, const int64_t *position);
/* Does the same for the tokens[rows][chunk] from position[rows] on, but computes no logits. A
 * position + chunk must not be more than the length of the caches. */
tr_status tr_decoder_prefill(tr_decoder *decoder, const int32_t *tokens, const int64_t *position);

/* Returns the world rank on which tr_decoder_logits works: the first tensor rank with the last
 * stage, and data index 0. */
int tr_decoder_logits_rank(const tr_decoder *decoder);
/* Copies the last step's logits to logits[rows][vocab]. */
tr_status tr_decoder_logits(tr_decoder *decoder, double *logits);
