/* The end of a step: gradients summed over their groups and over tied uses, the squared norm, the
 * clip factor, AdamW. Everything is stream-ordered and reads what changes from the step state.
 *
 * One FP64 vector carries all that the ranks must know of each other, reduced once a step over the
 * world: losses [dp][micro-batches][2], norms of each parameter's parts and one that spoils the
 * step, and a stop request. Each entry is written by one rank and is zero elsewhere, so the sum is
 * exact, and every rank adds the entries in the same order: the result does not depend on the cut.
 */
#pragma once

#include "partition/step_end.h"
#include "train/store.h"

typedef struct tr_adamw_config {
    double beta1, beta2, eps, weight_decay;
} tr_adamw_config;

typedef struct tr_optimizer tr_optimizer;

typedef struct tr_optimizer_desc {
    tr_device *device;
    tr_store *store;
    const tr_model *model;
    const tr_mesh *mesh;
    tr_group *world;
    tr_step_state *state; /* device memory */
    int micro_batches;
    tr_adamw_config adamw;
} tr_optimizer_desc;

tr_status tr_optimizer_create(const tr_optimizer_desc *desc, tr_optimizer **out);
void tr_optimizer_destroy(tr_optimizer *optimizer);

/* Start of a step: sets the shared vector to zero. Gradients keep what the last step left; the
 * first weight gradient of a stage writes all of them. */
tr_status tr_optimizer_begin(tr_optimizer *optimizer);
/* After tr_optimizer_begin, on any rank: the step changes nothing on all ranks, as if the gradient
 * were not finite. */
tr_status tr_optimizer_spoil(tr_optimizer *optimizer);
/* Where micro-batch 0 of this data rank writes its loss, f64[2], and the distance to the next. */
double *tr_optimizer_loss(tr_optimizer *optimizer);
int64_t tr_optimizer_loss_stride(const tr_optimizer *optimizer);
/* Staging memory, 0 at first: a value of 1 asks all ranks to stop. Any thread or signal handler may
 * write it at any time; the device reads it when tr_optimizer_finish runs. */
_Atomic double *tr_optimizer_stop_word(tr_optimizer *optimizer);
/* The gradients of local stage k (0, 1, ... of this rank) are complete: each group sums its spans.
 */
tr_status tr_optimizer_reduce(tr_optimizer *optimizer, int local_stage);
/* Sums tied uses, takes the norm, finishes the step state; with `update` steps the parameters. */
tr_status tr_optimizer_finish(tr_optimizer *optimizer, bool update);
/* After tr_optimizer_finish: enqueues the read-back of what the ranks asked. */
tr_status tr_optimizer_read_stop(tr_optimizer *optimizer);
/* After that and a sync: did any rank ask to stop? */
bool tr_optimizer_stop_requested(const tr_optimizer *optimizer);
