/* Low-rank updates of a checkpoint, added to its weights while they are read one after the
 * other. */
#pragma once

#include "ckpt/reader.h"
#include "layers/lora_merge.h"
#include "layers/model.h"

typedef struct tr_merge {
    /* Set by the caller; they must outlive it. */
    tr_ckpt_reader *reader;
    const tr_ckpt_weight *tensor; /* [count]: the checkpoint's, ascending by name */
    int64_t count;
    const tr_model_config *model;

    float *left, *right; /* NULL: the weight has no update */
    tr_low_rank update;
} tr_merge;

/* Reads the update of a weight, if it has one. Memory: that of A and B, in FP32. Fails with
 * TR_ERR_DATA when the checkpoint holds one of them only, or of another shape. */
tr_status tr_merge_begin(tr_merge *merge, const tr_ckpt_weight *weight);
/* Adds elements [first, first + count) of the update to values. */
void tr_merge_add(const tr_merge *merge, int64_t first, int64_t count, float *values);
void tr_merge_end(tr_merge *merge);
