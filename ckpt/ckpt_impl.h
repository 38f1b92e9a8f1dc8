/* Shared by the files of ckpt/: the manifest, boxes, names, checked file access.
 *
 * A save: manifest_plan.c turns the ranks' boxes into a manifest, shard.c writes payload, index.c
 * makes index.h5, save.c runs the protocol. A load: list.c finds the step, index.c reads the
 * manifest, load.c intersects boxes. */
#pragma once

#include "ckpt/ckpt.h"

#include <limits.h>
#include <stdatomic.h>

enum {
    TR_CKPT_FORMAT = 1,
    TR_CKPT_STEP = 1 << 20,  /* elements of payload with one checksum, a block */
    TR_CKPT_BLOCK = 4 << 20, /* bytes of that many in FP32 */
    TR_COMMIT_SIZE = 512,    /* no COMMIT file is longer */
    TR_UUID_SIZE = 33,       /* 32 hexadecimal digits */
};

/* Payload is stored little-endian and moved without conversion. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "checkpoints need a little-endian host");

/* --- manifest: what a checkpoint holds, and where --------------------------------------------- */

/* The types of payload; their numbers are on disk. */
typedef enum tr_ckpt_type { TR_CKPT_F32, TR_CKPT_BF16, TR_CKPT_TYPES } tr_ckpt_type;

/* A global tensor. Numbers are int64_t so that the structs have no padding on disk or wire. */
typedef struct tr_ckpt_entry {
    char name[TR_NAME_SIZE];
    int64_t rank, shape[TR_PARAM_RANK];
} tr_ckpt_entry;

/* A box of a global tensor, dense and row-major at `offset` (bytes) of shard number `file`. */
typedef struct tr_ckpt_part {
    int64_t tensor, file, offset;
    int64_t from[TR_PARAM_RANK], extent[TR_PARAM_RANK];
    int64_t first_block, blocks; /* its checksums in tr_manifest.block */
} tr_ckpt_part;

typedef struct tr_ckpt_file {
    int64_t bytes;
    uint64_t layout_hash; /* XXH3-64 of everything in the file that is not payload, in file order */
} tr_ckpt_file;

typedef struct tr_manifest {
    tr_ckpt_state state;
    int64_t tensors, files, parts, blocks;
    tr_ckpt_entry *tensor; /* ascending by name */
    int64_t *type;         /* [tensors]: a tr_ckpt_type */
    tr_ckpt_file *file;
    tr_ckpt_part *part; /* ascending by (tensor, from) */
    uint64_t *block;    /* XXH3-64, seeded by tr_ckpt_block_seed */
    /* The numbers of the parts in file f, ascending: of_file[first[f]] .. of_file[first[f + 1]-1];
     * so that work on all files does not take the square of their number. */
    int64_t *of_file; /* [parts] */
    int64_t *first;   /* [files + 1] */
} tr_manifest;

void tr_manifest_free(tr_manifest *manifest);
/* Returns the index of the tensor with this name, or -1. */
int64_t tr_manifest_find(const tr_manifest *manifest, const char *name);
/* Fills of_file and first of a manifest that was checked. */
tr_status tr_manifest_list_files(tr_manifest *manifest);
/* Lists the numbers of the parts in `file`, by ascending file offset, in *out (malloc'd). */
tr_status tr_manifest_parts_of(const tr_manifest *manifest, int64_t file, int64_t **out,
                               int64_t *count);
/* Checks the manifest against the comments above, and its state (tr_state_check). Also checks that
 * boxes are inside their tensors, disjoint and cover them, that payload is inside its file and
 * disjoint, and that no product overflows. `placed` is false while offsets and sizes of files are
 * not known. Fails with `code` and "<where>: ...". */
tr_status tr_manifest_check(const tr_manifest *manifest, bool placed, const char *where,
                            tr_status code);
