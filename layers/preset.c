#include "layers/preset.h"

#include <string.h>

/* Radford et al. 2019, table 2; 350m is the published "medium". */
#define GPT2(l, w, h)                                                                              \
    { .family = "gpt2", .layers = (l), .width = (w), .heads = (h), .context = 1024, .vocab = 50257 }

const tr_preset tr_presets[] = {
    {"tiny",
     {.family = "gpt2", .layers = 4, .width = 128, .heads = 4, .context = 128, .vocab = 256}},
    {"gpt2-124m", GPT2(12, 768, 12)},
    {"gpt2-350m", GPT2(24, 1024, 16)},
    {"gpt2-774m", GPT2(36, 1280, 20)},
    {"gpt2-1.5b", GPT2(48, 1600, 25)},
};
const int tr_preset_count = sizeof tr_presets / sizeof *tr_presets;

const tr_preset *tr_preset_find(const char *name) {
    for (int i = 0; i < tr_preset_count; i++)
        if (!strcmp(tr_presets[i].name, name)) return &tr_presets[i];
    return NULL;
}

const tr_preset *tr_preset_tiny(const char *family) {
    for (int i = 0; i < tr_preset_count; i++)
        if (!strcmp(tr_presets[i].model.family, family)) return &tr_presets[i];
    return NULL;
}
