/* The keys of the model: their values from a preset or from a folder with weights, and whether
 * those that are set agree with it. */
#include "base/memory.h"
#include "config/adapter.h"
#include "config/config_impl.h"
#include "config/hf.h"
#include "layers/lora_config.h"
#include "layers/preset.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns a key's field in `values`, the model of another source. */
static const char *value_in(const tr_model_config *values, const tr_key *key) {
    return (const char *)values + key->offset - offsetof(tr_config, model);
}

/* Takes the values of the model's keys that are not set. */
static void take_values(const tr_model_config *values, tr_config *c) {
    for (int i = 0; i < tr_schema_count; i++)
        if (tr_config_is_of_model(&tr_schema[i]) && c->place[i].line == 0)
            memcpy((char *)c + tr_schema[i].offset, value_in(values, &tr_schema[i]),
                   tr_schema[i].size);
}

tr_status tr_config_take_preset(tr_config *c) {
    const bool named = tr_config_is_set(c, "model.preset");
    const tr_preset *preset = named ? tr_preset_find(c->preset) : tr_preset_tiny(c->model.family);
    if (!preset)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "model.family %s has no preset: add its tiny one to layers/preset.c",
                       c->model.family);
    tr_model_config values = named ? preset->model : tr_tiny_sizes;
    memcpy(values.family, preset->model.family, sizeof values.family);
    if (named && tr_config_is_set(c, "model.family") &&
        strcmp(preset->model.family, c->model.family) != 0)
        REFUSE("model.preset",
               "model.preset %s is of family %s, but model.family is %s: leave one "
               "of the two out",
               c->preset, preset->model.family, c->model.family);
    take_values(&values, c);
    (void)snprintf(c->preset, sizeof c->preset, "%s", preset->name);
    const bool no_theta = tr_config_is_set(c, "model.rope_theta") && c->model.rope_theta == 0;
    TR_TRY(tr_model_complete(&c->model));
    if (no_theta && c->model.rope_theta != 0)
        REFUSE("model.rope_theta",
               "model.rope_theta must be above 1, not 0: leave it out for %g, the default",
               values.rope_theta > 0 ? values.rope_theta : c->model.rope_theta);
    return TR_OK;
}

/* Returns true when all of the model's keys are set, as in the recorded config of a run. */
static bool model_is_set(const tr_config *c) {
    for (int i = 0; i < tr_schema_count; i++)
        if (tr_config_is_of_model(&tr_schema[i]) && c->place[i].line == 0) return false;
    return true;
}

/* Returns true for a key that may differ from the model that exists. */
static bool free_choice(const tr_key *key, const tr_config *origin) {
    return !strcmp(key->name, "model.dropout") || !strcmp(key->name, "model.context") ||
           (!strcmp(key->name, "model.rope_scaling") &&
            !strcmp(origin->model.rope_scaling, "none"));
}

/* Fails because the key differs from the model of `origin`, which `where` names. */
static tr_status contradicts(const tr_config *c, const tr_key *key, const tr_config *origin,
                             const char *where) {
    char *ours, *theirs, text[512] = "";
    TR_TRY(tr_key_text(key, c, &ours));
    tr_status status = tr_key_text(key, origin, &theirs);
    if (status == TR_OK)
        (void)snprintf(text, sizeof text, "%s is %.80s, but %.200s says %.80s: leave the key out",
                       key->name, ours, where, theirs);
    if (status == TR_OK) free(theirs);
    free(ours);
    TR_TRY(status);
    REFUSE(key->name, "%s", text);
}

/* Fails when a key that is set differs from config.json. */
static tr_status compare_origin(const tr_config *c, const tr_config *origin, const char *path) {
    char where[192];
    (void)snprintf(where, sizeof where, "%.120s, which model.init_from names,", path);
    for (int i = 0; i < tr_schema_count; i++) {
        const tr_key *key = &tr_schema[i];
        if (!tr_config_is_of_model(key) || c->place[i].line == 0 || free_choice(key, origin))
            continue;
        if (!tr_config_same_value(key, c, origin)) return contradicts(c, key, origin, where);
    }
    return TR_OK;
}

