/* The families, one row each. */
#include "layers/model_impl.h"

/* Radford et al. 2019. */
static const tr_family gpt2 = {.name = "gpt2",
                               .root = "transformer",
                               .words = "wte",
                               .positions = "wpe",
                               .blocks = "h",
                               .norm = "ln_f",
                               .norm_1 = "ln_1",
                               .norm_2 = "ln_2",
                               .qkv = "attn.c_attn",
                               .attention_out = "attn.c_proj",
                               .up = "mlp.c_fc",
                               .down = "mlp.c_proj",
                               .attention_site = "attn.resid_dropout",
                               .norm_eps = 1e-5,
                               .conv1d = true,
                               .biases = true};

const tr_family *const tr_families[] = {&gpt2};
const int tr_family_count = sizeof tr_families / sizeof *tr_families;
