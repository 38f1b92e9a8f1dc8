/* Shared by hf.c and hf_print.c: the classes of transformers. */
#pragma once

#include "config/hf.h"

#define TR_HF_MOST 1099511627776 /* 2^40: a larger size is an error */

typedef struct tr_hf_family {
    const char *name, *architecture; /* model_type, and the entry of architectures */
    tr_answer qkv_bias, qk_norm;     /* always */
    /* The defaults of keys that a config.json may leave out; 0: none, or that of another key. */
    tr_answer tie;
    int64_t vocab, layers, width, heads, mlp_width, positions;
    int64_t kv_heads, head_size, window;
    bool windowed; /* has sliding_window */
    bool layered;  /* has use_sliding_window, max_window_layers and layer_types */
} tr_hf_family;

extern const tr_hf_family tr_hf_families[];
extern const int tr_hf_family_count;

/* A name of transformers, and model.activation in an MLP without and with a gate; NULL: none. Of
 * equal values the first is written. */
typedef struct tr_hf_activation {
    const char *name, *plain, *gated;
} tr_hf_activation;

extern const tr_hf_activation tr_hf_activations[];
extern const int tr_hf_activation_count;

/* A key of gpt2, and the name that transformers takes for it, too, and prefers. */
typedef struct tr_hf_alias {
    const char *name, *alias;
} tr_hf_alias;

enum { TR_HF_ALIASES = 4 };
extern const tr_hf_alias tr_hf_gpt2_aliases[TR_HF_ALIASES];
