/* Shard files: HDF5 makes their layout in memory; this file writes and reads the payload. */
#include "base/memory.h"
#include "ckpt/ckpt_impl.h"
#include "ckpt/drain.h"
#include "ckpt/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* --- layout ----------------------------------------------------------------------------------- */

/* Makes a contiguous dataset for a part, and sets part->offset to its place in the file. */
static tr_status lay_out_part(hid_t file, const tr_manifest *m, tr_ckpt_part *part,
                              int64_t number) {
    const tr_ckpt_entry *tensor = &m->tensor[part->tensor];
    char name[NAME_MAX + 1];
    tr_part_name(part->tensor, number, name);
    /* A scalar becomes a vector of one element, so that it has a place in the file. */
    int rank = tensor->rank ? (int)tensor->rank : 1;
    hsize_t dims[TR_PARAM_RANK] = {1};
    for (int64_t d = 0; d < tensor->rank; d++) dims[d] = (hsize_t)part->extent[d];

    hid_t space = H5Screate_simple(rank, dims, NULL), list = tr_h5_dataset_list();
    hid_t type = tr_h5_type(m->type[part->tensor]);
    bool good = space >= 0 && list >= 0 && type >= 0 && H5Pset_layout(list, H5D_CONTIGUOUS) >= 0 &&
                H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY) >= 0 &&
                H5Pset_fill_time(list, H5D_FILL_TIME_NEVER) >= 0;
    hid_t set = good ? H5Dcreate2(file, name, type, space, H5P_DEFAULT, list, H5P_DEFAULT) : -1;
    haddr_t offset = set >= 0 ? H5Dget_offset(set) : HADDR_UNDEF;
    good = offset != HADDR_UNDEF && tr_h5_set_text(set, "tensor", tensor->name) &&
           tr_h5_set_i64(set, "offset", rank, part->from);
    tr_status status = good ? TR_OK : tr_h5_fail(TR_ERR_INTERNAL, "lay out tensor", tensor->name);
    part->offset = (int64_t)offset;
    if (set >= 0 && H5Dclose(set) < 0 && status == TR_OK)
        status = tr_h5_fail(TR_ERR_INTERNAL, "close tensor", tensor->name);
    if (type >= 0) (void)H5Tclose(type);
    if (space >= 0) (void)H5Sclose(space);
    if (list >= 0) (void)H5Pclose(list);
    return status;
}

/* Makes the file at path without payload, and sets the parts' offsets. */
static tr_status lay_out(const char *path, tr_manifest *m, int64_t shard, int64_t needed) {
    hid_t file;
    TR_TRY(tr_h5_create(path, needed, &file));
    tr_status status = TR_OK;
    if (!tr_h5_set_i64(file, "step", 1, &m->state.step))
        status = tr_h5_fail(TR_ERR_INTERNAL, "lay out", path);
    int64_t number = 0;
    for (int64_t p = 0; p < m->parts && status == TR_OK; p++) {
        number = p > 0 && m->part[p - 1].tensor == m->part[p].tensor ? number + 1 : 0;
        if (m->part[p].file == shard) status = lay_out_part(file, m, &m->part[p], number);
    }
    return tr_h5_finish(path, needed, file, status);
}

/* --- what is not payload ---------------------------------------------------------------------- */

