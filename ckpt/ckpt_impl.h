/* What the files of ckpt/ share: the manifest, boxes, names, checked file access.
 *
 * A save: manifest_plan.c turns the ranks' boxes into a manifest, shard.c writes payload, index.c
 * makes index.h5, save.c runs the protocol. A load: list.c finds the step, index.c reads the
 * manifest, load.c intersects boxes. */
#pragma once

#include "ckpt/ckpt.h"

#include <limits.h>

enum {
    TR_CKPT_FORMAT = 1,
    TR_CKPT_BLOCK = 4 << 20, /* bytes of payload with one checksum */
    TR_COMMIT_SIZE = 512,    /* no COMMIT file is longer */
    TR_UUID_SIZE = 33,       /* 32 hexadecimal digits */
};

/* Payload is stored little-endian and moved without conversion. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "checkpoints need a little-endian host");

/* --- manifest: what a checkpoint holds, and where --------------------------------------------- */

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
    tr_ckpt_file *file;
    tr_ckpt_part *part; /* ascending by (tensor, from) */
    uint64_t *block;    /* XXH3-64, seeded by tr_ckpt_block_seed */
} tr_manifest;

void tr_manifest_free(tr_manifest *manifest);
/* Index of the tensor with this name, or -1. */
int64_t tr_manifest_find(const tr_manifest *manifest, const char *name);
/* Numbers of the parts that lie in `file`, by ascending file offset, in *out (malloc'd). */
tr_status tr_manifest_parts_of(const tr_manifest *manifest, int64_t file, int64_t **out,
                               int64_t *count);
/* Checks every promise above, the state (tr_state_check), and: boxes inside their tensors, disjoint
 * and covering them; payload inside its file and disjoint; no product overflows. `placed` false:
 * before offsets and sizes of files are known. On a fault TR_FAIL(code, "<where>: ..."). */
tr_status tr_manifest_check(const tr_manifest *manifest, bool placed, const char *where,
                            tr_status code);
/* Fails with `code` and "<where>: ..." for the first number of the state that no run can reach. */
tr_status tr_state_check(const tr_ckpt_state *state, const char *where, tr_status code);
/* Payload bytes of a part and of the whole checkpoint. */
int64_t tr_part_bytes(const tr_manifest *manifest, const tr_ckpt_part *part);
int64_t tr_manifest_payload(const tr_manifest *manifest);
/* Seed of a block's checksum: the tensor's name, the part's place in it, the block's number. A
 * block that is right but in the wrong place therefore fails. */
uint64_t tr_ckpt_block_seed(const tr_manifest *manifest, const tr_ckpt_part *part, int64_t block);

/* Which caller's box a part comes from. */
typedef struct tr_part_source {
    int64_t rank, tensor, box; /* world rank; indices in that rank's arrays */
} tr_part_source;

/* Collective. Every rank gets the same manifest of what all ranks will write (no offsets, sizes or
 * checksums yet) and the parts' sources (malloc'd). Shards are numbered over the ranks that write
 * anything. Sets manifest->state from *state. */
tr_status tr_manifest_plan(tr_world *world, const tr_ckpt_state *state,
                           const tr_ckpt_tensor *tensors, int count, tr_manifest *manifest,
                           tr_part_source **source);
/* TR_ERR_INTERNAL when a caller's list breaks the contract: names, shapes, boxes inside them. */
tr_status tr_tensors_check(const tr_ckpt_tensor *tensors, int count);

/* --- boxes in four dimensions, leading ones added --------------------------------------------- */

typedef struct tr_box4 {
    int64_t from[4], extent[4];
} tr_box4;

tr_box4 tr_box4_make(int64_t rank, const int64_t *from, const int64_t *extent);
int64_t tr_box4_volume(const tr_box4 *box);
bool tr_box4_intersects(const tr_box4 *a, const tr_box4 *b);
/* Moves elements [first, first + count) of `part` in its row-major order, which lie at
 * dense[0..count), between `dense` and the box `held` of `tensor` as far as that box holds them:
 * into dense when `gather`, else out of it. Returns the number of elements in both; dense NULL:
 * only counts. */
int64_t tr_box4_copy(const tr_box4 *part, int64_t first, int64_t count, float *dense,
                     const tr_ckpt_tensor *tensor, const tr_box *held, bool gather);

/* --- tensors in device memory (mirror.c) -------------------------------------------------------
 */

/* The host's view of one tensor at a time. */
typedef struct tr_mirror {
    tr_device *device; /* NULL: every tensor is in host memory */
    float *memory;     /* staging */
    const tr_ckpt_tensor *source;
    tr_ckpt_tensor view; /* *source with `local` in host memory */
} tr_mirror;

tr_status tr_mirror_open(const tr_ckpt_tensor *tensors, int count, tr_mirror *out);
/* mirror->view becomes `tensor` with its present contents; what was viewed before goes back to its
 * device first when `store` is set. */
tr_status tr_mirror_turn(tr_mirror *mirror, const tr_ckpt_tensor *tensor, bool store);
/* The view's contents go to its device. */
tr_status tr_mirror_store(tr_mirror *mirror);
void tr_mirror_close(tr_mirror *mirror);

/* --- names and COMMIT ------------------------------------------------------------------------- */

typedef struct tr_path {
    char text[PATH_MAX];
} tr_path;

/* dir/name; TR_ERR_IO when that is too long. */
tr_status tr_path_join(const char *dir, const char *name, tr_path *out);
void tr_ckpt_step_name(int64_t step, char name[NAME_MAX + 1]); /* step-00000010 */
bool tr_ckpt_step_parse(const char *name, int64_t *step);      /* only the canonical name */
void tr_shard_name(int64_t file, int64_t files, char name[NAME_MAX + 1]);
void tr_part_name(int64_t tensor, int64_t number, char name[NAME_MAX + 1]); /* dataset in a shard */
tr_status tr_uuid_make(char uuid[TR_UUID_SIZE]);

