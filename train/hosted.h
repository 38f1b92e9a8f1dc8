/* The steps of parameters on the host's cores, when masters and states are in its memory
 * (device.offload: optimizer). After the end of a step gradients come to the host part by part, the
 * operators of the cpu device step them, with the bits of the device's own, and the new values
 * return. A value that is stepped itself, because it has no master, comes with its gradient.
 *
 * When the optimizer steps by tensor, directions return to the device instead of values. After the
 * device has completed the directions of a lap (train/directions.h), they come to the host part by
 * part, and the host steps the parameters along them. */
#pragma once

#include "train/directions.h"
#include "train/store.h"

typedef struct tr_hosted tr_hosted;

/* Makes the steps of the store's parameters; *out is NULL when the device takes them. directions:
 * NULL if no run has directions. */
tr_status tr_hosted_create(const tr_store *store, const tr_optim_config *config,
                           tr_directions *directions, tr_hosted **out);
void tr_hosted_destroy(tr_hosted *hosted);
/* Steps all parameters after the work of `stream`, which has written the step state in device
 * memory, unless the state says to skip. Waits until the values have returned. scratch: on the
 * device, for directions. Collective as tr_directions_complete is. */
tr_status tr_hosted_run(tr_hosted *hosted, tr_stream *stream, tr_step_state *state, void *scratch);
