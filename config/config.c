#include "config/config.h"

#include "base/input.h"
#include "base/memory.h"
#include "config/adapter.h"
#include "config/hf.h"
#include "config/schema.h"
#include "config/yaml.h"
#include "data/paths.h"
#include "layers/lora_config.h"
#include "layers/preset.h"
#include "layers/tuning.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* No schedule gains from more micro-batches, and planning their memory would take minutes. */
enum { MOST_MICRO_BATCHES = 16384 };

/* Fails again with the last failure's sentence, and its place before it. */
static tr_status at_place(const char *source, int line, int column) {
    return TR_FAIL(TR_ERR_CONFIG, "%s:%d:%d: %s", source, line, column, tr_error_message());
}

static tr_status unknown_key(const char *name) {
    int near = tr_schema_nearest(name);
    if (tr_schema_is_section(name))
        return TR_FAIL(TR_ERR_CONFIG, "%s is a section: write its keys below it, or as %s.KEY",
                       name, name);
    const char *dot = strrchr(name, '.');
    for (int i = 0; dot && i < tr_schema_count; i++)
        if (!strncmp(tr_schema[i].name, name, (size_t)(dot - name)) &&
            !tr_schema[i].name[dot - name])
            return TR_FAIL(TR_ERR_CONFIG,
                           "%s takes one value, not keys below it: write it like %s=\"%s\"",
                           tr_schema[i].name, tr_schema[i].name,
                           tr_schema[i].example ? tr_schema[i].example : tr_schema[i].fallback);
    if (near < 0)
        return TR_FAIL(TR_ERR_CONFIG, "unknown key '%s'; `trireme help` lists all keys", name);
    return TR_FAIL(TR_ERR_CONFIG, "unknown key '%s'; did you mean %s?", name, tr_schema[near].name);
}

static tr_status set_entry(const tr_yaml_entry *e, const char *source, tr_config *config) {
    int index = tr_schema_find(e->key);
    if (index < 0) {
        if (!e->value && tr_schema_is_section(e->key)) return TR_OK; /* an empty section */
        (void)unknown_key(e->key);
        return at_place(source, e->key_line, e->key_column);
    }
    tr_config_place *place = &config->place[index];
    if (place->line) {
        (void)TR_FAIL(TR_ERR_CONFIG, "%s is set twice, first in line %d", e->key, place->line);
        return at_place(source, e->key_line, e->key_column);
    }
    if (!tr_key_takes(&tr_schema[index], e->kind)) {
        (void)TR_FAIL(TR_ERR_CONFIG, "%s",
                      tr_schema[index].type == TR_KEY_SCALES
                          ? "an item of this list is like {match: '*.wte.weight', scale: 0.1}"
                      : tr_schema[index].type == TR_KEY_PATTERNS
                          ? "an item of this list is one pattern"
                      : tr_schema[index].type == TR_KEY_PATHS
                          ? "an item of this list is a path, or like {path: a.bin, weight: 0.7}"
                          : "a list is not allowed here: give one value");
        return at_place(source, e->line, e->column);
    }
    if (tr_key_set(&tr_schema[index], e->value ? e->value : "", config) != TR_OK)
        return at_place(source, e->line, e->column);
    *place = (tr_config_place){.line = e->line, .column = e->column};
    return TR_OK;
}

/* Sets a key from "key=value" or "--key=value", which is override `number` (from 1). */
static tr_status set_override(const char *text, int number, tr_config *config) {
    const char *key = strncmp(text, "--", 2) ? text : text + 2, *equals = strchr(key, '=');
    char name[128];
    if (!equals || equals == key || equals - key >= (ptrdiff_t)sizeof name)
        return TR_FAIL(TR_ERR_CONFIG, "%.200s: expected key=value, like train.steps=100", text);
    memcpy(name, key, (size_t)(equals - key));
    name[equals - key] = '\0';
    int index = tr_schema_find(name);
    tr_status status =
        index < 0 ? unknown_key(name) : tr_key_set(&tr_schema[index], equals + 1, config);
    TR_TRY(status);
    config->place[index] = (tr_config_place){.line = -number};
    return TR_OK;
}

/* Returns where `key` was set, for the front of a sentence that names the key: "file:line:column:
 * ";
 * "" for the command line, "file: " where it was not set. */
