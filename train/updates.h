/* The steps of parameters: UPDATE of each run. For an optimizer that steps each tensor by itself:
 * DIRECTION of each run, and DESCEND when its directions are complete (train/directions.h). A run
 * is stepped at once, or part by part when the host takes the steps (train/hosted.h). */
#pragma once

#include "train/directions.h"
#include "train/store.h"

typedef struct tr_updates tr_updates;

/* Adjacent elements of a run, and where their gradients, directions and values are: in its memory,
 * or copies. */
typedef struct tr_run_part {
    int run;
    int64_t at, count; /* at: the first one, a multiple of store->part when the host steps */
    char *grad, *direction, *value;
} tr_run_part;

/* Returns elements of run i, in its memory. */
tr_run_part tr_run_part_of(const tr_store *store, int i, int64_t at, int64_t count);
/* Returns true when the steps of run i leave directions. */
bool tr_run_has_directions(const tr_store *store, int i);
/* Returns the lap in which run i is stepped. */
int tr_run_lap(const tr_store *store, int i);

/* Makes the steps of the store's parameters on its device, or on the host if that takes them.
 * *scratch becomes at least the bytes that the steps need. */
tr_status tr_updates_create(const tr_store *store, const tr_optim_config *config, size_t *scratch,
                            tr_updates **out);
void tr_updates_destroy(tr_updates *updates);
/* Steps all parameters lap by lap, unless the state says to skip. directions: NULL if no run has
 * directions. Collective as tr_directions_complete is. */
tr_status tr_updates_run(tr_updates *updates, tr_directions *directions, tr_stream *stream,
                         tr_step_state *state, void *scratch);
/* Step a whole run on the store's device, or at most store->part elements on the host: UPDATE, or
 * DIRECTION, which writes the part's direction; and DESCEND, with the norms of its tensor
 * (tr_directions_norms). */
tr_status tr_updates_step(const tr_updates *updates, const tr_run_part *part, tr_stream *stream,
                          tr_step_state *state, void *scratch);
tr_status tr_updates_descend(const tr_updates *updates, const tr_run_part *part,
                             const double *norms, tr_stream *stream, tr_step_state *state,
                             void *scratch);
