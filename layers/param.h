/* Parameters. A layer lists its parameters here, and they are listed nowhere else: initialization,
 * optimizer shards, gradient norm, checkpoint and export all come from this one registry. */
#pragma once

#include "base/dtype.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { TR_PARAM_RANK = 4, TR_PARAM_BOXES = 4, TR_NAME_SIZE = 128 };

/* A box of the global tensor that this rank holds: global offset and extent, and where it lies in
 * the rank's local memory (offset and strides in elements). */
typedef struct tr_box {
    int64_t offset[TR_PARAM_RANK], extent[TR_PARAM_RANK];
    int64_t local_offset, local_stride[TR_PARAM_RANK];
} tr_box;

typedef enum tr_init { TR_INIT_ZERO, TR_INIT_ONE, TR_INIT_NORMAL } tr_init;
typedef enum tr_param_kind { TR_PARAM_TRAINED, TR_PARAM_FROZEN, TR_PARAM_BUFFER } tr_param_kind;

typedef struct tr_param {
    char name[TR_NAME_SIZE]; /* Hugging Face name; equal for all uses of a tied parameter */
    int use;                 /* 0: the parameter itself; k > 0: a further use of it (tied) */
    int index;               /* registry order: position in the whole model's list */
    int rank;
    int64_t shape[TR_PARAM_RANK]; /* global */
    int boxes;
    tr_box box[TR_PARAM_BOXES];
    int64_t count; /* local elements; local memory is dense */
    tr_init init;
    float init_std;
    bool decay; /* weight decay applies */
    /* Axes, as TR_AXIS_BIT: those over which the value is replicated (besides dp), and those over
     * which its gradient is partial and must be summed before use. */
    unsigned replicated, partial;
    tr_param_kind kind;

    /* Storage, placed by the trainer before the layer runs. Uses of one parameter on the same
     * rank share the value and have a gradient each. */
    void *value; /* model dtype, local */
    float *grad; /* f32, local, accumulated over the step's micro-batches */
} tr_param;

/* Fills dense local FP32 memory local[param->count] with the initial values, by `threads` threads.
 * Every element is a function of (seed, name, global row-major index) alone. */
void tr_param_init(const tr_param *param, uint64_t seed, int threads, float *local);
