/* A run becomes a model of transformers.
 *
 * Everything is written into a folder next to the target, synced, and renamed. Rank 0 makes the
 * files and their headers; each rank writes its tensors to their places. */
#include "base/memory.h"
#include "base/minmax.h"
#include "base/output.h"
#include "ckpt/drain.h"
#include "ckpt/reader.h"
#include "ckpt/weights.h"
#include "config/adapter.h"
#include "config/config.h"
#include "config/hf.h"
#include "job/board.h"
#include "layers/lora_config.h"
#include "train/export_folder.h"
#include "train/merge.h"
#include "train/meter.h"
#include "train/origin.h"
#include "train/transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SCRATCH = 1 << 20, /* elements that are rounded at a time: what the reader passes on at most */
};

/* The export on one rank. */
typedef struct export {
    tr_world *world;
    const tr_export_options *options;
    const tr_board *board;   /* a stop may be requested there; NULL: never */
    tr_export_folder folder; /* rank 0's; on the other ranks its temporary name */
    tr_ckpt_reader *reader;
    tr_config config;
    cJSON *origin;
    tr_ckpt_weight *saved, *source; /* [saved_count], of the checkpoint; [count], to be written */
    char(*name)[2 * TR_NAME_SIZE];  /* [count], in the files */
    tr_weight *tensor;              /* [count], file by file; shape, type, and place in the file */
    int64_t saved_count, count, bytes, lost;
    tr_merge merge;
    float *sum;          /* [SCRATCH] */
    int files, file, fd; /* one file is open: its number and descriptor; fd -1: none */
    char path[PATH_MAX]; /* its path */
    int64_t done, share;
    tr_drain drain;
    void *scratch;
}
export;

/* --- what to write ---------------------------------------------------------------------------- */

static void take_types(export *e) {
    static const struct {
        const char *name;
        tr_weight_type type;
    } word[] = {{"fp32", TR_WEIGHT_F32}, {"bf16", TR_WEIGHT_BF16}, {"fp16", TR_WEIGHT_F16}};
    for (int64_t i = 0; i < e->count; i++) {
        tr_weight *t = &e->tensor[i];
        t->type =
            e->options->adapter ? TR_WEIGHT_F32 : tr_origin_type(e->origin, e->source[i].name);
        for (size_t k = 0; e->options->dtype && k < sizeof word / sizeof *word; k++)
            if (!strcmp(word[k].name, e->options->dtype)) t->type = word[k].type;
        t->dtype = tr_weight_type_name(t->type);
    }
}

/* Chooses the tensors to be written: the updates, or all others. */
static tr_status choose_sources(export *e) {
    const bool updates = e->options->adapter;
    TR_TRY(tr_ckpt_reader_list(e->reader, &e->saved, &e->saved_count));
    TR_TRY(tr_calloc((size_t)e->saved_count, sizeof *e->source, &e->source));
    for (int64_t i = 0; i < e->saved_count; i++)
        if (tr_lora_is_update(e->saved[i].name) == updates) e->source[e->count++] = e->saved[i];
    e->merge = (tr_merge){.reader = e->reader,
                          .tensor = e->saved,
                          .count = e->saved_count,
                          .model = &e->config.model};
    if (e->count > 0) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "'%s' has no low-rank updates (model.lora.rank is 0), so it is not an adapter: "
                   "export it without --adapter",
                   e->options->run);
}

/* Divides the tensors among files: a file is full when the next tensor would pass the limit. */
static tr_status make_list(export *e) {
    int64_t in_file = 0;
    TR_TRY(choose_sources(e));
    TR_TRY(tr_calloc((size_t)e->count, sizeof *e->tensor, &e->tensor));
    TR_TRY(tr_calloc((size_t)e->count, sizeof *e->name, &e->name));
    take_types(e);
    e->files = 1;
    for (int64_t i = 0; i < e->count; i++) {
        const tr_ckpt_weight *from = &e->source[i];
        tr_weight *t = &e->tensor[i];
        t->name = e->name[i];
        (void)snprintf(t->name, sizeof e->name[i], "%s%.*s",
                       e->options->adapter ? TR_ADAPTER_PREFIX : "", TR_NAME_SIZE, from->name);
        t->rank = from->rank;
        t->bytes = tr_weight_type_size(t->type);
        for (int d = 0; d < from->rank; d++) t->bytes *= t->shape[d] = from->shape[d];
        if (!e->options->adapter && in_file > 0 && in_file + t->bytes > e->options->shard_bytes) {
            e->files++;
            in_file = 0;
        }
        t->file = e->files - 1;
        in_file += t->bytes;
        e->bytes += t->bytes;
    }
    return TR_OK;
}

