#include "config/config.h"

#include "base/input.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "config/config_impl.h"
#include "config/elsewhere.h"
#include "config/schema.h"
#include "config/yaml.h"
#include "layers/lora_config.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Fails again with the last failure's sentence, and its place before it. */
static tr_status at_place(const char *source, int line, int column) {
    return TR_FAIL(TR_ERR_CONFIG, "%s:%d:%d: %s", source, line, column, tr_error_message());
}

/* Fails because the key has other keys below it. */
static tr_status not_section(const tr_key *key) {
    return TR_FAIL(TR_ERR_CONFIG, "%s takes one value, not keys below it: write it like %s=\"%s\"",
                   key->name, key->name, key->example ? key->example : key->fallback);
}

static tr_status unknown_key(const char *name) {
    int near = tr_schema_nearest(name);
    const char *own = tr_key_elsewhere(name);
    if (tr_schema_is_section(name) && own)
        return TR_FAIL(TR_ERR_CONFIG, "%s is a section of keys; did you mean %s?", name, own);
    if (tr_schema_is_section(name))
        return TR_FAIL(TR_ERR_CONFIG, "%s is a section: write its keys below it, or as %s.KEY",
                       name, name);
    const char *dot = strrchr(name, '.');
    const char *remark = tr_remark_elsewhere(dot ? dot + 1 : name, "key");
    if (remark) return TR_FAIL(TR_ERR_CONFIG, "unknown key '%s': %s", name, remark);
    for (int i = 0; dot && i < tr_schema_count; i++)
        if (!strncmp(tr_schema[i].name, name, (size_t)(dot - name)) &&
            !tr_schema[i].name[dot - name])
            return not_section(&tr_schema[i]);
    if (near < 0) {
        const char *section = tr_schema_nearest_section(name);
        if (!section)
            return TR_FAIL(TR_ERR_CONFIG, "unknown key '%s'; `trireme help` lists all keys", name);
        return TR_FAIL(TR_ERR_CONFIG, "unknown key '%s'; `trireme help %s` lists the keys of %s",
                       name, section, section);
    }
    return TR_FAIL(TR_ERR_CONFIG, "unknown key '%s'; did you mean %s?", name, tr_schema[near].name);
}

/* Returns what a list of the key may consist of. */
static const char *list_of(const tr_key *key) {
    switch (key->type) {
    case TR_KEY_SCALES: return "an item of this list is like {match: '*.wte.weight', scale: 0.1}";
    case TR_KEY_PATTERNS: return "an item of this list is one pattern";
    case TR_KEY_POINTS: return "an item of this list is one step";
    case TR_KEY_BATCHES: return "an item of this list is like {until: 100, batch: 8}";
    case TR_KEY_PATHS: return "an item of this list is a path, or like {path: a.bin, weight: 0.7}";
    default: return "a list is not allowed here: give one value";
    }
}

/* Fails when the section yaml->entry[at] is given a second time. */
static tr_status check_section(const tr_yaml *yaml, int at, const char *source) {
    const tr_yaml_entry *e = &yaml->entry[at], *before = yaml->entry;
    while (before < e && strcmp(before->key, e->key) != 0) before++;
    if (before == e) return TR_OK;
    (void)TR_FAIL(TR_ERR_CONFIG, "the section %s is given twice, first in line %d: join the two",
                  e->key, before->key_line);
    return at_place(source, e->key_line, e->key_column);
}

/* Returns true for a section with keys. */
static bool has_keys(const tr_yaml *yaml, int at) {
    const size_t length = strlen(yaml->entry[at].key);
    if (yaml->entry[at].kind != TR_YAML_SECTION || at + 1 == yaml->count) return false;
    const char *next = yaml->entry[at + 1].key;
    return !strncmp(next, yaml->entry[at].key, length) && next[length] == '.';
}

/* Returns true when the value of a section is a key with its value, without a colon and a blank
 * between them: "layers:2", "layers = 2". */
static bool lacks_colon(const tr_yaml_entry *section) {
    char key[128];
    const char *value = section->value, *colon = strchr(value, ':');
    const int length = (int)strcspn(value, " =");
    (void)snprintf(key, sizeof key, "%s.%.*s", section->key, length, value);
    return (colon && colon[1] && colon[1] != ' ') || (value[length] && tr_schema_find(key) >= 0);
}

