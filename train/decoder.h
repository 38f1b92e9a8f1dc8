/* Decoding on the ranks of a mesh: the logits of the next token, one position at a time, with a
 * key/value cache. Pipeline ranks hold consecutive layers, tensor ranks a part of each, and each
 * rank the cache of its own layers and heads. The cut changes no bit of the logits. */
#pragma once

#include "comm/mesh_groups.h"
#include "layers/placement.h"

typedef struct tr_decoder tr_decoder;

typedef struct tr_decoder_desc {
    tr_world *world;
    tr_device *device;
    tr_mesh mesh; /* one data rank */
    tr_mesh_groups *groups;
    /* Made for decoding `batch` rows with a cache of `seq` positions, for this tensor rank. The
     * parameters of this rank's layers have values. */
    tr_model *model;
    const tr_placement *placement; /* stage s on pipeline rank s */
} tr_decoder_desc;

/* Prepares this rank's layers, allocates their caches, and opens the channels to the neighbouring
 * stages. Collective. What desc points to must outlive the decoder, except desc itself. */
tr_status tr_decoder_create(const tr_decoder_desc *desc, tr_decoder **out);
void tr_decoder_destroy(tr_decoder *decoder);

/* Runs tokens[batch], one of each row, at `position` < seq; the cache must hold the positions
 * before it. Every rank of the mesh calls it with the same arguments. Fails when another rank is
 * lost. */
tr_status tr_decoder_step(tr_decoder *decoder, const int32_t *tokens, int64_t position);

/* Returns the world rank on which tr_decoder_logits works: the first tensor rank of the last stage.
 */
int tr_decoder_logits_rank(const tr_decoder *decoder);
/* Copies the last step's logits to logits[batch][vocab]. */
tr_status tr_decoder_logits(tr_decoder *decoder, double *logits);