static const char *place_of(const tr_config *config, const char *key, char *buffer, size_t size) {
    int index = tr_schema_find(key);
    tr_config_place p = index < 0 ? (tr_config_place){0} : config->place[index];
    if (p.line > 0) (void)snprintf(buffer, size, "%s:%d:%d: ", config->source, p.line, p.column);
    else
        (void)snprintf(buffer, size, "%s%s", p.line < 0 ? "" : config->source,
                       p.line < 0 ? "" : ": ");
    return buffer;
}

#define REFUSE(key, ...)                                                                           \
    do {                                                                                           \
        char sentence_[512], place_[320];                                                          \
        (void)snprintf(sentence_, sizeof sentence_, __VA_ARGS__);                                  \
        return TR_FAIL(TR_ERR_CONFIG, "%s%s", place_of(c, (key), place_, sizeof place_),           \
                       sentence_);                                                                 \
    } while (0)

static bool is_set(const tr_config *config, const char *key) {
    return config->place[tr_schema_find(key)].line != 0;
}

/* Returns true for a key of tr_model_config that says what the model is, without its updates and
 * what of it is trained. */
static bool is_of_model(const tr_key *key) {
    return key->offset < offsetof(tr_config, model) + offsetof(tr_model_config, lora);
}

/* Returns true for a key of the model's updates. */
static bool is_of_lora(const tr_key *key) {
    const size_t begin = offsetof(tr_config, model) + offsetof(tr_model_config, lora);
    return key->offset >= begin && key->offset < begin + sizeof(tr_lora_config);
}

static bool same_value(const tr_key *key, const tr_config *a, const tr_config *b) {
    const char *x = (const char *)a + key->offset, *y = (const char *)b + key->offset;
    bool text = key->type == TR_KEY_TEXT || key->type == TR_KEY_PATHS ||
                key->type == TR_KEY_SHARE || key->type == TR_KEY_CHOICE ||
                key->type == TR_KEY_SCHEDULE || key->type == TR_KEY_PATTERNS ||
                key->type == TR_KEY_SCALES;
    return text ? strcmp(x, y) == 0 : memcmp(x, y, key->size) == 0;
}

/* Returns a key's field in `values`, the model of another source. */
static const char *value_in(const tr_model_config *values, const tr_key *key) {
    return (const char *)values + key->offset - offsetof(tr_config, model);
}

/* Takes the values of the model's keys that are not set. */
static void take_values(const tr_model_config *values, tr_config *c) {
    for (int i = 0; i < tr_schema_count; i++)
        if (is_of_model(&tr_schema[i]) && c->place[i].line == 0)
            memcpy((char *)c + tr_schema[i].offset, value_in(values, &tr_schema[i]),
                   tr_schema[i].size);
}

/* Fills the model's keys that are not set: with a preset from the preset, otherwise with the sizes
 * of a tiny model and the family's other values. Also makes preset and family agree. */
static tr_status take_preset(tr_config *c) {
    const bool named = is_set(c, "model.preset");
    const tr_preset *preset = named ? tr_preset_find(c->preset) : tr_preset_tiny(c->model.family);
    tr_model_config values = named ? preset->model : tr_tiny_sizes;
    memcpy(values.family, preset->model.family, sizeof values.family);
    if (named && is_set(c, "model.family") && strcmp(preset->model.family, c->model.family) != 0)
        REFUSE("model.preset",
               "model.preset %s is of family %s, but model.family is %s: leave one "
               "of the two out",
               c->preset, preset->model.family, c->model.family);
    take_values(&values, c);
    (void)snprintf(c->preset, sizeof c->preset, "%s", preset->name);
    const bool no_theta = is_set(c, "model.rope_theta") && c->model.rope_theta == 0;
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
        if (is_of_model(&tr_schema[i]) && c->place[i].line == 0) return false;
    return true;
}

