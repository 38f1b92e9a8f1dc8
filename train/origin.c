#include "train/origin.h"

#include "base/folders.h"
#include "base/input.h"
#include "base/output.h"
#include "layers/lora_config.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Files that transformers writes next to a model; the first SETTINGS of them belong to a tokenizer
 * in any format. */
static const char *const passed_on[] = {
    "chat_template.jinja",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer.model",
};
enum { SETTINGS = 4, PASSED_ON = sizeof passed_on / sizeof *passed_on };

/* --- files ------------------------------------------------------------------------------------ */

static tr_status copy_file(const char *from, const char *to) {
    static const tr_input_limit limit = {.mib = 1024, .failure = TR_ERR_DATA};
    char *text;
    size_t length;
    FILE *f;
    tr_status status = tr_input_load("the model's file", from, limit, &text, &length);
    if (status == TR_ERR_NOFILE) /* the user named the folder */
        status = TR_FAIL(TR_ERR_DATA, "%s", tr_error_message());
    TR_TRY(status);
    status = tr_output_open(to, &f);
    if (status == TR_OK) {
        (void)fwrite(text, 1, length, f);
        status = tr_output_sync_close(to, f, TR_OK);
    }
    free(text);
    return status;
}

/* Copies those of the first `count` files of passed_on that are in `from`, and syncs the folder. */
static tr_status copy_files(const char *from, const char *to, int count) {
    char source[PATH_MAX], target[PATH_MAX];
    bool copied = false;
    for (int i = 0; i < count; i++) {
        (void)snprintf(source, sizeof source, "%.3900s/%s", from, passed_on[i]);
        (void)snprintf(target, sizeof target, "%.3900s/%s", to, passed_on[i]);
        if (!tr_input_exists(source)) continue;
        if (mkdir(to, 0777) != 0 && errno != EEXIST)
            return TR_FAIL(TR_ERR_IO, "the directory '%s' cannot be made: %s", to, strerror(errno));
        TR_TRY(copy_file(source, target));
        copied = true;
    }
    const int error = copied ? tr_folders_sync(to) : 0;
    return error ? TR_FAIL(TR_ERR_IO, "'%s' cannot be synced: %s", to, strerror(error)) : TR_OK;
}

tr_status tr_origin_copy(const char *from, const char *to) {
    return copy_files(from, to, PASSED_ON);
}

/* Prints the text of a token as a JSON string. */
static tr_status print_token(const tr_tokenizer *tokenizer, int32_t id, FILE *f) {
    tr_byte_list text = {0};
    tr_status status = tr_tokenizer_decode(tokenizer, &id, 1, 0, &text);
    if (status == TR_OK) tr_json_write_string(f, text.byte, text.count);
    free(text.byte);
    return status;
}

