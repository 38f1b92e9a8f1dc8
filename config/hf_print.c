/* Writing config.json. */
#include "config/hf_impl.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replaces a key; `value` may be NULL after a failed allocation, which *good then records. */
static void set(cJSON *object, const char *key, cJSON *value, bool *good) {
    cJSON_DeleteItemFromObjectCaseSensitive(object, key);
    *good = *good && value && cJSON_AddItemToObject(object, key, value);
}

static void set_number(cJSON *object, const char *key, double value, bool *good) {
    set(object, key, cJSON_CreateNumber(value), good);
}

/* Sets a number that stays a float in Python: transformers warns of a whole "factor". */
static void set_float(cJSON *object, const char *key, double value, bool *good) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    if (!strpbrk(text, ".e")) (void)strcat(text, ".0");
    set(object, key, cJSON_CreateRaw(text), good);
}

static void set_text(cJSON *object, const char *key, const char *value, bool *good) {
    set(object, key, cJSON_CreateString(value), good);
}

static void set_bool(cJSON *object, const char *key, bool value, bool *good) {
    set(object, key, cJSON_CreateBool(value), good);
}

/* --- which class ------------------------------------------------------------------------------ */

/* Returns what a gpt2 has that transformers' does not have, or NULL. */
static const char *beyond_gpt2(const tr_model_config *m) {
    if (m->window > 0 && m->window < m->context) return "with model.window";
    if (m->qkv_bias != TR_YES) return "without model.qkv_bias";
    if (m->kv_heads != m->heads) return "with model.kv_heads below model.heads";
    if (m->head_size * m->heads != m->width)
        return "with a model.head_size that is not model.width / model.heads";
    return NULL;
}

static bool fits(const tr_hf_family *f, const tr_model_config *m) {
    if (!strcmp(f->name, "gpt2") || !strcmp(m->family, "gpt2"))
        return !strcmp(f->name, m->family) && !beyond_gpt2(m);
    /* Version 5 refuses a llama with heads that do not divide its width, and no other class. */
    if (!strcmp(f->name, "llama") && m->width % m->heads) return false;
    return f->qkv_bias == m->qkv_bias && f->qk_norm == m->qk_norm &&
           (m->window == 0 || f->windowed);
}

/* Returns the class that a family's models come from, or NULL. */
static const tr_hf_family *class_of(const char *family) {
    for (int i = 0; i < tr_hf_family_count; i++)
        if (!strcmp(tr_hf_families[i].name, family)) return &tr_hf_families[i];
    return NULL;
}

/* Finds a class with the model's biases, norms and window: the family's own if it has them, else
 * another one with the same names of tensors. */
static tr_status find_class(const tr_model_config *m, const tr_hf_family **out) {
    *out = NULL;
    if (!class_of(m->family))
        return TR_FAIL(
            TR_ERR_DATA,
            "no class of transformers is known for model.family %s, so its models cannot "
            "be exported: the HDF5 files of the checkpoint have all tensors",
            m->family);
    for (int i = 0; i < tr_hf_family_count; i++)
        if (fits(&tr_hf_families[i], m) && (!*out || !strcmp(tr_hf_families[i].name, m->family)))
            *out = &tr_hf_families[i];
    if (*out) return TR_OK;
    if (!strcmp(m->family, "gpt2"))
        return TR_FAIL(TR_ERR_DATA, "transformers has no gpt2 %s: such a model cannot be exported",
                       beyond_gpt2(m));
    return TR_FAIL(TR_ERR_DATA,
                   "transformers has no model like llama with model.qkv_bias %s and model.qk_norm "
                   "%s: such a model cannot be exported",
                   m->qkv_bias == TR_YES ? "true" : "false",
                   m->qk_norm == TR_YES ? "true" : "false");
}

