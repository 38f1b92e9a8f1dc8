#include "train/trained.h"

#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "config/adapter.h"
#include "train/start.h"
#include "train/store_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEFAULT_KEYS = 5 };

/* --- the config ------------------------------------------------------------------------------- */

bool tr_trained_is_folder(const char *path) {
    char name[TR_CONFIG_PATH + 16];
    (void)snprintf(name, sizeof name, "%s/ckpt", path);
    if (access(name, F_OK) == 0) return false;
    (void)snprintf(name, sizeof name, "%s/config.json", path);
    return access(name, F_OK) == 0 || tr_adapter_is(path);
}

static void checkpoints_of(const char *path, char root[TR_CONFIG_PATH + 8]) {
    (void)snprintf(root, TR_CONFIG_PATH + 8, "%s/ckpt", path);
}

/* Fails when the path is a file, or a folder of something else. */
static tr_status check_path(const char *path, const char *root) {
    struct stat info;
    char run[PATH_MAX];
    if (stat(path, &info) != 0 || access(root, F_OK) == 0) return TR_OK;
    if (tr_ckpt_is_inside(path, run))
        return TR_FAIL(TR_ERR_DATA, "'%s' has no checkpoints (%s): did you mean the run '%s'?",
                       path, root, run);
    if (S_ISDIR(info.st_mode))
        return TR_FAIL(TR_ERR_DATA,
                       "'%s' has neither checkpoints (%s) nor a config.json: name the log.dir of a "
                       "run that has saved one, or the folder of a model",
                       path, root);
    return TR_FAIL(TR_ERR_DATA,
                   "'%s' is a file: name a run, or the folder of a model; `trireme ckpt import "
                   "FILE RUN` makes a run of a single file (.safetensors, or llm.c's .bin)",
                   path);
}

/* Reads the config of a saved state with other keys, which must not change its model. */
static tr_status read_saved(const tr_trained *r, const tr_ckpt_state *state,
                            const char *const *overrides, int count, tr_config *config) {
    const size_t length = strlen(state->config);
    tr_config *saved;
    TR_TRY(tr_config_parse(state->config, length, r->path, overrides, count, config));
    TR_TRY(tr_calloc(1, sizeof *saved, &saved));
    tr_status status = tr_config_parse(state->config, length, r->path, NULL, 0, saved);
    if (status == TR_OK) status = tr_config_check_fixed(config, saved, r->path);
    free(saved);
    return status;
}

/* Reads the recorded config of the run, with other keys. */
static tr_status read_run(const tr_trained *r, const char *const *overrides, int count,
                          tr_config *config) {
    char root[TR_CONFIG_PATH + 8];
    tr_ckpt_state *state;
    checkpoints_of(r->path, root);
    TR_TRY(check_path(r->path, root));
    TR_TRY(tr_calloc(1, sizeof *state, &state));
    tr_status status = tr_ckpt_read_state(root, r->step, state);
    if (status == TR_OK) status = read_saved(r, state, overrides, count, config);
    free(state);
    return status;
}

bool tr_trained_sets(const tr_trained *r, const char *key) {
    const size_t length = strlen(key);
    for (int i = 0; i < r->overrides_count; i++) {
        const char *given = r->overrides[i] + (strncmp(r->overrides[i], "--", 2) == 0 ? 2 : 0);
        if (strncmp(given, key, length) == 0 && given[length] == '=') return true;
    }
    return false;
}

static bool chooses_layout(const tr_trained *r) {
    return tr_trained_sets(r, "parallel.pp") || tr_trained_sets(r, "parallel.tp") ||
           tr_trained_sets(r, "parallel.dp");
}

static tr_status check_layout(const tr_config *config, int ranks, bool data_ranks) {
    const tr_config *c = config;
    const char *product =
        data_ranks ? "parallel.pp * parallel.tp * parallel.dp" : "parallel.pp * parallel.tp";
    char several[32];
    (void)snprintf(several, sizeof several, "there are %d ranks", ranks);
    if (c->parallel.dp != 1 && !data_ranks)
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.dp is %lld, but a text is decoded without data ranks: leave it "
                       "out, or raise parallel.pp or parallel.tp",
                       (long long)c->parallel.dp);
    const int64_t wanted = c->parallel.pp * c->parallel.tp * c->parallel.dp;
    if (wanted != ranks)
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s is %lld, but %s: start it with `trireme run -n %lld`, or choose degrees "
                       "with the product %d",
                       product, (long long)wanted, ranks == 1 ? "there is 1 rank" : several,
                       (long long)wanted, ranks);
    if (c->parallel.pp > c->model.layers)
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.pp is %lld, but the model has only %lld layers: use fewer ranks, "
                       "or raise parallel.tp%s",
                       (long long)c->parallel.pp, (long long)c->model.layers,
                       data_ranks ? " or parallel.dp" : "");
    return TR_OK;
}

