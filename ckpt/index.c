/* index.h5: a virtual dataset per global tensor, the logical state, the manifest.
 *
 * - /<group>/<name>: virtual, FP32 or BF16, global shape (a scalar: one element), NaN where a shard
 *   is missing
 * - /config.yaml: text of the run's config
 * - /state/: the numbers of tr_ckpt_state
 * - /manifest/: tensors types files parts blocks, the arrays of tr_manifest; types only if one is
 *   not FP32, as in checkpoints of older versions */
#include "base/memory.h"
#include "ckpt/ckpt_impl.h"
#include "ckpt/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* --- types and fields, one list for both directions ------------------------------------------- */

typedef enum kind { KIND_I64, KIND_U64, KIND_F64, KIND_ENTRY, KIND_FILE, KIND_PART } kind;

static bool add_numbers(hid_t compound, const char *name, size_t offset, int count, hid_t number) {
    hsize_t dims[1] = {(hsize_t)count};
    hid_t type = count == 1 ? H5Tcopy(number) : H5Tarray_create2(number, 1, dims);
    bool good = type >= 0 && H5Tinsert(compound, name, offset, type) >= 0;
    if (type >= 0) (void)H5Tclose(type);
    return good;
}

static bool add_name(hid_t compound) {
    hid_t type = H5Tcopy(H5T_C_S1);
    bool good = type >= 0 && H5Tset_size(type, TR_NAME_SIZE) >= 0 &&
                H5Tinsert(compound, "name", offsetof(tr_ckpt_entry, name), type) >= 0;
    if (type >= 0) (void)H5Tclose(type);
    return good;
}

/* Returns the HDF5 type of a kind, the same on disk and in memory (little-endian, no padding);
 * negative on failure. */
static hid_t type_of(kind k, size_t *size) {
    static const size_t bytes[] = {
        [KIND_I64] = 8,
        [KIND_U64] = 8,
        [KIND_F64] = 8,
        [KIND_ENTRY] = sizeof(tr_ckpt_entry),
        [KIND_FILE] = sizeof(tr_ckpt_file),
        [KIND_PART] = sizeof(tr_ckpt_part),
    };
    *size = bytes[k];
    if (k == KIND_I64) return H5Tcopy(H5T_STD_I64LE);
    if (k == KIND_U64) return H5Tcopy(H5T_STD_U64LE);
    if (k == KIND_F64) return H5Tcopy(H5T_IEEE_F64LE);
    hid_t type = H5Tcreate(H5T_COMPOUND, bytes[k]), i64 = H5T_STD_I64LE;
    bool good = type >= 0;
    if (k == KIND_ENTRY) {
        good = good && add_name(type) &&
               add_numbers(type, "rank", offsetof(tr_ckpt_entry, rank), 1, i64) &&
               add_numbers(type, "shape", offsetof(tr_ckpt_entry, shape), TR_PARAM_RANK, i64);
    } else if (k == KIND_FILE) {
        good =
            good && add_numbers(type, "bytes", offsetof(tr_ckpt_file, bytes), 1, i64) &&
            add_numbers(type, "layout_xxh3", offsetof(tr_ckpt_file, layout_hash), 1, H5T_STD_U64LE);
    } else {
        good = good && add_numbers(type, "tensor", offsetof(tr_ckpt_part, tensor), 1, i64) &&
               add_numbers(type, "file", offsetof(tr_ckpt_part, file), 1, i64) &&
               add_numbers(type, "byte", offsetof(tr_ckpt_part, offset), 1, i64) &&
               add_numbers(type, "from", offsetof(tr_ckpt_part, from), TR_PARAM_RANK, i64) &&
               add_numbers(type, "extent", offsetof(tr_ckpt_part, extent), TR_PARAM_RANK, i64) &&
               add_numbers(type, "first_block", offsetof(tr_ckpt_part, first_block), 1, i64) &&
               add_numbers(type, "blocks", offsetof(tr_ckpt_part, blocks), 1, i64);
    }
    if (!good && type >= 0) {
        (void)H5Tclose(type);
        type = -1;
    }
    return type;
}

typedef struct field {
    const char *path;
    kind kind;
    size_t at; /* of the value in tr_ckpt_state */
} field;

