/* The values of parameters that data ranks update in portions, bucket by bucket, before a stage
 * runs. With parallel.zero 1 and 2 a rank has whole values, and gathers the other ranks' portions
 * of the last step to them. With 3 it keeps its portions only, and whole values are gathered to
 * places in the arena, which the layers then read. */
#pragma once

#include "comm/comm.h"

typedef struct tr_store tr_store;
typedef struct tr_values tr_values;

tr_status tr_values_create(tr_store *store, tr_values **out);
void tr_values_destroy(tr_values *values);
/* Lets a bucket of one of this rank's stages be gathered to `memory`, NULL: to its parameters' own;
 * a second call does nothing. */
tr_status tr_values_add(tr_values *values, int stage, int bucket, void *memory);
/* Starts to gather a bucket to one of its places; to its own memory only when that is outdated
 * (tr_store). Collective over the ranks that divide it. */
tr_status tr_values_start(tr_values *values, tr_stream *stream, int stage, int bucket,
                          void *memory);
/* Makes later work in the stream wait for the gather, and the layers read that place. */
tr_status tr_values_wait(tr_values *values, tr_stream *stream, int stage, int bucket, void *memory);