/* Fails with `code` and "<where>: ..." on the first number of the state that no run can reach. */
tr_status tr_state_check(const tr_ckpt_state *state, const char *where, tr_status code);
/* Returns the type in which elements of this type in memory are saved. */
tr_ckpt_type tr_ckpt_type_of(tr_dtype dtype);
/* Return the elements of a part, and the bytes of one of them. */
int64_t tr_part_elements(const tr_manifest *manifest, const tr_ckpt_part *part);
int64_t tr_part_size(const tr_manifest *manifest, const tr_ckpt_part *part);
/* Returns the number of blocks of `elements` elements; the last one may be shorter. */
int64_t tr_ckpt_blocks(int64_t elements);
/* Return the payload bytes of a part, and of the whole checkpoint. */
int64_t tr_part_bytes(const tr_manifest *manifest, const tr_ckpt_part *part);
int64_t tr_manifest_payload(const tr_manifest *manifest);
/* Returns the seed of a block's checksum, made of the tensor's name, the part's place in it and the
 * block's number. So an intact block in the wrong place fails its check. */
uint64_t tr_ckpt_block_seed(const tr_manifest *manifest, const tr_ckpt_part *part, int64_t block);

/* The caller's box that a part comes from. */
typedef struct tr_part_source {
    int64_t rank, tensor, box; /* world rank; indices in that rank's arrays */
} tr_part_source;

/* Makes the manifest of what all ranks will write, without offsets, sizes and checksums, and the
 * parts' sources (malloc'd). Collective; every rank gets the same. Numbers the shards over the
 * ranks that write something. Sets manifest->state from *state. */
tr_status tr_manifest_plan(tr_world *world, const tr_ckpt_state *state,
                           const tr_ckpt_tensor *tensors, int count, tr_manifest *manifest,
                           tr_part_source **source);
/* Checks a caller's list: names, shapes, and boxes inside them. Fails with TR_ERR_INTERNAL. */
tr_status tr_tensors_check(const tr_ckpt_tensor *tensors, int count);

/* --- boxes in four dimensions, leading ones added --------------------------------------------- */

typedef struct tr_box4 {
    int64_t from[4], extent[4];
} tr_box4;

tr_box4 tr_box4_make(int64_t rank, const int64_t *from, const int64_t *extent);
int64_t tr_box4_volume(const tr_box4 *box);
bool tr_box4_intersects(const tr_box4 *a, const tr_box4 *b);
/* Returns how many elements of `part`, from the start of a run on, are adjacent in the tensor of
 * extent whole[4], too: a row, or several dimensions of `part` where all but the first are
 * whole. */
int64_t tr_box4_run(const tr_box4 *part, const int64_t whole[4]);
/* Returns where an element of `part` is in the tensor of extent whole[4]; both numbers are
 * row-major. */
int64_t tr_box4_place(const tr_box4 *part, const int64_t whole[4], int64_t element);
/* Copies those of elements [first, first + count) of `part` (in row-major order) that the box
 * `held` of `tensor` holds: with `gather` from the tensor to dense[0..count), else from dense to
 * the tensor, which must not be TR_U8. Returns their number; with dense NULL it only counts. */
int64_t tr_box4_copy(const tr_box4 *part, int64_t first, int64_t count, float *dense,
                     const tr_ckpt_tensor *tensor, const tr_box *held, bool gather);

/* --- tensors in device memory and in 8 bits (mirror.c) ---------------------------------------- */

typedef enum tr_mirror_use {
    TR_MIRROR_SAVE,    /* tensors with `write` are read */
    TR_MIRROR_COMPARE, /* all are read */
    TR_MIRROR_FILL,    /* all are read, and filled by boxes */
} tr_mirror_use;