/* Fails when a key that is set differs from config.json. */
static tr_status compare_origin(const tr_config *c, const tr_config *origin, const char *path) {
    for (int i = 0; i < tr_schema_count; i++) {
        const tr_key *key = &tr_schema[i];
        const bool free_choice = !strcmp(key->name, "model.dropout") ||
                                 !strcmp(key->name, "model.context") ||
                                 (!strcmp(key->name, "model.rope_scaling") &&
                                  !strcmp(origin->model.rope_scaling, "none"));
        if (!is_of_model(key) || c->place[i].line == 0 || free_choice) continue;
        if (same_value(key, c, origin)) continue;
        char *ours, *theirs;
        TR_TRY(tr_key_text(key, c, &ours));
        tr_status status = tr_key_text(key, origin, &theirs);
        char text[384] = "";
        if (status == TR_OK)
            (void)snprintf(
                text, sizeof text,
                "%s is %.80s, but %.120s, which model.init_from names, says %.80s: leave "
                "the key out",
                key->name, ours, path, theirs);
        if (status == TR_OK) free(theirs);
        free(ours);
        TR_TRY(status);
        REFUSE(key->name, "%s", text);
    }
    return TR_OK;
}

static tr_status compare_context(const tr_config *c, const tr_hf *hf, const char *path) {
    const bool learned = !strcmp(hf->model.family, "gpt2");
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

/* Compares the updates' keys that are set with the adapter. */
static tr_status compare_adapter(const tr_config *c, const tr_lora_config *lora) {
    if (is_set(c, "model.lora.rank") && c->model.lora.rank != lora->rank)
        REFUSE("model.lora.rank",
               "model.lora.rank is %" PRId64 ", but the adapter %.100s has rank %" PRId64
               ": leave the key out",
               c->model.lora.rank, c->init_from, lora->rank);
    if (is_set(c, "model.lora.alpha") && c->model.lora.alpha != lora->alpha)
        REFUSE("model.lora.alpha",
               "model.lora.alpha is %g, but the adapter %.100s has %g: leave the key out",
               c->model.lora.alpha, c->init_from, lora->alpha);
    if (is_set(c, "model.lora.targets") && strcmp(c->model.lora.targets, lora->targets) != 0)
        REFUSE("model.lora.targets",
               "model.lora.targets is '%.80s', but the adapter %.80s updates '%.80s': leave the "
               "key out",
               c->model.lora.targets, c->init_from, lora->targets);
    return TR_OK;
}

/* If model.init_from is an adapter, takes its updates, and the folder of its model. */
static tr_status read_adapter(tr_config *c) {
    tr_adapter adapter;
    char config[TR_CONFIG_PATH + 16];
    if (!tr_adapter_is(c->init_from)) {
        if (!c->lora_base[0]) return TR_OK;
        REFUSE("model.lora.base",
               "model.lora.base is set, but model.init_from '%.200s' is no adapter (it has no "
               "adapter_config.json): leave model.lora.base out",
               c->init_from);
    }
    TR_TRY(tr_adapter_read(c->init_from, &adapter));
    TR_TRY(compare_adapter(c, &adapter.lora));
    c->model.lora = adapter.lora;
    if (!is_set(c, "model.lora.base"))
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
    return TR_FAIL(TR_ERR_NOFILE,
                   "there is no folder '%s', the model of the adapter '%s': set model.lora.base to "
                   "the model's folder",
                   c->lora_base, c->init_from);
}

/* Fills the model's keys that are not set from config.json in the folder model.init_from, or in
 * that of an adapter's model, and compares the others with it. */
static tr_status read_origin(tr_config *c) {
    char path[TR_CONFIG_PATH + 16];
    tr_hf hf;
    tr_config *origin;
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
    return compare_context(c, &hf, path);
}

static tr_status take_origin(tr_config *c) {
    if (is_set(c, "model.preset"))
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

/* Sets log.dir to runs/<name of the file without folder and ending>. */
static void take_log_dir(tr_config *config) {
    const char *slash = strrchr(config->source, '/');
    const char *name = slash ? slash + 1 : config->source;
    const char *dot = strrchr(name, '.');
    int length = (int)(dot && dot > name ? (size_t)(dot - name) : strlen(name));
    if (!config->log.dir[0])
        (void)snprintf(config->log.dir, sizeof config->log.dir, "runs/%.*s", length, name);
}

bool tr_config_on_gpu(const tr_config *config) {
    return strncmp(config->device.name, "cuda", 4) == 0;
}

/* Returns true for a key that has its default, when that default depends on the device. */
static bool follows_device(const tr_config *config, int index) {
    return tr_schema[index].on_gpu && config->place[index].line == 0;
}

static tr_status take_device_defaults(tr_config *config) {
    if (!tr_config_on_gpu(config)) return TR_OK;
    for (int i = 0; i < tr_schema_count; i++)
        if (follows_device(config, i))
            TR_TRY(tr_key_set(&tr_schema[i], tr_schema[i].on_gpu, config));
    return TR_OK;
}

void tr_config_keep(tr_config *config, const tr_config *saved) {
    for (int i = 0; i < tr_schema_count; i++) {
        size_t at = tr_schema[i].offset;
        if (follows_device(config, i))
            memcpy((char *)config + at, (const char *)saved + at, tr_schema[i].size);
    }
}

static tr_status fill(const tr_yaml *yaml, const char *source, const char *const *overrides,
                      int count, tr_config *config) {
    for (int i = 0; i < yaml->count; i++) TR_TRY(set_entry(&yaml->entry[i], source, config));
    for (int i = 0; i < count; i++) TR_TRY(set_override(overrides[i], i + 1, config));
    TR_TRY(config->init_from[0] ? take_origin(config) : take_preset(config));
    if (!strcmp(config->data.format, "instruct") && !is_set(config, "data.documents"))
        (void)snprintf(config->data.documents, sizeof config->data.documents, "packed");
    take_log_dir(config);
    return take_device_defaults(config);
}

tr_status tr_config_parse(const char *text, size_t length, const char *source,
                          const char *const *overrides, int count, tr_config *config) {
    *config = (tr_config){0};
    for (int i = 0; i < tr_schema_count; i++)
        if (tr_schema[i].fallback) TR_TRY(tr_key_set(&tr_schema[i], tr_schema[i].fallback, config));
    (void)snprintf(config->source, sizeof config->source, "%s", source);
    tr_yaml yaml;
    TR_TRY(tr_yaml_parse(text, length, source, &yaml));
    tr_status status = fill(&yaml, source, overrides, count, config);
    tr_yaml_free(&yaml);
    TR_TRY(status);
    return TR_OK;
}

tr_status tr_config_load(const char *path, const char *const *overrides, int count,
                         tr_config *config) {
    static const tr_input_limit limit = {.mib = 1, .failure = TR_ERR_CONFIG};
    char *text;
    size_t length;
    TR_TRY(tr_input_load("the config file", path, limit, &text, &length));
    tr_status status = tr_config_parse(text, length, path, overrides, count, config);
    free(text);
    TR_TRY(status);
    return TR_OK;
}

/* --- checks of several keys ------------------------------------------------------------------- */

/* Returns the first key in the text that is set, else the first key in it, else "". */
static const char *key_named(const tr_config *c, const char *text) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_.0123456789";
    const char *first = "";
    for (size_t n; *text; text += n ? n : 1) {
        char word[64];
        n = strspn(text, letters);
        (void)snprintf(word, sizeof word, "%.*s", (int)n, text);
        int index = n ? tr_schema_find(word) : -1;
        if (index >= 0 && c->place[index].line) return tr_schema[index].name;
        if (index >= 0 && !*first) first = tr_schema[index].name;
    }
    return first;
}

/* Checks the model's sizes with the layers' own checks; the message begins with the place of the
 * key. */
static tr_status check_model(const tr_config *c) {
    const tr_model_shape shape = {.batch = c->train.micro_batch,
                                  .seq = c->model.context,
                                  .dtype = tr_config_dtype(c),
                                  .tp_size = (int)c->parallel.tp};
    tr_status status = tr_model_check(&c->model, &shape);
    if (status == TR_OK && !tr_tuning_is_plain(&c->model.tuning)) {
        tr_model *model; /* its names are compared with the patterns */
        status = tr_model_create(&c->model, &shape, &model);
        if (status == TR_OK) tr_model_destroy(model);
    }
    if (status != TR_ERR_CONFIG) return status;
    char why[512];
    (void)snprintf(why, sizeof why, "%s", tr_error_message());
    REFUSE(key_named(c, why), "%s", why);
}

static tr_status check_stages(const tr_config *c) {
    int64_t virtual = c->parallel.virtual_stages > 1 ? c->parallel.virtual_stages : 1;
    if (c->parallel.pp * virtual > c->model.layers)
        REFUSE(virtual > 1 ? "parallel.virtual" : "parallel.pp",
               "parallel.pp %" PRId64 " with parallel.virtual %" PRId64 " makes %" PRId64
               " stages, but model.layers is %" PRId64 ": every stage needs a layer",
               c->parallel.pp, virtual, c->parallel.pp * virtual, c->model.layers);
    return TR_OK;
}

static tr_status check_documents(const tr_config *c) {
    const bool bytes = strcmp(c->data.format, "bytes") == 0; /* other formats may know the end */
    if (bytes && tr_config_packed(c) && c->data.document_end < 0)
        REFUSE("data.documents",
               "data.documents packed needs data.document_end, the token that ends a document (10 "
               "for the end of a line in data.format bytes)");
    if (!strcmp(c->data.format, "instruct") && !tr_config_packed(c))
        REFUSE("data.documents",
               "data.documents windows would cut conversations: data.format instruct needs packed, "
               "its default");
    if (c->data.document_end >= c->model.vocab)
        REFUSE("data.document_end",
               "data.document_end %" PRId64 " is not a token: model.vocab %" PRId64
               " has tokens 0 to %" PRId64,
               c->data.document_end, c->model.vocab, c->model.vocab - 1);
    return TR_OK;
}

tr_status tr_config_check_data(const tr_config *c) {
    if (!c->data.path[0])
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s: data.path is missing: name the file to learn from, like data.path: "
                       "corpus.txt",
                       c->source);
    if (!strcmp(c->data.format, "bytes") && c->model.vocab < 256)
        REFUSE("model.vocab",
               "model.vocab %" PRId64 " is too small: data.format bytes has 256 tokens",
               c->model.vocab);
    if (!strcmp(c->data.format, "bytes") && c->data.document_end >= 256)
        REFUSE("data.document_end",
               "data.document_end %" PRId64
               " is not a token: data.format bytes has tokens 0 to 255",
               c->data.document_end);
    TR_TRY(check_documents(c));
    tr_data_paths paths;
    tr_status status = tr_data_paths_parse("data.path", c->data.path, &paths);
    tr_data_paths_free(&paths);
    if (status != TR_ERR_CONFIG) return status;
    char why[400];
    (void)snprintf(why, sizeof why, "%s", tr_error_message());
    REFUSE("data.path", "%s", why);
}

