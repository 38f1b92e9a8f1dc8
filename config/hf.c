/* Reading config.json. Writing it: hf_print.c. */
#include "base/input.h"
#include "base/text.h"
#include "config/config.h"
#include "config/hf_impl.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The classes of transformers; their defaults are the same in versions 4.57 and 5.24. */
const tr_hf_family tr_hf_families[] = {
    {.name = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .qkv_bias = TR_YES,
     .qk_norm = TR_NO,
     .tie = TR_YES,
     .vocab = 50257,
     .layers = 12,
     .width = 768,
     .heads = 12,
     .positions = 1024},
    {.name = "llama",
     .architecture = "LlamaForCausalLM",
     .qkv_bias = TR_NO,
     .qk_norm = TR_NO,
     .tie = TR_NO,
     .vocab = 32000,
     .layers = 32,
     .width = 4096,
     .heads = 32,
     .mlp_width = 11008,
     .positions = 2048},
    {.name = "mistral",
     .architecture = "MistralForCausalLM",
     .qkv_bias = TR_NO,
     .qk_norm = TR_NO,
     .tie = TR_NO,
     .vocab = 32000,
     .layers = 32,
     .width = 4096,
     .heads = 32,
     .mlp_width = 14336,
     .positions = 131072,
     .kv_heads = 8,
     .window = 4096,
     .windowed = true},
    {.name = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .qkv_bias = TR_YES,
     .qk_norm = TR_NO,
     .tie = TR_NO,
     .vocab = 151936,
     .layers = 32,
     .width = 4096,
     .heads = 32,
     .mlp_width = 22016,
     .positions = 32768,
     .kv_heads = 32,
     .window = 4096,
     .windowed = true,
     .layered = true},
    {.name = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .qkv_bias = TR_NO,
     .qk_norm = TR_YES,
     .tie = TR_NO,
     .vocab = 151936,
     .layers = 32,
     .width = 4096,
     .heads = 32,
     .mlp_width = 22016,
     .positions = 32768,
     .kv_heads = 32,
     .head_size = 128,
     .window = 4096,
     .windowed = true,
     .layered = true},
};
const int tr_hf_family_count = sizeof tr_hf_families / sizeof *tr_hf_families;

const tr_hf_activation tr_hf_activations[] = {
    {"gelu_new", "gelu_tanh", "geglu_tanh"},
    {"gelu_pytorch_tanh", "gelu_tanh", "geglu_tanh"},
    {"gelu", "gelu", "geglu"},
    {"relu2", "relu2", NULL},
    {"silu", NULL, "swiglu"},
    {"swish", NULL, "swiglu"},
};
const int tr_hf_activation_count = sizeof tr_hf_activations / sizeof *tr_hf_activations;

/* A config.json that is being read. */
typedef struct reader {
    const cJSON *root;
    const char *where;
    const tr_hf_family *family;
} reader;

/* --- values ----------------------------------------------------------------------------------- */

static tr_status wrong(const reader *r, const char *key, const char *want) {
    return TR_FAIL(TR_ERR_DATA, "%s: \"%s\" must be %s", r->where, key, want);
}

static tr_status unsupported(const reader *r, const char *key, const char *why) {
    return TR_FAIL(TR_ERR_DATA, "%s: \"%s\" asks for %s, which Trireme does not have", r->where,
                   key, why);
}

/* Reads a positive integer; the key may be missing or null. */
static tr_status take_size(const reader *r, const char *key, int64_t fallback, int64_t *out) {
    const cJSON *value = tr_json_get(r->root, key);
    *out = fallback;
    if (!value) return TR_OK;
    if (!tr_json_integer(value, out) || *out < 1 || *out > TR_HF_MOST)
        return wrong(r, key, "an integer above 0 and at most 2^40");
    return TR_OK;
}

