/* The gradient noise scale: how many tokens a batch needs before a larger one saves few steps
 * (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", the simple noise scale of
 * equation 2.9, estimated as in appendix A.1). It compares the mean gradient of a small batch with
 * that of the whole one: a mean over b tokens has the expected squared norm |G|^2 + V / b, where G
 * is the true gradient and V the sum of the variances of one token's gradient.
 *
 * The small batch is the step's first micro-batch: its weight gradients are in memory as they are
 * before the second one's are added, so the cost is one more pass over the gradients of the first
 * data rank, and no message. The estimate is made of one FP64 number for each part of a parameter,
 * added in registry order, so no cut, schedule or order of messages changes its bits. The uses of a
 * tied parameter count as parameters of their own. */
#pragma once

#include "ckpt/ckpt.h"
#include "partition/step_end.h"
#include "train/norms.h"

typedef struct tr_noise tr_noise;

/* Prepares the measurement of the store's parameters. *out is NULL when the vector `map` has no
 * places for it. *scratch becomes at least the bytes that it needs. */
tr_status tr_noise_create(const tr_store *store, const tr_model *model, const tr_mesh *mesh,
                          const tr_step_end_vector *map, size_t *scratch, tr_noise **out);
void tr_noise_destroy(tr_noise *noise);

/* Begins a step, in which nothing is measured yet. */
void tr_noise_begin(tr_noise *noise);
/* Measures the first micro-batch's gradients of one of this rank's stages that W writes, or those
 * that F writes (in_forward): of one bucket, or with -1 of all. Leaves out those that this step has
 * measured already. vector: device memory as `map` describes it; `noise` may be NULL. */
tr_status tr_noise_take_part(tr_noise *noise, tr_stream *stream, double *vector, int stage,
                             int bucket, bool in_forward, void *scratch);
/* Measures the whole batch's gradients of tied uses, before the uses are summed. */
tr_status tr_noise_take_whole(tr_noise *noise, tr_stream *stream, double *vector, void *scratch);

/* Estimates of one step, of the loss in nats a token; NAN: the step has none, because its first
 * micro-batch has no token that counts, or all of them. Either may be negative by chance. */
typedef struct tr_noise_estimate {
    double square;   /* |G|^2 */
    double variance; /* V */
} tr_noise_estimate;
/* Computes them from the vector after its sum over the ranks, in host memory:
 *   V = (|g_b|^2 - |g_B|^2) / (1/b - 1/B),  |G|^2 = |g_B|^2 - V/B,
 * where the mean gradients g_b and g_B are over the b and B tokens that count. losses: of the step,
 * the vector's last ones. loss_scale: of the gradients. */
tr_noise_estimate tr_noise_of(const tr_step_end_vector *map, int64_t losses, const double *vector,
                              double loss_scale);

enum { TR_NOISE_WINDOW = 100 }; /* steps: the newest one weighs 1 / window */
/* Adds a step's estimates to the running means, unless it has none. */
void tr_noise_add(tr_ckpt_noise *noise, const tr_noise_estimate *step);
/* Returns the noise scale V / |G|^2 of the running means, in tokens; NAN: not known, because one
 * of the means is not positive. */
double tr_noise_scale(const tr_ckpt_noise *noise);
