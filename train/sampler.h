/* Text from a trained model, one token at a time with a key/value cache, on one rank. */
#pragma once

#include "layers/model.h"
#include "train/store.h"

typedef struct tr_sampler tr_sampler;

typedef struct tr_sample_options {
    float temperature; /* 0: always the most probable token */
    int top_k;         /* 0: all tokens */
    uint64_t seed;
} tr_sample_options;

/* Prepares all layers of `model`, which must be made for decoding: batch 1, seq = the context, tp
 * 1. Its parameters must have values. */
tr_status tr_sampler_create(tr_device *device, tr_group *alone, tr_model *model,
                            const tr_sample_options *options, tr_sampler **out);
void tr_sampler_destroy(tr_sampler *sampler);

/* Feeds one token. When the context is full, the newer half of it is fed again from position 0. */
tr_status tr_sampler_feed(tr_sampler *sampler, int32_t token);
/* Copies the logits of the next token to logits[vocab]. */
tr_status tr_sampler_logits(tr_sampler *sampler, double *logits);
/* Draws the next token. The n-th draw is a function of (seed, n). */
tr_status tr_sampler_draw(tr_sampler *sampler, int32_t *token);
