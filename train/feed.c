#include "train/feed.h"

#include "base/memory.h"
#include "train/background.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A step input of this rank for all micro-batches, sample after sample. */
typedef struct step_input {
    size_t bytes, stride, sample_bytes; /* of all, of a micro-batch, of a sample */
    char *device;
    char *host[2]; /* staging: of the step in progress, and of the next one, which is read ahead */
} step_input;

struct tr_feed {
    tr_device *device;
    int64_t micro_batch, data_rank, data_ranks;
    tr_flow flow[TR_STEP_INPUTS];
    step_input input[TR_STEP_INPUTS];
    int inputs;
    int side;              /* the staging memory of the step in progress: input[].host[side] */
    tr_background *reader; /* NULL: nothing is read ahead */
    tr_feed_batch ahead;   /* that the thread has read, or reads */
    tr_status read;        /* the status of the last load's fetches, */
    char unread[1024];     /* and the sentence of a failure */
};

static tr_status alloc(tr_feed *f, const tr_layout *layout) {
    for (int i = 0; i < f->inputs; i++) {
        step_input *input = &f->input[i];
        input->bytes = tr_layout_step_bytes(layout, &f->flow[i]);
        input->stride = input->bytes / (size_t)layout->micro_batches;
        input->sample_bytes = input->stride / (size_t)f->micro_batch;
        TR_TRY(tr_device_alloc(f->device, TR_MEMORY_DATA, input->bytes, (void **)&input->device));
        for (int side = 0; side < 2; side++)
            TR_TRY(tr_device_staging_alloc(f->device, input->bytes, (void **)&input->host[side]));
    }
    return TR_OK;
}

tr_status tr_feed_create(tr_device *device, const tr_mesh *mesh, const tr_layout *layout,
                         int64_t micro_batch, tr_feed **out) {
    tr_feed *f;
    TR_TRY(tr_calloc(1, sizeof *f, &f));
    f->device = device;
    f->micro_batch = micro_batch;
    f->data_rank = mesh->index[TR_AXIS_DP];
    f->data_ranks = mesh->degree[TR_AXIS_DP];
    tr_layout_step_inputs(layout, mesh->index[TR_AXIS_PP], f->flow, &f->inputs);
    tr_status status = alloc(f, layout);
    if (status != TR_OK) tr_feed_destroy(f);
    else *out = f;
    return status;
}

void tr_feed_destroy(tr_feed *f) {
    if (!f) return;
    tr_background_close(f->reader); /* before the memory that it reads to */
    for (int i = 0; i < f->inputs; i++) {
        tr_device_free(f->device, f->input[i].device);
        for (int side = 0; side < 2; side++)
            tr_device_staging_free(f->device, f->input[i].host[side]);
    }
    free(f);
}

int tr_feed_inputs(const tr_feed *f, tr_step_data data[TR_STEP_INPUTS]) {
    for (int i = 0; i < f->inputs; i++) {
        data[i] = (tr_step_data){.data = f->input[i].device, .stride = f->input[i].stride};
        memcpy(data[i].name, f->flow[i].name, sizeof data[i].name);
    }
    return f->inputs;
}

int64_t tr_feed_offset(const tr_feed *f, int64_t batch) {
    return f->data_rank * (batch / f->data_ranks);
}

/* Reads this rank's samples of a batch to one side of the staging memory. */
static tr_status fetch(tr_feed *f, const tr_feed_batch *from, int side) {
    tr_fetch wanted[TR_STEP_INPUTS];
    const int64_t first = from->first + tr_feed_offset(f, from->batch),
                  samples = f->inputs > 0 ? from->batch / f->data_ranks : 0;
    for (int64_t s = 0; s < samples; s++) {
        for (int i = 0; i < f->inputs; i++)
            wanted[i] =
                (tr_fetch){.input = &f->flow[i],
                           .to = f->input[i].host[side] + (size_t)s * f->input[i].sample_bytes};
        TR_TRY(from->fetch(from->context, from->validation, first + s, wanted, f->inputs));
    }
    return TR_OK;
}

/* Does the thread's work: reads the next training step's samples, to the side that no step uses. */
static tr_status read_ahead(void *context, int64_t first) {
    tr_feed *f = context;
    tr_feed_batch from = f->ahead;
    from.first = first;
    return fetch(f, &from, !f->side);
}

tr_status tr_feed_read_ahead(tr_feed *f) {
    return f->inputs > 0 ? tr_background_open(read_ahead, f, "reading ahead", &f->reader) : TR_OK;
}

/* Gets the samples that were read ahead, or reads them now, when a run has gone back to a step with
 * other samples or another batch. */
static tr_status get(tr_feed *f, const tr_feed_batch *from) {
    tr_status status;
    if (!from->validation && f->reader && f->ahead.batch == from->batch &&
        tr_background_take(f->reader, from->first, &status)) {
        f->side = !f->side;
        return status;
    }
    if (f->reader) tr_background_wait(f->reader); /* because only one thread may fetch */
    return fetch(f, from, f->side);
}

tr_status tr_feed_load(tr_feed *f, const tr_feed_batch *from, int64_t next, tr_stream *stream,
                       bool *complete) {
    const size_t samples = (size_t)(from->batch / f->data_ranks);
    f->read = get(f, from);
    *complete = f->read == TR_OK;
    if (!*complete) {
        (void)snprintf(f->unread, sizeof f->unread, "%s", tr_error_message());
        for (int i = 0; i < f->inputs; i++) memset(f->input[i].host[f->side], 0, f->input[i].bytes);
    }
    for (int i = 0; i < f->inputs; i++)
        TR_TRY(tr_stream_copy(stream, f->input[i].device, f->input[i].host[f->side],
                              samples * f->input[i].sample_bytes));
    if (from->validation || !f->reader) return TR_OK;
    /* The other side was copied in an earlier step, and the host has waited for its end. */
    f->ahead = *from;
    f->ahead.batch = next;
    tr_background_start(f->reader, from->first + from->batch);
    return TR_OK;
}

tr_status tr_feed_status(const tr_feed *f) {
    return f->read == TR_OK ? TR_OK : TR_FAIL(f->read, "%s", f->unread);
}
