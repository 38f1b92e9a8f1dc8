/* The memory of the end of a step: the vector that all ranks sum, and the operators that update
 * parameters. The plan measures them here and train/optimizer.c prepares the same descriptions, so
 * that planned bytes equal allocated bytes. */
#pragma once

#include "device/op.h"
#include "layers/param_layout.h"
#include "layers/placement.h"
#include "partition/optim_row.h"

/* The entries of the vector with the squared norms of a parameter's gradient that the noise scale
 * needs, one for each of `parts` parts: from `part` on those of the step's first micro-batch, and
 * from `whole` on those of the whole batch. parts 0: the noise scale leaves the parameter out,
 * because no rank has its gradient of one micro-batch: each tensor rank has a summand. */
typedef struct tr_step_end_noise {
    int64_t part, whole;
    int parts;
    bool tied; /* `whole` is this use's own, before the uses are summed */
} tr_step_end_noise;

/* One FP64 vector: losses [dp][micro-batches][sequences][2], the squared norms of each parameter's
 * parts, one entry that spoils the step, the squared norms that only the noise scale needs, and a
 * stop request. A training step uses only the first loss of a micro-batch, and validation that of
 * each sequence. */
typedef struct tr_step_end_vector {
    int64_t sequences; /* of a micro-batch */
    int64_t losses, norms, length;
    int64_t *norm_entry;            /* [params]: entry of a trained one's first part */
    int params;                     /* of the model, every use of a tied one counted */
    tr_step_end_noise *noise_entry; /* [params]; NULL: the noise scale is not measured */
} tr_step_end_vector;

/* Makes the vector's layout. micro_batches: of a step on one data rank, each of the model's shape.
 * noise: the noise scale is measured. The caller releases *out with tr_step_end_vector_free. */
tr_status tr_step_end_vector_make(const tr_model *model, const tr_mesh *mesh, int micro_batches,
                                  bool noise, tr_step_end_vector *out);
void tr_step_end_vector_free(tr_step_end_vector *vector);
/* Return how many losses all data ranks write in a step with this many micro-batches, at most those
 * of the vector, and the first one's entry. They are the last of the vector's losses, so that the
 * entries after them have one place in all steps. */
int64_t tr_step_end_count(const tr_step_end_vector *vector, const tr_mesh *mesh, int micro_batches);
int64_t tr_step_end_first(const tr_step_end_vector *vector, const tr_mesh *mesh, int micro_batches);
/* Returns the entry where this rank writes the loss of its micro-batch 0 in such a step, and the
 * distance to the next one's. Tensor ranks compute the same losses: only the first one's are in the
 * vector, and the others write after it, with distance 0. */
int64_t tr_step_end_losses(const tr_step_end_vector *vector, const tr_mesh *mesh, int micro_batches,
                           int64_t *stride);
/* Returns the bytes of the vector, and of the losses after it that are not summed. */
size_t tr_step_end_vector_bytes(const tr_step_end_vector *vector);

/* Describes how the gradient of another use of a parameter is added to use 0's on the same rank:
 * this rank's portion of it. divided: as of tr_param_portion; dtype: of gradients. */
tr_op_desc tr_step_end_tie_op(const tr_param *param, const tr_mesh *divided, tr_dtype dtype);
/* Describe the squared norm of a parameter's elements on this rank; of each block of this rank's
 * portion; and of all elements from those of the blocks. */
tr_op_desc tr_step_end_sumsq_op(const tr_param *param, tr_dtype dtype);
tr_op_desc tr_step_end_blocks_op(const tr_param *param, const tr_mesh *divided, tr_dtype dtype);
tr_op_desc tr_step_end_total_op(const tr_param *param);
/* Returns true when this rank measures the gradient of a use of a parameter for the noise scale,
 * with tr_step_end_sumsq_op: it is the first of those that hold this part. */
bool tr_step_end_measures_noise(const tr_mesh *mesh, const tr_param *param,
                                const tr_param_layout *layout);
/* Returns the numbers that an optimizer needs for the norms of a parameter's tensor, of all its
 * parts. */
int64_t tr_step_end_tensor_norms(tr_optim_kind optimizer, const tr_param *param,
                                 const tr_param_layout *layout);
/* Describes the end of a step with `losses` losses. */
tr_op_desc tr_step_end_finish_op(const tr_step_end_vector *vector, int64_t losses);

/* What the memory of a step's end depends on, for the rank at mesh->index. */
typedef struct tr_step_end_desc {
    tr_device *device;
    const tr_model *model;
    const tr_placement *placement;
    const tr_step_end_vector *vector;
    const tr_mesh *mesh;
    tr_dtype dtype;
    tr_optim_memory optimizer;
    int zero;          /* parallel.zero */
    bool forward_only; /* no step updates parameters */
} tr_step_end_desc;

/* Computes the device bytes that tr_optimizer_create takes. Prepares its operators temporarily, and
 * allocates no device memory. */
tr_status tr_step_end_bytes(const tr_step_end_desc *desc, size_t *bytes);