/* Finds the activation's name: the one that it came with, else the first. */
static tr_status find_activation(const tr_model_config *m, const cJSON *origin, const char **name) {
    const bool gpt2 = !strcmp(m->family, "gpt2");
    const cJSON *came = tr_json_get(origin, gpt2 ? "activation_function" : "hidden_act");
    *name = NULL;
    for (int i = 0; i < tr_hf_activation_count; i++) {
        const tr_hf_activation *a = &tr_hf_activations[i];
        const char *ours = gpt2 ? a->plain : a->gated;
        if (!ours || strcmp(ours, m->activation)) continue;
        if (!*name || (cJSON_IsString(came) && !strcmp(came->valuestring, a->name)))
            *name = a->name;
    }
    if (*name) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "transformers has no %s with model.activation %s: such a model cannot be "
                   "exported",
                   m->family, m->activation);
}

/* --- rotary positions ------------------------------------------------------------------------- */

/* Returns the words of model.rope_scaling as the object of transformers; NULL without memory. */
static cJSON *rope_object(const tr_model_config *m, bool *good) {
    cJSON *rope = cJSON_CreateObject();
    char type[16] = "none";
    double n[5] = {0};
    const int count = sscanf(m->rope_scaling, "%15s %lf %lf %lf %lf %lf", type, &n[0], &n[1], &n[2],
                             &n[3], &n[4]);
    set_text(rope, "rope_type", strcmp(type, "none") ? type : "default", good);
    if (count > 1) set_float(rope, "factor", n[0], good);
    if (!strcmp(type, "llama3")) {
        set_float(rope, "low_freq_factor", n[1], good);
        set_float(rope, "high_freq_factor", n[2], good);
        set_number(rope, "original_max_position_embeddings", n[3], good);
    } else if (!strcmp(type, "yarn")) {
        set_number(rope, "original_max_position_embeddings", n[1], good);
        if (count >= 5) {
            set_float(rope, "beta_fast", n[2], good);
            set_float(rope, "beta_slow", n[3], good);
        }
        if (count >= 6) set_float(rope, "attention_factor", n[4], good);
    }
    return rope;
}

/* Returns the context that the scaling reaches, a whole number; 0 without one. */
static double scaled_context(const tr_model_config *m) {
    double factor = 0, original = 0;
    const bool read = sscanf(m->rope_scaling, "yarn %lf %lf", &factor, &original) == 2 ||
                      sscanf(m->rope_scaling, "llama3 %lf %*f %*f %lf", &factor, &original) == 2;
    return read ? fmin(floor(factor * original), TR_HF_MOST) : 0;
}

static void set_rope(cJSON *root, const tr_model_config *m, bool *good) {
    const bool scaled = strcmp(m->rope_scaling, "none") != 0;
    cJSON *five = rope_object(m, good);
    if (five) set_float(five, "rope_theta", m->rope_theta, good);
    set(root, "rope_parameters", five, good);
    set_float(root, "rope_theta", m->rope_theta, good);
    set(root, "rope_scaling", scaled ? rope_object(m, good) : cJSON_CreateNull(), good);
    /* Version 5 would prefer it to the scaling's. */
    cJSON_DeleteItemFromObjectCaseSensitive(root, "original_max_position_embeddings");
}

/* --- the families ----------------------------------------------------------------------------- */