static const field state_fields[] = {
    {"/state/step", KIND_I64, offsetof(tr_ckpt_state, step)},
    {"/state/next_sample", KIND_I64, offsetof(tr_ckpt_state, next_sample)},
    {"/state/seed", KIND_U64, offsetof(tr_ckpt_state, seed)},
    {"/state/optimizer_step", KIND_I64, offsetof(tr_ckpt_state, optimizer_step)},
    {"/state/skipped", KIND_I64, offsetof(tr_ckpt_state, skipped)},
    {"/state/tokens_seen", KIND_F64, offsetof(tr_ckpt_state, tokens_seen)},
    {"/state/data_bytes", KIND_I64, offsetof(tr_ckpt_state, data_bytes)},
    {"/state/data_hash", KIND_U64, offsetof(tr_ckpt_state, data_hash)},
    {"/state/data_format", KIND_U64, offsetof(tr_ckpt_state, data_format)},
    {"/state/validation", KIND_F64, offsetof(tr_ckpt_state, validation)},
    {"/state/split_bytes", KIND_I64, offsetof(tr_ckpt_state, split_bytes)},
    {"/state/epoch", KIND_I64, offsetof(tr_ckpt_state, epoch)},
    {"/state/epoch_sample", KIND_I64, offsetof(tr_ckpt_state, epoch_sample)},
    {"/state/epoch_bytes", KIND_I64, offsetof(tr_ckpt_state, epoch_bytes)},
    {"/state/guard_steps", KIND_I64, offsetof(tr_ckpt_state, guard.steps)},
    {"/state/guard_skips", KIND_I64, offsetof(tr_ckpt_state, guard.skips)},
    {"/state/loss_mean", KIND_F64, offsetof(tr_ckpt_state, guard.loss_mean)},
    {"/state/loss_variance", KIND_F64, offsetof(tr_ckpt_state, guard.loss_variance)},
    {"/state/norm_mean", KIND_F64, offsetof(tr_ckpt_state, guard.norm_mean)},
    {"/state/norm_variance", KIND_F64, offsetof(tr_ckpt_state, guard.norm_variance)},
    {"/state/noise_steps", KIND_I64, offsetof(tr_ckpt_state, noise.steps)},
    {"/state/noise_square", KIND_F64, offsetof(tr_ckpt_state, noise.square)},
    {"/state/noise_variance", KIND_F64, offsetof(tr_ckpt_state, noise.variance)},
    {"/state/moments_since", KIND_I64, offsetof(tr_ckpt_state, moments_since)},
    {"/state/guard_overflows", KIND_I64, offsetof(tr_ckpt_state, guard.overflows)},
    {"/state/loss_scale", KIND_F64, offsetof(tr_ckpt_state, scale.value)},
    {"/state/loss_scale_steps", KIND_I64, offsetof(tr_ckpt_state, scale.steps)},
};
enum {
    STATE_FIELDS = sizeof state_fields / sizeof *state_fields,
    FIRST_STATE_FIELDS = 6, /* every version has these; a later field that is missing reads as 0 */
};

/* The numbers of a mixture: `since`, then those of each corpus. */
enum { CORPUS_NUMBERS = sizeof(tr_ckpt_corpus) / sizeof(int64_t) };
static const char mixture_path[] = "/state/mixture";
static const char types_path[] = "/manifest/types";
_Static_assert(sizeof(tr_ckpt_corpus) == CORPUS_NUMBERS * sizeof(int64_t),
               "numbers of 64 bits alone");

/* --- writing ---------------------------------------------------------------------------------- */

/* Writes a dataset of `count` elements (-1: a single value without dimensions). */
static bool put(hid_t file, const char *path, hid_t type, int64_t count, const void *data) {
    hsize_t dims[1] = {(hsize_t)(count < 0 ? 1 : count)};
    hid_t space = count < 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, dims, NULL);
    hid_t list = tr_h5_dataset_list();
    hid_t set = type >= 0 && space >= 0 && list >= 0
                    ? H5Dcreate2(file, path, type, space, H5P_DEFAULT, list, H5P_DEFAULT)
                    : -1;
    bool good = set >= 0 && H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0;
    if (set >= 0) (void)H5Dclose(set);
    if (list >= 0) (void)H5Pclose(list);
    if (space >= 0) (void)H5Sclose(space);
    return good;
}

static tr_status put_kind(hid_t file, const char *path, kind k, int64_t count, const void *data) {
    size_t size;
    hid_t type = type_of(k, &size);
    tr_status status = put(file, path, type, count, data)
                           ? TR_OK
                           : tr_h5_fail(TR_ERR_INTERNAL, "write to the index", path);
    if (type >= 0) (void)H5Tclose(type);
    return status;
}

