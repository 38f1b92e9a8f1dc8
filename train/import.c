/* A model of another program becomes a run. */
#include "base/folders.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "base/output.h"
#include "ckpt/weights.h"
#include "config/config.h"
#include "config/hf.h"
#include "train/meter.h"
#include "train/origin.h"
#include "train/rundir.h"
#include "train/transfer.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = TR_CONFIG_PATH + 32 };

/* The import on one rank. */
typedef struct import {
    tr_world *world;
    const tr_board *board; /* a stop may be requested there; NULL: never */
    const char *from, *run;
    char folder[PATH_MAX];                      /* with config.json; "": llm.c's file has none */
    char temporary[PATH_SIZE], root[PATH_SIZE]; /* of the checkpoint: while it is written, after */
    tr_weights weights;
    cJSON *json; /* config.json */
    tr_config config;
    tr_model *model;
    tr_ckpt_tensor *tensors; /* that this rank writes */
    tr_box *box;             /* [tensors] */
    int count;
    int64_t bytes; /* of all tensors, as they are in the files */
    tr_ckpt_state state;
    tr_rundir dir;
    char lock[PATH_SIZE];
    bool locks;  /* rank 0: the folder had no such file */
    bool writes; /* rank 0: the folder had none of the files of an import */
    bool done;   /* rank 0: the checkpoint has its name */
} import;

/* --- the source ------------------------------------------------------------------------------- */

/* Completes the sizes of llm.c's header. A contradiction among them is the file's. */
static tr_status complete_llmc(import *m) {
    tr_model_config *c = &m->config.model;
    TR_TRY(tr_model_complete(c));
    const tr_model_shape shape = {.batch = 1, .seq = c->context, .dtype = TR_F32, .tp_size = 1};
    tr_status status = tr_model_check(c, &shape);
    if (status == TR_OK) status = tr_config_check_ranges(c);
    if (status != TR_ERR_CONFIG) return status;
    char why[1024];
    (void)snprintf(why, sizeof why, "%s", tr_error_message());
    return TR_FAIL(TR_ERR_DATA, "%s: %s", m->from, why);
}

/* Reads the config and the headers of the weights. */
static tr_status open_source(import *m) {
    struct stat info;
    tr_hf hf = {0};
    if (tr_llmc_is(m->from)) {
        TR_TRY(tr_llmc_open(m->from, &m->weights, &m->config.model));
        return complete_llmc(m);
    }
    const bool file = stat(m->from, &info) == 0 && !S_ISDIR(info.st_mode);
    const char *slash = file ? strrchr(m->from, '/') : NULL;
    (void)snprintf(m->folder, sizeof m->folder, "%.*s",
                   !file ? PATH_MAX - 1 : (int)(slash ? slash - m->from : 1),
                   file && !slash ? "." : m->from);
    if (!m->folder[0]) (void)snprintf(m->folder, sizeof m->folder, "/");
    TR_TRY(tr_weights_open(m->from, &m->weights));
    char config[PATH_MAX + 16];
    (void)snprintf(config, sizeof config, "%s/config.json", m->folder);
    if (file && access(config, F_OK) != 0 && errno == ENOENT)
        return TR_FAIL(TR_ERR_DATA,
                       "there is no config.json next to '%s': copy the model's there, or name the "
                       "model's folder",
                       m->from);
    TR_TRY(tr_hf_read(m->folder, &hf, &m->json));
    m->config.model = hf.model;
    return TR_OK;
}

/* Sets the config of the run, and its text in the state. */
static tr_status make_config(import *m) {
    const tr_model_config model = m->config.model;
    char *text;
    TR_TRY(tr_config_parse("", 0, m->from, NULL, 0, &m->config));
    m->config.model = model;
    m->config.preset[0] = '\0';
    (void)snprintf(m->config.log.dir, sizeof m->config.log.dir, "%s", m->run);
    TR_TRY(tr_config_text(&m->config, &text));
    (void)snprintf(m->state.config, sizeof m->state.config, "%s", text);
    free(text);
    m->state.seed = (uint64_t)m->config.train.seed;
    return TR_OK;
}

/* --- the tensors ------------------------------------------------------------------------------ */