tr_status tr_trained_config(const tr_trained *r, int ranks, bool data_ranks, tr_config *config) {
    char origin[TR_CONFIG_PATH + 32], stages[32];
    const char **keys;
    int count = 0;
    if (strlen(r->path) >= TR_CONFIG_PATH)
        return TR_FAIL(TR_ERR_USAGE, "the run's path is too long: name the run by a shorter path");
    if (r->step >= 0 && tr_trained_is_folder(r->path))
        return TR_FAIL(TR_ERR_USAGE,
                       "'%s' is the folder of a model, which has no steps: leave out --step",
                       r->path);
    TR_TRY(tr_calloc((size_t)r->overrides_count + DEFAULT_KEYS, sizeof *keys, &keys));
    (void)snprintf(stages, sizeof stages, "parallel.pp=%d", chooses_layout(r) ? 1 : ranks);
    keys[count++] = stages;
    keys[count++] = "parallel.tp=1";
    keys[count++] = "parallel.dp=1";
    keys[count++] = "parallel.sequence=false"; /* the number of tokens is another one */
    if (tr_trained_is_folder(r->path)) {
        (void)snprintf(origin, sizeof origin, "model.init_from=%s", r->path);
        keys[count++] = origin;
    }
    for (int i = 0; i < r->overrides_count; i++) keys[count++] = r->overrides[i];
    tr_status status = tr_trained_is_folder(r->path)
                           ? tr_config_parse("", 0, r->path, keys, count, config)
                           : read_run(r, keys, count, config);
    free(keys);
    TR_TRY(status);
    TR_TRY(tr_config_check_precision(config));
    return check_layout(config, ranks, data_ranks);
}

/* Opens the tokenizer next to the model; *out is NULL when there is none. */
static tr_status open_own_tokenizer(const char *path, const tr_config *config, tr_tokenizer **out) {
    char kept[TR_CONFIG_PATH + 16];
    (void)snprintf(kept, sizeof kept, "%s/tokenizer", path);
    /* A run on bytes has no tokenizer, although the folder that it began with may have one. */
    const char *model = tr_trained_is_folder(path) ? tr_config_origin(config) : "";
    if (tr_tokenizer_in(kept)) return tr_tokenizer_open(kept, out);
    if (tr_tokenizer_in(path)) return tr_tokenizer_open(path, out);
    return *model && tr_tokenizer_in(model) ? tr_tokenizer_open(model, out) : TR_OK;
}

tr_status tr_trained_open_tokenizer(const tr_trained *r, const tr_config *c, tr_tokenizer **out) {
    const char *named = tr_trained_sets(r, "data.tokenizer") ? c->data.tokenizer : "";
    tr_tokenizer *t = NULL;
    *out = NULL;
    TR_TRY(*named ? tr_tokenizer_open(named, &t) : open_own_tokenizer(r->path, c, &t));
    if (!t || tr_tokenizer_size(t) <= c->model.vocab) {
        *out = t;
        return TR_OK;
    }
    tr_status status =
        TR_FAIL(TR_ERR_CONFIG,
                "the tokenizer %s has %d tokens, but model.vocab is %lld: use the tokenizer with "
                "which the model was trained",
                tr_tokenizer_path(t), (int)tr_tokenizer_size(t), (long long)c->model.vocab);
    tr_tokenizer_close(t);
    return status;
}

bool tr_trained_reads_bytes(const tr_trained *r, const tr_config *config) {
    enum { SMALL = 512 };
    const bool trained = !tr_trained_is_folder(r->path) && config->data.path[0];
    return strcmp(config->data.format, "bytes") == 0 && (trained || config->model.vocab <= SMALL);
}

/* --- opening ---------------------------------------------------------------------------------- */

tr_status tr_trained_device(const tr_config *c, tr_world *world, tr_device **out,
                            bool *on_cpu_instead) {
    const tr_device_options options = {.threads = c->train.threads ? (int)c->train.threads : 1,
                                       .host_rank = tr_world_host_rank(world),
                                       .ranks = tr_world_size(world)};
    *on_cpu_instead = false;
    tr_status status = tr_device_open(c->device.name, &options, out);
    if (status != TR_ERR_DEVICE || !tr_config_on_gpu(c)) return status;
    TR_TRY(tr_device_open("cpu", &options, out));
    *on_cpu_instead = true;
    return TR_OK;
}

tr_status tr_trained_check(const tr_trained *r, const tr_config *config) {
    tr_start start;
    if (!tr_trained_is_folder(r->path)) return TR_OK;
    tr_status status = tr_start_open(config, &start);
    tr_start_close(&start);
    return status;
}

static tr_status load_folder(const tr_config *config, tr_world *world, tr_store *store,
                             tr_ckpt_tensor *tensors, int count) {
    tr_start start;
    tr_status status = tr_start_open(config, &start);
    if (status == TR_OK)
        status = tr_start_load(&start, world, store, (uint64_t)config->train.seed, tensors, count);
    tr_start_close(&start);
    return tr_world_agree(world, status);
}

static tr_status load_run(tr_world *world, const tr_trained *r, tr_ckpt_tensor *tensors,
                          int count) {
    char root[TR_CONFIG_PATH + 8];
    checkpoints_of(r->path, root);
    return tr_ckpt_load(world, root, r->step, tensors, count, NULL, NULL);
}

tr_status tr_trained_load(const tr_trained *r, const tr_config *config, tr_world *world,
                          const tr_mesh *mesh, tr_store *store) {
    tr_ckpt_tensor *tensors;
    int count;
    TR_TRY(tr_store_list_tensors(store, mesh, &tensors, &count));
    tr_status status = tr_trained_is_folder(r->path)
                           ? load_folder(config, world, store, tensors, count)
                           : load_run(world, r, tensors, count);
    free(tensors);
    TR_TRY(status);
    return tr_store_publish(store);
}