static void set_gpt2(cJSON *root, const tr_model_config *m, const char *activation, bool *good) {
    for (int i = 0; i < TR_HF_ALIASES; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(root, tr_hf_gpt2_aliases[i].alias);
    set_number(root, "n_layer", (double)m->layers, good);
    set_number(root, "n_embd", (double)m->width, good);
    set_number(root, "n_head", (double)m->heads, good);
    set_number(root, "n_positions", (double)m->context, good);
    set_number(root, "n_ctx", (double)m->context, good);
    set_number(root, "n_inner", (double)m->mlp_width, good);
    if (m->mlp_width == 4 * m->width) set(root, "n_inner", cJSON_CreateNull(), good);
    set_float(root, "layer_norm_epsilon", m->norm_eps, good);
    set_text(root, "activation_function", activation, good);
    if (cJSON_GetObjectItemCaseSensitive(root, "resid_pdrop")) return;
    set_number(root, "resid_pdrop", m->dropout, good);
    set_number(root, "embd_pdrop", m->dropout, good);
    set_number(root, "attn_pdrop", 0, good);
}

static void set_window(cJSON *root, const tr_hf_family *f, const tr_model_config *m, bool *good) {
    /* transformers takes a mistral with this key for a Ministral, which always needs a window. */
    if (!f->layered) cJSON_DeleteItemFromObjectCaseSensitive(root, "layer_types");
    if (!f->windowed) return;
    set(root, "sliding_window",
        m->window ? cJSON_CreateNumber((double)m->window) : cJSON_CreateNull(), good);
    if (!f->layered) return;
    cJSON *types = cJSON_CreateArray();
    for (int64_t i = 0; i < m->layers; i++)
        *good = *good &&
                cJSON_AddItemToArray(
                    types, cJSON_CreateString(m->window ? "sliding_attention" : "full_attention"));
    set_bool(root, "use_sliding_window", m->window > 0, good);
    set_number(root, "max_window_layers", m->window ? 0 : (double)m->layers, good);
    set(root, "layer_types", types, good);
}

static void set_llama(cJSON *root, const tr_hf_family *f, const tr_model_config *m,
                      const char *activation, bool imported, bool *good) {
    const cJSON *published = tr_json_get(root, "max_position_embeddings");
    double positions = scaled_context(m);
    if (cJSON_IsNumber(published)) positions = published->valuedouble;
    else if (imported) /* what transformers took it for, also where `f` is another class */
        positions = (double)class_of(m->family)->positions;
    if (!(positions >= (double)m->context)) positions = (double)m->context;
    set_number(root, "num_hidden_layers", (double)m->layers, good);
    set_number(root, "hidden_size", (double)m->width, good);
    set_number(root, "num_attention_heads", (double)m->heads, good);
    set_number(root, "num_key_value_heads", (double)m->kv_heads, good);
    set_number(root, "head_dim", (double)m->head_size, good);
    set_number(root, "intermediate_size", (double)m->mlp_width, good);
    set_number(root, "max_position_embeddings", positions, good);
    set_float(root, "rms_norm_eps", m->norm_eps, good);
    set_text(root, "hidden_act", activation, good);
    set_rope(root, m, good);
    set_window(root, f, m, good);
}

static cJSON *make(const tr_model_config *m, const tr_hf_family *f, const char *activation,
                   const cJSON *origin, const char *dtype) {
    cJSON *root = origin ? cJSON_Duplicate(origin, true) : cJSON_CreateObject();
    cJSON *architectures = cJSON_CreateArray();
    bool good = root && architectures &&
                cJSON_AddItemToArray(architectures, cJSON_CreateString(f->architecture));
    if (!root) {
        cJSON_Delete(architectures);
        return NULL;
    }
    set_text(root, "model_type", f->name, &good);
    set(root, "architectures", architectures, &good);
    set_number(root, "vocab_size", (double)m->vocab, &good);
    if (!strcmp(f->name, "gpt2")) set_gpt2(root, m, activation, &good);
    else set_llama(root, f, m, activation, origin != NULL, &good);
    cJSON_DeleteItemFromObjectCaseSensitive(root, "auto_map"); /* code that is not passed on */
    set_bool(root, "tie_word_embeddings", m->tie == TR_YES, &good);
    set_text(root, "dtype", dtype, &good);
    set_text(root, "torch_dtype", dtype, &good);
    /* Without ids of their own, transformers takes the class's defaults, which are other tokens. */
    if (!origin) set(root, "bos_token_id", cJSON_CreateNull(), &good);
    if (!origin) set(root, "eos_token_id", cJSON_CreateNull(), &good);
    if (good) return root;
    cJSON_Delete(root);
    return NULL;
}

tr_status tr_hf_print(const tr_model_config *model, const cJSON *origin, const char *dtype,
                      char **text) {
    const tr_hf_family *f;
    const char *activation;
    TR_TRY(find_class(model, &f));
    TR_TRY(find_activation(model, origin, &activation));
    cJSON *root = make(model, f, activation, origin, dtype);
    char *printed = root ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    if (!printed) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    tr_status status = tr_strdup(printed, text);
    cJSON_free(printed);
    return status;
}
