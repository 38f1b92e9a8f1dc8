/* Checkpoints: global tensors in sharded HDF5 files. A save is complete or has no effect.
 *
 * <root>/step-00000010/   committed and immutable: shard-KKKKK-of-NNNNN.h5, index.h5, COMMIT; and
 *                         CORRUPT, the cause, after a run could not load it
 * <root>/.tmp-step-...    in progress; <root>/.trash-... being deleted
 * index.h5 holds a virtual dataset per global tensor (/weights/<name>, and for the optimizer's
 * states groups like /adam_m/<name>, FP32 or BF16), the logical state and the manifest (parts;
 * XXH3-64 of every block of 2^20 elements, seeded with tensor and block). One directory rename
 * commits. No name depends on a rank, so any layout can load a checkpoint of any other: loading
 * intersects global boxes. */
#pragma once

#include "base/code8.h"
#include "comm/comm.h"
#include "layers/param.h"

#include <limits.h>

/* The part of a global tensor that this rank holds: boxes in one dense range of host or device
 * memory. Its name is <group>/<name>; a rank lists a name once. The boxes of all ranks with `write`
 * set together hold every element of every listed tensor exactly once. */
typedef struct tr_ckpt_tensor {
    char name[TR_NAME_SIZE]; /* with its group: "weights/transformer.wte.weight" */
    int rank;
    int64_t shape[TR_PARAM_RANK];
    int boxes;
    const tr_box *box;
    void *local; /* addressed by the boxes' local offsets and strides */
    /* Of `local`: TR_F32, TR_BF16, TR_F16, TR_F64 in host memory, or TR_U8 for
     * tr_code8_bytes(count) bytes of numbers in 8 bits by block (base/code8.h).
     * TR_F32, TR_F16 and TR_F64 are saved as FP32; TR_BF16 as BF16, and TR_U8, too, which it holds
     * exactly. */
    tr_dtype dtype;
    tr_code8 code; /* of TR_U8 */
    /* The device of `local`, or NULL for host memory. Device tensors are copied on the compute
     * stream, one at a time, through staging memory of the size of the largest one that is read or
     * filled. All tensors name the same device. */
    tr_device *device;
    int64_t count; /* elements at `local`; read only for device memory and TR_U8 */
    bool write;    /* save: this rank writes these boxes (of replicas, one rank does) */
    /* Save, with `local` NULL and no device: the elements come from here. Fills dense[0..count)
     * with elements [first, first + count), in row-major order, of a box. */
    tr_status (*fetch)(void *context, const struct tr_ckpt_tensor *tensor, const tr_box *box,
                       int64_t first, int64_t count, float *dense);
    void *context;
} tr_ckpt_tensor;

/* Returns the bytes at `local`. */
size_t tr_ckpt_tensor_bytes(const tr_ckpt_tensor *tensor);

/* A corpus of a mixture, in its own samples. */
typedef struct tr_ckpt_corpus {
    int64_t weight, taken; /* millionths; samples that it gave before the mixture's first one */
    int64_t bytes, split, epoch, epoch_sample, epoch_bytes; /* like those of tr_ckpt_state */
    uint64_t hash;
} tr_ckpt_corpus;
enum { TR_CKPT_CORPORA = 32 };

/* The running means by which a run judges its next step (train/guard.h). */
typedef struct tr_ckpt_guard {
    int64_t steps; /* that they hold */
    int64_t skips; /* skipped in a row; of a run that goes back: out of line since its checkpoint */
    double loss_mean, loss_variance, norm_mean, norm_variance;
    int64_t overflows; /* FP16 steps in a row with a loss or gradient that was not finite */
} tr_ckpt_guard;

/* The loss scale of FP16 (train/loss_scale.h). */
typedef struct tr_ckpt_scale {
    double value;  /* of the next step; 0: no step had one yet */
    int64_t steps; /* without an overflow since it last changed */
} tr_ckpt_scale;

/* The running means of the noise scale (train/noise.h). */
typedef struct tr_ckpt_noise {
    int64_t steps; /* that they hold */
    double square, variance;
} tr_ckpt_noise;