/* Makes a group. Intermediate groups that HDF5 makes by itself would have time stamps. */
static tr_status put_group(hid_t file, const char *path) {
    if (H5Lexists(file, path, H5P_DEFAULT) > 0) return TR_OK;
    hid_t list = H5Pcreate(H5P_GROUP_CREATE);
    hid_t group = list >= 0 && H5Pset_obj_track_times(list, false) >= 0
                      ? H5Gcreate2(file, path, H5P_DEFAULT, list, H5P_DEFAULT)
                      : -1;
    tr_status status = group >= 0 ? TR_OK : tr_h5_fail(TR_ERR_INTERNAL, "make the group", path);
    if (group >= 0) (void)H5Gclose(group);
    if (list >= 0) (void)H5Pclose(list);
    return status;
}

/* Maps part `p` (number `number` of its tensor) into the virtual dataset being described. */
static bool map_part(hid_t list, hid_t whole, const tr_manifest *m, int64_t p, int64_t number,
                     int rank) {
    const tr_ckpt_part *part = &m->part[p];
    hsize_t from[TR_PARAM_RANK] = {0}, extent[TR_PARAM_RANK] = {1};
    for (int64_t d = 0; d < m->tensor[part->tensor].rank; d++) {
        from[d] = (hsize_t)part->from[d];
        extent[d] = (hsize_t)part->extent[d];
    }
    char shard[NAME_MAX + 1], name[NAME_MAX + 2] = "/";
    /* A bare file name is looked up next to the index, so the directory can be moved. */
    tr_shard_name(part->file, m->files, shard);
    tr_part_name(part->tensor, number, name + 1);
    hid_t space = H5Screate_simple(rank, extent, NULL);
    bool good = space >= 0 &&
                H5Sselect_hyperslab(whole, H5S_SELECT_SET, from, NULL, extent, NULL) >= 0 &&
                H5Pset_virtual(list, whole, shard, name, space) >= 0;
    if (space >= 0) (void)H5Sclose(space);
    return good;
}

/* Writes the virtual dataset of the tensor that parts [first, end) make up. */
static tr_status put_tensor(hid_t file, const tr_manifest *m, int64_t first, int64_t end) {
    const tr_ckpt_entry *tensor = &m->tensor[m->part[first].tensor];
    const float missing = NAN;
    int rank = tensor->rank ? (int)tensor->rank : 1;
    hsize_t dims[TR_PARAM_RANK] = {1};
    for (int64_t d = 0; d < tensor->rank; d++) dims[d] = (hsize_t)tensor->shape[d];

    char group[TR_NAME_SIZE];
    (void)snprintf(group, sizeof group, "%s", tensor->name);
    *strchr(group, '/') = '\0';
    TR_TRY(put_group(file, group));
    hid_t whole = H5Screate_simple(rank, dims, NULL), list = tr_h5_dataset_list();
    hid_t type = tr_h5_type(m->type[m->part[first].tensor]);
    bool good = whole >= 0 && list >= 0 && type >= 0 &&
                H5Pset_fill_value(list, H5T_IEEE_F32LE, &missing) >= 0;
    for (int64_t p = first; p < end && good; p++)
        good = map_part(list, whole, m, p, p - first, rank);
    good = good && H5Sselect_all(whole) >= 0;
    hid_t set =
        good ? H5Dcreate2(file, tensor->name, type, whole, H5P_DEFAULT, list, H5P_DEFAULT) : -1;
    tr_status status =
        set >= 0 ? TR_OK : tr_h5_fail(TR_ERR_INTERNAL, "describe tensor", tensor->name);
    if (set >= 0) (void)H5Dclose(set);
    if (type >= 0) (void)H5Tclose(type);
    if (whole >= 0) (void)H5Sclose(whole);
    if (list >= 0) (void)H5Pclose(list);
    return status;
}

static tr_status put_types(hid_t file, const tr_manifest *m) {
    int64_t t = 0;
    while (t < m->tensors && m->type[t] == TR_CKPT_F32) t++;
    return t < m->tensors ? put_kind(file, types_path, KIND_I64, m->tensors, m->type) : TR_OK;
}

