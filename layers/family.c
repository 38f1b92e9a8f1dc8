/* The families, one row each. */
#include "base/digits.h"
#include "base/nearest.h"
#include "layers/model_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST_POSITIONS 1099511627776.0 /* 2^40 */

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

enum { SCALING_NUMBERS = 5 };

/* Reads the numbers behind the first word of the text, each after blanks. Returns how many there
 * are; -1 for other text and more numbers. */
static int read_numbers(const char *text, double number[SCALING_NUMBERS]) {
    int count = 0;
    for (text += strcspn(text, " "); *text; count++) {
        const size_t blanks = strspn(text, " ");
        text += blanks;
        if (!blanks || count == SCALING_NUMBERS || !tr_number_read(&text, &number[count]))
            return -1;
    }
    return count;
}

/* Reads a context in tokens, an integer. */
static bool take_original(double number, int64_t *out) {
    if (!(number >= 1 && number <= MOST_POSITIONS && number == floor(number))) return false;
    *out = (int64_t)number;
    return true;
}

/* FACTOR LOW HIGH ORIGINAL */
static bool take_llama3(const double number[SCALING_NUMBERS], tr_rope_scaling *s) {
    s->kind = TR_ROPE_LLAMA3;
    s->low_factor = number[1];
    s->high_factor = number[2];
    return s->low_factor > 0 && s->high_factor > s->low_factor && s->high_factor < 1e6 &&
           take_original(number[3], &s->original);
}

/* FACTOR ORIGINAL [BETA_FAST BETA_SLOW [ATTENTION]] */
static bool take_yarn(const double number[SCALING_NUMBERS], int count, tr_rope_scaling *s) {
    s->kind = TR_ROPE_YARN;
    if (!take_original(number[1], &s->original)) return false;
    if (count == 2) return true;
    s->beta_fast = number[2];
    s->beta_slow = number[3];
    if (!(s->beta_slow > 0 && s->beta_fast > s->beta_slow && s->beta_fast < 1e6)) return false;
    if (count == 5) s->attention_factor = number[4];
    return count == 4 || (s->attention_factor > 0 && s->attention_factor < 1e6);
}

tr_status tr_model_rope_scaling(const char *text, tr_rope_scaling *out) {
    static const char *const kinds[] = {"none", "linear", "llama3", "yarn"};
    double number[SCALING_NUMBERS] = {1};
    tr_rope_scaling s = {.kind = TR_ROPE_PLAIN};
    const int count = read_numbers(text, number);
    bool good = !strcmp(text, "none");
    if (!strncmp(text, "linear ", 7) && count == 1) {
        s.kind = TR_ROPE_LINEAR;
        good = true;
    } else if (!strncmp(text, "llama3 ", 7) && count == 4) {
        good = take_llama3(number, &s);
    } else if (!strncmp(text, "yarn ", 5) && (count == 2 || count == 4 || count == 5)) {
        good = take_yarn(number, count, &s);
    }
    s.factor = s.kind == TR_ROPE_PLAIN ? 0 : number[0];
    *out = s;
    if (good && number[0] >= 1 && number[0] < 1e6) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "model.rope_scaling must be none, linear FACTOR, llama3 FACTOR LOW HIGH "
                   "ORIGINAL or yarn FACTOR ORIGINAL [BETA_FAST BETA_SLOW [ATTENTION]] (factors of "
                   "at least 1, LOW below HIGH, BETA_SLOW below BETA_FAST, ATTENTION above 0, "
                   "ORIGINAL the context in "
                   "tokens that the model was trained with), not '%s'%s",
                   text, tr_nearest_hint(text, strcspn(text, " "), kinds, 4).text);
}