/* Hashes the bytes of a shard that are not payload, in file order. */
static tr_status hash_layout(int fd, const char *path, const tr_manifest *m, int64_t shard,
                             int64_t bytes, uint64_t *hash) {
    enum { PIECE = 1 << 16 };
    int64_t *part = NULL, count = 0, at = 0;
    char *piece = NULL;
    tr_status status;
    XXH3_state_t *state = XXH3_createState();
    TR_TRY_OUT(tr_manifest_parts_of(m, shard, &part, &count));
    TR_TRY_OUT(tr_calloc(PIECE, 1, &piece));
    if (!state || XXH3_64bits_reset_withSeed(state, (XXH64_hash_t)bytes) != XXH_OK) {
        status = TR_FAIL(TR_ERR_FIT, "out of host memory for a checksum: free memory on this host");
        goto out;
    }
    for (int64_t i = 0; i <= count; i++) {
        int64_t end = i < count ? m->part[part[i]].offset : bytes;
        while (at < end) {
            int64_t n = end - at < PIECE ? end - at : PIECE;
            TR_TRY_OUT(tr_file_read(fd, path, piece, (size_t)n, at));
            (void)XXH3_64bits_update(state, piece, (size_t)n);
            at += n;
        }
        if (i < count) at = end + tr_part_bytes(m, &m->part[part[i]]);
    }
    *hash = XXH3_64bits_digest(state);
out:
    (void)XXH3_freeState(state);
    free(piece);
    free(part);
    return status;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Returns an upper bound of a shard's size: each part has a header of less than 4 KiB and at most
 * as much padding. */
static int64_t bytes_at_most(const tr_manifest *m, int64_t shard) {
    int64_t bytes = 1 << 16;
    for (int64_t p = 0; p < m->parts; p++)
        if (m->part[p].file == shard) bytes += tr_part_bytes(m, &m->part[p]) + (1 << 13);
    return bytes;
}

/* A shard that is being written. */
typedef struct writer {
    tr_world *tell; /* the world to report the number of bytes written to; NULL: none */
    const atomic_bool *left;
    tr_manifest *manifest;
    int fd;
    tr_path path;
    tr_drain drain;
    float *buffer;         /* one block */
    int64_t needed;        /* payload of the whole checkpoint */
    int64_t done, payload; /* of this shard */
} writer;

/* Converts FP32 values[count], which BF16 holds exactly, in place. */
static void narrow(float *values, int64_t count) {
    char *to = (char *)values;
    for (int64_t i = 0; i < count; i++) {
        const uint16_t value = tr_f32_to_bf16(values[i]);
        memcpy(to + 2 * i, &value, sizeof value);
    }
}

static tr_status write_part(writer *w, const tr_ckpt_part *part, const tr_ckpt_tensor *tensor,
                            const tr_box *box) {
    const int64_t step = TR_CKPT_STEP, size = tr_part_size(w->manifest, part);
    tr_box4 place = tr_box4_make(tensor->rank, part->from, part->extent);
    int64_t elements = tr_box4_volume(&place);
    for (int64_t b = 0; b < part->blocks; b++) {
        int64_t first = b * step, count = elements - first < step ? elements - first : step;
        size_t bytes = (size_t)(count * size);
        if (atomic_load(w->left)) return TR_FAIL(TR_ERR_STOPPED, "the save was given up");
        if (tensor->fetch)
            TR_TRY(tensor->fetch(tensor->context, tensor, box, first, count, w->buffer));
        else if (tr_box4_copy(&place, first, count, w->buffer, tensor, box, true) != count)
            return TR_FAIL(TR_ERR_INTERNAL, "a box of tensor %s does not contain its part",
                           tensor->name);
        if (size < (int64_t)sizeof(float)) narrow(w->buffer, count);
        w->manifest->block[part->first_block + b] =
            XXH3_64bits_withSeed(w->buffer, bytes, tr_ckpt_block_seed(w->manifest, part, b));
        const int64_t at = part->offset + first * size;
        TR_TRY(tr_file_write(w->fd, w->path.text, w->buffer, bytes, at, w->needed));
        TR_TRY(tr_drain_add(&w->drain, at, (int64_t)bytes));
        w->done += (int64_t)bytes;
        if (w->tell) tr_world_tell_work(w->tell, w->done, w->payload);
    }
    return TR_OK;
}

/* Writes the parts of the shard one after the other. */
static tr_status write_parts(writer *w, int64_t shard, const tr_part_source *source,
                             const tr_ckpt_tensor *tensors, int count) {
    const tr_manifest *m = w->manifest;
    tr_mirror mirror = {0};
    tr_status status;
    for (int64_t p = 0; p < m->parts; p++)
        if (m->part[p].file == shard) w->payload += tr_part_bytes(m, &m->part[p]);
    TR_TRY_OUT(tr_mirror_open(tensors, count, TR_MIRROR_SAVE, &mirror));
    for (int64_t p = 0; p < m->parts; p++) {
        if (m->part[p].file != shard) continue;
        TR_TRY_OUT(tr_mirror_turn(&mirror, &tensors[source[p].tensor]));
        TR_TRY_OUT(write_part(w, &m->part[p], &mirror.view, &mirror.view.box[source[p].box]));
    }
out:
    tr_mirror_close(&mirror);
    return status;
}

tr_status tr_shard_write(tr_world *tell, const atomic_bool *left, const char *dir, tr_manifest *m,
                         int64_t shard, const tr_part_source *source, const tr_ckpt_tensor *tensors,
                         int count) {
    char name[NAME_MAX + 1];
    writer w = {
        .tell = tell, .left = left, .manifest = m, .fd = -1, .needed = tr_manifest_payload(m)};
    tr_ckpt_file *file = &m->file[shard];
    const char *path = w.path.text;
    tr_status status;

    tr_shard_name(shard, m->files, name);
    TR_TRY(tr_path_join(dir, name, &w.path));
    TR_TRY_OUT(tr_calloc(TR_CKPT_BLOCK, 1, &w.buffer));
    TR_TRY_OUT(tr_file_try(path, bytes_at_most(m, shard), w.needed));
    TR_TRY_OUT(lay_out(path, m, shard, w.needed));
    struct stat info;
    w.fd = open(path, O_RDWR | O_CLOEXEC);
    if (w.fd < 0 || fstat(w.fd, &info) != 0) {
        status = tr_io_fail("open", path, errno, w.needed);
        goto out;
    }
    w.drain = (tr_drain){.fd = w.fd, .path = path, .needed = w.needed};
    file->bytes = info.st_size;
    TR_TRY_OUT(tr_file_reserve(w.fd, path, file->bytes, w.needed));
    TR_TRY_OUT(hash_layout(w.fd, path, m, shard, file->bytes, &file->layout_hash));
    TR_TRY_OUT(write_parts(&w, shard, source, tensors, count));
    status = tr_file_sync_close(w.fd, path, w.needed);
    w.fd = -1;
out:
    if (w.fd >= 0) (void)close(w.fd);
    free(w.buffer);
    return status;
}

/* --- reading ---------------------------------------------------------------------------------- */

tr_status tr_shard_open(const char *dir, const tr_manifest *m, int64_t shard, bool verify,
                        tr_path *path, int *fd) {
    char name[NAME_MAX + 1];
    int64_t bytes = 0;
    uint64_t hash = 0;
    tr_shard_name(shard, m->files, name);
    TR_TRY(tr_path_join(dir, name, path));
    TR_TRY(tr_file_open(path->text, fd, &bytes));
    tr_status status = TR_OK;
    if (bytes != m->file[shard].bytes)
        status = TR_FAIL(TR_ERR_DATA,
                         "%s has %" PRId64 " bytes, %" PRId64
                         " were written: it is truncated or belongs to another checkpoint",
                         path->text, bytes, m->file[shard].bytes);
    if (status == TR_OK && verify) status = hash_layout(*fd, path->text, m, shard, bytes, &hash);
    if (status == TR_OK && verify && hash != m->file[shard].layout_hash)
        status = TR_FAIL(TR_ERR_DATA,
                         "%s does not have the checksum of its layout: it is corrupt or belongs to "
                         "another checkpoint",
                         path->text);
    if (status != TR_OK) {
        (void)close(*fd);
        *fd = -1;
    }
    return status;
}

/* Converts BF16 numbers in the second half of values[count] to FP32 in place. */
static void widen(float *values, int64_t count) {
    const char *from = (const char *)values + 2 * count;
    for (int64_t i = 0; i < count; i++) {
        uint16_t value;
        memcpy(&value, from + 2 * i, sizeof value);
        values[i] = tr_bf16_to_f32(value);
    }
}

tr_status tr_shard_read_block(int fd, const char *path, const tr_manifest *m,
                              const tr_ckpt_part *part, int64_t block, float *buffer,
                              int64_t *first, int64_t *count) {
    const int64_t size = tr_part_size(m, part);
    const int64_t left = tr_part_elements(m, part) - block * TR_CKPT_STEP;
    *first = block * TR_CKPT_STEP;
    *count = left < TR_CKPT_STEP ? left : TR_CKPT_STEP;
    const size_t bytes = (size_t)(*count * size), whole = (size_t)*count * sizeof *buffer;
    char *payload = (char *)buffer + (whole - bytes);
    TR_TRY(tr_file_read(fd, path, payload, bytes, part->offset + *first * size));
    if (XXH3_64bits_withSeed(payload, bytes, tr_ckpt_block_seed(m, part, block)) !=
        m->block[part->first_block + block])
        return TR_FAIL(TR_ERR_DATA,
                       "%s: block %" PRId64
                       " of tensor %s does not have its checksum: it is corrupt or belongs to "
                       "another checkpoint",
                       path, block, m->tensor[part->tensor].name);
    if (bytes < whole) widen(buffer, *count);
    return TR_OK;
}