static tr_status put_mixture(hid_t file, const tr_ckpt_state *state) {
    int64_t numbers[1 + TR_CKPT_CORPORA * CORPUS_NUMBERS] = {state->since};
    if (state->corpora == 0) return TR_OK;
    memcpy(numbers + 1, state->corpus, (size_t)state->corpora * sizeof *state->corpus);
    return put_kind(file, mixture_path, KIND_I64, 1 + state->corpora * CORPUS_NUMBERS, numbers);
}

static tr_status put_state(hid_t file, const tr_ckpt_state *state) {
    static const int64_t format = TR_CKPT_FORMAT;
    TR_TRY(put_group(file, "/state"));
    for (int i = 0; i < STATE_FIELDS; i++)
        TR_TRY(put_kind(file, state_fields[i].path, state_fields[i].kind, -1,
                        (const char *)state + state_fields[i].at));
    TR_TRY(put_mixture(file, state));
    hid_t type = H5Tcopy(H5T_C_S1);
    bool good = type >= 0 && H5Tset_size(type, strlen(state->config) + 1) >= 0 &&
                put(file, "/config.yaml", type, -1, state->config) &&
                tr_h5_set_i64(file, "trireme_format", 1, &format);
    tr_status status =
        good ? TR_OK : tr_h5_fail(TR_ERR_INTERNAL, "write to the index", "/config.yaml");
    if (type >= 0) (void)H5Tclose(type);
    return status;
}

static tr_status put_all(hid_t file, const tr_manifest *m) {
    TR_TRY(put_state(file, &m->state));
    for (int64_t p = 0, end; p < m->parts; p = end) {
        for (end = p + 1; end < m->parts && m->part[end].tensor == m->part[p].tensor;) end++;
        TR_TRY(put_tensor(file, m, p, end));
    }
    TR_TRY(put_group(file, "/manifest"));
    TR_TRY(put_kind(file, "/manifest/tensors", KIND_ENTRY, m->tensors, m->tensor));
    TR_TRY(put_types(file, m));
    TR_TRY(put_kind(file, "/manifest/files", KIND_FILE, m->files, m->file));
    TR_TRY(put_kind(file, "/manifest/parts", KIND_PART, m->parts, m->part));
    return put_kind(file, "/manifest/blocks", KIND_U64, m->blocks, m->block);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Opens a dataset only if it is plain data inside this file: a hard link, contiguous or compact,
 * without filter or external file. */
static hid_t open_plain(hid_t file, const char *path) {
    H5L_info_t link;
    if (H5Lget_info(file, path, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) return -1;
    H5O_info_t object;
    if (H5Oget_info_by_name2(file, path, &object, H5O_INFO_BASIC, H5P_DEFAULT) < 0 ||
        object.type != H5O_TYPE_DATASET)
        return -1;
    hid_t set = H5Dopen2(file, path, H5P_DEFAULT);
    if (set < 0) return -1;
    hid_t list = H5Dget_create_plist(set);
    bool good = list >= 0;
    if (good) {
        H5D_layout_t layout = H5Pget_layout(list);
        good = (layout == H5D_CONTIGUOUS || layout == H5D_COMPACT) && H5Pget_nfilters(list) == 0 &&
               H5Pget_external_count(list) == 0;
        (void)H5Pclose(list);
    }
    if (good) return set;
    (void)H5Dclose(set);
    return -1;
}

/* Reads a one-dimensional dataset of `kind` into *out (malloc'd), or with count NULL one value into
 * *data. Refuses more bytes than the whole index has. */
static tr_status get(hid_t file, const char *path, kind k, size_t limit, int64_t *count, void *data,
                     void *out) {
    size_t size;
    void *array = NULL;
    hsize_t dims[1] = {1};
    hid_t set = open_plain(file, path), type = type_of(k, &size);
    hid_t stored = set >= 0 ? H5Dget_type(set) : -1, space = set >= 0 ? H5Dget_space(set) : -1;
    bool good = type >= 0 && stored >= 0 && space >= 0 && H5Tequal(type, stored) > 0 &&
                H5Sget_simple_extent_ndims(space) == (count ? 1 : 0);
    if (good && count)
        good = H5Sget_simple_extent_dims(space, dims, NULL) == 1 && dims[0] <= limit / size;
    tr_status status =
        good ? TR_OK : TR_FAIL(TR_ERR_DATA, "%s does not have this build's type or shape", path);
    if (status == TR_OK && count) status = tr_calloc((size_t)dims[0], size, &array);
    if (status == TR_OK &&
        H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, count ? array : data) < 0)
        status = tr_h5_fail(TR_ERR_DATA, "read", path);
    if (space >= 0) (void)H5Sclose(space);
    if (stored >= 0) (void)H5Tclose(stored);
    if (type >= 0) (void)H5Tclose(type);
    if (set >= 0) (void)H5Dclose(set);
    if (count) {
        memcpy(out, &array, sizeof array);
        *count = (int64_t)dims[0];
    }
    return status;
}

static tr_status get_config(hid_t file, tr_ckpt_state *state) {
    hid_t set = open_plain(file, "/config.yaml");
    hid_t type = set >= 0 ? H5Dget_type(set) : -1, space = set >= 0 ? H5Dget_space(set) : -1;
    bool good = type >= 0 && space >= 0 && H5Tget_class(type) == H5T_STRING &&
                H5Tis_variable_str(type) == 0 && H5Tget_size(type) <= sizeof state->config &&
                H5Sget_simple_extent_type(space) == H5S_SCALAR &&
                H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, state->config) >= 0 &&
                memchr(state->config, 0, sizeof state->config);
    if (space >= 0) (void)H5Sclose(space);
    if (type >= 0) (void)H5Tclose(type);
    if (set >= 0) (void)H5Dclose(set);
    return good ? TR_OK
                : TR_FAIL(TR_ERR_DATA, "/config.yaml does not have this build's type or shape");
}

