/* What the end of a step takes: the vector that all ranks sum, and the operators that turn
 * gradients into parameters. The plan measures them here and train/optimizer.c prepares the same
 * descriptions, so that a planned byte is an allocated byte. */
#pragma once

#include "device/op.h"
#include "layers/placement.h"

/* One FP64 vector: losses [dp][micro-batches][2], the squared norms of each parameter's parts and
 * one that spoils the step, and a stop request. */
typedef struct tr_step_end_vector {
    int64_t losses, norms, length;
    int64_t *norm_entry; /* [parameters of the model]: entry of a parameter's first part */
} tr_step_end_vector;

/* micro_batches: of a step on one data rank. Release with tr_step_end_vector_free. */
tr_status tr_step_end_vector_make(const tr_model *model, const tr_mesh *mesh, int micro_batches,
                                  tr_step_end_vector *out);
void tr_step_end_vector_free(tr_step_end_vector *vector);
/* Bytes of the vector, and of the losses behind it that do not count. */
size_t tr_step_end_vector_bytes(const tr_step_end_vector *vector);

/* Describes the operator that a parameter's gradient needs: ADD when this use's gradient is added
 * to use 0's on the same rank (shares), SUMSQ when this rank counts the parameter's norm. False
 * when it needs none. */
bool tr_step_end_param_op(const tr_param *param, bool counted, bool shares, tr_op_desc *out);
/* ADAMW of `count` elements that lie together; the caller fills its coefficients, on which no size
 * depends. */
tr_op_desc tr_step_end_update_op(int64_t count, tr_dtype dtype);
tr_op_desc tr_step_end_finish_op(const tr_step_end_vector *vector);

/* Device bytes that tr_optimizer_create takes on the rank at mesh->index; prepares its operators
 * for a moment and allocates no device memory. */
tr_status tr_step_end_bytes(tr_device *device, const tr_model *model, const tr_placement *placement,
                            const tr_mesh *mesh, tr_dtype dtype, int micro_batches, size_t *bytes);