static tr_status print_tokenizer_class(const tr_tokenizer *tokenizer, FILE *f) {
    const int32_t end = tr_tokenizer_document_end(tokenizer);
    tr_status status = TR_OK;
    (void)fputs("{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"", f);
    if (end >= 0) (void)fputs(",\n  \"eos_token\": ", f);
    if (end >= 0) status = print_token(tokenizer, end, f);
    (void)fputs("\n}\n", f);
    return status;
}

tr_status tr_origin_name_tokenizer(const char *folder) {
    char file[PATH_MAX], config[PATH_MAX];
    tr_tokenizer *tokenizer;
    FILE *f;
    (void)snprintf(file, sizeof file, "%.3900s/tokenizer.json", folder);
    (void)snprintf(config, sizeof config, "%.3900s/tokenizer_config.json", folder);
    if (!tr_input_exists(file) || tr_input_exists(config)) return TR_OK;
    if (tr_tokenizer_open(file, &tokenizer) != TR_OK) {
        tr_error_clear(); /* a kind that is only passed on */
        return TR_OK;
    }
    tr_status status = tr_output_open(config, &f);
    if (status == TR_OK)
        status = tr_output_sync_close(config, f, print_tokenizer_class(tokenizer, f));
    tr_tokenizer_close(tokenizer);
    return status;
}

static bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Copies the settings in `from` to another folder, where model.init_from may have left others. */
static tr_status keep_settings(const char *from, const char *to) {
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%.3900s/tokenizer_config.json", from);
    /* It may have the template, over which a file of its own would take precedence. */
    if (access(path, F_OK) == 0) {
        (void)snprintf(path, sizeof path, "%.3900s/chat_template.jinja", to);
        (void)unlink(path);
    }
    return copy_files(from, to, SETTINGS);
}

tr_status tr_origin_keep_tokenizer(const char *run, const tr_tokenizer *tokenizer) {
    char to[PATH_MAX], path[PATH_MAX], from[PATH_MAX];
    (void)snprintf(to, sizeof to, "%.3900s/tokenizer", run);
    if (mkdir(to, 0777) != 0 && errno != EEXIST)
        return TR_FAIL(TR_ERR_IO, "the directory '%s' cannot be made: %s", to, strerror(errno));
    const char *file = tr_tokenizer_path(tokenizer), *slash = strrchr(file, '/');
    if (slash) (void)snprintf(from, sizeof from, "%.*s", (int)(slash - file) + 1, file);
    else (void)snprintf(from, sizeof from, ".");
    if (!same_folder(from, to)) TR_TRY(keep_settings(from, to));
    (void)snprintf(path, sizeof path, "%.3900s/tokenizer.json", to);
    return tr_tokenizer_save(tokenizer, path);
}

void tr_origin_remove(const char *run) {
    char path[PATH_MAX];
    for (int i = 0; i < PASSED_ON; i++) {
        (void)snprintf(path, sizeof path, "%.3900s/tokenizer/%s", run, passed_on[i]);
        (void)unlink(path);
    }
    (void)snprintf(path, sizeof path, "%.3900s/tokenizer", run);
    (void)rmdir(path);
    (void)snprintf(path, sizeof path, "%.3900s/origin.json", run);
    (void)unlink(path);
}

/* --- origin.json ------------------------------------------------------------------------------ */

/* Calls `each` for every tensor of the model except updates, with its tensor in the files. */
static void visit(const tr_weights *w, const tr_model *model,
                  void (*each)(void *context, const char *name, const tr_weight *t),
                  void *context) {
    for (int l = 0; l < model->count; l++)
        for (int p = 0; p < model->layers[l]->params_count; p++) {
            const tr_param *param = &model->layers[l]->params[p];
            for (int k = 0; k < param->tensors && param->use == 0; k++)
                if (!tr_lora_is_update(param->tensor[k].name))
                    each(context, param->tensor[k].name, tr_weights_find(w, param->tensor[k].name));
        }
}

typedef struct exceptions {
    tr_weight_type usual; /* of the first tensor */
    cJSON *object;
    bool good;
} exceptions;

static void add_exception(void *context, const char *name, const tr_weight *t) {
    exceptions *e = context;
    if (t->type != e->usual)
        e->good = e->good && cJSON_AddStringToObject(e->object, name, tr_weight_type_name(t->type));
}

/* Returns origin.json; NULL without memory. */
static cJSON *describe(const cJSON *config, const tr_weights *w, const tr_model *model) {
    const char *first = model->layers[0]->params[0].tensor[0].name;
    exceptions e = {.usual = tr_weights_find(w, first)->type};
    cJSON *root = cJSON_CreateObject();
    e.good = cJSON_AddStringToObject(root, "dtype", tr_weight_type_name(e.usual)) != NULL;
    e.object = cJSON_AddObjectToObject(root, "dtypes");
    visit(w, model, add_exception, &e);
    if (config && e.good)
        e.good = cJSON_AddItemToObject(root, "config", cJSON_Duplicate(config, true));
    if (e.good) return root;
    cJSON_Delete(root);
    return NULL;
}

tr_status tr_origin_write(const char *run, const char *folder, const cJSON *config,
                          const tr_weights *weights, const tr_model *model) {
    char path[PATH_MAX];
    FILE *f;
    (void)snprintf(path, sizeof path, "%.3900s/tokenizer", run);
    if (folder) TR_TRY(tr_origin_copy(folder, path));
    cJSON *root = describe(config, weights, model);
    char *text = root ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    if (!text) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    (void)snprintf(path, sizeof path, "%.3900s/origin.json", run);
    tr_status status = tr_output_open(path, &f);
    if (status == TR_OK) {
        (void)fprintf(f, "%s\n", text);
        status = tr_output_sync_close(path, f, TR_OK);
    }
    cJSON_free(text);
    return status;
}

/* Returns the type of that name, or TR_WEIGHT_TYPES. */
static tr_weight_type find_type(const cJSON *value) {
    const char *name = cJSON_GetStringValue(value);
    int t = 0;
    while (t < TR_WEIGHT_TYPES && !(name && !strcmp(tr_weight_type_name((tr_weight_type)t), name)))
        t++;
    return (tr_weight_type)t;
}

/* Fails when a type is not known, which would be exported as another one. */
static tr_status check_origin(const cJSON *root, const char *path) {
    const cJSON *types = tr_json_get(root, "dtypes"), *config = tr_json_get(root, "config"), *one;
    bool good = find_type(tr_json_get(root, "dtype")) < TR_WEIGHT_TYPES && cJSON_IsObject(types) &&
                (!config || cJSON_IsObject(config));
    cJSON_ArrayForEach(one, types) good = good && find_type(one) < TR_WEIGHT_TYPES;
    return good ? TR_OK
                : TR_FAIL(TR_ERR_DATA,
                          "'%s' is damaged: restore it, or remove it, and then give the type of an "
                          "export with --dtype",
                          path);
}

tr_status tr_origin_read(const char *run, cJSON **out) {
    char path[PATH_MAX];
    *out = NULL;
    (void)snprintf(path, sizeof path, "%.3900s/origin.json", run);
    if (!tr_input_exists(path)) return TR_OK;
    TR_TRY(tr_json_load("the run's origin", path, 64, out));
    tr_status status = check_origin(*out, path);
    if (status == TR_OK) return TR_OK;
    cJSON_Delete(*out);
    *out = NULL;
    return status;
}

tr_weight_type tr_origin_type(const cJSON *origin, const char *tensor) {
    if (!origin) return TR_WEIGHT_F32;
    const cJSON *own = tr_json_get(tr_json_get(origin, "dtypes"), tensor);
    return find_type(own ? own : tr_json_get(origin, "dtype"));
}
