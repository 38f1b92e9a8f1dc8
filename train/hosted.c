#include "train/hosted.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "partition/offload.h"
#include "train/updates.h"

#include <stdlib.h>

/* Staging memory through which a part travels. Its stream copies to the host, and back, in the
 * order in which the memory is used, so a sync of the stream waits for this buffer's part alone. */
typedef struct part_buffer {
    tr_stream *stream;
    char *grad, *value; /* staging */
    char *direction;    /* that of grad, or another one if gradients are narrower */
} part_buffer;

/* The parts of a lap: `begin` .. `end` - 1, of which those from `directed` on have directions. */
typedef struct lap_parts {
    int64_t begin, directed, end;
} lap_parts;

struct tr_hosted {
    const tr_store *store;
    tr_directions *directions;
    tr_updates *updates;
    tr_run_part *part; /* [parts]: in the device's memory */
    int64_t parts;
    lap_parts *lap; /* [store->laps] */
    char *memory;   /* staging: the buffers, and the step state */
    part_buffer buffer[TR_OFFLOAD_BUFFERS];
    tr_step_state *state;
    double *norms; /* staging: of a lap's slots, in the order of `directions` */
};

static int64_t count_parts(const tr_store *store) {
    int64_t parts = 0;
    for (int i = 0; i < store->runs; i++)
        parts += (store->run[i].count + store->part - 1) / store->part;
    return parts;
}

/* Lists the parts of a lap that have directions, or those that have none. */
static void list_parts(tr_hosted *o, int lap, bool directed) {
    const tr_store *store = o->store;
    for (int i = 0; i < store->runs; i++) {
        if (tr_run_lap(store, i) != lap || tr_run_has_directions(store, i) != directed) continue;
        for (int64_t at = 0; at < store->run[i].count; at += store->part)
            o->part[o->parts++] =
                tr_run_part_of(store, i, at, tr_min_i64(store->part, store->run[i].count - at));
    }
}

static tr_status list_laps(tr_hosted *o) {
    const tr_store *store = o->store;
    TR_TRY(tr_calloc((size_t)count_parts(store) + 1, sizeof *o->part, &o->part));
    TR_TRY(tr_calloc((size_t)store->laps, sizeof *o->lap, &o->lap));
    for (int lap = 0; lap < store->laps; lap++) {
        o->lap[lap].begin = o->parts;
        list_parts(o, lap, false);
        o->lap[lap].directed = o->parts;
        list_parts(o, lap, true);
        o->lap[lap].end = o->parts;
    }
    return TR_OK;
}

static tr_status open_buffers(tr_hosted *o, tr_optim_memory optimizer) {
    const tr_store *store = o->store;
    const size_t grad = tr_offload_gradient_bytes(optimizer, store->dtype, store->part);
    const size_t value = tr_offload_value_bytes(store->dtype, store->part);
    const size_t direction = tr_offload_direction_bytes(optimizer, store->dtype, store->part);
    const size_t buffers = TR_OFFLOAD_BUFFERS * (grad + value + direction);
    TR_TRY(tr_device_kept_alloc(store->device, TR_MEMORY_OFFLOAD, buffers + sizeof *o->state,
                                (void **)&o->memory));
    o->state = (tr_step_state *)(void *)(o->memory + buffers);
    for (int k = 0; k < TR_OFFLOAD_BUFFERS; k++) {
        part_buffer *buffer = &o->buffer[k];
        buffer->grad = o->memory + (size_t)k * (grad + value + direction);
        buffer->value = buffer->grad + grad;
        buffer->direction = direction > 0 ? buffer->value + value : buffer->grad;
        TR_TRY(tr_stream_create(store->device, &buffer->stream));
    }
    return TR_OK;
}

static tr_status open_norms(tr_hosted *o) {
    int64_t most = 0;
    for (int lap = 0; lap < o->store->laps; lap++) {
        int64_t count;
        (void)tr_directions_lap_norms(o->directions, lap, &count);
        most = tr_max_i64(most, count);
    }
    if (most == 0) return TR_OK;
    return tr_device_staging_alloc(o->store->device, (size_t)most * sizeof(double),
                                   (void **)&o->norms);
}

tr_status tr_hosted_create(const tr_store *store, const tr_optim_config *config,
                           tr_directions *directions, tr_hosted **out) {
    tr_status status = TR_OK;
    tr_hosted *o;
    size_t scratch = 0;
    *out = NULL;
    if (!store->host) return TR_OK;
    TR_TRY(tr_calloc(1, sizeof *o, &o));
    o->store = store;
    o->directions = directions;
    TR_TRY_OUT(open_buffers(o, tr_optim_memory_of(config)));
    TR_TRY_OUT(open_norms(o));
    TR_TRY_OUT(list_laps(o));
    TR_TRY_OUT(tr_updates_create(store, config, &scratch, &o->updates));
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
    tr_updates_destroy(o->updates);
    tr_device_kept_free(o->store->device, o->memory);
    tr_device_staging_free(o->store->device, o->norms);
    free(o->lap);
    free(o->part);
    free(o);
}

