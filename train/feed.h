/* The samples of one rank's steps: the step inputs that its layers ask for. A thread reads those of
 * the next training step while the device computes this one. */
#pragma once

#include "comm/mesh.h"
#include "data/fetch.h"
#include "layers/layer_stage.h"
#include "partition/layout.h"

typedef struct tr_feed tr_feed;

/* The samples of a step. */
typedef struct tr_feed_batch {
    tr_fetch_fn fetch;
    void *context;
    bool validation;
    int64_t batch; /* sequences of all data ranks */
    int64_t first; /* the global index of the first one */
} tr_feed_batch;

/* Allocates memory, on the device and for staging, for the largest batch of the layout. A
 * micro-batch has `micro_batch` sequences on each data rank. */
tr_status tr_feed_create(tr_device *device, const tr_mesh *mesh, const tr_layout *layout,
                         int64_t micro_batch, tr_feed **out);
/* Starts the thread that reads ahead, if this rank's layers ask for anything. Without it every step
 * reads its own samples. Fails with TR_ERR_DEVICE when no thread can be started. */
tr_status tr_feed_read_ahead(tr_feed *feed);
/* Waits for a read in progress. NULL is allowed. */
void tr_feed_destroy(tr_feed *feed);

/* Lists the inputs' memory on the device, for the layers; returns their number. */
int tr_feed_inputs(const tr_feed *feed, tr_step_data data[TR_STEP_INPUTS]);
/* Returns the offset of this data rank's first sample in a batch; its samples are contiguous. */
int64_t tr_feed_offset(const tr_feed *feed, int64_t batch);

/* Gets this rank's samples of a step, and enqueues their copies to the device. If the step trains,
 * the thread then begins to read those of the next one, with a batch of `next` sequences. A rank
 * that cannot read its samples copies zeros, because the other ranks wait for its step: *complete
 * is then false, and tr_feed_status fails. */
tr_status tr_feed_load(tr_feed *feed, const tr_feed_batch *from, int64_t next, tr_stream *stream,
                       bool *complete);
/* Fails as the last load's fetch did, also with its sentence. */
tr_status tr_feed_status(const tr_feed *feed);