static tr_status get_mixture(hid_t file, size_t limit, tr_ckpt_state *state) {
    int64_t count = 0, *numbers = NULL;
    if (H5Lexists(file, mixture_path, H5P_DEFAULT) == 0) return TR_OK;
    tr_status status = get(file, mixture_path, KIND_I64, limit, &count, NULL, &numbers);
    const int64_t corpora = (count - 1) / CORPUS_NUMBERS;
    if (status == TR_OK &&
        (count != 1 + corpora * CORPUS_NUMBERS || corpora < 2 || corpora > TR_CKPT_CORPORA))
        status = TR_FAIL(TR_ERR_DATA, "%s does not have this build's type or shape", mixture_path);
    if (status == TR_OK) {
        state->corpora = corpora;
        state->since = numbers[0];
        memcpy(state->corpus, numbers + 1, (size_t)corpora * sizeof *state->corpus);
    }
    free(numbers);
    return status;
}

static tr_status get_state(hid_t file, size_t limit, tr_ckpt_state *state) {
    for (int i = 0; i < STATE_FIELDS; i++) {
        const field *f = &state_fields[i];
        if (i >= FIRST_STATE_FIELDS && H5Lexists(file, f->path, H5P_DEFAULT) == 0) continue;
        TR_TRY(get(file, f->path, f->kind, limit, NULL, (char *)state + f->at, NULL));
    }
    TR_TRY(get_mixture(file, limit, state));
    return get_config(file, state);
}

static tr_status get_types(hid_t file, size_t limit, tr_manifest *m) {
    int64_t count = 0;
    if (H5Lexists(file, types_path, H5P_DEFAULT) == 0)
        return tr_calloc((size_t)m->tensors, sizeof *m->type, &m->type);
    TR_TRY(get(file, types_path, KIND_I64, limit, &count, NULL, &m->type));
    return count == m->tensors
               ? TR_OK
               : TR_FAIL(TR_ERR_DATA, "%s has %" PRId64 " types of %" PRId64 " tensors", types_path,
                         count, m->tensors);
}

static tr_status get_all(hid_t file, size_t limit, tr_manifest *m) {
    TR_TRY(get_state(file, limit, &m->state));
    TR_TRY(get(file, "/manifest/tensors", KIND_ENTRY, limit, &m->tensors, NULL, &m->tensor));
    TR_TRY(get_types(file, limit, m));
    TR_TRY(get(file, "/manifest/files", KIND_FILE, limit, &m->files, NULL, &m->file));
    TR_TRY(get(file, "/manifest/parts", KIND_PART, limit, &m->parts, NULL, &m->part));
    return get(file, "/manifest/blocks", KIND_U64, limit, &m->blocks, NULL, &m->block);
}