/* Reads a number above 0 of `object`; the key may be missing when `fallback` is above 0. */
static tr_status take_real(const reader *r, const cJSON *object, const char *key, double fallback,
                           double *out) {
    const cJSON *value = tr_json_get(object, key);
    *out = fallback;
    if (!value && fallback > 0) return TR_OK;
    if (!value) return TR_FAIL(TR_ERR_DATA, "%s: \"%s\" is missing", r->where, key);
    *out = value->valuedouble;
    if (!cJSON_IsNumber(value) || !(*out > 0) || !(*out < 1e300))
        return wrong(r, key, "a number above 0");
    return TR_OK;
}

static tr_status take_bool(const reader *r, const char *key, bool fallback, bool *out) {
    const cJSON *value = tr_json_get(r->root, key);
    *out = value ? cJSON_IsTrue(value) : fallback;
    if (value && !cJSON_IsBool(value)) return wrong(r, key, "true or false");
    return TR_OK;
}

/* Returns the text of a key, "" when it is missing. Fails when it has another type. */
static tr_status take_text(const reader *r, const cJSON *object, const char *key,
                           const char **out) {
    const cJSON *value = tr_json_get(object, key);
    *out = value ? cJSON_GetStringValue(value) : "";
    return *out ? TR_OK : wrong(r, key, "text");
}

/* --- features that no family has -------------------------------------------------------------- */

static tr_status check_features(const reader *r) {
    static const struct {
        const char *key, *what;
    } no[] = {
        {"mlp_bias", "biases in the MLP"},
        {"attention_bias", "a bias of the attention's output projection"},
        {"num_local_experts", "mixture of experts"},
        {"num_experts", "mixture of experts"},
        {"n_routed_experts", "mixture of experts"},
        {"add_cross_attention", "cross attention"},
        {"is_encoder_decoder", "an encoder"},
        {"scale_attn_by_inverse_layer_idx", "attention scaled by the layer's number"},
        {"attn_logit_softcapping", "capped attention logits"},
        {"final_logit_softcapping", "capped logits"},
        {"no_rope_layers", "layers without positions"},
    };
    if (!tr_json_is_empty(tr_json_get(r->root, "quantization_config")))
        return TR_FAIL(TR_ERR_DATA,
                       "%s: \"quantization_config\" says that the weights are quantized, which "
                       "Trireme does not read: take the model in BF16, or load it with "
                       "transformers, call dequantize(), and save it with save_pretrained",
                       r->where);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (!tr_json_is_empty(tr_json_get(r->root, no[i].key)))
            return unsupported(r, no[i].key, no[i].what);
    bool scale, causal;
    TR_TRY(take_bool(r, "is_causal", true, &causal));
    if (!causal) return unsupported(r, "is_causal", "attention to later tokens");
    TR_TRY(take_bool(r, "scale_attn_weights", true, &scale));
    if (!scale) return unsupported(r, "scale_attn_weights", "attention without its scale");
    const cJSON *partial = tr_json_get(r->root, "partial_rotary_factor");
    if (partial && partial->valuedouble != 1)
        return unsupported(r, "partial_rotary_factor", "rotary positions on a part of a head");
    return TR_OK;
}

/* --- parts of the model ----------------------------------------------------------------------- */

static tr_status read_activation(const reader *r, const char *key, bool gated,
                                 tr_model_config *model) {
    const char *name;
    char quoted[64];
    TR_TRY(take_text(r, r->root, key, &name));
    if (!*name) name = gated ? "silu" : "gelu_new"; /* the classes' defaults */
    for (int i = 0; i < tr_hf_activation_count; i++) {
        const tr_hf_activation *a = &tr_hf_activations[i];
        const char *ours = gated ? a->gated : a->plain;
        if (strcmp(a->name, name) || !ours) continue;
        (void)snprintf(model->activation, sizeof model->activation, "%s", ours);
        return TR_OK;
    }
    return TR_FAIL(TR_ERR_DATA,
                   "%s: \"%s\" is '%s', an activation that Trireme does not have here; it has %s",
                   r->where, key, tr_json_quote(name, quoted, sizeof quoted),
                   gated ? "silu, gelu, gelu_new and gelu_pytorch_tanh"
                         : "gelu_new, gelu_pytorch_tanh, gelu and relu2");
}

/* Returns how many layers have a window: those that layer_types calls so, or where that is missing
 * those from max_window_layers on. */
