/* Weights in the files of other programs: safetensors, one file or several with an index, and
 * llm.c's model files. Reading trusts nothing: sizes, offsets and names are checked before any of
 * them is used. */
#pragma once

#include "ckpt/ckpt.h"
#include "layers/model.h"

typedef enum tr_weight_type {
    TR_WEIGHT_F32,
    TR_WEIGHT_BF16,
    TR_WEIGHT_F16,
    TR_WEIGHT_TYPES,
    TR_WEIGHT_OTHER = TR_WEIGHT_TYPES /* a tensor of this type cannot be read */
} tr_weight_type;

enum { TR_WEIGHT_RANK = 8 };

/* A tensor in a file. */
typedef struct tr_weight {
    char *name;
    const char *dtype; /* the file's word: "BF16" */
    tr_weight_type type;
    int rank, file;
    int64_t shape[TR_WEIGHT_RANK], offset, bytes; /* offset: in the file */
    bool transposed; /* rank 2: the file holds the columns of this shape as rows */
} tr_weight;

typedef struct tr_weight_file {
    char *path;
    int64_t size;
    uint64_t device, node; /* which file it was when its header was read */
} tr_weight_file;

/* One file is open at a time, so a model of any number of files needs one descriptor. */
typedef struct tr_weights {
    tr_weight_file *file; /* [files] */
    int files, fd, open;  /* the file that is open: its descriptor, and its number + 1; 0: none */
    tr_weight *tensor;    /* [count], ascending by name */
    int64_t count;
    size_t file_capacity, capacity;
    bool once;     /* set by the caller: nothing is read twice, so reads need not stay in memory */
    void *scratch; /* of reads: a handle serves one thread */
} tr_weights;

/* Opens a folder with model.safetensors or model.safetensors.index.json, or a file *.safetensors.
 * Fails with TR_ERR_NOFILE when `path` does not exist, and with TR_ERR_DATA, file and position when
 * a header breaks a rule of the format (https://github.com/huggingface/safetensors), or the index
 * names a file outside its folder or a tensor that its file does not hold. The caller closes it
 * after a failure, too. */
tr_status tr_weights_open(const char *path, tr_weights *out);
void tr_weights_close(tr_weights *weights);

/* Returns true when the file begins with the number of llm.c's model files. */
bool tr_llmc_is(const char *path);
/* Opens such a file (version 3 or 5), under the names of transformers. Sets the sizes in *model. */
tr_status tr_llmc_open(const char *path, tr_weights *out, tr_model_config *model);

/* Opens a file *.safetensors of updates (layers/lora_config.h), and takes `prefix` off the names of
 * all tensors. Fails like tr_weights_open, and with TR_ERR_DATA when a name begins otherwise. */
tr_status tr_weights_open_updates(const char *path, const char *prefix, tr_weights *out);

/* Returns the tensor of a name of transformers, or of this name without its first part
 * ("wte.weight" for "transformer.wte.weight"), or NULL. */
const tr_weight *tr_weights_find(const tr_weights *weights, const char *name);

/* Fails with TR_ERR_DATA unless the files hold every tensor of the model except its updates, of its
 * shape and a type that can be read, and nothing else but attention masks, rotary frequencies, and
 * the head of a model that ties it. Learned positions may have more rows. `where` is for
 * messages. */
tr_status tr_weights_check(tr_weights *weights, const tr_model *model, const char *where);
/* Does the same for files of the model's updates. */
tr_status tr_weights_check_updates(tr_weights *weights, const tr_model *model, const char *where);

/* Makes the whole model of a config for one sequence in FP32, compared with the files like
 * tr_weights_check. The number of layers is compared first, so that a config of another model costs
 * no memory. The caller destroys *out, also after a failure, unless it is NULL. */
tr_status tr_weights_make_model(tr_weights *weights, const tr_model_config *config,
                                const char *where, tr_model **out);

/* Reads bytes [at, at + bytes) of a file. Fails with TR_ERR_DATA when the file has become shorter,
 * or is another one than tr_weights_open found, and with TR_ERR_IO. */
tr_status tr_weights_read_bytes(tr_weights *weights, int file, void *data, size_t bytes,
                                int64_t at);
/* Fills dense[0..count) with elements [first, first + count), in row-major order, of a box of the
 * tensor, widened to FP32. Fails like tr_weights_read_bytes. */
tr_status tr_weights_read(tr_weights *weights, const tr_weight *tensor, const tr_box *box,
                          int64_t first, int64_t count, float *dense);

/* Fills the boxes of the tensors in the group "weights/", except those of updates, from checked
 * files, and leaves other tensors as they are. Tells the world how many bytes are read. Not
 * collective. */
tr_status tr_weights_load(tr_world *world, tr_weights *weights, tr_ckpt_tensor *tensors, int count);
/* Does the same with those of updates. */
tr_status tr_weights_load_updates(tr_world *world, tr_weights *weights, tr_ckpt_tensor *tensors,
                                  int count);

/* --- writing ---------------------------------------------------------------------------------- */

/* Returns the bytes of an element, and the word of safetensors for the type. */
int64_t tr_weight_type_size(tr_weight_type type);
const char *tr_weight_type_name(tr_weight_type type);
/* Rounds FP32 to the type: data[count] elements. Returns how many finite ones became infinite. */
int64_t tr_weights_round(const float *from, int64_t count, tr_weight_type type, void *data);

/* Makes the header of a safetensors file with these tensors in *header (malloc'd), with the length
 * before it, and sets their offsets in the file and *bytes, the file's size. The tensors are laid
 * out in order of their element's size, largest first, then of name. */
tr_status tr_safetensors_header(tr_weight *tensors, int64_t count, char **header,
                                int64_t *header_bytes, int64_t *bytes);
