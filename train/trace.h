/* The trace of a run: measured and planned times of all ranks in one file. */
#pragma once

#include "comm/comm.h"
#include "comm/mesh.h"
#include "pipeline/draw/timeline.h"
#include "pipeline/program/record.h"

/* Nanoseconds to add to this rank's clock for rank 0's: half of the fastest of several round trips
 * over the control plane is taken to be one way; an offset within that half is 0 (ranks of one host
 * have one clock). Collective. */
tr_status tr_tracing_clock(tr_world *world, int64_t *offset_ns);

/* Collective. Gathers every rank's record (peers are numbers in its pipeline line; its step 0 has
 * number first_step in the run) and, on rank 0, makes timelines of world ranks in seconds from the
 * first recorded moment: the measured one, and the planned one: each step's `programs` simulated
 * with the mean time of each stage's actions in that step and the fastest message of all, beginning
 * where the measured step begins (later where the plan of the step before it ends later). Both NULL
 * on other ranks, and on rank 0 when nothing was recorded. Release with tr_timeline_destroy. */
tr_status tr_tracing_gather(tr_world *world, const tr_mesh *mesh, const tr_program_set *programs,
                            const tr_record *record, int64_t first_step, tr_timeline **measured,
                            tr_timeline **planned);

/* Both as a trace in the file `path`. */
tr_status tr_tracing_write(const char *path, const tr_timeline *measured,
                           const tr_timeline *planned);
