#include "train/hosted.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "partition/offload.h"

#include <stdlib.h>

/* Where a part travels through. Its stream copies to the host, and back, in the order in which the
 * memory is used, so a sync of the stream waits for this buffer's part alone. */
typedef struct part_buffer {
    tr_stream *stream;
    char *grad, *value; /* staging */
} part_buffer;

struct tr_hosted {
    const tr_store *store;
    tr_moments *moments;
    tr_run_part *part; /* [parts]: in the device's memory */
    int64_t parts;
    char *memory; /* staging: the buffers, and the step state */
    part_buffer buffer[TR_OFFLOAD_BUFFERS];
    tr_step_state *state;
};

static int64_t count_parts(const tr_store *store) {
    int64_t parts = 0;
    for (int i = 0; i < store->runs; i++)
        parts += (store->run[i].count + store->part - 1) / store->part;
    return parts;
}

static tr_status list_parts(tr_hosted *o) {
    const tr_store *store = o->store;
    TR_TRY(tr_calloc((size_t)count_parts(store) + 1, sizeof *o->part, &o->part));
    for (int i = 0; i < store->runs; i++)
        for (int64_t at = 0; at < store->run[i].count; at += store->part)
            o->part[o->parts++] =
                tr_run_part_of(store, i, at, tr_min_i64(store->part, store->run[i].count - at));
    return TR_OK;
}

static tr_status open_buffers(tr_hosted *o, tr_optim_memory optimizer) {
    const tr_store *store = o->store;
    const size_t grad = tr_offload_gradient_bytes(optimizer, store->dtype, store->part);
    const size_t value = tr_offload_value_bytes(store->dtype, store->part);
    const size_t buffers = TR_OFFLOAD_BUFFERS * (grad + value);
    TR_TRY(tr_device_offload_alloc(store->device, buffers + sizeof *o->state, (void **)&o->memory));
    o->state = (tr_step_state *)(void *)(o->memory + buffers);
    for (int k = 0; k < TR_OFFLOAD_BUFFERS; k++) {
        o->buffer[k].grad = o->memory + (size_t)k * (grad + value);
        o->buffer[k].value = o->buffer[k].grad + grad;
        TR_TRY(tr_stream_create(store->device, &o->buffer[k].stream));
    }
    return TR_OK;
}

tr_status tr_hosted_create(const tr_store *store, const tr_optim_config *config, tr_hosted **out) {
    tr_status status = TR_OK;
    tr_hosted *o;
    size_t scratch = 0;
    *out = NULL;
    if (!store->host) return TR_OK;
    TR_TRY(tr_calloc(1, sizeof *o, &o));
    o->store = store;
    TR_TRY_OUT(open_buffers(o, tr_optim_memory_of(config)));
    TR_TRY_OUT(list_parts(o));
    TR_TRY_OUT(tr_moments_create(store, config, &scratch, &o->moments));
    if (scratch > 0)
        TR_TRY_OUT(TR_FAIL(TR_ERR_INTERNAL,
                           "a step on the host needs %zu bytes of scratch, which "
                           "are not planned",
                           scratch));
out:
    if (status != TR_OK) tr_hosted_destroy(o);
    else *out = o;
    return status;
}

void tr_hosted_destroy(tr_hosted *o) {
    if (!o) return;
    for (int k = 0; k < TR_OFFLOAD_BUFFERS; k++) tr_stream_destroy(o->buffer[k].stream);
    tr_moments_destroy(o->moments);
    tr_device_offload_free(o->store->device, o->memory);
    free(o->part);
    free(o);
}

static part_buffer *buffer_of(tr_hosted *o, int64_t k) {
    return &o->buffer[k % TR_OFFLOAD_BUFFERS];
}

/* Enqueues the copies of part k to the host, after the return of the part before in its buffer. */
static tr_status bring(tr_hosted *o, int64_t k) {
    const tr_store *store = o->store;
    const tr_run_part *part = &o->part[k];
    const part_buffer *buffer = buffer_of(o, k);
    const bool steps_value = store->dtype == store->acc || store->no_master;
    TR_TRY(tr_stream_copy(buffer->stream, buffer->grad, part->grad,
                          (size_t)part->count * tr_dtype_size(store->grad_dtype)));
    if (!steps_value) return TR_OK;
    return tr_stream_copy(buffer->stream, buffer->value, part->value,
                          (size_t)part->count * tr_dtype_size(store->dtype));
}

/* Steps part k, which the host has, and enqueues the return of its values. */
static tr_status step(tr_hosted *o, int64_t k) {
    const tr_run_part *part = &o->part[k];
    const part_buffer *buffer = buffer_of(o, k);
    tr_run_part here = *part;
    here.grad = buffer->grad;
    here.value = buffer->value;
    TR_TRY(tr_moments_step(o->moments, &here, tr_device_compute(o->store->host), o->state, NULL));
    return tr_stream_copy(buffer->stream, part->value, buffer->value,
                          (size_t)part->count * tr_dtype_size(o->store->dtype));
}

tr_status tr_hosted_run(tr_hosted *o, tr_stream *stream, const tr_step_state *state) {
    TR_TRY(tr_stream_copy(stream, o->state, state, sizeof *state));
    TR_TRY(tr_world_sync(o->store->world, stream)); /* gradients and step state are complete */
    if (o->state->skip) return TR_OK;
    for (int64_t k = 0; k < TR_OFFLOAD_BUFFERS && k < o->parts; k++) TR_TRY(bring(o, k));
    for (int64_t k = 0; k < o->parts; k++) {
        TR_TRY(tr_stream_sync(buffer_of(o, k)->stream)); /* the part has come */
        TR_TRY(step(o, k));
        if (k + TR_OFFLOAD_BUFFERS < o->parts) TR_TRY(bring(o, k + TR_OFFLOAD_BUFFERS));
    }
    for (int k = 0; k < TR_OFFLOAD_BUFFERS; k++) TR_TRY(tr_stream_sync(o->buffer[k].stream));
    return TR_OK;
}