static tr_status check_precision(const tr_config *c) {
    if (tr_config_dtype(c) == TR_F64 && strcmp(c->device.name, "ref"))
        REFUSE("train.precision",
               "train.precision fp64 needs device.name ref: %s computes in fp32 and bf16",
               c->device.name);
    return TR_OK;
}

/* An adapter's model is named next to the adapter. */
static tr_status check_base(const tr_config *c) {
    if (!c->lora_base[0] || c->init_from[0]) return TR_OK;
    REFUSE("model.lora.base",
           "model.lora.base is the model of the adapter that model.init_from names, but "
           "model.init_from is not set: set model.init_from to the model's folder, and leave "
           "model.lora.base out");
}

static tr_status check_batch(const tr_config *c) {
    int64_t unit = c->parallel.dp * c->train.micro_batch;
    int64_t up = (c->train.batch + unit - 1) / unit * unit;
    if (up != c->train.batch)
        REFUSE("train.batch",
               "train.batch %" PRId64
               " is not a multiple of parallel.dp * train.micro_batch = %" PRId64 " * %" PRId64
               ": the next multiple is %" PRId64,
               c->train.batch, c->parallel.dp, c->train.micro_batch, up);
    if (c->train.batch / unit > MOST_MICRO_BATCHES)
        REFUSE("train.batch",
               "train.batch %" PRId64 " is %" PRId64
               " micro-batches a step on each data rank, more than %d: raise train.micro_batch",
               c->train.batch, c->train.batch / unit, MOST_MICRO_BATCHES);
    if (c->optim.min_lr > c->optim.lr)
        REFUSE("optim.min_lr", "optim.min_lr %g is above optim.lr %g", c->optim.min_lr,
               c->optim.lr);
    return TR_OK;
}