/* Logical state that is not a tensor: small, the same on every rank. */
typedef struct tr_ckpt_state {
    int64_t step;        /* steps done */
    int64_t next_sample; /* global sample cursor */
    uint64_t seed;
    int64_t optimizer_step; /* steps not skipped */
    /* optimizer_step when the optimizer's states were zero: Adam's t counts from there. 0 in a
     * checkpoint of an older version. */
    int64_t moments_since;
    int64_t skipped;
    double tokens_seen; /* labels that counted */
    /* The data that the run reads: of a mixture, its first corpus. All of these are 0 in a
     * checkpoint of an older version. Lengths are tokens, which in data.format bytes are bytes. */
    int64_t data_bytes;   /* of the files */
    uint64_t data_hash;   /* of sample blocks of the files */
    uint64_t data_format; /* hash of how it is read: data.format, and how documents end */
    double validation;    /* fraction that is held out */
    int64_t split_bytes;  /* length of the files when their end was set aside as held-out part */
    /* The epoch of next_sample: its number, its first sample, and how many tokens it reads. */
    int64_t epoch, epoch_sample, epoch_bytes;
    /* A mixture: how many corpora, the global sample with which its sequence begins, and each.
     * corpora 0: one corpus, as in checkpoints of versions without mixtures. */
    int64_t corpora, since;
    tr_ckpt_corpus corpus[TR_CKPT_CORPORA];
    tr_ckpt_guard guard; /* 0 in a checkpoint of an older version */
    tr_ckpt_noise noise; /* likewise */
    tr_ckpt_scale scale; /* likewise */
    char config[16384];  /* resolved config text of the run that saved */
} tr_ckpt_state;

enum { TR_CKPT_WHY = 1024 }; /* bytes of a sentence about a step that is not valid */

typedef struct tr_ckpt_info {
    int64_t step;
    bool valid; /* committed, its index and file sizes agree, and not marked as corrupt */
    char why[TR_CKPT_WHY]; /* when not valid: the reason, a sentence */
    bool unread;           /* not valid because the file system failed */
    bool later;            /* not valid because this build does not read its format */
    size_t bytes;
    int shards;
} tr_ckpt_info;

/* Saves step state->step under root. Collective over the world. On a failure every rank returns the
 * same TR_ERR_IO with path and errno text, and on a full disk the bytes needed; the temporary
 * directory is removed and older steps stay untouched. Fails in the same way when the step exists
 * and is valid; replaces it when it is not. Fails with TR_ERR_INTERNAL when the lists break the
 * contract above. */
tr_status tr_ckpt_save(tr_world *world, const char *root, const tr_ckpt_state *state,
                       const tr_ckpt_tensor *tensors, int count);

/* The parts of tr_ckpt_save, for a caller that does other work while the shards are written.
 *
 * tr_ckpt_saving_begin plans the save and makes its directory; tr_ckpt_saving_end agrees with the
 * other ranks that all have written and commits. Both are collective over the world, and fail like
 * tr_ckpt_save. Between them each rank calls tr_ckpt_saving_write once, on any thread, and passes
 * its status, with this thread's error, to tr_ckpt_saving_end. It writes this rank's shard, is not
 * collective, and tells the world `tell` (NULL: none) how many bytes are written. Until it has
 * returned, the tensors' elements must not change, and no other thread may use ckpt/, because HDF5
 * is not thread-safe. `root` and the tensors must live until the end; *state is copied. */
typedef struct tr_ckpt_saving tr_ckpt_saving;
tr_status tr_ckpt_saving_begin(tr_world *world, const char *root, const tr_ckpt_state *state,
                               const tr_ckpt_tensor *tensors, int count, tr_ckpt_saving **out);
tr_status tr_ckpt_saving_write(tr_ckpt_saving *saving, tr_world *tell);
tr_status tr_ckpt_saving_end(tr_ckpt_saving *saving, tr_status written);
/* Lets a call of tr_ckpt_saving_write on another thread fail after the block that it writes,
 * because the run has failed. NULL is allowed. */
void tr_ckpt_saving_leave(tr_ckpt_saving *saving);
/* Releases a save that does not end, because the run has failed: its directory stays until
 * tr_ckpt_retain removes it. NULL is allowed. */
