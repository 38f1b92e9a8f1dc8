/* The squared norms of parameters' gradients, masters or directions: one FP64 number for each, the
 * sum of those of its blocks of TR_PARAM_BLOCK elements in ascending order. When data ranks divide
 * the updates (parallel.zero), each takes those of its portion's blocks and gets the others from
 * the other ranks, so the bits are those of a whole tensor. The host's cores compute the norms of
 * masters that are in its memory (device.offload). */
#pragma once

#include "train/store.h"

typedef struct tr_norms tr_norms;

/* Instead of an entry: no rank takes the norm; another rank that owns portions of it writes it. */
enum { TR_NORM_NONE = -2, TR_NORM_ELSEWHERE = -1 };

typedef enum tr_norms_of {
    TR_NORMS_OF_GRADIENTS,
    TR_NORMS_OF_MASTERS, /* or of values, if these are stepped */
    TR_NORMS_OF_DIRECTIONS
} tr_norms_of;

typedef struct tr_norms_desc {
    const tr_store *store;
    const int64_t *entry; /* [slots]: where in a vector this rank writes each norm */
    tr_norms_of of;
    bool alone; /* a rank that writes an entry has all elements: it asks no other one for blocks */
} tr_norms_desc;

/* Prepares the norms of the store's parameters. *scratch becomes at least the bytes that they
 * need. */
tr_status tr_norms_create(const tr_norms_desc *desc, size_t *scratch, tr_norms **out);
void tr_norms_destroy(tr_norms *norms);
/* Writes the entries of a lap, or of all gradients, to vector, in device memory. Collective over
 * the ranks that divide updates, unless these are alone. norms may be NULL. */
tr_status tr_norms_take(tr_norms *norms, int lap, tr_stream *stream, double *vector, void *scratch);