static tr_status fetch(void *context, const tr_ckpt_tensor *tensor, const tr_box *box,
                       int64_t first, int64_t count, float *dense) {
    import *m = context;
    const tr_weight *t = tr_weights_find(&m->weights, tensor->name + strlen("weights/"));
    if (tr_board_stop_requested(m->board))
        return TR_FAIL(TR_ERR_STOPPED,
                       "the import was stopped, and nothing of it is left: start it again");
    return tr_weights_read(&m->weights, t, box, first, count, dense);
}

static void list_tensor(import *m, const tr_global *global) {
    tr_ckpt_tensor *t = &m->tensors[m->count];
    tr_box *box = &m->box[m->count++];
    for (int d = 0; d < TR_PARAM_RANK; d++)
        box->extent[d] = d < global->rank ? global->shape[d] : 1;
    *t = (tr_ckpt_tensor){.rank = global->rank,
                          .boxes = 1,
                          .box = box,
                          .dtype = TR_F32,
                          .write = true,
                          .fetch = fetch,
                          .context = m};
    (void)snprintf(t->name, sizeof t->name, "weights/%.*s", TR_NAME_SIZE - TR_NAME_GROUP,
                   global->name);
    memcpy(t->shape, global->shape, sizeof t->shape);
}

/* Calls list_tensor for the tensors of this rank: each goes to the rank with the fewest bytes so
 * far. */
static tr_status list_tensors(import *m) {
    const int ranks = tr_world_size(m->world), mine = tr_world_rank(m->world);
    int64_t *load;
    size_t most = 0;
    for (int l = 0; l < m->model->count; l++)
        for (int p = 0; p < m->model->layers[l]->params_count; p++)
            most += (size_t)m->model->layers[l]->params[p].tensors;
    TR_TRY(tr_calloc(most, sizeof *m->tensors, &m->tensors));
    TR_TRY(tr_calloc(most, sizeof *m->box, &m->box));
    TR_TRY(tr_calloc((size_t)ranks, sizeof *load, &load));
    for (int l = 0; l < m->model->count; l++)
        for (int p = 0; p < m->model->layers[l]->params_count; p++) {
            const tr_param *param = &m->model->layers[l]->params[p];
            for (int k = 0; k < param->tensors && param->use == 0; k++) {
                const int64_t bytes = tr_global_count(&param->tensor[k]) * (int64_t)sizeof(float);
                const int to = tr_argmin_i64(load, ranks);
                load[to] += bytes;
                m->bytes += tr_weights_find(&m->weights, param->tensor[k].name)->bytes;
                if (to == mine) list_tensor(m, &param->tensor[k]);
            }
        }
    free(load);
    return TR_OK;
}

/* --- the run ---------------------------------------------------------------------------------- */

/* Removes a checkpoint root that holds no complete checkpoint of a run: an import's own. */
static void remove_temporary(const char *root) {
    tr_error error;
    tr_error_save(&error);
    tr_ckpt_remove_root(root);
    tr_error_restore(&error);
}

/* Fails when the run is the model's own folder. */
static tr_status check_other(const char *run, const char *model) {
    struct stat a, b;
    if (stat(run, &a) != 0 || stat(model, &b) != 0 || a.st_dev != b.st_dev || a.st_ino != b.st_ino)
        return TR_OK;
    return TR_FAIL(TR_ERR_USAGE, "'%s' is the folder of the model: name a new folder", run);
}

/* Fails when the folder has a file that the import would write: it belongs to the user. */
static tr_status check_free(const char *run) {
    static const char *const written[] = {"config.yaml", "origin.json", "tokenizer"};
    char path[PATH_SIZE];
    struct stat info;
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", run, written[i]);
        if (lstat(path, &info) == 0)
            return TR_FAIL(TR_ERR_USAGE,
                           "'%s' exists, and an import would replace it: name a new folder", path);
    }
    return TR_OK;
}

static void remove_small_files(const import *m) {
    char path[PATH_SIZE];
    tr_origin_remove(m->run);
    (void)snprintf(path, sizeof path, "%s/config.yaml", m->run);
    (void)unlink(path);
}

/* Removes what an import that was killed left. It wrote the small files only after the checkpoint
 * was complete, and renamed that last. */
static void remove_leftovers(const import *m) {
    tr_ckpt_info *info = NULL;
    int count = 0;
    if (tr_ckpt_list(m->temporary, &info, &count) == TR_OK && count > 0) remove_small_files(m);
    free(info);
    tr_error_clear();
    remove_temporary(m->temporary);
}

