/* The copies of a program between its arena and the host's memory (OFFLOAD, FETCH), on streams of
 * their own: one out, and one back. Private to the runner. */
#pragma once

#include "pipeline/program/run.h"

typedef struct tr_run_copies tr_run_copies;

/* Opens the streams, and an event for each instruction; *out is NULL for a program without
 * copies. */
tr_status tr_run_copies_create(const tr_runner_options *options, tr_run_copies **out);
void tr_run_copies_destroy(tr_run_copies *copies);
/* Starts the copies of instruction k, an OFFLOAD or a FETCH, after all earlier work of the compute
 * stream: this has written, or has left, the place in the arena. */
tr_status tr_run_copies_start(tr_run_copies *copies, int k);
/* Makes later work of the compute stream wait for the copies that belong to instruction k, an
 * OFFLOAD_WAIT or a FETCH_WAIT. */
tr_status tr_run_copies_wait(tr_run_copies *copies, int k);
