/* Published models by name. */
#pragma once

#include "layers/model.h"

typedef struct tr_preset {
    const char *name;
    tr_model_config model; /* dropout 0; context: the published one, at most 8192 */
} tr_preset;

/* Each family's first preset is its tiny one, which an ordinary CPU trains in a minute. */
extern const tr_preset tr_presets[];
extern const int tr_preset_count;

/* Layers, width, heads, context and vocabulary of a model without a preset. */
extern const tr_model_config tr_tiny_sizes;

/* Returns the preset of this name, or NULL. */
const tr_preset *tr_preset_find(const char *name);
/* Returns the tiny preset of a family; NULL when the family is unknown. */
const tr_preset *tr_preset_tiny(const char *family);
