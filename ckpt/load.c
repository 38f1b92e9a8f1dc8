/* Loading: intersects the boxes that a rank needs with the stored parts. */
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/ckpt_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- does the checkpoint fit the model? ------------------------------------------------------- */

typedef struct faults {
    char text[768];
    size_t used;
    int listed, found;
} faults;

__attribute__((format(printf, 2, 3))) static void add_fault(faults *f, const char *format, ...) {
    if (f->found++ >= 10) return;
    char line[400];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0 || f->used + (size_t)n + 3 > sizeof f->text) return;
    f->used += (size_t)snprintf(f->text + f->used, sizeof f->text - f->used, "%s%s",
                                f->listed ? "; " : "", line);
    f->listed++;
}

static const char *shape_text(const tr_ckpt_entry *entry, char text[96]) {
    int n = snprintf(text, 96, "(");
    for (int64_t d = 0; d < entry->rank; d++)
        n += snprintf(text + n, (size_t)(96 - n), "%s%" PRId64, d ? ", " : "", entry->shape[d]);
    (void)snprintf(text + n, (size_t)(96 - n), ")");
    return text;
}

static int entry_by_name(const void *a, const void *b) {
    return strcmp(((const tr_ckpt_entry *)a)->name, ((const tr_ckpt_entry *)b)->name);
}

/* Orders by name, then by shape, because names are padded with zeros. */
static int entry_by_bytes(const void *a, const void *b) {
    return memcmp(a, b, sizeof(tr_ckpt_entry));
}

static bool is_weight(const char *name) {
    return strncmp(name, "weights/", 8) == 0;
}

/* Returns true when the checkpoint holds the tensor, or no tensor of this group for the parameter
 * although it holds its weights: the parameter was frozen, or nothing was trained yet. */
static bool is_moment_left_out(const tr_manifest *m, const char *name) {
    char weight[TR_NAME_SIZE + 8];
    if (is_weight(name) || tr_manifest_find(m, name) >= 0) return false;
    (void)snprintf(weight, sizeof weight, "weights/%s", strchr(name, '/') + 1);
    return tr_manifest_find(m, weight) >= 0;
}

/* Moves the tensors that the checkpoint is to hold to the front of `wanted`, and sets *count to
 * their number: not the moments of parameters that were not trained. */
static void leave_out_moments(const tr_manifest *m, tr_ckpt_tensor *wanted, int *count) {
    int kept = 0;
    for (int i = 0; i < *count; i++)
        if (!is_moment_left_out(m, wanted[i].name)) wanted[kept++] = wanted[i];
    *count = kept;
}

/* Compares the file with every rank's tensors, `model`, which are sorted. Unexpected moments do not
 * count, so that weights can be loaded alone, and parameters frozen that were trained. */
static tr_status compare(const tr_manifest *m, const tr_ckpt_entry *model, size_t count,
                         const char *dir) {
    faults f = {.used = 0};
    char stored[96], wanted[96];
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && memcmp(&model[i - 1], &model[i], sizeof *model) == 0) continue;
        int64_t t = tr_manifest_find(m, model[i].name);
        if (t < 0) add_fault(&f, "%s is missing", model[i].name);
        else if (m->tensor[t].rank != model[i].rank ||
                 memcmp(m->tensor[t].shape, model[i].shape, sizeof model[i].shape) != 0)
            add_fault(&f, "%s is %s in the file, %s in the model", model[i].name,
                      shape_text(&m->tensor[t], stored), shape_text(&model[i], wanted));
    }
    for (int64_t t = 0; t < m->tensors; t++) {
        bool known = bsearch(&m->tensor[t], model, count, sizeof *model, entry_by_name);
        if (!known && is_weight(m->tensor[t].name))
            add_fault(&f, "%s is not in the model", m->tensor[t].name);
    }
    if (f.found == 0) return TR_OK;
    return TR_FAIL(TR_ERR_DATA, "%s is a checkpoint of another model, %d tensors differ: %s%s", dir,
                   f.found, f.text, f.found > f.listed ? "; ..." : "");
}

/* Compares the tensors of all ranks on every rank, so all ranks get the same sentence.
 * Collective. */
static tr_status compare_all(tr_world *world, const tr_manifest *m, const tr_ckpt_tensor *tensors,
                             int count, const char *dir) {
    const int size = tr_world_size(world);
    tr_ckpt_entry *mine = NULL, *all = NULL;
    size_t *sizes = NULL, total = 0;
    tr_status status = tr_tensors_check(tensors, count);
    if (status == TR_OK) status = tr_calloc((size_t)count, sizeof *mine, &mine);
    if (status == TR_OK) status = tr_calloc((size_t)size, sizeof *sizes, &sizes);
    TR_TRY_OUT(tr_world_agree(world, status)); /* either all ranks enter the gather or none */
    for (int i = 0; i < count; i++) {
        memcpy(mine[i].name, tensors[i].name, strlen(tensors[i].name));
        mine[i].rank = tensors[i].rank;
        for (int d = 0; d < tensors[i].rank; d++) mine[i].shape[d] = tensors[i].shape[d];
    }
    TR_TRY_OUT(
        tr_world_gather_all_v(world, mine, (size_t)count * sizeof *mine, (void **)&all, sizes));
    for (int r = 0; r < size; r++) total += sizes[r] / sizeof *all;
    if (total) qsort(all, total, sizeof *all, entry_by_bytes);
    TR_TRY_OUT(tr_world_agree(world, compare(m, all, total, dir)));
out:
    free(mine);
    free(all);
    free(sizes);
    return status;
}

