/* The families, one row each. */
#include "layers/model_impl.h"

#include <stdio.h>
#include <string.h>

/* Radford et al. 2019. */
static const tr_family gpt2 = {.name = "gpt2",
                               .root = "transformer",
                               .words = "wte",
                               .positions = "wpe",
                               .blocks = "h",
                               .norm = "ln_f",
                               .head = "lm_head.weight",
                               .norm_1 = "ln_1",
                               .norm_2 = "ln_2",
                               .qkv = "attn.c_attn",
                               .q = "attn.q_proj",
                               .k = "attn.k_proj",
                               .v = "attn.v_proj",
                               .attention_out = "attn.c_proj",
                               .up = "mlp.c_fc",
                               .down = "mlp.c_proj",
                               .attention_site = "attn.resid_dropout",
                               .conv1d = true,
                               .biases = true,
                               .defaults = {.norm_eps = 1e-5,
                                            .qk_norm = TR_NO,
                                            .qkv_bias = TR_YES,
                                            .tie = TR_YES,
                                            .activation = "gelu_tanh"}};

/* Names that families like Llama share. */
#define LIKE_LLAMA(family)                                                                         \
    .name = (family), .root = "model", .words = "embed_tokens", .blocks = "layers",                \
    .norm = "norm", .head = "lm_head.weight", .norm_1 = "input_layernorm",                         \
    .norm_2 = "post_attention_layernorm", .q = "self_attn.q_proj", .k = "self_attn.k_proj",        \
    .v = "self_attn.v_proj", .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm",           \
    .attention_out = "self_attn.o_proj", .gate = "mlp.gate_proj", .up = "mlp.up_proj",             \
    .down = "mlp.down_proj", .attention_site = "self_attn.resid_dropout", .rms = true

/* Grattafiori et al. 2024. */
static const tr_family llama = {LIKE_LLAMA("llama"), .defaults = {.norm_eps = 1e-5,
                                                                  .qk_norm = TR_NO,
                                                                  .qkv_bias = TR_NO,
                                                                  .tie = TR_NO,
                                                                  .activation = "swiglu",
                                                                  .rope_theta = 10000}};

/* Yang et al. 2024: biases of queries, keys and values. */
static const tr_family qwen2 = {LIKE_LLAMA("qwen2"), .defaults = {.norm_eps = 1e-6,
                                                                  .qk_norm = TR_NO,
                                                                  .qkv_bias = TR_YES,
                                                                  .tie = TR_NO,
                                                                  .activation = "swiglu",
                                                                  .rope_theta = 10000}};

/* Yang et al. 2025: norms of queries and keys. */
static const tr_family qwen3 = {LIKE_LLAMA("qwen3"), .defaults = {.norm_eps = 1e-6,
                                                                  .qk_norm = TR_YES,
                                                                  .qkv_bias = TR_NO,
                                                                  .tie = TR_NO,
                                                                  .activation = "swiglu",
                                                                  .rope_theta = 10000}};

/* Jiang et al. 2023: Llama's, with model.window. */
static const tr_family mistral = {LIKE_LLAMA("mistral"), .defaults = {.norm_eps = 1e-5,
                                                                      .qk_norm = TR_NO,
                                                                      .qkv_bias = TR_NO,
                                                                      .tie = TR_NO,
                                                                      .activation = "swiglu",
                                                                      .rope_theta = 10000}};

const tr_family *const tr_families[] = {&gpt2, &llama, &qwen2, &qwen3, &mistral};
const int tr_family_count = sizeof tr_families / sizeof *tr_families;

bool tr_family_fuses(const tr_family *family, const tr_model_config *config) {
    return family->qkv && config->kv_heads == config->heads;
}

/* --- values that are words -------------------------------------------------------------------- */

static const tr_model_activation_row activations[] = {
    {"gelu_tanh", TR_ACTIVATION_GELU, false}, {"gelu", TR_ACTIVATION_GELU_ERF, false},
    {"relu2", TR_ACTIVATION_RELU2, false},    {"swiglu", TR_ACTIVATION_SILU, true},
    {"geglu", TR_ACTIVATION_GELU_ERF, true},  {"geglu_tanh", TR_ACTIVATION_GELU, true}};
enum { ACTIVATIONS = sizeof activations / sizeof *activations };

const tr_model_activation_row *tr_model_activation(const char *name) {
    for (int i = 0; i < ACTIVATIONS; i++)
        if (!strcmp(activations[i].name, name)) return &activations[i];
    return NULL;
}

const char *tr_model_activation_names(char *text, size_t size) {
    size_t used = 0;
    for (int i = 0; i < ACTIVATIONS && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", activations[i].name);
    return text;
}

/* Reads "yarn FACTOR ORIGINAL [BETA_FAST BETA_SLOW [ATTENTION]]"; false for other text, and for
 * values out of range. */
static bool read_yarn(const char *text, tr_rope_scaling *s) {
    long long original = 0;
    int end = 0;
    const int count = sscanf(text, "yarn %lf %lld%n %lf %lf%n %lf%n", &s->factor, &original, &end,
                             &s->beta_fast, &s->beta_slow, &end, &s->attention_factor, &end);
    s->kind = TR_ROPE_YARN;
    s->original = original;
    if (count < 2 || (size_t)end != strlen(text)) return false;
    if (count >= 4 && !(s->beta_slow > 0 && s->beta_fast > s->beta_slow && s->beta_fast < 1e6))
        return false;
    if (count == 5 && !(s->attention_factor > 0 && s->attention_factor < 1e6)) return false;
    return s->factor >= 1 && original > 0;
}

tr_status tr_model_rope_scaling(const char *text, tr_rope_scaling *out) {
    long long original = 0;
    int end = 0;
    tr_rope_scaling s = {.kind = TR_ROPE_PLAIN};
    const size_t length = strlen(text);
    bool good = !strcmp(text, "none");
    if (sscanf(text, "linear %lf%n", &s.factor, &end) == 1 && (size_t)end == length) {
        s.kind = TR_ROPE_LINEAR;
        good = s.factor >= 1;
    } else if (sscanf(text, "llama3 %lf %lf %lf %lld%n", &s.factor, &s.low_factor, &s.high_factor,
                      &original, &end) == 4 &&
               (size_t)end == length) {
        s.kind = TR_ROPE_LLAMA3;
        good = s.factor >= 1 && s.low_factor > 0 && s.high_factor > s.low_factor && original > 0;
        s.original = original;
    } else if (!strncmp(text, "yarn ", 5)) {
        good = read_yarn(text, &s);
    }
    *out = s;
    if (good && s.factor < 1e6 && s.high_factor < 1e6) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "model.rope_scaling must be none, linear FACTOR, llama3 FACTOR LOW HIGH "
                   "ORIGINAL or yarn FACTOR ORIGINAL [BETA_FAST BETA_SLOW [ATTENTION]] (factors of "
                   "at least 1, LOW below HIGH, BETA_SLOW below BETA_FAST, ATTENTION above 0, "
                   "ORIGINAL the context in "
                   "tokens that the model was trained with), not '%s'",
                   text);
}