static tr_status open_run(export *e) {
    char root[TR_CONFIG_PATH + 8];
    const tr_export_options *o = e->options;
    if (strlen(o->run) >= TR_CONFIG_PATH)
        return TR_FAIL(TR_ERR_USAGE, "the run's path is too long: name it by a shorter path");
    (void)snprintf(root, sizeof root, "%s/ckpt", o->run);
    TR_TRY(tr_ckpt_reader_open(root, o->step, &e->reader));
    const char *text = tr_ckpt_reader_state(e->reader)->config;
    TR_TRY(tr_config_parse(text, strlen(text), root, NULL, 0, &e->config));
    TR_TRY(tr_origin_read(o->run, &e->origin));
    TR_TRY(make_list(e));
    TR_TRY(tr_calloc(SCRATCH, sizeof *e->sum, &e->sum));
    return tr_calloc(SCRATCH, sizeof(float), &e->scratch);
}

/* --- the files -------------------------------------------------------------------------------- */

static void file_name(const export *e, int file, char name[64]) {
    if (e->options->adapter) (void)snprintf(name, 64, TR_ADAPTER_WEIGHTS);
    else if (e->files == 1) (void)snprintf(name, 64, "model.safetensors");
    else (void)snprintf(name, 64, "model-%05d-of-%05d.safetensors", file + 1, e->files);
}

/* Writes the path of a file in the folder in progress. */
static void file_path(const export *e, int file, char path[PATH_MAX]) {
    char name[64];
    file_name(e, file, name);
    (void)snprintf(path, PATH_MAX, "%.*s/%s", PATH_MAX - 80, e->folder.temporary, name);
}

static tr_status fail_io(const char *what, const char *path) {
    return TR_FAIL(TR_ERR_IO, "cannot %s '%s': %s", what, path, strerror(errno));
}

static tr_status write_all(int fd, const char *path, const void *data, int64_t bytes, int64_t at) {
    errno = tr_output_put(fd, data, (size_t)bytes, at);
    return errno == 0 ? TR_OK : fail_io("write", path);
}

/* Lays a file out. Every rank computes the same; rank 0 also makes the file, with its header. */
static tr_status lay_out(export *e, int file, tr_weight *tensor, int64_t count) {
    char path[PATH_MAX], *header;
    int64_t header_bytes, bytes;
    TR_TRY(tr_safetensors_header(tensor, count, &header, &header_bytes, &bytes));
    tr_status status = TR_OK;
    if (tr_world_rank(e->world) == 0) {
        file_path(e, file, path);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0) status = fail_io("create", path);
        /* A full disk is found here, where the file system can reserve room. Elsewhere
         * posix_fallocate would write to every block. */
        const bool full = fd >= 0 && fallocate(fd, 0, 0, bytes) != 0 && errno == ENOSPC;
        if (status == TR_OK && full)
            status =
                TR_FAIL(TR_ERR_IO, "'%s' needs %" PRId64 " bytes: the disk is full", path, bytes);
        if (status == TR_OK) status = write_all(fd, path, header, header_bytes, 0);
        if (fd >= 0 && close(fd) != 0 && status == TR_OK) status = fail_io("close", path);
    }
    free(header);
    return status;
}

static tr_status lay_out_all(export *e) {
    tr_status status = TR_OK;
    for (int64_t from = 0, to; from < e->count && status == TR_OK; from = to) {
        for (to = from; to < e->count && e->tensor[to].file == e->tensor[from].file;) to++;
        status = lay_out(e, e->tensor[from].file, e->tensor + from, to - from);
    }
    return status;
}

/* --- tensors ---------------------------------------------------------------------------------- */

typedef struct target {
    export *e;
    const tr_weight *tensor;
} target;