tr_status tr_config_check(const tr_config *c, int world_size) {
    TR_TRY(check_base(c));
    TR_TRY(check_model(c));
    TR_TRY(check_documents(c));
    TR_TRY(check_precision(c));
    TR_TRY(check_stages(c));
    TR_TRY(check_batch(c));
    int64_t ranks = c->parallel.pp * c->parallel.tp * c->parallel.dp;
    if (world_size > 0 && ranks != world_size)
        REFUSE("parallel.pp",
               "parallel.pp * tp * dp = %" PRId64 " * %" PRId64 " * %" PRId64 " needs %" PRId64
               " rank%s, but %d %s started: use `trireme run -n %" PRId64
               " train ...`, or change the degrees",
               c->parallel.pp, c->parallel.tp, c->parallel.dp, ranks, ranks == 1 ? "" : "s",
               world_size, world_size == 1 ? "was" : "were", ranks);
    return TR_OK;
}

/* --- printing --------------------------------------------------------------------------------- */

tr_status tr_config_print(const tr_config *config, FILE *file) {
    size_t section = 0; /* length of the open section's name */
    for (int i = 0; i < tr_schema_count; i++) {
        const tr_key *key = &tr_schema[i];
        size_t length = strcspn(key->name, ".");
        if (i == 0 || length != section || strncmp(tr_schema[i - 1].name, key->name, length))
            (void)fprintf(file, "%.*s:\n", (int)length, key->name);
        section = length;
        char *value;
        bool words = key->type == TR_KEY_TEXT || key->type == TR_KEY_PATHS ||
                     key->type == TR_KEY_CHOICE || key->type == TR_KEY_PATTERNS ||
                     key->type == TR_KEY_SCALES;
        if (words && !*((const char *)config + key->offset)) continue;
        TR_TRY(tr_key_text(key, config, &value));
        (void)fprintf(file, "  %s: %s\n", key->name + length + 1, value);
        free(value);
    }
    if (ferror(file))
        return TR_FAIL(TR_ERR_IO, "the config cannot be written: %s", strerror(errno));
    return TR_OK;
}

