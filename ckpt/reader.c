#include "ckpt/reader.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "ckpt/ckpt_impl.h"
#include "ckpt/drain.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tr_ckpt_reader {
    tr_manifest manifest;
    tr_path dir;
    bool *verified; /* [manifest.files]: its layout has its checksum */
    int fd;         /* of the shard that is open */
    int64_t open;   /* its number; -1: none */
    tr_path path;   /* its path */
    float *block;
};

static const char group[] = "weights/";

static tr_status open_step(const char *root, int64_t step, tr_ckpt_reader *r) {
    tr_commit commit;
    int64_t found;
    TR_TRY(tr_ckpt_step_find(root, step, &found, &r->dir));
    TR_TRY(tr_ckpt_step_check(r->dir.text, found, &commit, &r->manifest));
    TR_TRY(tr_calloc((size_t)r->manifest.files, sizeof *r->verified, &r->verified));
    return tr_calloc(TR_CKPT_BLOCK, 1, &r->block);
}

tr_status tr_ckpt_reader_open(const char *root, int64_t step, tr_ckpt_reader **out) {
    tr_ckpt_reader *r;
    TR_TRY(tr_calloc(1, sizeof *r, &r));
    r->open = -1;
    tr_status status = open_step(root, step, r);
    if (status == TR_OK) *out = r;
    else tr_ckpt_reader_close(r);
    return status;
}

/* Makes a shard the one that is open: a checkpoint of any number of shards needs one descriptor. */
static tr_status turn_to(tr_ckpt_reader *r, int64_t shard) {
    if (r->open == shard) return TR_OK;
    if (r->open >= 0) (void)close(r->fd);
    r->open = -1;
    TR_TRY(tr_shard_open(r->dir.text, &r->manifest, shard, !r->verified[shard], &r->path, &r->fd));
    r->verified[shard] = true;
    r->open = shard;
    return TR_OK;
}

void tr_ckpt_reader_close(tr_ckpt_reader *r) {
    if (!r) return;
    if (r->open >= 0) (void)close(r->fd);
    tr_manifest_free(&r->manifest);
    free(r->verified);
    free(r->block);
    free(r);
}

const tr_ckpt_state *tr_ckpt_reader_state(const tr_ckpt_reader *r) {
    return &r->manifest.state;
}

tr_status tr_ckpt_reader_list(const tr_ckpt_reader *r, tr_ckpt_weight **out, int64_t *count) {
    const tr_manifest *m = &r->manifest;
    *count = 0;
    TR_TRY(tr_calloc((size_t)m->tensors, sizeof **out, out));
    for (int64_t p = 0; p < m->parts; p++) {
        const tr_ckpt_entry *entry = &m->tensor[m->part[p].tensor];
        if (p > 0 && m->part[p - 1].tensor == m->part[p].tensor) continue;
        if (strncmp(entry->name, group, strlen(group))) continue;
        tr_ckpt_weight *w = &(*out)[(*count)++];
        *w = (tr_ckpt_weight){
            .name = entry->name + strlen(group), .rank = (int)entry->rank, .first_part = p};
        memcpy(w->shape, entry->shape, sizeof w->shape);
    }
    return TR_OK;
}

static int key_by_name(const void *key, const void *element) {
    return strcmp(key, ((const tr_ckpt_weight *)element)->name);
}

const tr_ckpt_weight *tr_ckpt_weight_find(const tr_ckpt_weight *weight, int64_t count,
                                          const char *name) {
    if (count < 1) return NULL;
    return bsearch(name, weight, (size_t)count, sizeof *weight, key_by_name);
}

/* Passes on the elements [first, first + count) of a part, which are in r->block. */
static tr_status
pass_on(const tr_ckpt_reader *r, const tr_ckpt_part *part, int64_t first, int64_t count,
        tr_status (*take)(void *context, int64_t at, int64_t count, const float *values),
        void *context) {
    static const int64_t zero[TR_PARAM_RANK] = {0};
    const tr_ckpt_entry *entry = &r->manifest.tensor[part->tensor];
    const tr_box4 box = tr_box4_make(entry->rank, part->from, part->extent);
    const tr_box4 whole = tr_box4_make(entry->rank, zero, entry->shape);
    const int64_t run = tr_box4_run(&box, whole.extent);
    for (int64_t done = 0, n; done < count; done += n) {
        const int64_t element = first + done;
        n = tr_min_i64(run - element % run, count - done);
        TR_TRY(take(context, tr_box4_place(&box, whole.extent, element), n, r->block + done));
    }
    return TR_OK;
}

tr_status tr_ckpt_reader_read(tr_ckpt_reader *r, const tr_ckpt_weight *weight,
                              tr_status (*take)(void *context, int64_t at, int64_t count,
                                                const float *values),
                              void *context) {
    const tr_manifest *m = &r->manifest;
    const int64_t first_part = weight->first_part, tensor = m->part[first_part].tensor;
    for (int64_t p = first_part; p < m->parts && m->part[p].tensor == tensor; p++) {
        const tr_ckpt_part *part = &m->part[p];
        TR_TRY(turn_to(r, part->file));
        for (int64_t b = 0; b < part->blocks; b++) {
            int64_t first, count;
            TR_TRY(tr_shard_read_block(r->fd, r->path.text, m, part, b, r->block, &first, &count));
            tr_drain_drop(r->fd, part->offset + first * tr_part_size(m, part),
                          count * tr_part_size(m, part));
            TR_TRY(pass_on(r, part, first, count, take, context));
        }
    }
    return TR_OK;
}
