/* Families of models and their layers. Private to layers/. */
#pragma once

#include "layers/model.h"

/* A family of decoders: an embedding, blocks, and a head. A row of the table in family.c. Names are
 * Hugging Face's; a block's names follow root.blocks.NUMBER. */
struct tr_family {
    const char *name;
    const char *root, *words, *blocks, *norm; /* below root */
    const char *positions; /* table of learned positions, below root; NULL: rotary positions */
    const char *head;      /* full name of an untied head; NULL: only a tied head */
    const char *norm_1, *norm_2;
    const char *qkv; /* one fused tensor, unless heads share keys; NULL: always three */
    const char *q, *k, *v;
    const char *q_norm, *k_norm, *attention_out;
    const char *gate, *up, *down; /* gate NULL: no gated activations */
    const char *attention_site;   /* site of the dropout after attention */
    bool rms, conv1d;
    bool biases; /* of all linear layers except q, k and v, which have the key model.qkv_bias */
    /* Defaults of keys that are not set. */
    tr_model_config defaults;
};

extern const tr_family *const tr_families[];
extern const int tr_family_count;
/* Returns the family of that name, or NULL. */
const tr_family *tr_model_family(const char *name);
/* Returns true when queries, keys and values of a complete config are one tensor. Heads that share
 * keys have three, which tensor ranks may share. */
bool tr_family_fuses(const tr_family *family, const tr_model_config *config);

/* The activations that model.activation names. */
typedef struct tr_model_activation_row {
    const char *name;
    tr_activation activation;
    bool gated;
} tr_model_activation_row;

/* Returns the row of a name, or NULL. */
const tr_model_activation_row *tr_model_activation(const char *name);
/* Writes the names of all activations, with commas, to text[size]; returns text. */
const char *tr_model_activation_names(char *text, size_t size);

/* Reads model.rope_scaling: "none", "linear FACTOR", "llama3 FACTOR LOW HIGH ORIGINAL" or "yarn
 * FACTOR ORIGINAL [BETA_FAST BETA_SLOW [ATTENTION]]". Fails with TR_ERR_CONFIG, which names the
 * key, on other text. */
tr_status tr_model_rope_scaling(const char *text, tr_rope_scaling *out);

/* Create the model's layers for its tensor rank. The caller releases *out with its ops->destroy if
 * it is not NULL, also after a failure. */
tr_status tr_embedding_create(const tr_model *model, tr_layer **out);
tr_status tr_block_create(const tr_model *model, int number, tr_layer **out);
tr_status tr_head_create(const tr_model *model, tr_layer **out);

/* Describes a table of the vocabulary with rows split over the tensor ranks: the embedding's (use
 * 0), that of a tied head (use 1), or that of an untied head. */
tr_status tr_words_describe(tr_param *param, const tr_model *model, const char *name, int use);