void tr_ckpt_saving_abandon(tr_ckpt_saving *saving);

/* Compares the weights that several ranks hold: replicas of a box must be equal as FP32, bit by
 * bit. Collective. Fails with TR_ERR_DATA, the parameter and two ranks when they are not. */
tr_status tr_ckpt_compare_replicas(tr_world *world, const tr_ckpt_tensor *tensors, int count);
/* Loads `step` (-1: the newest valid one) into the tensors' boxes and *state (may be NULL).
 * Collective. Verifies every block that it reads. Fails with TR_ERR_DATA, file, tensor and cause on
 * a corrupt, truncated or foreign checkpoint; for missing or unexpected tensors and other shapes
 * the message lists the first ten. Only weights can be unexpected, so that they can be loaded
 * alone, and parameters can be frozen that were trained. Of a parameter that was not trained the
 * checkpoint may hold no moments; these keep their contents, which are to be the initial ones.
 * Fails like tr_ckpt_none when there is no checkpoint, with TR_ERR_NOFILE when there is no such
 * step, and with TR_ERR_IO when a rank does not see the files that rank 0 has found. A fault in the
 * payload is found only while reading, and ends the load even when there are older steps: the
 * message names the newest valid one, and *corrupt (may be NULL, TR_CKPT_WHY bytes), otherwise "",
 * is the cause on every rank. On failure *state is unchanged and the contents of the boxes are
 * undefined. */
tr_status tr_ckpt_load(tr_world *world, const char *root, int64_t step, tr_ckpt_tensor *tensors,
                       int count, tr_ckpt_state *state, char *corrupt);

/* Sets *any when there is a step under root, valid or not. Not collective. */
tr_status tr_ckpt_any(const char *root, bool *any);
/* Fails because there is no step under root, RUN/ckpt: with TR_ERR_NOFILE when RUN does not exist,
 * else with TR_ERR_DATA. */
tr_status tr_ckpt_none(const char *root);

/* Returns true when `path` is the folder of a run's checkpoints, or of one of them, and sets run to
 * the run's folder. Not collective. */
bool tr_ckpt_is_inside(const char *path, char run[PATH_MAX]);

/* Lists the steps under root in ascending order in *out (malloc'd). Not collective. */
tr_status tr_ckpt_list(const char *root, tr_ckpt_info **out, int *count);
/* Finds the newest valid step below `below`. *skipped keeps its cause `why` of a step that the
 * caller has skipped; without one, that is with zeros, it becomes the newest step that is not
 * valid, if there is one. Fails like tr_ckpt_none, and with TR_ERR_DATA and that cause when no step
 * is valid. Not collective. */
tr_status tr_ckpt_newest(const char *root, int64_t below, int64_t *step, tr_ckpt_info *skipped);
/* Marks a step that could not be loaded, for the cause `why`: from now on it is not valid. It can
 * still be loaded and verified by its number. Not collective. */
tr_status tr_ckpt_mark_corrupt(const char *root, int64_t step, const char *why);
/* Lets the next save of a step replace the one that is there, by marking it. Sets *marks to false
 * when there is none, or it is marked already. Not collective. */
tr_status tr_ckpt_let_replace(const char *root, int64_t step, const char *why, bool *marks);
/* Reads only the logical state (with the config) of a committed step; -1: the newest valid one. Not
 * collective. */
tr_status tr_ckpt_read_state(const char *root, int64_t step, tr_ckpt_state *state);
/* Removes steps older than the newest `keep` valid ones (at least 2), except multiples of `every`
 * (0: none), which it does not read; and the temporary directories of saves that were killed. Not
 * collective: rank 0 calls it. */
tr_status tr_ckpt_retain(const char *root, int keep, int64_t every);
/* Removes a root with all steps in it, complete or not. Does not fail; does nothing when there is
 * none. Not collective. */
void tr_ckpt_remove_root(const char *root);
/* Verifies every block of every shard of a step. Fails with TR_ERR_DATA and the first fault. */
tr_status tr_ckpt_verify(const char *root, int64_t step);
