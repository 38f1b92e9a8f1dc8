/* The whole values of parameters of which data ranks keep their portions (parallel.zero 3): before
 * a stage runs they are gathered, bucket by bucket, to places in the arena, which its layers then
 * read. */
#pragma once

#include "comm/comm.h"

typedef struct tr_store tr_store;
typedef struct tr_values tr_values;

/* Makes *out NULL when the store does not divide values. */
tr_status tr_values_create(tr_store *store, tr_values **out);
void tr_values_destroy(tr_values *values);
/* Lets a bucket of local stage k (0, 1, ... of this rank) be gathered to `memory`, which need not
 * have been added before. */
tr_status tr_values_add(tr_values *values, int local_stage, int bucket, void *memory);
/* Starts to gather a bucket to one of its places. Collective over the ranks that divide it. */
tr_status tr_values_start(tr_values *values, tr_stream *stream, int local_stage, int bucket,
                          void *memory);
/* Makes later work in the stream wait for the gather, and the layers read that place. */
tr_status tr_values_wait(tr_values *values, tr_stream *stream, int local_stage, int bucket,
                         void *memory);