static tr_status count_windows(const reader *r, int64_t layers, int64_t *windows) {
    const cJSON *types = tr_json_get(r->root, "layer_types"), *type;
    int64_t first = 28, listed = 0; /* the classes' default */
    *windows = 0;
    cJSON_ArrayForEach(type, types) {
        const char *name = cJSON_GetStringValue(type);
        listed++;
        if (name && !strcmp(name, "sliding_attention")) ++*windows;
        else if (!name || strcmp(name, "full_attention"))
            return unsupported(r, "layer_types",
                               "layers other than full_attention and sliding_attention");
    }
    if (types && listed == layers) return TR_OK;
    if (types) return wrong(r, "layer_types", "a list with an entry for each layer");
    const cJSON *value = tr_json_get(r->root, "max_window_layers");
    if (value && (!tr_json_integer(value, &first) || first < 0))
        return wrong(r, "max_window_layers", "an integer of at least 0");
    *windows = first < layers ? layers - first : 0;
    return TR_OK;
}

static tr_status read_window(const reader *r, tr_model_config *model) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(r->root, "sliding_window");
    bool used = true;
    int64_t windows = model->layers, size = value ? 0 : r->family->window;
    model->window = 0;
    if (!r->family->windowed) return TR_OK;
    if (r->family->layered) TR_TRY(take_bool(r, "use_sliding_window", false, &used));
    if (value && !cJSON_IsNull(value)) TR_TRY(take_size(r, "sliding_window", 0, &size));
    if (!used) size = 0;
    /* A mistral with layer_types is transformers' Ministral, which reads them. */
    const bool listed = tr_json_get(r->root, "layer_types");
    if (size && (r->family->layered || listed)) TR_TRY(count_windows(r, model->layers, &windows));
    if (size && windows > 0 && windows < model->layers)
        return unsupported(r, listed ? "layer_types" : "max_window_layers",
                           "layers with a sliding window next to layers without one");
    model->window = windows ? size : 0;
    return TR_OK;
}

/* Returns yarn's scale of cosines and sines for a factor (Peng et al. 2023, section 3.4). */
static double yarn_scale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* Prints yarn's numbers; those that a config.json may leave out only where they differ from the
 * defaults. */
static tr_status read_yarn(const reader *r, const cJSON *rope, double factor, double original,
                           char *text, size_t size) {
    double fast, slow, attention, mscale, all;
    TR_TRY(take_real(r, rope, "beta_fast", 32, &fast));
    TR_TRY(take_real(r, rope, "beta_slow", 1, &slow));
    const double usual = yarn_scale(factor, 1);
    TR_TRY(take_real(r, rope, "attention_factor", usual, &attention));
    const cJSON *truncate = cJSON_GetObjectItemCaseSensitive(rope, "truncate");
    if (truncate && tr_json_is_empty(truncate))
        return unsupported(r, "truncate", "yarn without rounded borders");
    if (!tr_json_get(rope, "attention_factor") && !tr_json_is_empty(tr_json_get(rope, "mscale")) &&
        !tr_json_is_empty(tr_json_get(rope, "mscale_all_dim"))) {
        TR_TRY(take_real(r, rope, "mscale", 1, &mscale));
        TR_TRY(take_real(r, rope, "mscale_all_dim", 1, &all));
        attention = yarn_scale(factor, mscale) / yarn_scale(factor, all);
    }
    if (attention != usual)
        (void)snprintf(text, size, "yarn %.15g %.0f %.15g %.15g %.17g", factor, original, fast,
                       slow, attention);
    else if (fast != 32 || slow != 1)
        (void)snprintf(text, size, "yarn %.15g %.0f %.15g %.15g", factor, original, fast, slow);
    else (void)snprintf(text, size, "yarn %.15g %.0f", factor, original);
    return TR_OK;
}

