/* The steps of parameters when the optimizer keeps its states or gradients in fewer bits than FP32,
 * or no masters of BF16 parameters (partition/quantized.h). They take the place of the optimizer's
 * UPDATE, or DIRECTION, of whole runs. */
#pragma once

#include "train/store.h"

typedef struct tr_moments tr_moments;

/* Makes the steps of the store's parameters; *out is NULL when nothing is quantized.
 * *scratch becomes at least the bytes that tr_moments_run needs. */
tr_status tr_moments_create(const tr_store *store, const tr_optim_config *config, size_t *scratch,
                            tr_moments **out);
void tr_moments_destroy(tr_moments *moments);
/* Steps all parameters, or writes their directions to their gradients' memory, unless the state
 * says to skip. */
tr_status tr_moments_run(tr_moments *moments, tr_stream *stream, tr_step_state *state,
                         void *scratch);
