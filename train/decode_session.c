#include "train/decode_session.h"

#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "ckpt/weights.h"
#include "partition/cut_for_schedule.h"
#include "train/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_KEYS = 4 };

/* --- the config ------------------------------------------------------------------------------- */

/* Returns true when `path` is a folder of transformers, and not a run. */
static bool is_folder(const char *path) {
    char name[TR_CONFIG_PATH + 16];
    (void)snprintf(name, sizeof name, "%s/ckpt", path);
    if (access(name, F_OK) == 0) return false;
    (void)snprintf(name, sizeof name, "%s/config.json", path);
    return access(name, F_OK) == 0;
}

static void checkpoints_of(const char *path, char root[TR_CONFIG_PATH + 8]) {
    (void)snprintf(root, TR_CONFIG_PATH + 8, "%s/ckpt", path);
}

/* Reads the recorded config of the run, with other keys. */
static tr_status read_run(const tr_decode_request *r, const char *const *overrides, int count,
                          tr_config *config) {
    char root[TR_CONFIG_PATH + 8];
    tr_ckpt_state *state;
    checkpoints_of(r->path, root);
    TR_TRY(tr_calloc(1, sizeof *state, &state));
    tr_status status = tr_ckpt_read_state(root, r->step, state);
    if (status == TR_OK)
        status = tr_config_parse(state->config, strlen(state->config), r->path, overrides, count,
                                 config);
    free(state);
    return status;
}

/* Returns true when the request has parallel.pp, tp or dp. */
static bool chooses_layout(const tr_decode_request *r) {
    static const char *const degrees[] = {"parallel.pp=", "parallel.tp=", "parallel.dp="};
    for (int i = 0; i < r->overrides_count; i++) {
        const char *key = r->overrides[i] + (strncmp(r->overrides[i], "--", 2) == 0 ? 2 : 0);
        for (size_t k = 0; k < sizeof degrees / sizeof *degrees; k++)
            if (strncmp(key, degrees[k], strlen(degrees[k])) == 0) return true;
    }
    return false;
}

static tr_status check_layout(const tr_config *config, int ranks) {
    char several[32];
    (void)snprintf(several, sizeof several, "there are %d ranks", ranks);
    if (config->parallel.dp != 1)
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.dp is %lld, but a text is decoded without data ranks: leave it "
                       "out, or raise parallel.pp or parallel.tp",
                       (long long)config->parallel.dp);
    const int64_t wanted = config->parallel.pp * config->parallel.tp;
    if (wanted != ranks)
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.pp * parallel.tp is %lld, but %s: start it with `trireme run -n "
                       "%lld`, or choose degrees with the product %d",
                       (long long)wanted, ranks == 1 ? "there is 1 rank" : several,
                       (long long)wanted, ranks);
    if (config->parallel.pp > config->model.layers + 2)
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.pp is %lld, but the model has only %lld layers (with embedding "
                       "and head): use fewer ranks, or raise parallel.tp",
                       (long long)config->parallel.pp, (long long)config->model.layers + 2);
    return TR_OK;
}

