/* The steps of parameters part by part: when the optimizer keeps its states or gradients in fewer
 * bits than FP32, or no masters of BF16 parameters (partition/quantized.h), or when the host takes
 * them (train/hosted.h). They take the place of the optimizer's UPDATE, or DIRECTION, of whole
 * runs. */
#pragma once

#include "train/store.h"

typedef struct tr_moments tr_moments;

/* Adjacent elements of a run, and where their gradients and values are: in its memory, or copies.
 */
typedef struct tr_run_part {
    int run;
    int64_t at, count; /* the first one, a multiple of those that are stepped at a time */
    char *grad, *value;
} tr_run_part;

/* Returns elements of run i, in its memory. */
tr_run_part tr_run_part_of(const tr_store *store, int i, int64_t at, int64_t count);

/* Makes the steps of the store's parameters on its device, or on the host if that takes them; *out
 * is NULL when nothing is quantized and the device steps. *scratch becomes at least the bytes that
 * the steps need. */
tr_status tr_moments_create(const tr_store *store, const tr_optim_config *config, size_t *scratch,
                            tr_moments **out);
void tr_moments_destroy(tr_moments *moments);
/* Steps all parameters, or writes their directions to their gradients' memory, unless the state
 * says to skip. */
tr_status tr_moments_run(tr_moments *moments, tr_stream *stream, tr_step_state *state,
                         void *scratch);
/* Steps some elements in the same way. */
tr_status tr_moments_step(tr_moments *moments, const tr_run_part *part, tr_stream *stream,
                          tr_step_state *state, void *scratch);