/* Writes a run of elements to its place. */
static tr_status put(void *context, int64_t at, int64_t count, const float *values) {
    const target *to = context;
    export *e = to->e;
    const tr_weight *t = to->tensor;
    const int64_t size = tr_weight_type_size(t->type);
    if (tr_board_stop_requested(e->board))
        return TR_FAIL(TR_ERR_STOPPED,
                       "the export was stopped, and nothing of it is left: start it again");
    for (int64_t i = 0; i < count; i += SCRATCH) {
        const int64_t n = tr_min_i64(SCRATCH, count - i);
        const float *from = values + i;
        if (e->merge.left) {
            memcpy(e->sum, from, (size_t)n * sizeof *from);
            tr_merge_add(&e->merge, at + i, n, e->sum);
            from = e->sum;
        }
        const void *data = from;
        if (t->type != TR_WEIGHT_F32) {
            e->lost += tr_weights_round(from, n, t->type, e->scratch);
            data = e->scratch;
        }
        const int64_t place = t->offset + (at + i) * size;
        TR_TRY(write_all(e->fd, e->path, data, n * size, place));
        TR_TRY(tr_drain_add(&e->drain, place, n * size));
    }
    e->done += count * size;
    tr_world_tell_work(e->world, e->done, e->share);
    return TR_OK;
}

/* Returns the checkpoint's tensor of a name in the files. */
static const tr_ckpt_weight *source_of(const export *e, const char *name) {
    if (e->options->adapter) name += strlen(TR_ADAPTER_PREFIX);
    return tr_ckpt_weight_find(e->source, e->count, name);
}

/* Writes a tensor, with its update. */
static tr_status write_tensor(export *e, const tr_weight *tensor) {
    target to = {.e = e, .tensor = tensor};
    const tr_ckpt_weight *source = source_of(e, tensor->name);
    tr_status status = e->options->adapter ? TR_OK : tr_merge_begin(&e->merge, source);
    if (status == TR_OK) status = tr_ckpt_reader_read(e->reader, source, put, &to);
    tr_merge_end(&e->merge);
    return status;
}

/* Marks the tensors of this rank: each goes to the rank with the fewest bytes so far. */
static tr_status choose_tensors(export *e, bool *mine) {
    const int ranks = tr_world_size(e->world);
    int64_t *load;
    TR_TRY(tr_calloc((size_t)ranks, sizeof *load, &load));
    for (int64_t i = 0; i < e->count; i++) {
        const int to = tr_argmin_i64(load, ranks);
        load[to] += e->tensor[i].bytes;
        mine[i] = to == tr_world_rank(e->world);
        e->share += mine[i] ? e->tensor[i].bytes : 0;
    }
    free(load);
    return TR_OK;
}

/* Syncs the file that is open, and closes it also after a failure. */
static tr_status close_file(export *e, tr_status status) {
    if (e->fd < 0) return status;
    if (status == TR_OK && fsync(e->fd) != 0) status = fail_io("sync", e->path);
    tr_drain_drop(e->fd, 0, INT64_MAX);
    if (close(e->fd) != 0 && status == TR_OK) status = fail_io("close", e->path);
    e->fd = -1;
    return status;
}

/* Makes a file the one that is open. */
static tr_status turn_to(export *e, int file) {
    if (e->fd >= 0 && e->file == file) return TR_OK;
    TR_TRY(close_file(e, TR_OK));
    file_path(e, file, e->path);
    e->fd = open(e->path, O_WRONLY | O_CLOEXEC);
    if (e->fd < 0) return fail_io("open", e->path);
    e->file = file;
    e->drain = (tr_drain){.fd = e->fd, .path = e->path};
    return TR_OK;
}

/* Writes and syncs the tensors of this rank. */
static tr_status write_tensors(export *e) {
    bool *mine;
    TR_TRY(tr_calloc((size_t)e->count, sizeof *mine, &mine));
    tr_status status = choose_tensors(e, mine);
    for (int64_t i = 0; i < e->count && status == TR_OK; i++) {
        /* Rank 0 has written all headers, so it syncs all files. */
        if (mine[i] || tr_world_rank(e->world) == 0) status = turn_to(e, e->tensor[i].file);
        if (status == TR_OK && mine[i]) status = write_tensor(e, &e->tensor[i]);
    }
    free(mine);
    return close_file(e, status);
}

/* --- the small files -------------------------------------------------------------------------- */

static tr_status write_text(const export *e, const char *name, const char *text) {
    char path[PATH_MAX];
    FILE *f;
    (void)snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 80, e->folder.temporary, name);
    TR_TRY(tr_output_open(path, &f));
    (void)fprintf(f, "%s\n", text);
    return tr_output_sync_close(path, f, TR_OK);
}