static tr_status set_entry(const tr_yaml *yaml, int at, const char *source, tr_config *config) {
    const tr_yaml_entry *e = &yaml->entry[at];
    int index = tr_schema_find(e->key);
    if (index < 0 && !e->value && tr_schema_is_section(e->key))
        return check_section(yaml, at, source);
    if (index < 0 && tr_schema_is_section(e->key) && lacks_colon(e)) {
        (void)TR_FAIL(TR_ERR_CONFIG,
                      "%s is a section, and '%.40s' is not a key with a value: write a colon and a "
                      "blank after the key",
                      e->key, e->value);
        return at_place(source, e->line, e->column);
    }
    if (has_keys(yaml, at)) return TR_OK; /* no section: the first of its keys is refused */
    if (index < 0 || e->kind == TR_YAML_SECTION) {
        (void)(index < 0 ? unknown_key(e->key) : not_section(&tr_schema[index]));
        return at_place(source, e->key_line, e->key_column);
    }
    tr_config_place *place = &config->place[index];
    if (place->line) {
        (void)TR_FAIL(TR_ERR_CONFIG, "%s is set twice, first in line %d", e->key, place->line);
        return at_place(source, e->key_line, e->key_column);
    }
    if (!tr_key_takes(&tr_schema[index], e->kind)) {
        (void)TR_FAIL(TR_ERR_CONFIG, "%s", list_of(&tr_schema[index]));
        return at_place(source, e->line, e->column);
    }
    if (tr_key_set(&tr_schema[index], e->value ? e->value : "", config) != TR_OK)
        return at_place(source, e->line, e->column);
    *place = (tr_config_place){.line = e->line, .column = e->column};
    return TR_OK;
}

/* Returns true for a list in brackets, and a key that has lists in a file. */
static bool is_list(const tr_key *key, const char *value) {
    const size_t length = strlen(value);
    return *value == '[' && value[length - 1] == ']' &&
           (tr_key_takes(key, TR_YAML_LIST) || tr_key_takes(key, TR_YAML_SCALES) ||
            tr_key_takes(key, TR_YAML_BATCHES));
}

/* Sets a key from a list in brackets, as in a file. */
static tr_status set_list(const tr_key *key, const char *list, tr_config *config) {
    const size_t size = strlen(key->name) + strlen(list) + 3;
    char *text;
    tr_yaml yaml;
    TR_TRY(tr_calloc(size, 1, &text));
    (void)snprintf(text, size, "%s: %s", key->name, list);
    tr_status status = tr_yaml_parse(text, size - 1, "argument", &yaml);
    free(text);
    TR_TRY(status);
    if (yaml.count == 1 && tr_key_takes(key, yaml.entry->kind))
        status = tr_key_set(key, yaml.entry->value, config);
    else status = TR_FAIL(TR_ERR_CONFIG, "%s: %s", key->name, list_of(key));
    tr_yaml_free(&yaml);
    return status;
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
    if (index < 0) return unknown_key(name);
    const tr_key *found = &tr_schema[index];
    tr_status (*set)(const tr_key *, const char *, tr_config *) =
        is_list(found, equals + 1) ? set_list : tr_key_set;
    TR_TRY(set(found, equals + 1, config));
    config->place[index] = (tr_config_place){.line = -number};
    return TR_OK;
}

const char *tr_config_place_of(const tr_config *config, const char *key, char *buffer,
                               size_t size) {
    int index = tr_schema_find(key);
    tr_config_place p = index < 0 ? (tr_config_place){0} : config->place[index];
    if (p.line > 0) (void)snprintf(buffer, size, "%s:%d:%d: ", config->source, p.line, p.column);
    else
        (void)snprintf(buffer, size, "%s%s", p.line < 0 ? "" : config->source,
                       p.line < 0 ? "" : ": ");
    return buffer;
}

bool tr_config_is_set(const tr_config *config, const char *key) {
    return config->place[tr_schema_find(key)].line != 0;
}

bool tr_config_is_of_model(const tr_key *key) {
    return key->offset < offsetof(tr_config, model) + offsetof(tr_model_config, lora);
}

/* Returns true for a key of the model's updates. */
static bool is_of_lora(const tr_key *key) {
    const size_t begin = offsetof(tr_config, model) + offsetof(tr_model_config, lora);
    return key->offset >= begin && key->offset < begin + sizeof(tr_lora_config);
}

bool tr_config_same_value(const tr_key *key, const tr_config *a, const tr_config *b) {
    const char *x = (const char *)a + key->offset, *y = (const char *)b + key->offset;
    return tr_key_is_text(key) ? strcmp(x, y) == 0 : memcmp(x, y, key->size) == 0;
}

/* Sets log.dir, unless it is set, to runs/<name of the file `source` without folder and ending>.
 * Fails when the recorded config could not be read with that name. */
static tr_status take_log_dir(const char *source, tr_config *config) {
    const char *slash = strrchr(source, '/');
    const char *name = slash ? slash + 1 : source;
    const char *dot = strrchr(name, '.');
    int length = (int)(dot && dot > name ? (size_t)(dot - name) : strlen(name));
    if (config->log.dir[0]) return TR_OK;
    (void)snprintf(config->log.dir, sizeof config->log.dir, "runs/%.*s", length, name);
    if (tr_utf8_is_valid((const uint8_t *)name, (size_t)length)) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "the name of the file '%s' is not UTF-8, so that the run's directory "
                   "cannot have it: set log.dir, or give the file another name",
                   source);
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
    for (int i = 0; i < yaml->count; i++) TR_TRY(set_entry(yaml, i, source, config));
    for (int i = 0; i < count; i++) TR_TRY(set_override(overrides[i], i + 1, config));
    TR_TRY(config->init_from[0] ? tr_config_take_origin(config) : tr_config_take_preset(config));
    if (!strcmp(config->data.format, "instruct") && !tr_config_is_set(config, "data.documents"))
        (void)snprintf(config->data.documents, sizeof config->data.documents, "packed");
    TR_TRY(tr_config_take_optimizer(config));
    TR_TRY(take_log_dir(source, config));
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

