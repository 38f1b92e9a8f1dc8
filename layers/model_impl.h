/* Families of models and the layers they are made of. Private to layers/. */
#pragma once

#include "layers/model.h"

/* A family: how its models are checked and made. One line in the table of model.c. */
typedef struct tr_family {
    const char *name;
    /* Sizes that only this family ties together; TR_ERR_CONFIG with the config key. */
    tr_status (*check)(const tr_model_config *config, const tr_model_shape *shape);
    int (*count)(const tr_model_config *config); /* of layers */
    /* Fills model->layers, zeroed room for `count`; the caller destroys them, also on failure. */
    tr_status (*make)(tr_model *model);
    /* As tr_model_flops_per_token. */
    double (*flops_per_token)(const tr_model_config *config, int64_t seq);
} tr_family;

extern const tr_family tr_family_gpt2;

/* GPT-2's layers as one tensor rank sees them; *out is released by its ops->destroy. */
tr_status tr_embedding_create(const tr_model_config *config, const tr_model_shape *shape,
                              tr_layer **out);
tr_status tr_block_create(const tr_model_config *config, const tr_model_shape *shape, int number,
                          tr_layer **out);
tr_status tr_head_create(const tr_model_config *config, const tr_model_shape *shape,
                         tr_layer **out);

/* The word embedding, its rows split over tp: use 0 by the embedding, use 1 by the head. */
tr_status tr_gpt2_describe_wte(tr_param *param, const tr_model_config *config,
                               const tr_model_shape *shape, int use);