tr_status tr_config_check_fixed(const tr_config *c, const tr_config *saved, const char *run) {
    char where[192];
    (void)snprintf(where, sizeof where, "the run '%.160s'", run);
    for (int i = 0; i < tr_schema_count; i++) {
        const tr_key *key = &tr_schema[i];
        const bool position =
            !strcmp(key->name, "model.context") && tr_model_learns_positions(&saved->model);
        if (strncmp(key->name, "model.", strlen("model."))) continue;
        if (free_choice(key, saved) && !position) continue;
        const bool same = strcmp(key->name, "model.lora.targets")
                              ? tr_config_same_value(key, c, saved)
                              : tr_lora_same_targets(&c->model, &saved->model);
        if (!same) return contradicts(c, key, saved, where);
    }
    return TR_OK;
}

static tr_status compare_context(const tr_config *c, const tr_hf *hf, const char *path) {
    const bool learned = tr_model_learns_positions(&hf->model);
    const bool scales = strcmp(hf->model.rope_scaling, "none") != 0;
    if (c->model.context <= hf->reach || strcmp(c->model.rope_scaling, hf->model.rope_scaling) != 0)
        return TR_OK;
    if (scales)
        REFUSE("model.context",
               "model.context is %" PRId64 ", but %.100s allows at most %" PRId64
               " with its scaling, %.64s: set a context of at most %" PRId64,
               c->model.context, path, hf->reach, hf->model.rope_scaling, hf->reach);
    REFUSE("model.context",
           "model.context is %" PRId64 ", but max_position_embeddings in %.100s is %" PRId64
           ": set a %ssmaller context",
           c->model.context, path, hf->positions, learned ? "" : "model.rope_scaling, or a ");
}

tr_status tr_config_check_ranges(const tr_model_config *model) {
    tr_config *config;
    TR_TRY(tr_calloc(1, sizeof *config, &config));
    config->model = *model;
    tr_status status = TR_OK;
    for (int i = 0; i < tr_schema_count && status == TR_OK; i++) {
        char *text = NULL;
        if (!tr_config_is_of_model(&tr_schema[i])) continue;
        status = tr_key_text(&tr_schema[i], config, &text);
        if (status == TR_OK) status = tr_key_set(&tr_schema[i], text, config);
        free(text);
    }
    free(config);
    return status;
}

/* Compares the updates' keys that are set with the adapter. */
static tr_status compare_adapter(const tr_config *c, const tr_lora_config *lora) {
    if (tr_config_is_set(c, "model.lora.rank") && c->model.lora.rank != lora->rank)
        REFUSE("model.lora.rank",
               "model.lora.rank is %" PRId64 ", but the adapter %.100s has rank %" PRId64
               ": leave the key out",
               c->model.lora.rank, c->init_from, lora->rank);
    if (tr_config_is_set(c, "model.lora.alpha") && c->model.lora.alpha != lora->alpha)
        REFUSE("model.lora.alpha",
               "model.lora.alpha is %g, but the adapter %.100s has %g: leave the key out",
               c->model.lora.alpha, c->init_from, lora->alpha);
    return TR_OK;
}

/* Checks the updates that were taken from an adapter against the complete model. targets: those of
 * the key. */
static tr_status check_adapter(const tr_config *c, const char *targets) {
    if (!tr_config_adapter(c)) return TR_OK;
    tr_model_config keys = c->model;
    (void)snprintf(keys.lora.targets, sizeof keys.lora.targets, "%s", targets);
    if (tr_config_is_set(c, "model.lora.targets") && !tr_lora_same_targets(&keys, &c->model))
        REFUSE("model.lora.targets",
               "model.lora.targets is '%.80s', but the adapter %.80s updates '%.80s': "
               "leave the key out",
               targets, c->init_from, c->model.lora.targets);
    if (tr_lora_check(&c->model) == TR_OK) return TR_OK;
    return TR_FAIL(TR_ERR_DATA, "%s/" TR_ADAPTER_CONFIG " does not fit the model in %s: %s",
                   c->init_from, tr_config_origin(c), tr_error_message());
}

