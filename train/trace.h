/* The trace of a run: measured and planned times of all ranks in one file. */
#pragma once

#include "comm/comm.h"
#include "comm/mesh.h"
#include "pipeline/draw/timeline.h"
#include "pipeline/program/record.h"

/* Measures the nanoseconds to add to this rank's clock to get rank 0's. Collective. Assumes that
 * one way takes half of the fastest of several round trips over the control plane; an offset below
 * that half counts as 0 (ranks of one host have one clock). */
tr_status tr_tracing_clock(tr_world *world, int64_t *offset_ns);

/* Gathers every rank's record and makes two timelines on rank 0, of world ranks, in seconds from
 * the first recorded moment. Collective. In a record, peers are pipeline indices, and step 0 is
 * step first_step of the run. The planned timeline simulates each step's `programs` with the mean
 * time of each stage's actions in that step, the time of the fastest message, and for sums, gathers
 * and copies those of `links`, in seconds; it begins with the measured step, or when the previous
 * planned step ends, if that is later. Both are NULL on other ranks, and when nothing was recorded.
 * The caller releases them with tr_timeline_destroy. */
tr_status tr_tracing_gather(tr_world *world, const tr_mesh *mesh, const tr_program_set *programs,
                            const tr_simulated_links *links, const tr_record *record,
                            int64_t first_step, tr_timeline **measured, tr_timeline **planned);

/* Writes both timelines as a trace to the file `path`. */
tr_status tr_tracing_write(const char *path, const tr_timeline *measured,
                           const tr_timeline *planned);