/* The COMMIT file: with it a step directory vouches for its index. */
typedef struct tr_commit {
    int64_t step, shards, total_bytes, index_bytes;
    uint64_t index_hash; /* XXH3-64 of index.h5 */
    char uuid[TR_UUID_SIZE];
} tr_commit;

/* Text of a COMMIT file, its own checksum in the last line; returns its length. */
int tr_commit_format(const tr_commit *commit, char text[TR_COMMIT_SIZE]);
/* TR_ERR_DATA unless `text` is, to the byte, what tr_commit_format makes. */
tr_status tr_commit_parse(const char *text, size_t bytes, const char *path, tr_commit *out);

/* --- files ------------------------------------------------------------------------------------ */

/* Fails with TR_ERR_IO: "cannot <what> <path>: <errno text>". needed: payload bytes of the
 * checkpoint that is being saved, which the sentence states where room is missing; 0 while nothing
 * is saved. */
tr_status tr_io_fail(const char *what, const char *path, int error, int64_t needed);
/* All bytes or an error; short transfers and EINTR are continued. */
tr_status tr_file_write(int fd, const char *path, const void *data, size_t bytes, int64_t offset,
                        int64_t needed);
/* TR_ERR_DATA when the file ends early. */
tr_status tr_file_read(int fd, const char *path, void *data, size_t bytes, int64_t offset);
/* Opens a regular file (no symbolic link) for reading. TR_ERR_DATA when it is missing or no regular
 * file. */
tr_status tr_file_open(const char *path, int *fd, int64_t *bytes);
/* The whole file in *data (malloc'd, a 0 byte appended); TR_ERR_DATA when larger than `limit`. */
tr_status tr_file_load(const char *path, int64_t limit, char **data, size_t *bytes);
/* Reserves room for `bytes` where the file system can. */
tr_status tr_file_reserve(int fd, const char *path, int64_t bytes, int64_t needed);
/* Makes a new file and reserves room in it: a full disk or a limit on file sizes shows here, before
 * HDF5 writes anything. */
tr_status tr_file_try(const char *path, int64_t bytes, int64_t needed);
/* A new file, written, fsynced and closed. */
tr_status tr_file_store(const char *path, const void *data, size_t bytes, int64_t needed);
/* fsync of a file, once: after a failed fsync the kernel has dropped the dirty pages. Then close.
 * Closes fd in every case. */
tr_status tr_file_sync_close(int fd, const char *path, int64_t needed);
tr_status tr_directory_sync(const char *path, int64_t needed);
/* Creates path and its missing parents, each made durable. */
tr_status tr_directory_make(const char *path);
/* Removes a directory of files; never follows a link, never fails: what stays is tried again by the
 * next tr_ckpt_retain. Keeps this thread's error message. */
void tr_directory_remove(const char *path);

/* --- shards ----------------------------------------------------------------------------------- */

/* Writes, fsyncs and closes shard `file` of `manifest` in `dir`, and tells `world` how many payload
 * bytes are written. Fills offset of this shard's parts, their blocks' checksums and
 * manifest->file[file]. source[part] names the boxes in tensors[count]. Not collective. */
tr_status tr_shard_write(tr_world *world, const char *dir, tr_manifest *manifest, int64_t file,
                         const tr_part_source *source, const tr_ckpt_tensor *tensors, int count);
/* Opens shard `file` for reading: its size and everything that is not payload are checked. */
tr_status tr_shard_open(const char *dir, const tr_manifest *manifest, int64_t file, tr_path *path,
                        int *fd);
/* Reads block number `block` of a part into buffer (TR_CKPT_BLOCK bytes) and verifies it.
 * *first and *count: its elements in the part's row-major order. */
tr_status tr_shard_read_block(int fd, const char *path, const tr_manifest *manifest,
                              const tr_ckpt_part *part, int64_t block, float *buffer,
                              int64_t *first, int64_t *count);

/* --- index ------------------------------------------------------------------------------------ */

/* Writes index.h5 at path (virtual datasets, state, manifest), reads it back, compares, fsyncs.
 * *bytes and *hash (XXH3-64) are of what was read back. */
tr_status tr_index_write(const char *path, const tr_manifest *manifest, int64_t *bytes,
                         uint64_t *hash);
/* Reads state and manifest from the bytes of an index.h5 whose checksum has been verified, and
 * checks them. `path` is for messages. TR_ERR_DATA. */
tr_status tr_index_parse(const char *image, size_t bytes, const char *path, tr_manifest *out);

/* --- steps ------------------------------------------------------------------------------------ */

/* Reads COMMIT and index.h5 of a step directory; the index's checksum is verified. *image malloc'd.
 */
tr_status tr_ckpt_step_read(const char *dir, int64_t step, tr_commit *commit, char **image);
/* The same, and parses; checks that every shard is there with its size. TR_ERR_DATA. */
tr_status tr_ckpt_step_check(const char *dir, int64_t step, tr_commit *commit, tr_manifest *out);
/* Directory of `step`, or with -1 of the newest valid one. why (256 bytes, may be NULL): newer
 * steps passed over. TR_ERR_NOFILE when there is none, TR_ERR_DATA when none is valid. */
tr_status tr_ckpt_step_find(const char *root, int64_t step, int64_t *found, tr_path *dir,
                            char *why);
/* Where `status` is TR_ERR_DATA, adds to this thread's sentence about the damaged `step` what its
 * user can do: the newest valid step before it, and how to resume from that one. Returns status. */
tr_status tr_ckpt_step_advise(const char *root, int64_t step, tr_status status);