static tr_status take_original(const reader *r, const cJSON *rope, double fallback, double *out) {
    static const char key[] = "original_max_position_embeddings";
    const cJSON *outside = tr_json_get(r->root, key);
    TR_TRY(take_real(r, rope, key, fallback, out));
    if (outside && outside->valuedouble != *out)
        return TR_FAIL(TR_ERR_DATA,
                       "%s: \"%s\" is %.15g, but %.15g within the scaling of the rotary positions: "
                       "transformers 5 takes the first, and transformers 4 the second; remove the "
                       "first, or make both equal",
                       r->where, key, outside->valuedouble, *out);
    return *out <= TR_HF_MOST && *out == floor(*out) ? TR_OK : wrong(r, key, "an integer");
}

static tr_status read_scaling(const reader *r, const cJSON *rope, tr_hf *out) {
    const int64_t positions = out->positions;
    tr_model_config *model = &out->model;
    const char *type, *old;
    char quoted[64], text[256] = "none";
    double factor = 1, low, high, original = (double)positions;
    TR_TRY(take_text(r, rope, "rope_type", &type));
    TR_TRY(take_text(r, rope, "type", &old));
    if (!*type) type = *old ? old : "default";
    if (strcmp(type, "default") && strcmp(type, "linear") && strcmp(type, "llama3") &&
        strcmp(type, "yarn"))
        return TR_FAIL(TR_ERR_DATA,
                       "%s: \"rope_type\" is '%s'; Trireme has default, linear, llama3 and yarn",
                       r->where, tr_json_quote(type, quoted, sizeof quoted));
    if (strcmp(type, "default")) TR_TRY(take_real(r, rope, "factor", 0, &factor));
    if (!strcmp(type, "linear")) {
        (void)snprintf(text, sizeof text, "linear %.15g", factor);
    } else if (!strcmp(type, "yarn")) {
        TR_TRY(take_original(r, rope, (double)positions, &original));
        TR_TRY(read_yarn(r, rope, factor, original, text, sizeof text));
    } else if (!strcmp(type, "llama3")) {
        TR_TRY(take_original(r, rope, 0, &original));
        TR_TRY(take_real(r, rope, "low_freq_factor", 0, &low));
        TR_TRY(take_real(r, rope, "high_freq_factor", 0, &high));
        (void)snprintf(text, sizeof text, "llama3 %.15g %.15g %.15g %.0f", factor, low, high,
                       original);
    }
    if (strlen(text) >= sizeof model->rope_scaling)
        return wrong(r, "rope_type", "followed by numbers with fewer digits");
    memcpy(model->rope_scaling, text, strlen(text) + 1);
    const double reach = factor * original;
    if (reach > (double)positions)
        out->reach = reach < TR_HF_MOST ? (int64_t)reach : (int64_t)TR_HF_MOST;
    return TR_OK;
}

/* Reads rope_theta and rope_scaling, which both versions of transformers prefer, or
 * rope_parameters (version 5). */
static tr_status read_rope(const reader *r, tr_hf *out) {
    const bool scales = !tr_json_is_empty(tr_json_get(r->root, "rope_scaling"));
    const char *key = scales ? "rope_scaling" : "rope_parameters";
    const cJSON *rope = tr_json_get(r->root, key);
    double theta = 10000;
    if (rope && !cJSON_IsObject(rope)) return wrong(r, key, "an object");
    for (const cJSON *m = rope ? rope->child : NULL; m; m = m->next)
        if (cJSON_IsObject(m)) return unsupported(r, key, "other rotary positions in some layers");
    TR_TRY(take_real(r, r->root, "rope_theta", theta, &theta));
    TR_TRY(take_real(r, rope, "rope_theta", theta, &theta));
    if (!(theta > 1)) return wrong(r, "rope_theta", "above 1");
    out->model.rope_theta = theta;
    const cJSON *partial = tr_json_get(rope, "partial_rotary_factor");
    if (partial && partial->valuedouble != 1)
        return unsupported(r, "partial_rotary_factor", "rotary positions on a part of a head");
    return read_scaling(r, rope, out);
}

/* --- the families ----------------------------------------------------------------------------- */

const tr_hf_alias tr_hf_gpt2_aliases[TR_HF_ALIASES] = {{"n_layer", "num_hidden_layers"},
                                                       {"n_embd", "hidden_size"},
                                                       {"n_head", "num_attention_heads"},
                                                       {"n_positions", "max_position_embeddings"}};

