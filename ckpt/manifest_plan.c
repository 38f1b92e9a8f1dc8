/* Plans a save: makes one manifest of the boxes of all ranks, the same on every rank. */
#include "base/memory.h"
#include "ckpt/ckpt_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A box as its rank announces it. Sent as bytes, so it has no padding. */
typedef struct announced {
    tr_ckpt_entry entry;
    int64_t from[TR_PARAM_RANK], extent[TR_PARAM_RANK];
    int64_t type;
    int64_t write, file; /* file: set by the receiver */
    tr_part_source source;
} announced;

static bool name_good(const char *name) {
    if (!memchr(name, 0, TR_NAME_SIZE)) return false;
    const char *slash = strchr(name, '/');
    if (!slash || slash == name || !slash[1] || strchr(slash + 1, '/')) return false;
    if (strcmp(slash + 1, ".") == 0 || name[0] == '.') return false;
    size_t group = (size_t)(slash - name);
    return !(group == 5 && strncmp(name, "state", 5) == 0) &&
           !(group == 8 && strncmp(name, "manifest", 8) == 0);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static tr_status check_unique(const tr_ckpt_tensor *tensors, int count) {
    const char **names;
    TR_TRY(tr_calloc((size_t)count, sizeof *names, &names));
    for (int i = 0; i < count; i++) names[i] = tensors[i].name;
    qsort(names, (size_t)count, sizeof *names, by_name);
    tr_status status = TR_OK;
    for (int i = 1; i < count && status == TR_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = TR_FAIL(TR_ERR_INTERNAL, "a rank lists tensor %s twice", names[i]);
    free(names);
    return status;
}

tr_status tr_tensors_check(const tr_ckpt_tensor *tensors, int count) {
    if (count < 0 || (count > 0 && !tensors))
        return TR_FAIL(TR_ERR_INTERNAL, "a list cannot have %d tensors", count);
    for (int i = 0; i < count; i++) {
        const tr_ckpt_tensor *t = &tensors[i];
        if (!name_good(t->name))
            return TR_FAIL(TR_ERR_INTERNAL, "tensor %d is named \"%.127s\", not <group>/<name>", i,
                           t->name);
        int64_t elements = 1;
        bool good = t->rank >= 0 && t->rank <= TR_PARAM_RANK && t->boxes >= 0;
        for (int d = 0; good && d < t->rank; d++)
            good = t->shape[d] >= 1 && !__builtin_mul_overflow(elements, t->shape[d], &elements);
        for (int b = 0; good && b < t->boxes; b++)
            for (int d = 0; good && d < t->rank; d++)
                good = t->box[b].offset[d] >= 0 && t->box[b].extent[d] >= 1 &&
                       t->box[b].offset[d] < t->shape[d] &&
                       t->box[b].extent[d] <= t->shape[d] - t->box[b].offset[d];
        if (!good || elements > INT64_MAX / (int64_t)sizeof(float))
            return TR_FAIL(TR_ERR_INTERNAL, "the shape or boxes of tensor %s are wrong", t->name);
    }
    return check_unique(tensors, count);
}

static tr_status announce(const tr_ckpt_tensor *tensors, int count, int rank, announced **out,
                          size_t *boxes) {
    TR_TRY(tr_tensors_check(tensors, count));
    *boxes = 0;
    for (int i = 0; i < count; i++) *boxes += (size_t)tensors[i].boxes;
    TR_TRY(tr_calloc(*boxes, sizeof **out, out));
    announced *next = *out;
    for (int i = 0; i < count; i++)
        for (int b = 0; b < tensors[i].boxes; b++, next++) {
            const tr_ckpt_tensor *t = &tensors[i];
            memcpy(next->entry.name, t->name, strlen(t->name));
            next->entry.rank = t->rank;
            for (int d = 0; d < t->rank; d++) {
                next->entry.shape[d] = t->shape[d];
                next->from[d] = t->box[b].offset[d];
                next->extent[d] = t->box[b].extent[d];
            }
            next->type = tr_ckpt_type_of(t->dtype);
            next->write = t->write;
            next->source = (tr_part_source){rank, i, b};
        }
    return TR_OK;
}

/* Numbers the ranks that write, in rank order, in announced[i].file. */
static int64_t number_files(announced *all, size_t count) {
    int64_t files = 0, last_writer = -1;
    for (size_t i = 0; i < count; i++) {
        if (!all[i].write) continue;
        if (all[i].source.rank != last_writer) files++;
        last_writer = all[i].source.rank;
        all[i].file = files - 1;
    }
    return files;
}

/* Orders by name, then written boxes before replicas, then by place. */
static int by_place(const void *a, const void *b) {
    const announced *x = a, *y = b;
    int order = strcmp(x->entry.name, y->entry.name);
    if (order) return order;
    if (x->write != y->write) return x->write ? -1 : 1;
    for (int d = 0; d < TR_PARAM_RANK; d++)
        if (x->from[d] != y->from[d]) return x->from[d] < y->from[d] ? -1 : 1;
    return x->source.rank < y->source.rank ? -1 : x->source.rank > y->source.rank;
}

/* Makes a manifest of the sorted announcements. A tensor that no rank writes gets an entry without
 * a part, which the check finds. */
static tr_status fill(tr_manifest *m, const announced *all, size_t count, tr_part_source **source) {
    size_t tensors = 0, parts = 0;
    for (size_t i = 0; i < count; i++) {
        tensors += i == 0 || strcmp(all[i - 1].entry.name, all[i].entry.name) != 0;
        parts += all[i].write != 0;
    }
    if (parts == 0) return TR_FAIL(TR_ERR_INTERNAL, "a checkpoint needs at least one tensor");
    TR_TRY(tr_calloc(tensors, sizeof *m->tensor, &m->tensor));
    TR_TRY(tr_calloc(tensors, sizeof *m->type, &m->type));
    TR_TRY(tr_calloc(parts, sizeof *m->part, &m->part));
    TR_TRY(tr_calloc(parts, sizeof **source, source));
    TR_TRY(tr_calloc((size_t)m->files, sizeof *m->file, &m->file));
    for (size_t i = 0; i < count; i++) {
        const announced *a = &all[i];
        if (i == 0 || strcmp(all[i - 1].entry.name, a->entry.name) != 0) {
            m->type[m->tensors] = a->type;
            m->tensor[m->tensors++] = a->entry;
        } else if (memcmp(&all[i - 1].entry, &a->entry, sizeof a->entry) != 0 ||
                   all[i - 1].type != a->type)
            return TR_FAIL(TR_ERR_INTERNAL,
                           "ranks %" PRId64 " and %" PRId64
                           " give tensor %s different shapes or types",
                           all[i - 1].source.rank, a->source.rank, a->entry.name);
        if (!a->write) continue;
        tr_ckpt_part *part = &m->part[m->parts];
        (*source)[m->parts++] = a->source;
        part->tensor = m->tensors - 1;
        part->file = a->file;
        memcpy(part->from, a->from, sizeof part->from);
        memcpy(part->extent, a->extent, sizeof part->extent);
        part->first_block = m->blocks;
        part->blocks = tr_ckpt_blocks(tr_part_elements(m, part));
        m->blocks += part->blocks;
    }
    TR_TRY(tr_calloc((size_t)m->blocks, sizeof *m->block, &m->block));
    TR_TRY(tr_manifest_check(m, false, "saving", TR_ERR_INTERNAL));
    return tr_manifest_list_files(m);
}

tr_status tr_manifest_plan(tr_world *world, const tr_ckpt_state *state,
                           const tr_ckpt_tensor *tensors, int count, tr_manifest *manifest,
                           tr_part_source **source) {
    announced *mine = NULL, *all = NULL;
    size_t boxes = 0, *sizes = NULL, total = 0;
    const int size = tr_world_size(world);
    *source = NULL;

    tr_status status = announce(tensors, count, tr_world_rank(world), &mine, &boxes);
    if (status == TR_OK) status = tr_calloc((size_t)size, sizeof *sizes, &sizes);
    TR_TRY_OUT(tr_world_agree(world, status)); /* all or none enter the gather */
    TR_TRY_OUT(tr_world_gather_all_v(world, mine, boxes * sizeof *mine, (void **)&all, sizes));
    for (int r = 0; r < size; r++) total += sizes[r] / sizeof *all;
    manifest->files = number_files(all, total);
    qsort(all, total, sizeof *all, by_place);
    manifest->state = *state;
    TR_TRY_OUT(tr_world_agree(world, fill(manifest, all, total, source)));
out:
    free(mine);
    free(all);
    free(sizes);
    return status;
}
