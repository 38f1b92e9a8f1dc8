/* The layers of one rank prepared for decoding: made twice from one description, for one token of
 * every text, and for a chunk of several tokens of every text, with one key/value cache and the
 * parameters of a model that has them. The chunk depends only on the shape, because it decides how
 * products are summed. */
#pragma once

#include "layers/placement.h"

enum { TR_PASS_ONE, TR_PASS_CHUNK, TR_PASSES };

/* The layers for a number of tokens that every text feeds at once. */
typedef struct tr_cached_pass {
    tr_model *model;
    int64_t tokens;
    size_t (*flow_offset)[TR_LAYER_FLOWS]; /* [layers]: of their outputs */
} tr_cached_pass;

typedef struct tr_cached_layers {
    tr_cached_pass pass[TR_PASSES];
    size_t *cache_offset; /* [layers] */
    int64_t rows;
    /* Bytes. The rank with the last layer has the logits: of its part of the vocabulary, and
     * all. */
    size_t cache, scratch, flows, part, logits;
    size_t message; /* bytes of the largest tensor that crosses from one stage to another */
} tr_cached_layers;

/* Makes the layers of `model` with the values of its parameters, for `rows` texts with a cache of
 * its sequence's length, and prepares those that the placement gives to pipeline rank pp_rank. tp:
 * the tensor ranks; NULL: only for the bytes. The caller destroys *out, also after a failure. */
tr_status tr_cached_layers_create(const tr_model *model, int64_t rows,
                                  const tr_placement *placement, int pp_rank, tr_device *device,
                                  tr_group *tp, tr_cached_layers *out);
void tr_cached_layers_destroy(tr_cached_layers *layers);

/* The device memory of the passes, of the sizes in tr_cached_layers. */
typedef struct tr_cached_memory {
    char *cache, *scratch, *flows;
    void *part, *logits;
    int32_t *tokens; /* [rows][tokens of the pass] */
    tr_step_state *state;
} tr_cached_memory;

/* Returns the bytes of the memory together. */
size_t tr_cached_bytes(const tr_cached_layers *layers);
/* Divides a block of these bytes, which begins at a multiple of TR_ALIGN. */
tr_cached_memory tr_cached_divide(const tr_cached_layers *layers, void *block);

/* Returns output `output` of a layer. */
tr_tensor tr_cached_output(const tr_cached_layers *layers, int pass, const tr_cached_memory *memory,
                           int layer, int output);
/* Runs layers first..end-1. A chunk leaves out the layer that computes logits. */
tr_status tr_cached_run(const tr_cached_layers *layers, int pass, const tr_cached_memory *memory,
                        tr_stream *stream, int first, int end);
