/* An invented model that has all the ways in which ranks can hold parameters, with gradients that
 * are small integers: their sums are the same bits on all meshes. */
#pragma once

#include "layers/model.h"

enum { WIDTH = 12, HEAD = 4, HEADS = 8, KV_HEADS = 2, MLP = 18, VOCAB = 11, EXPERTS = 16 };
enum {
    LAYERS = 4,
    MOST_PARAMS = 16,
    MOST_TENSORS = 64,
    MOST_RANKS = 16,
    SEED = 9,
    MOST_BUCKETS = 2 * LAYERS
};

/* Makes the model for a rank of the mesh. */
tr_status owned_model_make(const tr_mesh *mesh, tr_dtype dtype, tr_model **out);

/* Every tensor of the model once; the elements of all of them are numbered. */
typedef struct owned_whole {
    char name[MOST_TENSORS][TR_NAME_SIZE];
    int64_t first[MOST_TENSORS + 1];
    int tensors;
} owned_whole;

extern owned_whole owned_all;

/* Fills owned_all. */
void owned_list_tensors(void);
/* Returns the number of the tensor's first element, or -1. */
int64_t owned_first_of(const char *name);
/* Returns the gradient of element number e for one use: a small integer. */
int owned_gradient(int64_t e, int use);
/* Returns the part of it that rank `place` of `places` computes. */
int owned_part_of_gradient(int64_t e, int use, int place, int places);
/* Returns the norm of the whole gradient. */
double owned_norm(void);
