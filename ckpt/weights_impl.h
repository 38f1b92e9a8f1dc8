/* Shared by the readers of weights. */
#pragma once

#include "ckpt/ckpt_impl.h"
#include "ckpt/weights.h"

/* Appends a file to the list, and opens it; *file is its number. A missing file is TR_ERR_DATA. */
tr_status tr_weights_add_file(tr_weights *weights, const char *path, int *file);
/* Appends a tensor and takes a copy of its name. */
tr_status tr_weights_add(tr_weights *weights, const tr_weight *tensor, const char *name);
/* Sorts the tensors by name; fails with TR_ERR_DATA when two have one. */
tr_status tr_weights_sort(tr_weights *weights);
/* Fails with TR_ERR_DATA and a remedy when a file's first bytes are those of another format. */
tr_status tr_foreign_file(const char *path, const char *first, size_t bytes);
/* Fails with TR_ERR_DATA when the file's name is that of one of several shards. */
tr_status tr_foreign_shard(const char *path);
/* Fails with TR_ERR_DATA: the folder holds no safetensors under the expected names. Says what it
 * holds instead. */
tr_status tr_foreign_folder(const char *path);
/* Sets type, dtype and the bits of an element from the word of safetensors; false: unknown. */
bool tr_weight_type_find(const char *word, tr_weight *tensor, int *bits);