/* Fails when the path is a run's directory or a model's folder. */
static tr_status refuse_folder(const char *path) {
    char inside[TR_CONFIG_PATH + 16];
    int length = (int)strnlen(path, TR_CONFIG_PATH + 1);
    if (length > TR_CONFIG_PATH) return TR_OK;
    while (length > 1 && path[length - 1] == '/') length--;
    (void)snprintf(inside, sizeof inside, "%.*s/config.yaml", length, path);
    if (tr_input_exists(inside))
        return TR_FAIL(TR_ERR_DATA, "the config file '%s' is a directory: did you mean %s?", path,
                       inside);
    (void)snprintf(inside, sizeof inside, "%.*s/config.json", length, path);
    if (tr_input_exists(inside))
        return TR_FAIL(TR_ERR_DATA,
                       "the config file '%s' is the folder of a model: name it in a config, like "
                       "model.init_from: %.*s",
                       path, length, path);
    return TR_OK;
}

tr_status tr_config_load(const char *path, const char *const *overrides, int count,
                         tr_config *config) {
    static const tr_input_limit limit = {.mib = 1, .failure = TR_ERR_CONFIG};
    char *text;
    size_t length;
    TR_TRY(refuse_folder(path));
    TR_TRY(tr_input_load("the config file", path, limit, &text, &length));
    tr_status status = tr_config_parse(text, length, path, overrides, count, config);
    free(text);
    TR_TRY(status);
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
        if (tr_key_is_text(key) && !*((const char *)config + key->offset)) continue;
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

/* Writes the key's values in two configs to text; the caller frees both with free(). */
static tr_status key_texts(const tr_key *key, const tr_config *a, const tr_config *b,
                           char *text[2]) {
    TR_TRY(tr_key_text(key, a, &text[0]));
    tr_status status = tr_key_text(key, b, &text[1]);
    if (status != TR_OK) free(text[0]);
    return status;
}

tr_status tr_config_check_same(const tr_config *config, int rank, const tr_config *first) {
    for (int i = 0; i < tr_schema_count; i++) {
        const tr_key *key = &tr_schema[i];
        char *text[2];
        if (key->local || tr_config_same_value(key, config, first)) continue;
        TR_TRY(key_texts(key, config, first, text));
        tr_status status = TR_FAIL(TR_ERR_CONFIG,
                                   "%s is %s on rank %d and %s on rank 0: give every rank the same "
                                   "config and arguments",
                                   key->name, text[0], rank, text[1]);
        free(text[0]);
        free(text[1]);
        return status;
    }
    return TR_OK;
}

static tr_status other_model(const tr_key *key, const tr_config *config, const tr_config *saved,
                             const char *where) {
    char *text[2];
    TR_TRY(key_texts(key, config, saved, text));
    tr_status status =
        TR_FAIL(TR_ERR_DATA,
                "%s holds a checkpoint of another model: its %s is %s, and this config's is %s; "
                "set the model's keys as they were, or choose another log.dir",
                where, key->name, text[1], text[0]);
    free(text[0]);
    free(text[1]);
    return status;
}

tr_status tr_config_check_model(const tr_config *config, const tr_config *saved,
                                const char *where) {
    for (int i = 0; i < tr_schema_count; i++) {
        const tr_key *key = &tr_schema[i];
        if (!strcmp(key->name, "model.dropout") ||
            (!tr_config_is_of_model(key) && !is_of_lora(key)))
            continue;
        if (!strcmp(key->name, "model.lora.targets") &&
            tr_lora_same_targets(&config->model, &saved->model))
            continue;
        if (!strcmp(key->name, "model.lora.alpha") &&
            tr_lora_factor(&config->model.lora) == tr_lora_factor(&saved->model.lora))
            continue;
        if (!tr_config_same_value(key, config, saved))
            return other_model(key, config, saved, where);
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

int tr_config_near(const tr_config *config) {
    const int64_t dp = config->parallel.dp, copies = config->parallel.copies;
    return (int)(copies > 1 ? dp / copies : dp);
}

tr_dtype tr_config_dtype(const tr_config *config) {
    if (!strcmp(config->train.precision, "fp64")) return TR_F64;
    if (!strcmp(config->train.precision, "fp16")) return TR_F16;
    return strcmp(config->train.precision, "bf16") ? TR_F32 : TR_BF16;
}
