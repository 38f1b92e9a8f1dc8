/* Checkpoints: global tensors in sharded HDF5 files, written whole or not at all.
 *
 * <root>/step-00000010/   committed and immutable: shard-KKKKK-of-NNNNN.h5, index.h5, COMMIT
 * <root>/.tmp-step-...    in progress; <root>/.trash-... being deleted
 * index.h5 holds a virtual dataset per global tensor (/weights/<name>, /adam_m/<name>,
 * /adam_v/<name>, all FP32), the logical state and the manifest (parts; XXH3-64 of every 4 MiB
 * block, seeded with tensor and block). One directory rename commits. Nothing is keyed by rank, so
 * any layout reads what any other wrote: loading intersects global boxes. */
#pragma once

#include "comm/comm.h"
#include "layers/param.h"

/* A tensor of the checkpoint, as this rank holds it: boxes of the global tensor in one dense piece
 * of host or device memory. Its name is <group>/<name>; a rank lists a name once. Together the
 * boxes with `write` set, over all ranks, hold every element of every listed tensor exactly once.
 */
typedef struct tr_ckpt_tensor {
    char name[TR_NAME_SIZE]; /* with its group: "weights/transformer.wte.weight" */
    int rank;
    int64_t shape[TR_PARAM_RANK];
    int boxes;
    const tr_box *box;
    void *local;    /* addressed by the boxes' local offsets and strides */
    tr_dtype dtype; /* of `local`: TR_F32, or TR_F64 in host memory, which is saved as FP32 */
    /* Where `local` is, when that is not host memory; it is moved on the compute stream, tensor by
     * tensor, through staging memory of the largest. All tensors name the same device. */
    tr_device *device;
    int64_t count; /* elements at `local`; read for a device's memory alone */
    bool write;    /* save: this rank is the one that writes these boxes (replicas: one rank) */
} tr_ckpt_tensor;

/* Logical state that is not a tensor: small, the same on every rank. */
typedef struct tr_ckpt_state {
    int64_t step;        /* steps done */
    int64_t next_sample; /* global sample cursor */
    uint64_t seed;
    int64_t optimizer_step; /* Adam's t: steps not skipped */
    int64_t skipped;
    double tokens_seen;
    /* The data that the run reads. All of these are 0 in a checkpoint of an older version, which
     * did not record them. */
    int64_t data_bytes;   /* of the file */
    uint64_t data_hash;   /* of blocks spread over them */
    uint64_t data_format; /* hash of its name */
    double validation;    /* fraction that is held out */
    int64_t split_bytes;  /* of the file when that part was cut off at its end */
    /* The epoch that next_sample is in: its number, its first sample, and how much of the file it
     * reads. */
    int64_t epoch, epoch_sample, epoch_bytes;
    char config[16384]; /* resolved config text of the run that saved */
} tr_ckpt_state;

typedef struct tr_ckpt_info {
    int64_t step;
    bool valid;    /* committed, and its index and file sizes agree */
    char why[256]; /* when not valid: the reason, a sentence */
    size_t bytes;
    int shards;
} tr_ckpt_info;

/* Collective over the world. Saves step state->step under root. On a failure (disk full, ...) every
 * rank returns the same TR_ERR_IO with path and errno text, and on a full disk the bytes needed;
 * the temporary directory is removed and older steps are untouched. Saving a step that exists
 * already is an error of the same kind, unless what exists fails its checks: then it is replaced.
 * TR_ERR_INTERNAL when the lists break the contract above. */
tr_status tr_ckpt_save(tr_world *world, const char *root, const tr_ckpt_state *state,
                       const tr_ckpt_tensor *tensors, int count);

/* Collective. Loads `step` (-1: the newest valid one) into the tensors' boxes and *state. Every
 * block that is read is verified. TR_ERR_DATA naming file, tensor and cause for a corrupt,
 * truncated or foreign checkpoint (missing or unexpected tensors, other shapes: the first ten are
 * listed, file against model; tensors of a group of which the model names nothing are not
 * unexpected, so weights can be loaded alone); TR_ERR_NOFILE when there is none. With step -1 an
 * invalid newer step is passed over and *skipped_why (may be NULL, 256 bytes) says which and why.
 * A fault in the payload shows only while it is read: that ends the load, whatever older steps
 * there are, with a sentence that names the newest valid one of them and how to resume from it. On
 * failure *state is unchanged and the contents of the boxes are undefined. */
tr_status tr_ckpt_load(tr_world *world, const char *root, int64_t step, tr_ckpt_tensor *tensors,
                       int count, tr_ckpt_state *state, char *skipped_why);

/* The steps under root in ascending order in *out (malloc'd). Not collective. */
tr_status tr_ckpt_list(const char *root, tr_ckpt_info **out, int *count);
/* Reads the logical state alone (config included) of a committed step; -1: newest valid. Not
 * collective. */
tr_status tr_ckpt_read_state(const char *root, int64_t step, tr_ckpt_state *state);
/* Keeps the newest `keep` valid steps (never fewer than 2 when there are 2) and everything newer
 * than the oldest of them; removes what is older and leftovers of dead savers. Not collective: rank
 * 0. */
tr_status tr_ckpt_retain(const char *root, int keep);
/* Verifies every block of every shard of a step. TR_ERR_DATA with the first fault. */
tr_status tr_ckpt_verify(const char *root, int64_t step);
