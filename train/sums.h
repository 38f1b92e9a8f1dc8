/* The sums of gradients over the ranks that have computed parts of them, bucket by bucket. When
 * data ranks divide the updates (parallel.zero), a rank gets only the sums of its portions, with
 * the same bits; the rest of its gradients is then undefined. Gradients in the arena end with the
 * wait, which copies the portions' sums to the store's memory (tr_store_slot.grad). */
#pragma once

#include "train/store.h"

typedef struct tr_sums tr_sums;

/* Lists the sums of a store for training; does not use the store's memory. op: which sum,
 * parallel.reduce. */
tr_status tr_sums_create(const tr_store *store, tr_reduce op, tr_sums **out);
void tr_sums_destroy(tr_sums *sums);
/* Start to sum a bucket of the gradients of one of this rank's stages, which is complete; and make
 * later work in the stream wait for the sums. Collective over each group. */
tr_status tr_sums_start(tr_sums *sums, tr_stream *stream, int stage, int bucket);
tr_status tr_sums_wait(tr_sums *sums, tr_stream *stream, int stage, int bucket);
