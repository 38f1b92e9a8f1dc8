/* Families of models and the layers they are made of. Private to layers/. */
#pragma once

#include "layers/model.h"

/* A family of decoders: an embedding, blocks, and a head. One line in the table of family.c. Names
 * are Hugging Face's; those of a block stand below root.blocks.NUMBER. */
struct tr_family {
    const char *name;
    const char *root, *words, *blocks, *norm; /* below root */
    const char *positions;                    /* learned ones, below root; NULL: none */
    const char *norm_1, *norm_2, *qkv, *attention_out, *up, *down;
    const char *attention_site; /* of the dropout behind the attention */
    double norm_eps;
    bool conv1d;
    bool biases; /* of the linear layers behind attention and of the MLP */
};

extern const tr_family *const tr_families[];
extern const int tr_family_count;

/* Layers of the model as its tensor rank sees them. *out is released by its ops->destroy, also
 * after a failure, when it is not NULL. */
tr_status tr_embedding_create(const tr_model *model, tr_layer **out);
tr_status tr_block_create(const tr_model *model, int number, tr_layer **out);
tr_status tr_head_create(const tr_model *model, tr_layer **out);

/* Describes a table of the vocabulary, its rows split over the tensor ranks: of the embedding (use
 * 0), of a head that shares it (use 1), or of a head of its own. */
tr_status tr_words_describe(tr_param *param, const tr_model *model, const char *name, int use);