/* Shows the host one tensor at a time. */
typedef struct tr_mirror {
    tr_mirror_use use;
    tr_device *device; /* of the tensors that are not in host memory; NULL: none */
    void *staging;     /* their largest one's bytes */
    float *wide;       /* TR_MIRROR_FILL: the elements of the largest one in 8 bits */
    const tr_ckpt_tensor *source;
    tr_ckpt_tensor view; /* *source with `local` in host memory; to be filled, not in TR_U8 */
} tr_mirror;

/* Allocates by the sizes of the tensors that this use turns to. */
tr_status tr_mirror_open(const tr_ckpt_tensor *tensors, int count, tr_mirror_use use,
                         tr_mirror *out);
/* Makes mirror->view `tensor` with its present contents. When it fills, first copies the previous
 * view back to its tensor; `tensor` NULL only does this. */
tr_status tr_mirror_turn(tr_mirror *mirror, const tr_ckpt_tensor *tensor);
void tr_mirror_close(tr_mirror *mirror);

/* --- names and COMMIT ------------------------------------------------------------------------- */

typedef struct tr_path {
    char text[PATH_MAX];
} tr_path;

/* Joins dir and name to dir/name. Fails with TR_ERR_IO when that is too long. */
tr_status tr_path_join(const char *dir, const char *name, tr_path *out);
void tr_ckpt_step_name(int64_t step, char name[NAME_MAX + 1]); /* step-00000010 */
bool tr_ckpt_step_parse(const char *name, int64_t *step);      /* accepts only the canonical name */
void tr_shard_name(int64_t file, int64_t files, char name[NAME_MAX + 1]);
void tr_part_name(int64_t tensor, int64_t number, char name[NAME_MAX + 1]); /* dataset in a shard */
tr_status tr_uuid_make(char uuid[TR_UUID_SIZE]);

/* The COMMIT file, which states the size and checksum of a step's index. */
typedef struct tr_commit {
    int format;
    int64_t step, shards, total_bytes, index_bytes;
    uint64_t index_hash; /* XXH3-64 of index.h5 */
    char uuid[TR_UUID_SIZE];
} tr_commit;

/* Writes the text of a COMMIT file, with its own checksum in the last line; returns its length. */
int tr_commit_format(const tr_commit *commit, char text[TR_COMMIT_SIZE]);
/* Parses a COMMIT file. Fails with TR_ERR_DATA unless `text` is exactly what tr_commit_format
 * makes; sets out->format also when it is later than TR_CKPT_FORMAT. */
tr_status tr_commit_parse(const char *text, size_t bytes, const char *path, tr_commit *out);

/* --- files ------------------------------------------------------------------------------------ */

/* Fails with TR_ERR_IO: "cannot <what> <path>: <errno text>". needed: payload bytes of the
 * checkpoint that is being saved, which the sentence states where room is missing; 0 while nothing
 * is saved. */
tr_status tr_io_fail(const char *what, const char *path, int error, int64_t needed);
/* Writes all bytes or fails; continues after short writes and EINTR. */
tr_status tr_file_write(int fd, const char *path, const void *data, size_t bytes, int64_t offset,
                        int64_t needed);
/* Reads all bytes. Fails with TR_ERR_DATA when the file ends early. */
tr_status tr_file_read(int fd, const char *path, void *data, size_t bytes, int64_t offset);
/* Opens a regular file for reading, and follows no symbolic link. Fails with TR_ERR_DATA when it is
 * missing or not a regular file. */
tr_status tr_file_open(const char *path, int *fd, int64_t *bytes);
/* Reads the whole file into *data (malloc'd, a 0 byte appended). Fails with TR_ERR_DATA when it is
 * larger than `limit`. */
tr_status tr_file_load(const char *path, int64_t limit, char **data, size_t *bytes);
/* Reserves room for `bytes` if the file system can. */
tr_status tr_file_reserve(int fd, const char *path, int64_t bytes, int64_t needed);
/* Makes a new file and reserves room in it, so that a full disk or a limit on file sizes is found
 * before HDF5 writes anything. */