static tr_status write_index(const export *e) {
    char file[64];
    cJSON *root = cJSON_CreateObject(), *metadata = cJSON_AddObjectToObject(root, "metadata");
    bool good = cJSON_AddNumberToObject(metadata, "total_size", (double)e->bytes) != NULL;
    cJSON *map = cJSON_AddObjectToObject(root, "weight_map");
    for (int64_t i = 0; i < e->count; i++) {
        file_name(e, e->tensor[i].file, file);
        good = good && cJSON_AddStringToObject(map, e->tensor[i].name, file);
    }
    char *text = good ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    if (!text) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    tr_status status = write_text(e, "model.safetensors.index.json", text);
    cJSON_free(text);
    return status;
}

/* Writes config.json with the type of most elements. */
static tr_status write_config(const export *e) {
    static const char *const names[TR_WEIGHT_TYPES] = {"float32", "bfloat16", "float16"};
    int64_t elements[TR_WEIGHT_TYPES] = {0};
    int most = 0;
    char *text;
    for (int64_t i = 0; i < e->count; i++)
        elements[e->tensor[i].type] += e->tensor[i].bytes / tr_weight_type_size(e->tensor[i].type);
    for (int t = 1; t < TR_WEIGHT_TYPES; t++)
        if (elements[t] > elements[most]) most = t;
    TR_TRY(tr_hf_print(&e->config.model, tr_json_get(e->origin, "config"), names[most], &text));
    tr_status status = write_text(e, "config.json", text);
    free(text);
    return status;
}

static tr_status write_adapter_config(const export *e) {
    char *text;
    TR_TRY(tr_adapter_print(&e->config.model, tr_config_origin(&e->config), &text));
    tr_status status = write_text(e, TR_ADAPTER_CONFIG, text);
    free(text);
    return status;
}

/* --- the whole -------------------------------------------------------------------------------- */

static tr_status make_folder(export *e) {
    char *text; /* a model that transformers does not have is refused before anything is written */
    TR_TRY(tr_hf_print(&e->config.model, NULL, "float32", &text));
    free(text);
    return tr_export_folder_make(e->options->folder, &e->folder);
}

/* Writes the small files, and gives the folder its name. */
static tr_status finish(export *e) {
    char path[PATH_MAX];
    if (e->files > 1) TR_TRY(write_index(e));
    TR_TRY(e->options->adapter ? write_adapter_config(e) : write_config(e));
    (void)snprintf(path, sizeof path, "%s/tokenizer", e->options->run);
    TR_TRY(tr_origin_copy(path, e->folder.temporary));
    TR_TRY(tr_origin_name_tokenizer(e->folder.temporary));
    return tr_export_folder_publish(&e->folder);
}

static tr_status export_all(export *e, FILE *out) {
    const bool first = tr_world_rank(e->world) == 0;
    tr_meter meter;
    TR_TRY(tr_world_agree(e->world, open_run(e)));
    TR_TRY(tr_world_agree(e->world, first ? make_folder(e) : TR_OK));
    TR_TRY(tr_world_broadcast(e->world, 0, e->folder.temporary, sizeof e->folder.temporary));
    TR_TRY(tr_world_agree(e->world, lay_out_all(e)));
    tr_meter_open(e->world, out, "exported", e->bytes, &meter);
    tr_status status = tr_world_agree(e->world, write_tensors(e));
    if (status == TR_OK) status = tr_world_agree(e->world, first ? finish(e) : TR_OK);
    tr_meter_close(&meter, status == TR_OK);
    TR_TRY(status);
    if (e->lost > 0)
        (void)fprintf(out,
                      "rank %d: %" PRId64 " value%s beyond the range of the file's type became "
                      "infinite; --dtype fp32 keeps %s\n",
                      tr_world_rank(e->world), e->lost, e->lost == 1 ? "" : "s",
                      e->lost == 1 ? "it" : "them");
    return TR_OK;
}

tr_status tr_export(tr_world *world, const tr_board *board, const tr_export_options *options,
                    FILE *out) {
    export *e;
    TR_TRY(tr_world_calloc(world, 1, sizeof *e, &e));
    e->world = world;
    e->board = board;
    e->options = options;
    e->folder.lock = -1;
    e->fd = -1;
    tr_status status = export_all(e, out);
    if (tr_world_rank(world) == 0) tr_export_folder_remove(&e->folder);
    tr_ckpt_reader_close(e->reader);
    cJSON_Delete(e->origin);
    free(e->saved);
    free(e->source);
    free(e->name);
    free(e->sum);
    free(e->tensor);
    free(e->scratch);
    free(e);
    return status;
}