tr_status tr_decode_session_config(const tr_decode_request *r, int ranks, tr_config *config) {
    char origin[TR_CONFIG_PATH + 32], stages[32];
    const char **keys;
    int count = 0;
    if (strlen(r->path) >= TR_CONFIG_PATH)
        return TR_FAIL(TR_ERR_USAGE, "the run's path is too long: name the run by a shorter path");
    TR_TRY(tr_calloc((size_t)r->overrides_count + DEFAULT_KEYS, sizeof *keys, &keys));
    (void)snprintf(stages, sizeof stages, "parallel.pp=%d", chooses_layout(r) ? 1 : ranks);
    keys[count++] = stages;
    keys[count++] = "parallel.tp=1";
    keys[count++] = "parallel.dp=1";
    if (is_folder(r->path)) {
        (void)snprintf(origin, sizeof origin, "model.init_from=%s", r->path);
        keys[count++] = origin;
    }
    for (int i = 0; i < r->overrides_count; i++) keys[count++] = r->overrides[i];
    tr_status status = is_folder(r->path) ? tr_config_parse("", 0, r->path, keys, count, config)
                                          : read_run(r, keys, count, config);
    free(keys);
    TR_TRY(status);
    return check_layout(config, ranks);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Opens the run's device, or the CPU when the run's GPU is not on this machine. */
static tr_status open_device(tr_decode_session *s) {
    const tr_config *c = &s->config;
    const tr_device_options options = {.threads = c->train.threads ? (int)c->train.threads : 1,
                                       .host_rank = tr_world_host_rank(s->world),
                                       .ranks = tr_world_size(s->world)};
    tr_status status = tr_device_open(c->device.name, &options, &s->device);
    if (status != TR_ERR_DEVICE || !tr_config_on_gpu(c)) return status;
    TR_TRY(tr_device_open("cpu", &options, &s->device));
    s->on_cpu_instead = true;
    return TR_OK;
}

static tr_status make_model(tr_decode_session *s, int rows, int tp_rank, tr_model **out) {
    const tr_config *c = &s->config;
    const tr_model_shape shape = {.batch = rows,
                                  .seq = c->model.context,
                                  .dtype = tr_config_dtype(c),
                                  .decode = 1,
                                  .tp_rank = tp_rank,
                                  .tp_size = s->mesh.degree[TR_AXIS_TP]};
    return tr_model_create(&c->model, &shape, out);
}

/* Cuts the model as tensor rank 0 does, so that all tensor ranks have the same cut. */
static tr_status place_layers(tr_decode_session *s, int rows) {
    const int stages = s->mesh.degree[TR_AXIS_PP];
    tr_model *first_rank;
    TR_TRY(tr_calloc((size_t)stages + 1, sizeof *s->first, &s->first));
    TR_TRY(tr_calloc((size_t)stages, sizeof *s->owner, &s->owner));
    TR_TRY(make_model(s, rows, 0, &first_rank));
    tr_status status = tr_cut_model(first_rank, stages, s->first);
    tr_model_destroy(first_rank);
    for (int i = 0; i < stages; i++) s->owner[i] = i;
    s->placement = (tr_placement){.stages = stages, .first = s->first, .owner = s->owner};
    return status;
}

/* Opens what needs no other rank. */
static tr_status open_local(tr_decode_session *s, int rows) {
    const tr_config *c = &s->config;
    TR_TRY(tr_mesh_make((int)c->parallel.pp, 1, (int)c->parallel.tp, tr_world_rank(s->world),
                        tr_world_size(s->world), &s->mesh));
    TR_TRY(open_device(s));
    TR_TRY(make_model(s, rows, s->mesh.index[TR_AXIS_TP], &s->model));
    return place_layers(s, rows);
}

/* Compares the config with the folder's weights, before anything as large as its model is made. */
static tr_status check_folder(const tr_decode_session *s, const char *folder) {
    tr_weights weights = {0};
    tr_model *model = NULL;
    tr_status status = tr_weights_open(folder, &weights);
    if (status == TR_OK) status = tr_weights_make_model(&weights, &s->config.model, folder, &model);
    tr_model_destroy(model);
    tr_weights_close(&weights);
    return status;
}

/* Fills the parameters of this rank's layers from the folder that the config names. */
static tr_status load_folder(tr_decode_session *s, const char *folder, tr_ckpt_tensor *tensors,
                             int count) {
    tr_weights weights = {0};
    tr_status status = tr_weights_open(folder, &weights);
    if (status == TR_OK) status = tr_weights_check(&weights, s->model, folder);
    if (status == TR_OK) status = tr_weights_load(s->world, &weights, tensors, count);
    tr_weights_close(&weights);
    return tr_world_agree(s->world, status);
}

static tr_status load_run(tr_decode_session *s, const tr_decode_request *r, tr_ckpt_tensor *tensors,
                          int count) {
    char root[TR_CONFIG_PATH + 8];
    tr_ckpt_state *state;
    checkpoints_of(r->path, root);
    TR_TRY(tr_calloc(1, sizeof *state, &state));
    tr_status status = tr_ckpt_load(s->world, root, r->step, tensors, count, state, NULL);
    free(state);
    return status;
}

static tr_status load_parameters(tr_decode_session *s, const tr_decode_request *r) {
    tr_ckpt_tensor *tensors;
    int count;
    TR_TRY(tr_snapshot_tensors(s->store, &s->mesh, &tensors, &count));
    tr_status status = is_folder(r->path) ? load_folder(s, r->path, tensors, count)
                                          : load_run(s, r, tensors, count);
    free(tensors);
    TR_TRY(status);
    return tr_store_publish(s->store);
}

static tr_data_plane wanted_plane(const tr_config *c) {
    if (strcmp(c->parallel.transport, "nccl") == 0) return TR_DATA_NCCL;
    return strcmp(c->parallel.transport, "mpi") == 0 ? TR_DATA_MPI : TR_DATA_AUTO;
}

tr_status tr_decode_session_open(const tr_decode_request *r, tr_world *world,
                                 tr_decode_session *s) {
    char note[192];
    s->world = world;
    if (is_folder(r->path)) TR_TRY(tr_world_agree(world, check_folder(s, r->path)));
    TR_TRY(tr_world_agree(world, open_local(s, r->rows)));
    TR_TRY(
        tr_world_choose_data_plane(world, s->device, wanted_plane(&s->config), note, sizeof note));
    TR_TRY(tr_mesh_groups_create(world, s->device, &s->mesh, &s->groups));
    TR_TRY(
        tr_world_agree(world, tr_store_create(s->device, world, &s->mesh, s->model, &s->placement,
                                              tr_config_dtype(&s->config), NULL, &s->store)));
    TR_TRY(load_parameters(s, r));
    const tr_decoder_desc desc = {.world = world,
                                  .device = s->device,
                                  .mesh = s->mesh,
                                  .groups = s->groups,
                                  .model = s->model,
                                  .rows = r->rows,
                                  .placement = &s->placement};
    return tr_world_agree(world, tr_decoder_create(&desc, &s->decoder));
}

void tr_decode_session_close(tr_decode_session *s) {
    tr_decoder_destroy(s->decoder);
    tr_store_destroy(s->store);
    tr_model_destroy(s->model);
    if (s->groups) tr_mesh_groups_destroy(s->groups);
    if (s->device) tr_device_close(s->device);
    free(s->first);
    free(s->owner);
}