tr_status tr_file_try(const char *path, int64_t bytes, int64_t needed);
/* Writes a new file, syncs and closes it. */
tr_status tr_file_store(const char *path, const void *data, size_t bytes, int64_t needed);
/* Syncs a file and closes it; closes fd in every case. Syncs only once, because after a failed
 * fsync the kernel has dropped the dirty pages. */
tr_status tr_file_sync_close(int fd, const char *path, int64_t needed);
/* Syncs a directory, if the file system can. */
tr_status tr_directory_sync(const char *path, int64_t needed);
/* Creates path and its missing parents (tr_folders_make). */
tr_status tr_directory_make(const char *path);
/* Removes a directory of files. Does not follow links and does not fail; the next tr_ckpt_retain
 * tries again. Keeps this thread's error message. */
void tr_directory_remove(const char *path);

/* --- shards ----------------------------------------------------------------------------------- */

/* Writes, syncs and closes shard `file` of `manifest` in `dir`, and tells the world `tell` (NULL:
 * none) how many payload bytes are written. Fills offset of this shard's parts, their blocks'
 * checksums and manifest->file[file]. source[part] names the boxes in tensors[count]. Fails with
 * TR_ERR_STOPPED when another thread has set *left. Not collective. */
tr_status tr_shard_write(tr_world *tell, const atomic_bool *left, const char *dir,
                         tr_manifest *manifest, int64_t file, const tr_part_source *source,
                         const tr_ckpt_tensor *tensors, int count);
/* Opens shard `file` for reading, and checks its size; with `verify` also everything in it except
 * the payload. */
tr_status tr_shard_open(const char *dir, const tr_manifest *manifest, int64_t file, bool verify,
                        tr_path *path, int *fd);
/* Reads block number `block` of a part into buffer (TR_CKPT_BLOCK bytes), verifies it, and widens
 * it to FP32. Sets *first and *count to its elements in the part's row-major order. */
tr_status tr_shard_read_block(int fd, const char *path, const tr_manifest *manifest,
                              const tr_ckpt_part *part, int64_t block, float *buffer,
                              int64_t *first, int64_t *count);

/* --- index ------------------------------------------------------------------------------------ */

/* Writes index.h5 at path (virtual datasets, state, manifest), reads it back, compares and syncs.
 * Sets *bytes and *hash (XXH3-64) from the bytes that it read back. */
tr_status tr_index_write(const char *path, const tr_manifest *manifest, int64_t *bytes,
                         uint64_t *hash);
/* Reads state and manifest from an image of index.h5, after its checksum was verified, and checks
 * them. `path` is for messages. Fails with TR_ERR_DATA. */
tr_status tr_index_parse(const char *image, size_t bytes, const char *path, tr_manifest *out);

/* --- steps ------------------------------------------------------------------------------------ */

/* Reads COMMIT and index.h5 of a step directory, and verifies the index's checksum. *image is
 * malloc'd. */
tr_status tr_ckpt_step_read(const char *dir, int64_t step, tr_commit *commit, char **image);
/* Does the same, parses the index, and checks that every shard exists with its size. Fails with
 * TR_ERR_DATA. */
tr_status tr_ckpt_step_check(const char *dir, int64_t step, tr_commit *commit, tr_manifest *out);
/* Fails with TR_ERR_DATA and the recorded cause when the step was marked as corrupt. */
tr_status tr_ckpt_step_check_mark(const char *dir);
/* Finds the directory of `step`, or with -1 of the newest valid one. Fails with TR_ERR_NOFILE when
 * there is no such step, and otherwise like tr_ckpt_newest. */
tr_status tr_ckpt_step_find(const char *root, int64_t step, int64_t *found, tr_path *dir);
/* If `status` is TR_ERR_DATA, adds to this thread's sentence about the damaged `step` which valid
 * step before it is the newest. Returns status. */
tr_status tr_ckpt_step_advise(const char *root, int64_t step, tr_status status);