/* --- reading ---------------------------------------------------------------------------------- */

typedef struct reader {
    tr_world *world; /* the world to report the number of bytes read to */
    int64_t done, wanted;
    const tr_manifest *manifest;
    tr_ckpt_tensor *tensors;
    int *
        held; /* for each global tensor: its index in tensors, -1 when this rank holds none of it */
    int64_t *copied; /* for each global tensor: elements copied so far, over all boxes */
    float *buffer;   /* one block */
    tr_mirror mirror;
    int fd;
    tr_path path;
} reader;

/* Returns how many elements [first, first + count) of a part this rank needs, and copies them
 * unless `from` is NULL. */
static int64_t place_block(const reader *r, const tr_ckpt_part *part, int64_t first, int64_t count,
                           float *from) {
    const tr_ckpt_tensor *tensor = &r->mirror.view;
    tr_box4 stored = tr_box4_make(tensor->rank, part->from, part->extent);
    int64_t placed = 0;
    for (int b = 0; b < tensor->boxes; b++) {
        tr_box4 box = tr_box4_make(tensor->rank, tensor->box[b].offset, tensor->box[b].extent);
        if (tr_box4_intersects(&stored, &box))
            placed += tr_box4_copy(&stored, first, count, from, tensor, &tensor->box[b], false);
    }
    return placed;
}

static tr_status read_part(reader *r, const tr_ckpt_part *part) {
    const int64_t step = TR_CKPT_STEP;
    int64_t elements = tr_part_elements(r->manifest, part);
    TR_TRY(tr_mirror_turn(&r->mirror, &r->tensors[r->held[part->tensor]]));
    for (int64_t b = 0; b < part->blocks; b++) {
        int64_t first = b * step, count = elements - first < step ? elements - first : step;
        if (place_block(r, part, first, count, NULL) == 0) continue;
        TR_TRY(tr_shard_read_block(r->fd, r->path.text, r->manifest, part, b, r->buffer, &first,
                                   &count));
        int64_t placed = place_block(r, part, first, count, r->buffer);
        r->copied[part->tensor] += placed;
        r->done += placed * (int64_t)sizeof(float);
        tr_world_tell_work(r->world, r->done, r->wanted);
    }
    return TR_OK;
}

static bool wants(const reader *r, const tr_ckpt_part *part) {
    if (r->held[part->tensor] < 0) return false;
    const tr_ckpt_tensor *tensor = &r->tensors[r->held[part->tensor]];
    tr_box4 stored = tr_box4_make(tensor->rank, part->from, part->extent);
    for (int b = 0; b < tensor->boxes; b++) {
        tr_box4 box = tr_box4_make(tensor->rank, tensor->box[b].offset, tensor->box[b].extent);
        if (tr_box4_intersects(&stored, &box)) return true;
    }
    return false;
}

/* Reads one shard; only one file is open at a time. */
static tr_status read_shard(reader *r, const char *dir, int64_t file) {
    const tr_manifest *m = r->manifest;
    tr_status status = TR_OK;
    for (int64_t k = m->first[file]; k < m->first[file + 1] && status == TR_OK; k++) {
        const tr_ckpt_part *part = &m->part[m->of_file[k]];
        if (!wants(r, part)) continue;
        if (r->fd < 0) status = tr_shard_open(dir, m, file, true, &r->path, &r->fd);
        if (status == TR_OK) status = read_part(r, part);
    }
    if (r->fd >= 0) (void)close(r->fd);
    r->fd = -1;
    return status;
}

static int64_t elements_of(const tr_ckpt_tensor *tensor) {
    int64_t elements = 0;
    for (int b = 0; b < tensor->boxes; b++) {
        tr_box4 box = tr_box4_make(tensor->rank, tensor->box[b].offset, tensor->box[b].extent);
        elements += tr_box4_volume(&box);
    }
    return elements;
}

static tr_status check_complete(const reader *r, int count, const char *dir) {
    for (int i = 0; i < count; i++) {
        const tr_ckpt_tensor *tensor = &r->tensors[i];
        int64_t wanted = elements_of(tensor);
        int64_t placed = r->copied[tr_manifest_find(r->manifest, tensor->name)];
        if (placed != wanted)
            return TR_FAIL(TR_ERR_DATA, "%s holds %" PRId64 " of %" PRId64 " elements of %s", dir,
                           placed, wanted, tensor->name);
    }
    return TR_OK;
}

