/* Families of models and the layers they are made of. Private to layers/. */
#pragma once

#include "layers/model.h"

/* A family of decoders: an embedding, blocks, and a head. One line in the table of family.c. Names
 * are Hugging Face's; those of a block stand below root.blocks.NUMBER. */
struct tr_family {
    const char *name;
    const char *root, *words, *blocks, *norm; /* below root */
    const char *positions;                    /* learned ones, below root; NULL: rotary */
    const char *head;                         /* whole; NULL: there is none but the tied one */
    const char *norm_1, *norm_2;
    const char *q, *k, *v; /* k and v NULL: one tensor of all three */
    const char *q_norm, *k_norm, *attention_out;
    const char *gate, *up, *down; /* gate NULL: there are no gated activations */
    const char *attention_site;   /* of the dropout behind the attention */
    bool rms, conv1d;
    bool biases; /* of all linear layers but those of q, k and v, whose key is model.qkv_bias */
    /* What its models have where nothing is set. */
    tr_model_config defaults;
};

extern const tr_family *const tr_families[];
extern const int tr_family_count;

/* The activations that model.activation names. */
typedef struct tr_model_activation_row {
    const char *name;
    tr_activation activation;
    bool gated;
} tr_model_activation_row;

/* The row of a name; NULL when there is none. */
const tr_model_activation_row *tr_model_activation(const char *name);
/* The names of all, with commas, in text[size]; returns text. */
const char *tr_model_activation_names(char *text, size_t size);

/* Reads model.rope_scaling: "none", "linear FACTOR", "llama3 FACTOR LOW HIGH ORIGINAL" or
 * "yarn FACTOR ORIGINAL". TR_ERR_CONFIG with the key when it is something else. */
tr_status tr_model_rope_scaling(const char *text, tr_rope_scaling *out);

/* Layers of the model as its tensor rank sees them. *out is released by its ops->destroy, also
 * after a failure, when it is not NULL. */
tr_status tr_embedding_create(const tr_model *model, tr_layer **out);
tr_status tr_block_create(const tr_model *model, int number, tr_layer **out);
tr_status tr_head_create(const tr_model *model, tr_layer **out);

/* Describes a table of the vocabulary, its rows split over the tensor ranks: of the embedding (use
 * 0), of a head that shares it (use 1), or of a head of its own. */
tr_status tr_words_describe(tr_param *param, const tr_model *model, const char *name, int use);