tr_status tr_config_text(const tr_config *config, char **text) {
    size_t size;
    *text = NULL;
    FILE *f = open_memstream(text, &size);
    if (!f) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    tr_status status = tr_config_print(config, f);
    if (fclose(f) != 0 && status == TR_OK) status = TR_FAIL(TR_ERR_FIT, "out of host memory");
    if (status != TR_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

static tr_status other_model(const tr_key *key, const tr_config *config, const tr_config *saved,
                             const char *where) {
    char *now, *then;
    TR_TRY(tr_key_text(key, config, &now));
    tr_status status = tr_key_text(key, saved, &then);
    if (status == TR_OK) {
        status = TR_FAIL(TR_ERR_DATA,
                         "%s holds a checkpoint of another model: its %s is %s, and this config's "
                         "is %s; set the model's keys as they were, or choose another log.dir",
                         where, key->name, then, now);
        free(then);
    }
    free(now);
    return status;
}

tr_status tr_config_check_model(const tr_config *config, const tr_config *saved,
                                const char *where) {
    for (int i = 0; i < tr_schema_count; i++) {
        const tr_key *key = &tr_schema[i];
        if (!strcmp(key->name, "model.dropout") || (!is_of_model(key) && !is_of_lora(key)))
            continue;
        if (!strcmp(key->name, "model.lora.targets") &&
            tr_lora_same_targets(&config->model, &saved->model))
            continue;
        if (!same_value(key, config, saved)) return other_model(key, config, saved, where);
    }
    return TR_OK;
}

bool tr_config_packed(const tr_config *config) {
    return strcmp(config->data.documents, "packed") == 0;
}

int32_t tr_config_document_end(const tr_config *config) {
    return tr_config_packed(config) ? (int32_t)config->data.document_end : -1;
}

double tr_config_validation(const tr_config *config, const char **path) {
    double share = 0;
    bool is_share = tr_key_share(config->data.validation, &share);
    if (path) *path = is_share ? NULL : config->data.validation;
    return is_share ? share : 0;
}

bool tr_config_validates(const tr_config *config) {
    const char *path;
    return tr_config_validation(config, &path) > 0 || path;
}

tr_dtype tr_config_dtype(const tr_config *config) {
    if (!strcmp(config->train.precision, "fp64")) return TR_F64;
    return strcmp(config->train.precision, "bf16") ? TR_F32 : TR_BF16;
}