static tr_status read_gpt2(const reader *r, tr_hf *out) {
    tr_model_config *m = &out->model;
    const tr_hf_family *f = r->family;
    const int64_t fallback[TR_HF_ALIASES] = {f->layers, f->width, f->heads, f->positions};
    int64_t *const size[TR_HF_ALIASES] = {&m->layers, &m->width, &m->heads, &out->positions};
    for (int i = 0; i < TR_HF_ALIASES; i++) {
        TR_TRY(take_size(r, tr_hf_gpt2_aliases[i].name, fallback[i], size[i]));
        TR_TRY(take_size(r, tr_hf_gpt2_aliases[i].alias, *size[i], size[i]));
    }
    if (m->width % m->heads) return wrong(r, "n_embd", "a multiple of \"n_head\"");
    TR_TRY(take_size(r, "n_inner", 4 * m->width, &m->mlp_width));
    TR_TRY(take_real(r, r->root, "layer_norm_epsilon", 1e-5, &m->norm_eps));
    m->kv_heads = m->heads;
    m->context = out->reach = out->positions;
    return read_activation(r, "activation_function", false, m);
}

static tr_status read_llama(const reader *r, tr_hf *out) {
    enum { MOST_CONTEXT = 8192 }; /* as the presets */
    tr_model_config *m = &out->model;
    const tr_hf_family *f = r->family;
    int64_t kv_heads = f->kv_heads;
    TR_TRY(take_size(r, "num_hidden_layers", f->layers, &m->layers));
    TR_TRY(take_size(r, "hidden_size", f->width, &m->width));
    TR_TRY(take_size(r, "num_attention_heads", f->heads, &m->heads));
    TR_TRY(take_size(r, "intermediate_size", f->mlp_width, &m->mlp_width));
    TR_TRY(take_size(r, "max_position_embeddings", f->positions, &out->positions));
    TR_TRY(take_real(r, r->root, "rms_norm_eps", 1e-6, &m->norm_eps));
    if (!kv_heads || cJSON_GetObjectItemCaseSensitive(r->root, "num_key_value_heads"))
        kv_heads = m->heads; /* null */
    TR_TRY(take_size(r, "num_key_value_heads", kv_heads, &m->kv_heads));
    const int64_t whole = m->width / m->heads > 0 ? m->width / m->heads : 1;
    TR_TRY(take_size(r, "head_dim", f->head_size ? f->head_size : whole, &m->head_size));
    m->context = out->positions < MOST_CONTEXT ? out->positions : MOST_CONTEXT;
    out->reach = out->positions;
    TR_TRY(read_rope(r, out));
    TR_TRY(read_window(r, m));
    return read_activation(r, "hidden_act", true, m);
}

static tr_status find_family(reader *r) {
    const char *name;
    char known[128] = "", quoted[64];
    TR_TRY(take_text(r, r->root, "model_type", &name));
    if (!*name)
        return TR_FAIL(TR_ERR_DATA,
                       "%s: \"model_type\" is missing: this is not the config of a model",
                       r->where);
    for (int i = 0; i < tr_hf_family_count; i++) {
        if (!strcmp(tr_hf_families[i].name, name)) r->family = &tr_hf_families[i];
        size_t end = strlen(known);
        (void)snprintf(known + end, sizeof known - end, "%s%s", i ? ", " : "",
                       tr_hf_families[i].name);
    }
    if (r->family) return TR_OK;
    return TR_FAIL(TR_ERR_DATA, "%s: \"model_type\" is '%s'; Trireme has %s", r->where,
                   tr_json_quote(name, quoted, sizeof quoted), known);
}

