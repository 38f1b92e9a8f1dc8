#include "config/adapter.h"

#include "base/json.h"
#include "base/memory.h"
#include "layers/lora_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANK = 65536 };

bool tr_adapter_is(const char *folder) {
    char path[TR_CONFIG_PATH + 32];
    (void)snprintf(path, sizeof path, "%.*s/" TR_ADAPTER_CONFIG, TR_CONFIG_PATH, folder);
    return access(path, F_OK) == 0;
}

/* --- reading ---------------------------------------------------------------------------------- */

static tr_status check_features(const cJSON *root, const char *where) {
    static const struct {
        const char *key, *what;
    } no[] = {
        {"use_dora", "DoRA"},
        {"use_rslora", "a factor of alpha / sqrt(rank) (RS-LoRA)"},
        {"use_qalora", "QALoRA"},
        {"rank_pattern", "a rank of its own for some modules"},
        {"alpha_pattern", "an alpha of its own for some modules"},
        {"modules_to_save", "modules that are trained whole"},
        {"layers_to_transform", "updates of some layers only"},
        {"layer_replication", "copies of layers"},
        {"target_parameters", "updates of parameters outside linear layers"},
        {"exclude_modules", "modules that are left out of the targets"},
        {"trainable_token_indices", "single tokens that are trained"},
        {"lora_bias", "a bias in the update"},
        {"alora_invocation_tokens", "an update that begins at a token"},
        {"arrow_config", "several adapters at once"},
    };
    const char *type = cJSON_GetStringValue(tr_json_get(root, "peft_type"));
    const cJSON *bias_value = tr_json_get(root, "bias");
    const cJSON *init_value = tr_json_get(root, "init_lora_weights");
    const char *bias = cJSON_GetStringValue(bias_value), *init = cJSON_GetStringValue(init_value);
    char quoted[48];
    if (!type || strcmp(type, "LORA"))
        return TR_FAIL(TR_ERR_DATA, "%s: \"peft_type\" is '%s'; Trireme reads LORA", where,
                       type ? tr_json_quote(type, quoted, sizeof quoted) : "missing");
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (!tr_json_is_empty(tr_json_get(root, no[i].key)))
            return TR_FAIL(TR_ERR_DATA,
                           "%s: \"%s\" asks for %s, which Trireme does not have: merge the adapter "
                           "with PEFT (merge_and_unload), and start from that model",
                           where, no[i].key, no[i].what);
    if (!bias && !tr_json_is_empty(bias_value))
        return TR_FAIL(TR_ERR_DATA, "%s: \"bias\" must be \"none\"", where);
    if (!init && !tr_json_is_empty(init_value) && !cJSON_IsTrue(init_value))
        return TR_FAIL(TR_ERR_DATA, "%s: \"init_lora_weights\" must be true, false or a name",
                       where);
    if (bias && strcmp(bias, "none"))
        return TR_FAIL(TR_ERR_DATA,
                       "%s: \"bias\" is '%s', trained biases, which Trireme does not have in an "
                       "adapter: merge it with PEFT (merge_and_unload), and start from that model",
                       where, tr_json_quote(bias, quoted, sizeof quoted));
    if (init && strcmp(init, "gaussian") && strcmp(init, "eva") && strcmp(init, "orthogonal"))
        return TR_FAIL(TR_ERR_DATA,
                       "%s: \"init_lora_weights\" is '%s', which changes the base's weights: merge "
                       "the adapter with PEFT (merge_and_unload), and start from that model",
                       where, tr_json_quote(init, quoted, sizeof quoted));
    return TR_OK;
}

static tr_status add_target(const cJSON *value, const char *where, tr_lora_config *lora) {
    const char *name = cJSON_GetStringValue(value);
    const size_t used = strlen(lora->targets);
    if (!name || !*name || name[strcspn(name, " ,\t\n")])
        return TR_FAIL(TR_ERR_DATA, "%s: \"target_modules\" must be a list of names of modules",
                       where);
    if (used + strlen(name) + 2 > sizeof lora->targets)
        return TR_FAIL(TR_ERR_DATA, "%s: \"target_modules\" is longer than %zu characters", where,
                       sizeof lora->targets);
    (void)snprintf(lora->targets + used, sizeof lora->targets - used, "%s%s", used ? " " : "",
                   name);
    return TR_OK;
}

static tr_status read_targets(const cJSON *root, const char *where, tr_lora_config *lora) {
    const cJSON *targets = tr_json_get(root, "target_modules"), *item;
    const char *text = cJSON_GetStringValue(targets);
    if (text && !strcmp(text, "all-linear")) return add_target(targets, where, lora);
    if (text)
        return TR_FAIL(TR_ERR_DATA,
                       "%s: \"target_modules\" is a regular expression; Trireme reads a list of "
                       "names, or all-linear: write the modules' names as a list",
                       where);
    cJSON_ArrayForEach(item, targets) TR_TRY(add_target(item, where, lora));
    if (lora->targets[0]) return TR_OK;
    return TR_FAIL(TR_ERR_DATA, "%s: \"target_modules\" must be a list of names of modules", where);
}

