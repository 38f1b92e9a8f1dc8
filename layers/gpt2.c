/* The GPT-2 family: embedding, blocks, tied head. */
#include "layers/model_impl.h"

static tr_status check(const tr_model_config *config, const tr_model_shape *shape) {
    if (config->width % config->heads)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.width %lld is not divisible by model.heads %lld: every head has the "
                       "same width",
                       (long long)config->width, (long long)config->heads);
    if (config->heads % shape->tp_size)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.heads %lld is not divisible by parallel.tp %d: a tensor rank holds "
                       "whole heads, the same number on each",
                       (long long)config->heads, shape->tp_size);
    if (shape->seq > config->context)
        return TR_FAIL(TR_ERR_CONFIG,
                       "a sequence of %lld tokens is longer than model.context %lld: learned "
                       "positions end there",
                       (long long)shape->seq, (long long)config->context);
    return TR_OK;
}

static int count(const tr_model_config *config) {
    return (int)config->layers + 2;
}

static tr_status make(tr_model *model) {
    const tr_model_config *config = &model->config;
    const tr_model_shape *shape = &model->shape;
    int blocks = (int)config->layers;
    TR_TRY(tr_embedding_create(config, shape, &model->layers[0]));
    for (int i = 0; i < blocks; i++)
        TR_TRY(tr_block_create(config, shape, i, &model->layers[1 + i]));
    TR_TRY(tr_head_create(config, shape, &model->layers[1 + blocks]));
    return TR_OK;
}

static double flops_per_token(const tr_model_config *config, int64_t seq) {
    double L = (double)config->layers, C = (double)config->width, V = (double)config->vocab;
    return 6 * (12 * L * C * C + V * C) + 6 * L * (double)seq * C;
}

const tr_family tr_family_gpt2 = {.name = "gpt2",
                                  .check = check,
                                  .count = count,
                                  .make = make,
                                  .flops_per_token = flops_per_token};