static tr_status read_all(tr_world *world, const tr_manifest *m, const char *dir,
                          tr_ckpt_tensor *tensors, int count) {
    reader *r = NULL;
    tr_status status;
    TR_TRY(tr_calloc(1, sizeof *r, &r));
    r->world = world;
    r->manifest = m;
    r->tensors = tensors;
    r->fd = -1;
    TR_TRY_OUT(tr_calloc((size_t)m->tensors, sizeof *r->held, &r->held));
    TR_TRY_OUT(tr_calloc((size_t)m->tensors, sizeof *r->copied, &r->copied));
    TR_TRY_OUT(tr_calloc(TR_CKPT_BLOCK, 1, &r->buffer));
    for (int64_t t = 0; t < m->tensors; t++) r->held[t] = -1;
    for (int i = 0; i < count; i++) {
        r->held[tr_manifest_find(m, tensors[i].name)] = i;
        r->wanted += elements_of(&tensors[i]) * (int64_t)sizeof(float);
    }
    TR_TRY_OUT(tr_mirror_open(tensors, count, TR_MIRROR_FILL, &r->mirror));
    for (int64_t f = 0; f < m->files; f++) TR_TRY_OUT(read_shard(r, dir, f));
    TR_TRY_OUT(tr_mirror_turn(&r->mirror, NULL));
    status = check_complete(r, count, dir);
out:
    tr_mirror_close(&r->mirror);
    free(r->held);
    free(r->copied);
    free(r->buffer);
    free(r);
    return status;
}

/* --- the collective --------------------------------------------------------------------------- */

/* The step that rank 0 found, for all ranks. */
typedef struct found {
    int64_t step;
    tr_commit commit;
    tr_path dir;
} found;

static tr_status find(const char *root, int64_t step, found *f, char **image) {
    tr_manifest m;
    TR_TRY(tr_ckpt_step_find(root, step, &f->step, &f->dir));
    TR_TRY(tr_ckpt_step_advise(root, f->step,
                               tr_ckpt_step_check(f->dir.text, f->step, &f->commit, &m)));
    tr_manifest_free(&m);
    return tr_ckpt_step_read(f->dir.text, f->step, &f->commit, image);
}

/* Tells a step that is corrupt from one that is not here what rank 0 has found, with its index and
 * all files in their sizes. Returns the status of a load. */
static tr_status check_view(const found *f, tr_status status) {
    tr_error cause;
    tr_commit commit;
    tr_manifest m;
    if (status != TR_ERR_DATA) return status;
    tr_error_save(&cause);
    if (tr_ckpt_step_check(f->dir.text, f->step, &commit, &m) == TR_OK) {
        tr_manifest_free(&m);
        if (commit.index_hash == f->commit.index_hash) {
            tr_error_restore(&cause);
            return status;
        }
    }
    return TR_FAIL(TR_ERR_IO,
                   "%s; rank 0 has found other files there: the run must be on one file system for "
                   "all ranks, and no other process may change the step meanwhile",
                   cause.message);
}

/* Agrees on the result of reading, and adds what the user needs to know. Collective. */
static tr_status conclude(tr_world *world, const char *root, const found *f, tr_status status,
                          char *corrupt) {
    status = tr_world_agree(world, check_view(f, status));
    if (status == TR_OK) return TR_OK;
    if (status == TR_ERR_DATA && corrupt)
        (void)tr_text_fit(corrupt, TR_CKPT_WHY, tr_error_message());
    return tr_world_agree(world, tr_ckpt_step_advise(root, f->step, status));
}

tr_status tr_ckpt_load(tr_world *world, const char *root, int64_t step, tr_ckpt_tensor *tensors,
                       int count, tr_ckpt_state *state, char *corrupt) {
    const bool first = tr_world_rank(world) == 0;
    char *image = NULL;
    tr_manifest m = {0};
    found here = {.step = -1}, *f = &here;
    tr_ckpt_tensor *wanted = NULL;
    tr_status status;
    if (corrupt) corrupt[0] = '\0';

    /* Only rank 0 searches, so that all ranks load the same step from the same index. */
    TR_TRY_OUT(tr_world_agree(world, first ? find(root, step, f, &image) : TR_OK));
    TR_TRY_OUT(tr_world_broadcast(world, 0, f, sizeof *f));
    const size_t bytes = (size_t)f->commit.index_bytes;
    TR_TRY_OUT(tr_world_agree(world, first ? TR_OK : tr_calloc(bytes, 1, &image)));
    TR_TRY_OUT(tr_world_broadcast(world, 0, image, bytes));
    TR_TRY_OUT(tr_world_agree(world, tr_index_parse(image, bytes, f->dir.text, &m)));

    TR_TRY_OUT(tr_world_calloc(world, (size_t)count, sizeof *wanted, &wanted));
    if (count > 0) memcpy(wanted, tensors, (size_t)count * sizeof *wanted);
    leave_out_moments(&m, wanted, &count);
    TR_TRY_OUT(compare_all(world, &m, wanted, count, f->dir.text));
    status = read_all(world, &m, f->dir.text, wanted, count);
    TR_TRY_OUT(conclude(world, root, f, status, corrupt));
    if (state) *state = m.state;
out:
    tr_manifest_free(&m);
    free(wanted);
    free(image);
    return status;
}