tr_status tr_index_parse(const char *image, size_t bytes, const char *path, tr_manifest *out) {
    tr_h5_begin();
    tr_manifest m = {0};
    /* Parsed from memory, so that these are the bytes that were verified. */
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), file = -1;
    void *copy = NULL;
    char name[64];
    tr_status status = tr_calloc(bytes, 1, &copy);
    if (status == TR_OK) {
        memcpy(copy, image, bytes);
        /* HDF5 needs the name of a file that does not exist, and no file can be below /dev/null.
         * Images of one name that are open at one time would be one file to it. */
        (void)snprintf(name, sizeof name, "/dev/null/%p", copy);
        if (access >= 0 && H5Pset_fapl_core(access, 1 << 16, false) >= 0 &&
            H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) >= 0 &&
            H5Pset_file_image(access, copy, bytes) >= 0)
            file = H5Fopen(name, H5F_ACC_RDONLY, access);
        if (file < 0) status = tr_h5_fail(TR_ERR_DATA, "open", path);
    }
    if (status == TR_OK) status = get_all(file, bytes, &m);
    if (file >= 0) (void)H5Fclose(file);
    if (access >= 0) (void)H5Pclose(access);
    free(copy);
    if (status == TR_OK) status = tr_manifest_check(&m, true, path, TR_ERR_DATA);
    else if (status == TR_ERR_DATA)
        status = TR_FAIL(TR_ERR_DATA, "%s: %s", path, tr_error_message());
    if (status == TR_OK) status = tr_manifest_list_files(&m);
    if (status != TR_OK) tr_manifest_free(&m);
    else *out = m;
    return status;
}

/* --- a whole index ---------------------------------------------------------------------------- */

/* Compares what was read back with what was written: HDF5 may have lost a write silently. */
static bool same_manifest(const tr_manifest *a, const tr_manifest *b) {
    if (a->tensors != b->tensors || a->files != b->files || a->parts != b->parts ||
        a->blocks != b->blocks || strcmp(a->state.config, b->state.config) != 0)
        return false;
    for (int i = 0; i < STATE_FIELDS; i++) /* all are 8 bytes */
        if (memcmp((const char *)&a->state + state_fields[i].at,
                   (const char *)&b->state + state_fields[i].at, 8) != 0)
            return false;
    if (a->state.corpora != b->state.corpora || a->state.since != b->state.since ||
        memcmp(a->state.corpus, b->state.corpus, sizeof a->state.corpus) != 0)
        return false;
    return memcmp(a->tensor, b->tensor, (size_t)a->tensors * sizeof *a->tensor) == 0 &&
           memcmp(a->type, b->type, (size_t)a->tensors * sizeof *a->type) == 0 &&
           memcmp(a->file, b->file, (size_t)a->files * sizeof *a->file) == 0 &&
           memcmp(a->part, b->part, (size_t)a->parts * sizeof *a->part) == 0 &&
           memcmp(a->block, b->block, (size_t)a->blocks * sizeof *a->block) == 0;
}

static tr_status read_back(const char *path, const tr_manifest *m, int64_t *bytes, uint64_t *hash) {
    char *image = NULL;
    size_t size = 0;
    tr_manifest again = {0};
    TR_TRY(tr_file_load(path, INT64_MAX - 1, &image, &size));
    tr_status status = tr_index_parse(image, size, path, &again);
    if (status == TR_ERR_DATA || (status == TR_OK && !same_manifest(m, &again)))
        status = tr_io_fail("read back", path, EIO, tr_manifest_payload(m));
    *bytes = (int64_t)size;
    *hash = XXH3_64bits(image, size);
    tr_manifest_free(&again);
    free(image);
    return status;
}

tr_status tr_index_write(const char *path, const tr_manifest *m, int64_t *bytes, uint64_t *hash) {
    const int64_t needed = tr_manifest_payload(m);
    /* an upper bound: descriptions of datasets and maps, and the manifest's own arrays */
    int64_t at_most = (1 << 16) + m->tensors * 2048 + m->parts * 1024 + m->files * 16 +
                      m->blocks * (int64_t)sizeof *m->block;
    hid_t file;
    TR_TRY(tr_file_try(path, at_most, needed));
    TR_TRY(tr_h5_create(path, needed, &file));
    TR_TRY(tr_h5_finish(path, needed, file, put_all(file, m)));
    TR_TRY(read_back(path, m, bytes, hash));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return tr_io_fail("open", path, errno, needed);
    return tr_file_sync_close(fd, path, needed);
}