/* If model.init_from is an adapter, takes its updates, and the folder of its model. */
static tr_status read_adapter(tr_config *c) {
    tr_adapter adapter;
    char config[TR_CONFIG_PATH + 16];
    if (!tr_adapter_is(c->init_from)) {
        if (!c->lora_base[0]) return TR_OK;
        REFUSE("model.lora.base",
               "model.lora.base is set, but model.init_from '%.200s' is not an adapter (it has no "
               "adapter_config.json): leave model.lora.base out",
               c->init_from);
    }
    TR_TRY(tr_adapter_read(c->init_from, &adapter));
    TR_TRY(compare_adapter(c, &adapter.lora));
    c->model.lora = adapter.lora;
    if (!tr_config_is_set(c, "model.lora.base"))
        (void)snprintf(c->lora_base, sizeof c->lora_base, "%s", adapter.base);
    if (!c->lora_base[0])
        REFUSE("model.init_from",
               "the adapter %.200s does not name its model (base_model_name_or_path): set "
               "model.lora.base to the model's folder",
               c->init_from);
    (void)snprintf(config, sizeof config, "%s/config.json", c->lora_base);
    if (access(config, F_OK) == 0) return TR_OK;
    if (access(c->lora_base, F_OK) == 0)
        return TR_FAIL(TR_ERR_DATA,
                       "%s, the model of the adapter '%.200s', %s: set model.lora.base to "
                       "the folder of the model",
                       c->lora_base, c->init_from,
                       tr_adapter_is(c->lora_base) ? "is itself an adapter" : "has no config.json");
    /* Its name is in a file, unless the user has set it. */
    return TR_FAIL(tr_config_is_set(c, "model.lora.base") ? TR_ERR_NOFILE : TR_ERR_DATA,
                   "there is no folder '%s', the model of the adapter '%s': set model.lora.base to "
                   "the model's folder",
                   c->lora_base, c->init_from);
}

static bool has(const char *folder, const char *file) {
    char path[TR_CONFIG_PATH + 16];
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    return access(path, F_OK) == 0;
}

/* Returns true for the folder of all checkpoints of a run, or of one. */
static bool is_checkpoint(const char *folder) {
    size_t n = strlen(folder);
    while (n > 0 && folder[n - 1] == '/') n--;
    return has(folder, "COMMIT") ||
           (n >= 4 && !strncmp(folder + n - 4, "ckpt", 4) && has(folder, "."));
}

static tr_status refuse_run(const tr_config *c) {
    const char *const folder = c->init_from;
    const bool is_run = has(folder, "ckpt");
    if (has(folder, "config.json") || (!is_run && !is_checkpoint(folder))) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "model.init_from '%.200s' is a %s of Trireme, not a folder of transformers: "
                   "write one with 'trireme ckpt export %.200s FOLDER', and name that folder",
                   folder, is_run ? "run" : "checkpoint", is_run ? folder : "RUN");
}

/* Fills the model's keys that are not set from config.json in the folder model.init_from, or in
 * that of an adapter's model, and compares the others with it. */
static tr_status read_origin(tr_config *c) {
    char path[TR_CONFIG_PATH + 16];
    tr_hf hf;
    tr_config *origin;
    char targets[sizeof c->model.lora.targets];
    (void)snprintf(targets, sizeof targets, "%s", c->model.lora.targets);
    TR_TRY(refuse_run(c));
    TR_TRY(read_adapter(c));
    (void)snprintf(path, sizeof path, "%s/config.json", tr_config_origin(c));
    TR_TRY(tr_hf_read(tr_config_origin(c), &hf, NULL));
    TR_TRY(tr_calloc(1, sizeof *origin, &origin));
    origin->model = hf.model;
    tr_status status = compare_origin(c, origin, path);
    free(origin);
    TR_TRY(status);
    take_values(&hf.model, c);
    TR_TRY(tr_model_complete(&c->model));
    TR_TRY(check_adapter(c, targets));
    return compare_context(c, &hf, path);
}

tr_status tr_config_take_origin(tr_config *c) {
    if (tr_config_is_set(c, "model.preset"))
        REFUSE("model.preset",
               "model.preset and model.init_from both say what the model is: leave one out");
    c->preset[0] = '\0';
    return model_is_set(c) ? tr_model_complete(&c->model) : read_origin(c);
}

const char *tr_config_origin(const tr_config *c) {
    return c->lora_base[0] ? c->lora_base : c->init_from;
}

const char *tr_config_adapter(const tr_config *c) {
    return c->lora_base[0] ? c->init_from : NULL;
}

tr_status tr_config_check_origin(const tr_config *config) {
    tr_config *copy;
    TR_TRY(tr_calloc(1, sizeof *copy, &copy));
    *copy = *config;
    tr_status status = read_origin(copy);
    free(copy);
    return status;
}