static tr_status read_base(const cJSON *root, const char *folder, const char *where, char *base) {
    const char *name = cJSON_GetStringValue(tr_json_get(root, "base_model_name_or_path"));
    char next_to[2 * TR_CONFIG_PATH];
    base[0] = '\0';
    if (!name) return TR_OK;
    (void)snprintf(next_to, sizeof next_to, "%s/%.*s", folder, TR_CONFIG_PATH, name);
    if (name[0] != '/' && access(name, F_OK) != 0 && access(next_to, F_OK) == 0) name = next_to;
    if (strlen(name) >= TR_CONFIG_PATH)
        return TR_FAIL(TR_ERR_DATA, "%s: \"base_model_name_or_path\" is too long", where);
    memcpy(base, name, strlen(name) + 1);
    return TR_OK;
}

static tr_status parse(const cJSON *root, const char *folder, const char *where, tr_adapter *out) {
    const cJSON *alpha = tr_json_get(root, "lora_alpha");
    *out = (tr_adapter){.lora.rank = 0};
    TR_TRY(check_features(root, where));
    if (!tr_json_integer(tr_json_get(root, "r"), &out->lora.rank) || out->lora.rank < 1 ||
        out->lora.rank > MOST_RANK)
        return TR_FAIL(TR_ERR_DATA, "%s: \"r\" must be an integer from 1 to %d", where, MOST_RANK);
    out->lora.alpha = alpha ? alpha->valuedouble : 8; /* PEFT's default */
    if ((alpha && !cJSON_IsNumber(alpha)) || !(out->lora.alpha > 0) || !(out->lora.alpha <= 1e9))
        return TR_FAIL(TR_ERR_DATA, "%s: \"lora_alpha\" must be a number above 0", where);
    const cJSON *dropout = tr_json_get(root, "lora_dropout");
    out->dropout = dropout ? dropout->valuedouble : 0;
    if (dropout && !(cJSON_IsNumber(dropout) && out->dropout >= 0 && out->dropout < 1))
        return TR_FAIL(TR_ERR_DATA, "%s: \"lora_dropout\" must be a number from 0 to below 1",
                       where);
    TR_TRY(read_targets(root, where, &out->lora));
    return read_base(root, folder, where, out->base);
}

tr_status tr_adapter_read(const char *folder, tr_adapter *out) {
    char path[TR_CONFIG_PATH + 32];
    cJSON *root;
    (void)snprintf(path, sizeof path, "%.*s/" TR_ADAPTER_CONFIG, TR_CONFIG_PATH, folder);
    TR_TRY(tr_json_load("the adapter's config", path, 1, &root));
    tr_status status = parse(root, folder, path, out);
    cJSON_Delete(root);
    return status;
}

/* --- writing ---------------------------------------------------------------------------------- */

tr_status tr_adapter_print(const tr_model_config *model, const char *base, char **text) {
    const tr_lora_config *lora = &model->lora;
    cJSON *root = cJSON_CreateObject();
    bool good = cJSON_AddStringToObject(root, "peft_type", "LORA") != NULL;
    cJSON *name = *base ? cJSON_CreateString(base) : cJSON_CreateNull();
    good = name && cJSON_AddItemToObject(root, "base_model_name_or_path", name) && good;
    good = cJSON_AddStringToObject(root, "task_type", "CAUSAL_LM") && good;
    good = cJSON_AddNumberToObject(root, "r", (double)lora->rank) && good;
    good = cJSON_AddNumberToObject(root, "lora_alpha", tr_lora_factor(lora) * (double)lora->rank) &&
           good;
    good = cJSON_AddNumberToObject(root, "lora_dropout", 0) && good;
    good = cJSON_AddStringToObject(root, "bias", "none") && good;
    good = cJSON_AddBoolToObject(root, "fan_in_fan_out", tr_model_is_conv1d(model)) && good;
    good = cJSON_AddBoolToObject(root, "inference_mode", true) && good;
    cJSON *targets = cJSON_AddArrayToObject(root, "target_modules");
    char words[1024], *rest = NULL;
    tr_lora_modules(model, words, sizeof words);
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        cJSON *item = cJSON_CreateString(word);
        good = item && cJSON_AddItemToArray(targets, item) && good;
    }
    char *printed = good ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    if (!printed) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    tr_status status = tr_strdup(printed, text);
    cJSON_free(printed);
    return status;
}