static tr_status take_directory(import *m) {
    char note[TR_RUNDIR_NOTE];
    struct stat info;
    TR_TRY(check_other(m->run, m->folder));
    (void)snprintf(m->lock, sizeof m->lock, "%s/lock", m->run);
    m->locks = lstat(m->lock, &info) != 0;
    TR_TRY(tr_rundir_take(m->run, true, true, NULL, &m->dir, note));
    if (tr_rundir_has_checkpoints(&m->dir))
        return TR_FAIL(TR_ERR_USAGE, "'%s' contains another run: name a folder without checkpoints",
                       m->run);
    remove_leftovers(m);
    TR_TRY(check_free(m->run));
    m->writes = true;
    return TR_OK;
}

/* Writes and syncs the small files; the rename of the checkpoint's folder comes last. */
static tr_status finish(import *m) {
    char path[PATH_SIZE];
    FILE *f;
    TR_TRY(
        tr_origin_write(m->run, m->folder[0] ? m->folder : NULL, m->json, &m->weights, m->model));
    (void)snprintf(path, sizeof path, "%s/config.yaml", m->run);
    TR_TRY(tr_output_open(path, &f));
    TR_TRY(tr_output_sync_close(path, f, tr_config_print(&m->config, f)));
    (void)rmdir(m->root); /* an empty one of an earlier run */
    if (rename(m->temporary, m->root) != 0)
        return TR_FAIL(TR_ERR_IO, "'%s' cannot be renamed to '%s': %s", m->temporary, m->root,
                       strerror(errno));
    m->done = true;
    const int error = tr_folders_sync(m->run);
    return error == 0 ? TR_OK
                      : TR_FAIL(TR_ERR_IO, "'%s' cannot be synced: %s", m->run, strerror(error));
}

static void clean_up(import *m) {
    if (m->done) return;
    if (m->writes) remove_small_files(m);
    if (m->writes) remove_temporary(m->temporary); /* last: the mark of an import */
    /* tr_rundir_release removes a folder that the import made. */
    if (m->locks && !m->dir.made && m->dir.fd >= 0 && tr_rundir_in_place(&m->dir))
        (void)unlink(m->lock);
}

static tr_status import_all(import *m, FILE *out) {
    const bool first = tr_world_rank(m->world) == 0;
    tr_meter meter;
    tr_status status = open_source(m);
    if (status == TR_OK)
        status = tr_weights_make_model(&m->weights, &m->config.model, m->from, &m->model);
    if (status == TR_OK) status = make_config(m);
    if (status == TR_OK) status = list_tensors(m);
    TR_TRY(tr_world_agree(m->world, status));
    TR_TRY(tr_world_agree(m->world, first ? take_directory(m) : TR_OK));
    tr_meter_open(m->world, out, "imported", m->bytes, &meter);
    m->weights.once = true;
    status = tr_ckpt_save(m->world, m->temporary, &m->state, m->tensors, m->count);
    if (status == TR_OK) status = tr_world_agree(m->world, first ? finish(m) : TR_OK);
    tr_meter_close(&meter, status == TR_OK);
    return status;
}

tr_status tr_import(tr_world *world, const tr_board *board, const char *from, const char *run,
                    FILE *out) {
    import *m;
    tr_status status = TR_OK;
    if (strlen(run) >= TR_CONFIG_PATH)
        status =
            TR_FAIL(TR_ERR_USAGE, "the run's path is too long: name the run by a shorter path");
    TR_TRY(tr_world_agree(world, status));
    TR_TRY(tr_world_calloc(world, 1, sizeof *m, &m));
    m->world = world;
    m->board = board;
    m->from = from;
    m->run = run;
    m->dir.fd = -1;
    (void)snprintf(m->root, sizeof m->root, "%.*s/ckpt", TR_CONFIG_PATH - 1, run);
    (void)snprintf(m->temporary, sizeof m->temporary, "%.*s/.ckpt-import", TR_CONFIG_PATH - 1, run);
    status = import_all(m, out);
    if (status != TR_OK) clean_up(m);
    tr_rundir_release(&m->dir);
    tr_weights_close(&m->weights);
    tr_model_destroy(m->model);
    cJSON_Delete(m->json);
    free(m->tensors);
    free(m->box);
    free(m);
    return status;
}