/* Copies a sentence about the model's keys to out[size], with the names that config.json has. */
static void rename_keys(const char *sentence, bool gpt2, char *out, size_t size) {
    static const struct {
        const char *key, *name, *gpt2;
    } names[] = {
        {"model.layers", "num_hidden_layers", "n_layer"},
        {"model.width", "hidden_size", "n_embd"},
        {"model.heads", "num_attention_heads", "n_head"},
        {"model.kv_heads", "num_key_value_heads", "n_head"},
        {"model.head_size", "head_dim", "n_embd / n_head"},
        {"model.mlp_width", "intermediate_size", "n_inner"},
        {"model.vocab", "vocab_size", "vocab_size"},
        {"model.context", "max_position_embeddings", "n_positions"},
        {"model.norm_eps", "rms_norm_eps", "layer_norm_epsilon"},
        {"model.rope_theta", "rope_theta", "rope_theta"},
        {"model.rope_scaling", "rope_scaling", "rope_scaling"},
        {"model.window", "sliding_window", "sliding_window"},
    };
    out[0] = '\0';
    while (*sentence) {
        const char *name = NULL;
        size_t length = 1;
        for (size_t i = 0; i < sizeof names / sizeof *names && !name; i++) {
            const size_t n = strlen(names[i].key);
            if (strncmp(sentence, names[i].key, n) != 0 || isalpha((unsigned char)sentence[n]) ||
                sentence[n] == '_')
                continue;
            name = gpt2 ? names[i].gpt2 : names[i].name;
            length = n;
        }
        tr_text_add(out, size, "%.*s", name ? (int)strlen(name) : 1, name ? name : sentence);
        sentence += length;
    }
}

tr_status tr_hf_parse(const cJSON *root, const char *where, tr_hf *out) {
    reader r = {.root = root, .where = where};
    bool tie;
    *out = (tr_hf){0};
    if (!cJSON_IsObject(root))
        return TR_FAIL(TR_ERR_DATA, "%s: a config is an object, like {\"model_type\": ...}", where);
    TR_TRY(find_family(&r));
    TR_TRY(check_features(&r));
    tr_model_config *m = &out->model;
    (void)snprintf(m->family, sizeof m->family, "%s", r.family->name);
    TR_TRY(take_size(&r, "vocab_size", r.family->vocab, &m->vocab));
    TR_TRY(strcmp(m->family, "gpt2") ? read_llama(&r, out) : read_gpt2(&r, out));
    TR_TRY(take_bool(&r, "tie_word_embeddings", r.family->tie == TR_YES, &tie));
    m->tie = tie ? TR_YES : TR_NO;
    m->qkv_bias = r.family->qkv_bias;
    m->qk_norm = r.family->qk_norm;
    TR_TRY(tr_model_complete(m));
    /* Values that contradict each other, found by the layers' own check, or that no key takes. */
    const tr_model_shape shape = {.batch = 1, .seq = m->context, .dtype = TR_F32, .tp_size = 1};
    tr_status status = tr_model_check(m, &shape);
    if (status == TR_OK) status = tr_config_check_ranges(m);
    if (status != TR_ERR_CONFIG) return status;
    char why[640];
    rename_keys(tr_error_message(), r.family == &tr_hf_families[0], why, sizeof why);
    return TR_FAIL(TR_ERR_DATA, "%s: %s", where, why);
}

tr_status tr_hf_read(const char *folder, tr_hf *out, cJSON **kept) {
    char path[4200];
    struct stat info;
    cJSON *root;
    if (stat(folder, &info) != 0) return tr_input_no_model(folder, errno, " (model.init_from)");
    if (S_ISREG(info.st_mode))
        return TR_FAIL(TR_ERR_DATA,
                       "'%s' is a file, and not a folder with config.json: a single file "
                       "(.safetensors, or llm.c's .bin) becomes a run with `trireme ckpt import "
                       "FILE RUN`, which train continues with log.dir=RUN --resume",
                       folder);
    if (!S_ISDIR(info.st_mode))
        return TR_FAIL(TR_ERR_DATA, "'%s' is not a folder: name one with config.json", folder);
    (void)snprintf(path, sizeof path, "%.4096s/config.json", folder);
    tr_status status = tr_json_load("the model's config", path, 16, &root);
    if (status == TR_ERR_NOFILE) status = TR_FAIL(TR_ERR_DATA, "%s", tr_error_message());
    TR_TRY(status);
    status = tr_hf_parse(root, path, out);
    if (status == TR_OK && kept) *kept = root;
    else cJSON_Delete(root);
    return status;
}
