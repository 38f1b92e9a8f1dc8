/* The end of a step: gradients summed over their groups and over tied uses, the squared norm, the
 * clip factor, the optimizer's update. All work is stream-ordered and reads the values that change
 * between steps from the step state.
 *
 * One FP64 vector, reduced once a step over the world, carries all data that the ranks exchange:
 * losses, norms and a stop request (tr_step_end_vector). Each entry is written by one rank and is
 * zero elsewhere, so the sum is exact, and every rank adds the entries in the same order: the
 * result does not depend on the cut. */
#pragma once

#include "partition/step_end.h"
#include "train/directions.h"
#include "train/hosted.h"
#include "train/noise.h"
#include "train/sums.h"
#include "train/updates.h"

typedef struct tr_optimizer tr_optimizer;

typedef struct tr_optimizer_desc {
    tr_device *device;
    tr_store *store;
    const tr_model *model;
    const tr_mesh *mesh;
    tr_group *world, *tensor; /* all ranks; this rank's tensor ranks */
    tr_step_state *state;     /* device memory */
    int micro_batches;        /* of a step on one data rank, the most */
    const int *smaller;       /* [smaller_count]: of steps with fewer; used while it is created */
    int smaller_count;
    bool forward_only; /* no step updates parameters, and the store is without gradients */
    bool noise;        /* steps measure the noise scale */
    tr_reduce reduce;  /* how ranks sum gradients */
    tr_optim_config config;
} tr_optimizer_desc;

tr_status tr_optimizer_create(const tr_optimizer_desc *desc, tr_optimizer **out);
void tr_optimizer_destroy(tr_optimizer *optimizer);

/* Begins a step with micro_batches, one of those of the description: clears the shared vector.
 * Gradients keep the last step's values; the first weight gradient of a stage overwrites all of
 * them. */
tr_status tr_optimizer_begin(tr_optimizer *optimizer, int micro_batches);
/* Makes the step change no parameter on any rank, as if the gradient were not finite. Any rank may
 * call it after tr_optimizer_begin. */
tr_status tr_optimizer_spoil(tr_optimizer *optimizer);
/* Returns where micro-batch 0 of this data rank writes its loss, f64[sequences][2], in a step with
 * micro_batches; and the distance to the next one's. */
double *tr_optimizer_loss(tr_optimizer *optimizer, int micro_batches);
int64_t tr_optimizer_loss_stride(const tr_optimizer *optimizer);
/* Returns the losses of a batch of desc->micro_batches in device memory, f64[batch][2], which are
 * complete after tr_optimizer_finish. A training step has only the first loss of each
 * micro-batch. */
const double *tr_optimizer_losses(const tr_optimizer *optimizer);
/* Returns a word in staging memory, 0 at first. A value of 1 asks all ranks to stop. Any thread may
 * write it at any time; the device reads it when tr_optimizer_finish runs. */
_Atomic double *tr_optimizer_stop_word(tr_optimizer *optimizer);
/* Measures the first micro-batch's gradients of one of this rank's stages for the noise scale, if
 * it is asked for: those that W writes, after the first W; in_forward: those that F writes, after
 * the first F. */
tr_status tr_optimizer_first_gradients(tr_optimizer *optimizer, int stage, bool in_forward);
/* Start to sum a bucket of the gradients of one of this rank's stages, which is complete; and make
 * later work wait for the sums (train/sums.h). */
tr_status tr_optimizer_start(tr_optimizer *optimizer, int stage, int bucket);
tr_status tr_optimizer_wait(tr_optimizer *optimizer, int stage, int bucket);
/* Sums tied uses, takes the norm, finishes the step state; with `update` steps the parameters,
 * which leaves the values of other ranks' portions outdated (tr_store). */
tr_status tr_optimizer_finish(tr_optimizer *optimizer, bool update);
/* Enqueues the read-back of what the ranks sum, after tr_optimizer_finish. */
tr_status tr_optimizer_read(tr_optimizer *optimizer);
/* Returns true when any rank asked to stop, after tr_optimizer_read and a sync. */
bool tr_optimizer_stop_requested(const tr_optimizer *optimizer);
/* Returns a training step's estimates for the noise scale, the same on every rank, after
 * tr_optimizer_read and a sync; NAN when they are not measured. */
tr_noise_estimate tr_optimizer_noise(const tr_optimizer *optimizer, double loss_scale);
