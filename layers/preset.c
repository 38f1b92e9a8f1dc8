#include "layers/preset.h"

#include <string.h>

/* Radford et al. 2019, table 2; 350m is the published "medium". */
#define GPT2(l, w, h)                                                                              \
    .family = "gpt2", .layers = (l), .width = (w), .heads = (h), .context = 1024, .vocab = 50257

/* Grattafiori et al. 2024, table 3, and the published models. */
#define LLAMA(l, w, h, m)                                                                          \
    .family = "llama", .layers = (l), .width = (w), .heads = (h), .kv_heads = 8, .mlp_width = (m), \
    .context = 8192, .vocab = 128256, .rope_theta = 500000

/* The published models of Qwen 2.5 and 3. */
#define QWEN(l, w, h, m)                                                                           \
    .layers = (l), .width = (w), .heads = (h), .mlp_width = (m), .context = 8192, .vocab = 151936, \
    .rope_theta = 1000000

#define TINY .layers = 4, .width = 128, .heads = 4, .context = 128, .vocab = 256

const tr_model_config tr_tiny_sizes = {TINY};

const tr_preset tr_presets[] = {
    {"tiny", {.family = "gpt2", TINY}},
    {"gpt2-124m", {GPT2(12, 768, 12)}},
    {"gpt2-350m", {GPT2(24, 1024, 16)}},
    {"gpt2-774m", {GPT2(36, 1280, 20)}},
    {"gpt2-1.5b", {GPT2(48, 1600, 25)}},
    {"llama-tiny", {.family = "llama", TINY, .kv_heads = 2}},
    {"llama-3.2-1b",
     {LLAMA(16, 2048, 32, 8192), .tie = TR_YES, .rope_scaling = "llama3 32 1 4 8192"}},
    {"llama-3-8b", {LLAMA(32, 4096, 32, 14336)}},
    {"llama-3-70b", {LLAMA(80, 8192, 64, 28672)}},
    {"llama-3-405b", {LLAMA(126, 16384, 128, 53248), .rope_scaling = "llama3 8 1 4 8192"}},
    {"qwen2-tiny", {.family = "qwen2", TINY, .kv_heads = 2, .tie = TR_YES}},
    {"qwen2.5-0.5b", {.family = "qwen2", QWEN(24, 896, 14, 4864), .kv_heads = 2, .tie = TR_YES}},
    {"qwen3-tiny", {.family = "qwen3", TINY, .kv_heads = 2, .tie = TR_YES}},
    {"qwen3-0.6b",
     {.family = "qwen3", QWEN(28, 1024, 16, 3072), .kv_heads = 8, .head_size = 128, .tie = TR_YES}},
    {"qwen3-8b", {.family = "qwen3", QWEN(36, 4096, 32, 12288), .kv_heads = 8, .head_size = 128}},
    {"mistral-tiny", {.family = "mistral", TINY, .kv_heads = 2, .window = 32}},
    /* Jiang et al. 2023, table 1. */
    {"mistral-7b",
     {.family = "mistral",
      .layers = 32,
      .width = 4096,
      .heads = 32,
      .kv_heads = 8,
      .mlp_width = 14336,
      .context = 8192,
      .vocab = 32000,
      .window = 4096}},
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