static part_buffer *buffer_of(tr_hosted *o, int64_t k) {
    return &o->buffer[k % TR_OFFLOAD_BUFFERS];
}

/* Enqueues the copies of part k to the host, after the return of the part before in its buffer:
 * its gradients, or its directions. */
static tr_status bring(tr_hosted *o, int64_t k, bool descends) {
    const tr_store *store = o->store;
    const tr_run_part *part = &o->part[k];
    const part_buffer *buffer = buffer_of(o, k);
    const size_t n = (size_t)part->count;
    if (descends)
        TR_TRY(tr_stream_copy(buffer->stream, buffer->direction, part->direction,
                              n * tr_dtype_size(store->acc)));
    else
        TR_TRY(tr_stream_copy(buffer->stream, buffer->grad, part->grad,
                              n * tr_dtype_size(store->grad_dtype)));
    if (tr_store_has_masters(store)) return TR_OK;
    return tr_stream_copy(buffer->stream, buffer->value, part->value,
                          n * tr_dtype_size(store->dtype));
}

/* Returns the norms of a run's tensor in the host's memory. */
static const double *norms_of(const tr_hosted *o, int run) {
    int64_t count;
    const double *first = tr_directions_lap_norms(o->directions, tr_run_lap(o->store, run), &count);
    return o->norms + (tr_directions_norms(o->directions, o->store->run[run].slot) - first);
}

/* Steps part k, which the host has, and enqueues the return of its values, or of its directions. */
static tr_status step(tr_hosted *o, int64_t k, bool descends) {
    const tr_store *store = o->store;
    const tr_run_part *part = &o->part[k];
    const part_buffer *buffer = buffer_of(o, k);
    tr_stream *stream = tr_device_compute(store->host);
    const size_t n = (size_t)part->count;
    tr_run_part here = *part;
    here.grad = buffer->grad;
    here.value = buffer->value;
    if (here.direction) here.direction = buffer->direction;
    if (descends)
        TR_TRY(
            tr_updates_descend(o->updates, &here, norms_of(o, part->run), stream, o->state, NULL));
    else TR_TRY(tr_updates_step(o->updates, &here, stream, o->state, NULL));
    if (part->direction && !descends)
        return tr_stream_copy(buffer->stream, part->direction, buffer->direction,
                              n * tr_dtype_size(store->acc));
    return tr_stream_copy(buffer->stream, part->value, buffer->value,
                          n * tr_dtype_size(store->dtype));
}

/* Steps parts begin .. end - 1, and waits until all have returned. */
static tr_status step_parts(tr_hosted *o, int64_t begin, int64_t end, bool descends) {
    for (int64_t k = begin; k < begin + TR_OFFLOAD_BUFFERS && k < end; k++)
        TR_TRY(bring(o, k, descends));
    for (int64_t k = begin; k < end; k++) {
        TR_TRY(tr_stream_sync(buffer_of(o, k)->stream)); /* the part has come */
        TR_TRY(step(o, k, descends));
        if (k + TR_OFFLOAD_BUFFERS < end) TR_TRY(bring(o, k + TR_OFFLOAD_BUFFERS, descends));
    }
    for (int k = 0; k < TR_OFFLOAD_BUFFERS; k++) TR_TRY(tr_stream_sync(o->buffer[k].stream));
    return TR_OK;
}

/* Completes the directions of a lap on the device, and brings their norms. */
static tr_status complete(tr_hosted *o, int lap, tr_stream *stream, tr_step_state *state,
                          void *scratch) {
    int64_t count;
    const double *norms = tr_directions_lap_norms(o->directions, lap, &count);
    if (count == 0) return TR_OK;
    TR_TRY(tr_directions_complete(o->directions, lap, stream, state, scratch));
    TR_TRY(tr_stream_copy(stream, o->norms, norms, (size_t)count * sizeof(double)));
    return tr_world_sync(o->store->world, stream); /* directions and norms are complete */
}

tr_status tr_hosted_run(tr_hosted *o, tr_stream *stream, tr_step_state *state, void *scratch) {
    TR_TRY(tr_stream_copy(stream, o->state, state, sizeof *state));
    TR_TRY(tr_world_sync(o->store->world, stream)); /* gradients and step state are complete */
    if (o->state->skip) return TR_OK;
    for (int lap = 0; lap < o->store->laps; lap++) {
        const lap_parts *parts = &o->lap[lap];
        TR_TRY(step_parts(o, parts->begin, parts->end, false));
        TR_TRY(complete(o, lap, stream, state, scratch));
        TR_TRY(step_parts(o, parts->directed, parts->end, true));
    }
    return TR_OK;
}
